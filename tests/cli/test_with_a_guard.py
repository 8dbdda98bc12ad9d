"""What a real guard writes, these commands read: no line of it counts as damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

import guard as training_guard
from guard.incidents import control


def test_a_real_run_is_told_without_damage(guard):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = training_guard.attach(model, optimizer, policy="default", run_dir="runs/real", receivers=[])
    with run:
        for index in range(400):
            optimizer.zero_grad()
            if index == 180:
                control.submit(Path("runs/real"), control.Request("observe", "ada", policy="clip-on-explosion"))
            loss = model(torch.full((2, 4), math.nan if index == 140 else 1.0)).pow(2).mean()
            loss.backward()
            optimizer.step()
    status = json.loads(guard("status", "runs/real", "--json").out)
    assert (status["state"], status["damaged_lines"]) == ("finished", 0)
    assert status["policy_modes"] == {"clip-on-explosion": "observe"}
    found = [i for i in json.loads(guard("incidents", "--json").out)["incidents"] if i["detector"] == "non_finite"]
    shown = guard("show", found[0]["id"])
    assert shown.code == 0
    assert "runs/real/policy.yaml:" in shown.out
    assert "- skip_step: " in shown.out
