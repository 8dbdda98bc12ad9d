"""What `guard daemon` costs: 20 and 200 runs, each of which ticks once a second and has an incident now and then.

    python benchmarks/daemon.py [--seconds 60]

A real daemon in a process of its own; the runs are written by this one as a guard inside would (heartbeat, signals.csv,
journal), from a single thread. Printed: the daemon's processor time as a share of one core and its memory, for both
numbers of runs; what 200 cost beside 20.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from guard.clock import SystemClock
from guard.home import Home, run_id
from guard.incidents import journal
from guard.incidents.rundir import CSV_COLUMNS
from guard.process import boot_id, started

WARM_UP = 15.0  # [s] until the daemon knows all runs


class Hook(BaseHTTPRequestHandler):
    """Takes every message."""

    heard = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Hook.heard += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Run:
    """A run directory, kept as a live guard keeps it."""

    def __init__(self, path: Path, number: int) -> None:
        path.mkdir(mode=0o700, parents=True)
        self.path, self.number, self.tick = path, number, 0
        owner = {"host": socket.gethostname(), "boot": boot_id(), "pid": os.getpid(), "started": started(os.getpid())}
        (path / "owner.json").write_text(json.dumps({**owner, "expires": 4e9}))
        (path / "policy.yaml").write_text("version: 1\npolicies: []\n")
        (path / "signals.csv").write_text(",".join(CSV_COLUMNS) + "\n")
        self.seq = 0
        self.journal("run_started", run=path.name, run_dir=str(path), host=socket.gethostname(), mode="enforce", pid=1)

    def journal(self, kind: str, **keys: object) -> None:
        where = {"kind": kind, "tick": self.tick, "step": self.tick}
        entry = {"v": 1, "seq": self.seq, "time": time.time(), **where, **keys}
        self.seq += 1
        with (self.path / journal.NAME).open("ab") as file:
            file.write(journal.encode(entry))

    def second(self) -> None:
        self.tick += 1
        beat = f"{self.tick} {self.tick} step {time.monotonic():.3f} {time.time():.3f}".ljust(79) + "\n"
        (self.path / "heartbeat.0").write_text(beat)
        with (self.path / "signals.csv").open("a") as file:
            file.write(f"{self.tick},{self.tick},2.3,1.0,0.001,0.001,1,0\n")
        if (self.tick + self.number) % 60 == 0:
            self.incident()

    def incident(self) -> None:
        name = f"i{self.seq:04d}"
        numbers = {"value": 9.0, "threshold": 5.0, "baseline": 2.0, "since": self.tick}
        detection = {"signal": "loss", "message": "a spike", **numbers}
        known = {"policy": "p", "detector": "loss_spike", "severity": "warning", "detection": detection}
        self.journal("incident_opened", incident=name, **known, observed=False, attached_to=None, signals=[])
        self.journal("incident_closed", incident=name, status="resolved", count=1, outcome={})


def measure(count: int, seconds: float) -> tuple[float, float]:
    """Share of one core, and memory [MB], of a daemon that watches `count` runs."""
    with tempfile.TemporaryDirectory() as folder, ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = Path(folder)
        home = Home(root / "home", SystemClock())
        settings = root / "daemon.yaml"
        settings.write_text(
            f"version: 1\nhome: {root / 'home'}\nlisten: off\n"
            f"receivers:\n  hook: {{type: webhook, url: 'http://127.0.0.1:{server.server_port}/'}}\n"
        )
        runs = [Run(root / "runs" / f"r{i:03d}", i) for i in range(count)]
        for run in runs:
            said = home.announce_run(run.path, run.path.name)
            assert said.id == run_id(socket.gethostname(), str(run.path))
        command = [sys.executable, "-m", "guard", "daemon", str(settings), "--state", str(root / "state")]
        daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + WARM_UP
            before = began = 0.0
            while time.monotonic() < end + seconds:
                next_second = time.monotonic() + 1.0
                if before == 0.0 and time.monotonic() >= end:
                    before, began = _cpu(daemon.pid), time.monotonic()
                for run in runs:
                    run.second()
                time.sleep(max(0.0, next_second - time.monotonic()))
            share = (_cpu(daemon.pid) - before) / (time.monotonic() - began)
            return share, _memory(daemon.pid)
        finally:
            daemon.terminate()
            daemon.wait(20)
            server.shutdown()
            print(f"{count} runs: {Hook.heard} messages arrived", file=sys.stderr)


def _cpu(pid: int) -> float:
    """Seconds of processor time, its finished children included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    found = {count: measure(count, given.seconds) for count in (20, 200)}
    print("| runs | share of one core | memory [MB] |")
    print("|---|---|---|")
    for count, (share, memory) in found.items():
        print(f"| {count} | {share:.1%} | {memory:.0f} |")
    ratio = found[200][0] / found[20][0]
    print(f"\n200 runs cost {ratio:.1f} times what 20 do (linear: 10).")
