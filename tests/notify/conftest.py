from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from notify.fake_slack import TOKEN, FakeSlack
from notify.night import Night

from guard.clock import FakeClock
from guard.notify import Courier, ReceiverSpec, outbox


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_SYNCHRONOUS", "OFF")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def slack(clock: FakeClock) -> Iterator[FakeSlack]:
    fake = FakeSlack(clock).start()
    yield fake
    fake.stop()


@pytest.fixture
def night(tmp_path: Path, clock: FakeClock) -> Night:
    return Night(tmp_path / "exp1", clock)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def spec(slack: FakeSlack) -> ReceiverSpec:
    return ReceiverSpec(
        "training", "slack", channel="#training", token=TOKEN, base_url=slack.url, mention="<@U012>", timeout=2.0
    )


@pytest.fixture
def courier(night: Night, clock: FakeClock, said: list[str], spec: ReceiverSpec) -> Callable[..., Courier]:
    def make(*specs: ReceiverSpec, **options: Any) -> Courier:
        return Courier(night.run_dir, specs or [spec], clock=clock, say=said.append, **options)

    return make


@pytest.fixture
def deliver(clock: FakeClock) -> Callable[[Courier], None]:
    def until_told(courier: Courier, passes: int = 60) -> None:
        """Passes with the waits that the courier asks for, until nothing waits."""
        for _ in range(passes):
            progress = courier.deliver_once()
            if not progress.waiting:
                return
            clock.advance((progress.next_try or 0.0) + 0.01)
        raise AssertionError(f"still waiting after {passes} passes: {courier.pending()}")

    return until_told
