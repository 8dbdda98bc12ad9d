"""The project as a whole: the wheel is complete, the light rooms stay light, the rooms are where DESIGN says."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WITHOUT_TORCH = [
    "guard",
    "guard.detectors",
    "guard.actions",
    "guard.policy",
    "guard.policy.engine",
    "guard.notify",
    "guard.daemon.supervise",
    "guard.daemon.loop",
    "guard.incidents",
    "guard.incidents.plot",
    "guard.receivers",
    "guard.cli",
]


def test_the_wheel_holds_package_and_policies(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("training_guard-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "guard/py.typed" in names
    assert {f"guard/_policies/{p.name}" for p in (ROOT / "policies").glob("*.yaml")} <= set(names)
    assert {str(p.relative_to(ROOT)) for p in (ROOT / "guard").rglob("*.py")} <= set(names)
    assert not [n for n in names if n.startswith(("tests/", "benchmarks/"))]


def test_a_policy_is_loaded_from_the_wheel(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("training_guard-*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import guard.policy;"
        "assert guard.__file__.startswith(sys.argv[1]), guard.__file__; print(guard.policy.load('default').name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "installed")],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "default"


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_loads_where_importing_torch_fails(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_public_names_exist() -> None:
    import guard

    assert all(getattr(guard, name) is not None for name in guard.__all__)
    with pytest.raises(AttributeError, match="no attribute 'atach'"):
        _ = guard.atach
