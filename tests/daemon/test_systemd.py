"""The units: systemd accepts them, they keep to what the daemon needs, and no token is in them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from guard.daemon import jobs

FOLDER = Path(__file__).parent.parent.parent / "deploy/systemd"
UNITS = sorted(FOLDER.glob("*.service"))
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def keys(unit: Path) -> list[tuple[str, str]]:
    lines = (line.partition("=") for line in unit.read_text("utf-8").splitlines() if not line.startswith(("#", "[")))
    return [(key, value) for key, equals, value in lines if equals]


def analyze(*arguments: str, runtime: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "LC_ALL": "C"}
    return subprocess.run(
        ["systemd-analyze", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the units as they would be where `guard` is this interpreter."""
    for unit in UNITS:
        text = unit.read_text("utf-8")
        for place in ("%h/.local/bin/guard", "/opt/training-guard/bin/guard"):
            text = text.replace(f"ExecStart={place} ", f"ExecStart={sys.executable} -m guard ")
        (tmp_path / unit.name).write_text(text)
    return tmp_path


def test_there_is_one_for_a_user_for_the_system_and_for_a_hub() -> None:
    assert [unit.name for unit in UNITS] == [
        "guard-daemon-hub.service",
        "guard-daemon.service",
        "guard-daemon@.service",
    ]


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_it(unit: Path, installed: Path) -> None:
    scope = ["--user"] if unit.name == "guard-daemon.service" else []
    found = analyze("verify", *scope, str(installed / unit.name), runtime=installed)
    if "Failed to initialize manager" in found.stderr:
        pytest.skip(f"systemd-analyze cannot work here: {found.stderr.strip()}")
    assert (found.returncode, found.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize(
    ("name", "most"),
    [("guard-daemon.service", 6.5), ("guard-daemon@.service", 2.5), ("guard-daemon-hub.service", 2.5)],
)
def test_it_is_not_more_exposed_than_it_was(name: str, most: float, installed: Path) -> None:
    found = analyze(
        "security", "--offline=true", f"--threshold={most * 10:.0f}", str(installed / name), runtime=installed
    )
    if "nknown option" in found.stderr or "unrecognized option" in found.stderr:
        pytest.skip("this systemd-analyze cannot look at units that are not installed")
    assert found.returncode == 0, found.stdout[-200:] + found.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_it_speaks_the_daemons_protocol(unit: Path) -> None:
    said = dict(keys(unit))
    assert said["Type"] == "notify"
    assert said["Restart"] == "on-failure"
    assert said["ExecReload"] == f"/bin/kill -{signal.SIGHUP.name[3:]} $MAINPID"
    assert float(said["WatchdogSec"]) > jobs._STUCK, "a job that is merely late would cost the daemon its life"
    assert float(said["TimeoutStopSec"]) > 10, "messages under way at the end get 10 s"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_no_secret_is_in_it(unit: Path) -> None:
    said = keys(unit)
    assert not [key for key, _ in said if key in ("Environment", "SetCredential")]
    assert not [value for _, value in said if "xoxb-" in value or "xapp-" in value]
    assert any(key == "EnvironmentFile" and value.startswith("-") for key, value in said)


def test_a_users_unit_asks_for_no_namespace() -> None:
    """They would put it into a user namespace, from which it could not look at the processes of a run that hangs."""
    asked = {key for key, _ in keys(FOLDER / "guard-daemon.service")}
    assert not [key for key in asked if key.startswith(("Protect", "Private", "ReadWrite", "DynamicUser"))]


def test_a_real_daemon_keeps_to_it(tmp_path: Path) -> None:
    """Ready, alive, reloaded, stopping, as systemd would see it."""
    file = tmp_path / "daemon.yaml"
    file.write_text("version: 1\nlisten: off\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(60)
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "300000",
            "STATE_DIRECTORY": str(tmp_path / "state"),
            "GUARD_HOME": str(tmp_path / "home"),
        }
        command = [sys.executable, "-m", "guard", "daemon", str(file)]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                assert heard.recv(100) == b"READY=1"
                assert heard.recv(100).startswith(b"WATCHDOG=1\nSTATUS=watching 0 runs")
                process.send_signal(signal.SIGHUP)
                assert any("new settings are in force" in line for line in process.stderr)
                process.terminate()
                while (said := heard.recv(100)) != b"STOPPING=1":
                    assert said.startswith(b"WATCHDOG=1")
                assert process.wait(60) == 0
            finally:
                process.kill()
    assert (tmp_path / "state/daemon.db").exists()
