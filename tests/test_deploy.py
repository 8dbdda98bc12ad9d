"""What is in deploy/: the daemon's example, its image, how it stands beside a training in Slurm and Kubernetes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from guard.clock import FakeClock
from guard.daemon import settings
from guard.daemon.page import Page
from guard.daemon.service import Daemon

DEPLOY = Path(__file__).parent.parent / "deploy"
REQUIREMENT = re.compile(r"^[A-Za-z].*$", re.MULTILINE)


def test_the_daemons_example_is_checked_and_names_every_key() -> None:
    file = DEPLOY / "guard-daemon.yaml"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLACK_")}
    done = subprocess.run(
        [sys.executable, "-m", "guard", "check", str(file)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no problems. It is the daemon's" in done.stdout.replace("\n", " ")
    assert set(YAML(typ="safe").load(file)) == set(settings.KEYS)


def test_the_image_holds_all_that_the_package_needs_but_torch() -> None:
    project = (DEPLOY.parent / "pyproject.toml").read_text("utf-8")
    needed = set(re.findall(r'"([^"]+)"', re.search(r"^dependencies = \[(.*?)^\]", project, re.M | re.S)[1]))
    needed |= set(re.findall(r'"([^"]+)"', re.search(r"^stacks = \[(.*?)\]", project, re.M)[1]))
    listed = set(REQUIREMENT.findall((DEPLOY / "container/requirements.txt").read_text("utf-8")))
    assert needed - listed == {requirement for requirement in needed if requirement.startswith("torch")}
    assert listed <= needed


def test_the_image_copies_what_is_there() -> None:
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", (DEPLOY / "container/Containerfile").read_text("utf-8"), re.M)
    assert [p for line in copies for p in line.split() if not (DEPLOY.parent / p).exists()] == []


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[Daemon, Page]]:
    told = settings.Settings(home=(tmp_path / "home",), listen="off")
    daemon = Daemon(told, tmp_path / "state", FakeClock(), lambda text: None)
    served = Page(daemon, ("127.0.0.1", 0))
    yield daemon, served
    served.close()
    daemon.close(0.0)


def healthy(port: int) -> int:
    command = [sys.executable, str(DEPLOY / "container/healthy.py")]
    environment = {**os.environ, "GUARD_PAGE": f"127.0.0.1:{port}"}
    return subprocess.run(command, env=environment, capture_output=True, timeout=30, check=False).returncode


def test_the_image_is_healthy_as_long_as_no_job_is_stuck(page: tuple[Daemon, Page]) -> None:
    daemon, served = page
    assert healthy(served.port) == 0
    daemon.clock.advance(1000)  # type: ignore[attr-defined]
    assert healthy(served.port) == 1


def test_in_kubernetes_daemon_and_training_find_each_other() -> None:
    documents = list(YAML(typ="safe").load_all(DEPLOY / "kubernetes/train.yaml"))
    (pod,) = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "Job"]
    (daemon,), (train,) = pod["initContainers"], pod["containers"]
    assert pod["shareProcessNamespace"], "of one hostname, but of two process namespaces, a run would be called dead"
    assert daemon["restartPolicy"] == "Always", "else the training would wait for its end"

    def said(container: dict[str, Any], name: str) -> Any:
        return next(e for e in container["env"] if e["name"] == name)

    for name in ("GUARD_HOME", "SLACK_BOT_TOKEN"):
        assert said(daemon, name) == said(train, name)
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounts = [{m["name"]: m["mountPath"] for m in container["volumeMounts"]} for container in (daemon, train)]
    assert mounts[0]["runs"] == mounts[1]["runs"], "a run announces where it is"
    assert all(set(mount) <= volumes for mount in mounts)
    assert said(daemon, "STATE_DIRECTORY")["value"] in mounts[0].values()


def test_the_slurm_script_is_one() -> None:
    done = subprocess.run(["bash", "-n", str(DEPLOY / "slurm/train.sbatch")], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
