"""checkpoints: list, verify, export."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from guard.checkpoints import DiskStore, TrainingState, to_portable
from guard.cli import _runs
from guard.clock import FakeClock

LIST = """\
Step   Tick  Age           Size  Ranks  State
  10     12  3 h 0 min  66.1 kB      1  good
1200  1,260  5 min      66.1 kB      1  probation
"""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("mask", torch.ones(3), persistent=False)


def write(folder: Path, *saved: tuple[int, int, float, str], odd: Any = None) -> Model:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["odd"] = odd
    state = TrainingState(model, [optimizer], {})
    clock = FakeClock()
    store = DiskStore(folder, keep=9, clock=clock)
    for step, tick, at, what in saved:
        clock.now = at
        store.save(to_portable(state, state.capture(tick, step)), state=what)  # type: ignore[arg-type]
        assert store.wait(30)
        assert store.outcomes()[-1].kind == "saved"
    assert store.close(30)
    return model


@pytest.fixture
def saved(night, monkeypatch) -> Model:
    clock = FakeClock()
    monkeypatch.setattr(_runs, "CLOCK", clock)
    return write(
        night.path / "checkpoints", (10, 12, clock.now - 3 * 3600, "good"), (1200, 1260, clock.now - 300, "probation")
    )


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def plain(text: str) -> list[list[str]]:
    """Without sizes, which depend on torch's version."""
    return [[w for w in line.split() if "." not in w and w != "kB"] for line in text.splitlines()]


def test_list(guard, saved):
    answer = guard("checkpoints", "runs/exp1")
    assert (answer.code, answer.err) == (0, "")
    assert plain(answer.out) == plain(LIST.replace("1200", "1,200"))


def test_none(guard, night):
    assert guard("checkpoints", "runs/exp1") == (0, "No checkpoints in runs/exp1/checkpoints.\n", "")
    assert guard("checkpoints", "nowhere").code == 3


def test_as_json(guard, saved):
    answer = json.loads(guard("checkpoints", "runs/exp1", "--json").out)
    assert answer["folder"] == "runs/exp1/checkpoints"
    assert [(c["step"], c["tick"], c["state"], c["world"], c["age"]) for c in answer["checkpoints"]] == [
        (10, 12, "good", 1, 10800.0),
        (1200, 1260, "probation", 1, 300.0),
    ]
    assert "damage" not in answer["checkpoints"][0]
    assert answer["refused"] == []


def test_verify(guard, saved):
    answer = guard("checkpoints", "runs/exp1", "--verify")
    assert answer.code == 0
    assert answer.out.endswith("\nAll 2 are as they were written.\n")
    flip(Path("runs/exp1/checkpoints/step-10/__0_0.distcp"))
    assert guard("checkpoints", "runs/exp1").code == 0, "a list reads no tensors"
    answer = guard("checkpoints", "runs/exp1", "--verify")
    assert answer.code == 1
    assert answer.err == "guard: step-10 is damaged: __0_0.distcp is damaged: its checksum does not fit\n"
    assert [row[-1] for row in plain(answer.out)] == ["State", "damaged", "probation"]
    facts = json.loads(guard("checkpoints", "runs/exp1", "--verify", "--json").out)["checkpoints"]
    assert [c["damage"] for c in facts] == ["__0_0.distcp is damaged: its checksum does not fit", None]


def test_what_is_no_checkpoint_is_said(guard, saved):
    Path("runs/exp1/checkpoints/step-7").mkdir()
    answer = guard("checkpoints", "runs/exp1")
    assert answer.code == 1
    assert answer.err == "guard: step-7 is damaged: it has no manifest\n"
    assert json.loads(guard("checkpoints", "runs/exp1", "--json").out)["refused"] == [
        {"name": "step-7", "reason": "it has no manifest"}
    ]


def test_where_the_policy_says(guard, night, tmp_path):
    for place in ("states", str(tmp_path / "far")):
        (night.path / "policy.yaml").write_text(f"version: 1\ncheckpoints: {{disk: {{dir: {place}}}}}\n")
        write(night.path / place, (3, 4, 1.0, "good"))
        answer = guard("checkpoints", "runs/exp1", "--json")
        assert [c["step"] for c in json.loads(answer.out)["checkpoints"]] == [3]


def test_what_was_left_out_is_said(guard, night):
    write(night.path / "checkpoints", (3, 4, 1.0, "good"), (5, 6, 1.0, "good"), odd=object())
    said = guard("checkpoints", "runs/exp1").err
    assert said == (
        "guard: step-3, step-5: optimizer.0.group 0.odd was left out: it is a builtins.object, which is no plain data\n"
    )


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_export(guard, saved, ending):
    if ending == "safetensors":
        pytest.importorskip("safetensors")
    answer = guard("checkpoints", "runs/exp1", "--export", 10, f"out.{ending}")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == f"guard: 8 tensors of step-10 are in out.{ending}\n"
    if ending == "pt":
        weights = torch.load("out.pt", weights_only=True)
        assert weights["first.weight"].data_ptr() == weights["last.weight"].data_ptr(), "tied, and written once"
    else:
        from safetensors.torch import load_file

        weights = load_file("out.safetensors")
    fresh = Model()
    fresh.load_state_dict(weights, strict=True)
    assert all(torch.equal(a, b) for a, b in zip(fresh.state_dict().values(), saved.state_dict().values(), strict=True))
    assert sorted(p.name for p in Path().iterdir()) == [f"out.{ending}", "runs"]


def test_export_without_safetensors(guard, saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    answer = guard("checkpoints", "runs/exp1", "--export", 10, "out.safetensors")
    assert answer.code == 1
    assert "needs the extra: pip install 'training-guard[safetensors]'" in answer.err


def test_export_that_cannot_be(guard, saved):
    answer = guard("checkpoints", "runs/exp1", "--export", 11, "out.pt")
    assert answer.code == 2
    assert "there is no checkpoint of step 11 in runs/exp1/checkpoints; there are: 10, 1200" in answer.err
    assert guard("checkpoints", "runs/exp1", "--export", 10, "no/such/out.pt").code == 2
    assert guard("checkpoints", "runs/exp1", "--export", "x", "out.pt").code == 2
    flip(Path("runs/exp1/checkpoints/step-10/shared.pt"))
    answer = guard("checkpoints", "runs/exp1", "--export", 10, "out.pt")
    assert answer.code == 1
    assert "step-10 is damaged and was not exported: shared.pt is damaged" in answer.err
    assert not Path("out.pt").exists()


def test_list_and_verify_need_no_torch(saved):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from guard.cli import main\n"
        "main(['checkpoints', 'runs/exp1', '--verify'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "All 2 are as they were written" in done.stdout
