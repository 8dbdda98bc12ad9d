"""What the documents say is true: their code runs, their YAML loads, their paths exist, their commands are known."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from guard.daemon import settings
from guard.policy import parse

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[pytest.param]:
    found = [(d, m) for d in DOCUMENTS for m in BLOCK.finditer(d.read_text("utf-8")) if m[1] == language]
    return [pytest.param(m[2], id=f"{d.name}:{d.read_text('utf-8')[: m.start()].count(chr(10)) + 2}") for d, m in found]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_loads(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLACK_BOT_TOKEN", raising=False)
    file = tmp_path / "example.yaml"
    file.write_text(text, "utf-8")
    if settings.is_settings(file):
        assert settings.load(file).receivers
    else:
        assert parse(text, None).policies


@pytest.mark.parametrize("text", blocks("console"))
def test_commands_are_known(text: str) -> None:
    for line in re.findall(r"^\$ (.*?)(?:\s+#.*)?$", text, re.MULTILINE):
        program, command, *_ = line.split()
        if program == "make":
            assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        else:
            assert program == "guard", line
            done = subprocess.run(
                [sys.executable, "-m", "guard", command, "--help"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, line


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_paths_exist(document: Path) -> None:
    text = BLOCK.sub("", document.read_text("utf-8"))
    named = re.findall(r"`((?:guard|tests|docs|benchmarks|examples|deploy|policies)/[\w./-]*)`", text)
    named += [p for p in re.findall(r"\]\(([^)]+)\)", text) if "://" not in p]
    assert [p for p in named if not (ROOT / p).exists()] == []
