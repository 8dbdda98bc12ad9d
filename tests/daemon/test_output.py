"""What a command writes comes through unchanged, whatever becomes of its readers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from guard.daemon.child import ChildProcess
from guard.daemon.output import Output, Pipes, Tail

BAR = "import sys\nfor i in range(3): print(f'\\r{i}/3', end='', file=sys.stderr, flush=True)"
TERMINAL = (
    "import os, shutil, sys\n"
    "print(sys.stdout.isatty(), sys.stderr.isatty(), shutil.get_terminal_size((33, 7)).columns)\n"
    "try: os.get_terminal_size()\n"
    "except OSError as error: print(error.errno)"
)


class Sink:
    """Where stdout and stderr are passed on to."""

    def __init__(self) -> None:
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - until they are read
        self.streams = (self._files[0].fileno(), self._files[1].fileno())

    def read(self) -> tuple[bytes, bytes]:
        found = []
        for file in self._files:
            with file:
                file.seek(0)
                found.append(file.read())
        return found[0], found[1]


def test_the_end_of_a_stream_is_bounded_and_readable():
    tail = Tail()
    for n in range(10_000):
        tail.add(f"line {n}\r\n".encode())
    tail.add(b"step 1\rstep 2\rstep 3")
    assert tail.lines(3) == ["line 9998", "line 9999", "step 3"]
    assert len(tail.lines(100_000)) < 10_000
    tail.add(b"\n" + b"x" * 5_000_000 + b"\xff\n\n")
    (line,) = tail.lines(1)
    assert len(line) == 400


@pytest.mark.parametrize(
    ("command", "out", "err"),
    [
        ([sys.executable, "-c", "print('a'); open('/dev/stdout', 'w').write('b'); print('c')"], b"a\nbc\n", b""),
        ([sys.executable, "-c", BAR], b"", b"\r0/3\r1/3\r2/3"),
        ([sys.executable, "-c", TERMINAL], b"False False 33\n25\n", b""),
        (["sh", "-c", "echo one; echo two > /dev/stdout; echo three >> /dev/stderr"], b"one\ntwo\n", b"three\n"),
        (["sh", "-c", "echo one; echo two | tee /dev/stderr; echo three >&2"], b"one\ntwo\n", b"two\nthree\n"),
        (["sh", "-c", "printf '\\000\\377\\r\\n'"], b"\x00\xff\r\n", b""),
        (["sh", "-c", "(sh -c 'echo grandchild' &) ; wait"], b"grandchild\n", b""),
    ],
)
def test_a_command_finds_what_it_finds_in_any_pipe(command, out, err, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    sink = Sink()
    child = ChildProcess(command, os.environ, sink.streams)
    child.close()
    assert sink.read() == (out, err)


def test_megabytes_come_through_whole(tmp_path):
    data = os.urandom(5_000_000)
    (tmp_path / "data").write_bytes(data)
    with (tmp_path / "out").open("wb") as file:
        child = ChildProcess(["cat", str(tmp_path / "data")], os.environ, (file.fileno(), 2))
        child.close()
    assert (tmp_path / "out").read_bytes() == data
    assert child.poll() == 0


def forsaken(command: list[str]) -> tuple[subprocess.Popen[bytes], Pipes]:
    """A command whose supervisor has died, together with its ends of the pipes."""
    pipes = Pipes(os.environ)
    process = subprocess.Popen(command, stdout=pipes.out, stderr=pipes.err)
    pipes.abandon()
    return process, pipes


def taken_over(pipes: Pipes) -> tuple[bytes, bytes]:
    """What another supervisor finds."""
    sink = Sink()
    output = Output.taken_over(pipes.relay, sink.streams)
    output.close()
    pipes.process.wait(30)
    return sink.read()


def test_a_command_whose_supervisor_is_gone_writes_on_and_another_finds_the_end_of_it():
    process, pipes = forsaken(["sh", "-c", "seq 1000000; exit 3"])
    assert process.wait(60) == 3, "nobody has blocked it or closed its stdout"
    out, err = taken_over(pipes)
    assert out.endswith(b"\n999999\n1000000\n")
    assert 1 << 20 <= len(out) < 3 << 20, "bounded"
    assert err == b""


def test_what_a_command_has_said_at_its_end_waits_for_the_next_supervisor():
    process, pipes = forsaken(["sh", "-c", "echo trouble >&2; exit 1"])
    assert process.wait(30) == 1
    assert taken_over(pipes) == (b"", b"trouble\n")


def test_what_ends_commands_does_not_end_a_relay(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    read, write = os.pipe()
    child = ChildProcess(["sh", "-c", f"echo ready; read go < {tmp_path}/fifo; echo $go"], os.environ, (write, write))
    assert os.read(read, 100) == b"ready\n"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(child.handle()["relay"].pid, number)
    (tmp_path / "fifo").write_text("gone through\n")
    assert os.read(read, 100) == b"gone through\n"
    child.close()
    for fd in (read, write):
        os.close(fd)
