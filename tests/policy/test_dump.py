"""What is dumped loads again, to the same set."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard import policy
from guard.policy import Checkpoints, Disk, PolicySet

HERE = Path(__file__).parent
pytestmark = pytest.mark.usefixtures("plug_ins")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize("file", [HERE / "every_construct.yaml", HERE / "bad" / "parts" / "sound.yaml"])
def test_round_trip(file: Path) -> None:
    loaded = policy.load(file)
    assert policy.load(policy.parse(policy.dump(loaded))) == loaded


def test_what_it_looks_like() -> None:
    assert (
        policy.dump(policy.load(HERE / "bad" / "parts" / "sound.yaml"))
        == """\
version: 1
name: sound
deliver: auto
checkpoints: {every: 100, keep: 3, memory: 0.25, probation: 20}
policies:
- name: shakes
  description: ""
  severity: warning
  trigger: {type: shaky, window: 64, threshold: 4.0, signal: loss}
  actions:
  - type: nudge
    by: auto
    times: 1
    side: left
    gently: true
    wait: 0.0
    labels: []
  limits: {cooldown: 0}
  for: 1
  resolve_after: 20
  on_exhausted: notify
  max_seconds: 5.0
receivers:
  team: {type: console, min_severity: info, remind_every: 14400.0, lifecycle: false}
"""
    )


@given(name=TEXT, channel=TEXT, description=TEXT)
def test_any_text_comes_back(name: str, channel: str, description: str) -> None:
    loaded = policy.load(
        {
            "version": 1,
            "name": name.replace("${", "$${"),
            "policies": [
                {"name": "one", "trigger": {"type": "shaky"}, "description": description.replace("${", "$${")}
            ],
            "receivers": {
                channel: {"type": "slack", "token": "${SLACK_BOT_TOKEN}", "channel": channel.replace("${", "$${")}
            },
        }
    )
    assert (loaded.name, loaded.policies[0].description) == (name, description)
    assert policy.parse(policy.dump(loaded)) == loaded


@given(every=st.integers(1, 10**9) | st.floats(1e-6, 1e9) | st.just("auto"))
def test_a_disk_interval_stays_steps_or_seconds(every: int | float | str) -> None:
    loaded = PolicySet(checkpoints=Checkpoints(disk=Disk(every=every)))
    again = policy.parse(policy.dump(loaded))
    assert again == loaded
    assert type(again.checkpoints.disk.every) is type(every)
