"""A Slack that accepts connections and never answers: neither a step nor the end of the run waits for it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from guard.notify import ReceiverSpec

from .conftest import Train


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a server that takes every connection and says nothing."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    taken: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                taken.append(listener.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/api/"
    listener.close()
    for connection in taken:
        connection.close()


def slack(url: str) -> ReceiverSpec:
    return ReceiverSpec("team", "slack", channel="#training", token="xoxb-1", base_url=url, timeout=30.0)


def test_steps_do_not_wait(train: Train, silent: str) -> None:
    run = train(receivers=[slack(silent)])
    start = time.monotonic()
    for _ in range(5):
        run.fault()
    assert time.monotonic() - start < 15.0  # one call to Slack would take 30
    assert run.finite
    assert [i.status for i in run.guard.incidents] == ["resolved"] * 5
    run.guard.close(timeout=0.1)


def test_closing_waits_as_long_as_it_is_told_to(train: Train, silent: str) -> None:
    run = train(receivers=[slack(silent)])
    run.fault()
    start = time.monotonic()
    run.guard.close(timeout=0.5)
    assert time.monotonic() - start < 4.0
    assert run.kinds[-1] == "run_finished"


@pytest.mark.slow
def test_closing_takes_five_seconds_at_most(train: Train, silent: str) -> None:
    run = train(receivers=[slack(silent)])
    run.fault()
    start = time.monotonic()
    run.guard.close()
    assert time.monotonic() - start < 5.0 + 2.0


def test_what_could_not_be_told_waits_in_the_outbox(train: Train, silent: str) -> None:
    from guard.clock import SystemClock
    from guard.notify import Courier

    run = train(receivers=[slack(silent)])
    run.fault()
    run.guard.close(timeout=0.5)
    courier = Courier(run.run_dir, [slack(silent)], clock=SystemClock())
    assert [p.incident for p in courier.pending()] == ["i0001"]
