"""`guard doctor`: exit codes, outputs, and a sentence for every mistake."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

MODULE = """
import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(256, 4)
Y = (X[:, 0] > 0).long()

def make():
    print("hello")
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=32, shuffle=True)
    return model, data, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=3e-3)

def sick():
    model, data, loss, _ = make()
    return model, data, loss, torch.optim.Adam(model[:1].parameters())

def nothing():
    pass

def two():
    return make()[:2]

def raises():
    raise FileNotFoundError("no data here")

def wants(path):
    pass

def leaves():
    raise SystemExit(3)

number = 3
"""


@pytest.fixture(autouse=True)
def module(alone, monkeypatch):
    Path("mytrain.py").write_text(MODULE)
    Path("syntax.py").write_text("def make(:\n")
    Path("missing.py").write_text("import not_installed_anywhere\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mytrain", "syntax", "missing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    sys.modules.pop("mytrain", None)


def test_a_healthy_setup(guard):
    answer = guard("doctor", "mytrain:make", "--quick")
    assert answer.code == 0, answer.out
    assert "Short run" in answer.out
    assert "hello" not in answer.out
    assert "Train on all the data now" in answer.out


def test_a_fault_exits_with_one(guard):
    answer = guard("doctor", "mytrain.py:sick", "--only", "gradients")
    assert answer.code == 1
    assert "the optimizer lacks 2 trainable parameter tensors" in " ".join(answer.out.split())


def test_json_is_all_that_stdout_gets(guard):
    answer = guard("doctor", "mytrain:make", "--only", "data, weights", "--json")
    assert [c["check"] for c in json.loads(answer.out)["checks"]] == ["data", "weights"]


def test_a_page_is_written(guard):
    answer = guard("doctor", "mytrain:make", "--only", "data,weights", "--html", "report.html")
    assert answer.code == 0
    assert "wrote report.html" in answer.err
    assert Path("report.html").read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("mytrain", "names no function; give MODULE:FUNCTION"),
        (":make", "names no function"),
        ("nowhere:make", "there is no module 'nowhere'"),
        ("nowhere.py:make", "there is no file nowhere.py"),
        ("mytrain:mak", "has no 'mak'; did you mean 'make'?"),
        ("mytrain:number", "is a int, not a function"),
        ("mytrain:nothing", "returned None; it must return (model, train loader, loss function)"),
        ("mytrain:two", "returned 2 values; it must return"),
        ("mytrain:raises", "raised FileNotFoundError: no data here (mytrain.py:"),
        ("mytrain:wants", "missing 1 required positional argument"),
        ("mytrain:leaves", "ended the program (3)"),
        ("syntax:make", "importing syntax raised SyntaxError"),
        ("missing:make", "No module named 'not_installed_anywhere'"),
    ],
)
def test_mistakes_are_told(guard, target, message):
    answer = guard("doctor", target)
    assert answer.code == 2
    assert message in answer.err
    assert answer.out == ""


def test_an_unknown_check_and_a_folder_that_is_not_there(guard):
    assert guard("doctor", "mytrain:make", "--only", "lr").code == 2
    assert "there is no folder" in guard("doctor", "mytrain:make", "--html", "no/where.html").err
