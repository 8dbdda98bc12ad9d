"""Real processes: what they write, and how all of them are found and ended."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

import pytest

from guard.daemon import stacks
from guard.daemon.child import ChildProcess
from guard.supervised import MARK, show_stacks_on_quit

PYTHON = sys.executable
PROGRAMS = Path(__file__).with_name("programs.py")


class Pipes:
    """Where the output goes."""

    def __init__(self) -> None:
        self.pairs = os.pipe(), os.pipe()
        self.streams = (self.pairs[0][1], self.pairs[1][1])

    def read(self) -> tuple[bytes, bytes]:
        for write in self.streams:
            os.close(write)
        found = []
        for read, _ in self.pairs:
            with os.fdopen(read, "rb") as file:
                found.append(file.read())
        return found[0], found[1]


def start(code: str, *arguments: str, **environment: str) -> tuple[ChildProcess, Pipes]:
    pipes = Pipes()
    child = ChildProcess([sys.executable, "-c", code, *arguments], {**os.environ, **environment}, pipes.streams)
    return child, pipes


def finish(child: ChildProcess) -> int:
    child.close()
    code = child.poll()
    assert code is not None
    return code


def test_output_is_passed_on_kept_apart_and_its_end_remembered():
    child, pipes = start("import sys; print('answer'); print('trouble', file=sys.stderr); sys.exit(3)")
    assert finish(child) == 3
    assert pipes.read() == (b"answer\n", b"trouble\n")
    assert child.last(5) == (["answer"], ["trouble"])


def test_a_session_of_its_own_and_a_mark():
    child, pipes = start(
        "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid(), os.environ['" + MARK + "'])", **{MARK: "outer"}
    )
    assert finish(child) == 0
    said = pipes.read()[0].split()
    assert said[0] == b"True"
    assert said[1].startswith(b"outer:")


def test_a_reader_that_has_gone_does_not_block_the_command():
    read, write = os.pipe()
    os.close(read)
    child = ChildProcess([sys.executable, "-c", "print('x' * 1_000_000)"], os.environ, (write, write))
    assert finish(child) == 0
    os.close(write)


def test_a_command_that_is_not_there():
    with pytest.raises(FileNotFoundError):
        ChildProcess(["no-such-command"], os.environ)


def test_all_of_the_family_is_found_and_killed_even_in_another_session(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    child = ChildProcess([sys.executable, str(PROGRAMS), "orphan", str(tmp_path)], os.environ)
    with (tmp_path / "fifo").open("rb", buffering=0) as fifo:
        said = b""
        while said.count(b" ") < 2:
            said += fifo.read(100)
        assert sorted(child.family()) == sorted(map(int, said.split()))
        child.send(signal.SIGTERM, group=False)
        assert child._process.wait(30) == -signal.SIGTERM
        (left,) = child.family()
        child.send(signal.SIGTERM, group=True)  # which it ignores
        assert child.family() == [left]
        child.kill()
        assert fifo.read() == b"", "the pipe has no writer any more"
    child.close()
    assert child.family() == []


@pytest.fixture
def spy(tmp_path, monkeypatch):
    """A py-spy of our own; the real one is optional."""

    def make(script: str) -> None:
        file = tmp_path / "py-spy"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o700)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return make


def test_stacks_of_all_threads_where_py_spy_may_look(spy):
    spy('echo "Thread $3 (idle): MainThread wait_for_data"')
    (name, text), *_ = stacks.look([os.getpid()]).items()
    assert name.endswith(f"pid {os.getpid()}")
    assert f"Thread {os.getpid()} (idle): MainThread wait_for_data" in text
    assert "State: " in text


def test_stacks_where_it_may_not(spy):
    spy('echo "Permission denied" >&2; exit 1')
    (text,) = stacks.look([os.getpid()]).values()
    assert "no stacks: Permission denied" in text


def test_a_rank_is_named(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    code = "import os, signal, sys; open(sys.argv[1], 'w').close(); signal.pause()"
    child, pipes = start(code, str(tmp_path / "fifo"), RANK="3")
    assert (tmp_path / "fifo").read_bytes() == b""
    assert list(stacks.look(child.family())) == [f"rank 3, pid {child.pid}"]
    child.kill()
    assert finish(child) == -signal.SIGKILL
    pipes.read()


def test_without_py_spy_whoever_listens_to_quit_is_asked_and_nobody_else(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    code = (
        "import signal, sys\n"
        "from guard.supervised import show_stacks_on_quit\n"
        "if sys.argv[2] == 'listens': show_stacks_on_quit()\n"
        "def waits_for_data():\n"
        "    open(sys.argv[1], 'w').close()\n"
        "    signal.pause()\n"
        "    signal.pause()\n"
        "waits_for_data()\n"
    )
    said = []
    for which in ("listens", "deaf"):
        pipes = Pipes()
        child = ChildProcess([PYTHON, "-c", code, str(tmp_path / "fifo"), which], os.environ, pipes.streams)
        assert (tmp_path / "fifo").read_bytes() == b""
        with monkeypatch.context() as patched:
            patched.setenv("PATH", str(tmp_path))
            patched.setattr(sys, "executable", str(tmp_path / "python"))
            said.append("asked to write them" in str(stacks.look(child.family())))
        stderr = b""
        while said[-1] and b"in waits_for_data" not in stderr:
            stderr += os.read(pipes.pairs[1][0], 10_000)
        child.send(signal.SIGTERM, group=False)
        assert finish(child) == -signal.SIGTERM, "and not of SIGQUIT"
        assert ("in waits_for_data" in str(child.last(100)[1])) == said[-1]
        pipes.read()
    assert said == [True, False]


def test_nothing_listens_to_quit_without_a_supervisor(monkeypatch):
    monkeypatch.delenv(MARK, raising=False)
    show_stacks_on_quit()
    assert not faulthandler.unregister(signal.SIGQUIT)
