"""The journal's format: whole lines in, whole lines out, whatever the disk or a crash has done to them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.incidents import Follower, read_journal
from guard.incidents.journal import NAME, encode

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def line(seq: int, **keys: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "seq": seq,
        "time": 1.7e9,
        "kind": "notice",
        "tick": seq,
        "step": seq,
        "severity": "info",
        "message": "all is well",
        **keys,
    }


def write(run_dir: Path, *lines: bytes) -> Path:
    with (run_dir / NAME).open("ab") as file:
        file.write(b"".join(lines))
    return run_dir / NAME


def seqs(entries: Any) -> list[int]:
    return [e["seq"] for e in entries]


@given(extra=VALUES)
def test_any_value_is_one_line_of_json(extra: Any) -> None:
    data = encode(line(0, extra=extra))
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    assert json.loads(data)["seq"] == 0


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_read_back_by_float(number: float) -> None:
    deep = json.loads(encode(line(0, rows=[[1, number]], detection={"value": number})))
    back = float(deep["rows"][0][1]), float(deep["detection"]["value"])
    assert all(b == number or (math.isnan(b) and math.isnan(number)) for b in back)
    assert "NaN" not in encode(line(0, x=number)).decode()


def test_text_that_is_no_unicode_is_written_all_the_same() -> None:
    assert json.loads(encode(line(0, message="cut \ud800 short")))["message"].startswith("cut ")


def test_what_json_does_not_know_is_written_as_text(tmp_path: Path) -> None:
    assert json.loads(encode(line(0, where=tmp_path)))["where"] == str(tmp_path)


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert read_journal(tmp_path) == []
    assert read_journal(tmp_path / "nowhere") == []


def test_a_torn_last_line_waits_for_its_rest(tmp_path: Path) -> None:
    whole, torn = encode(line(0)), encode(line(1))
    path = write(tmp_path, whole, torn[:20])
    follower = Follower(path)
    assert seqs(follower.read()) == [0]
    assert seqs(follower.read()) == []
    write(tmp_path, torn[20:], encode(line(2)))
    assert seqs(follower.read()) == [1, 2]
    assert follower.damaged == 0


def test_every_torn_end_leaves_the_lines_before_it(tmp_path: Path) -> None:
    data = encode(line(0)) + encode(line(1))
    path = tmp_path / NAME
    for end in range(len(data)):
        path.write_bytes(data[:end])
        assert seqs(read_journal(tmp_path)) == ([0] if end >= len(encode(line(0))) else [])


@pytest.mark.parametrize(
    "damage",
    [
        b"\x00" * 64,
        b"{",
        b"[]",
        b"7",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"{}",
        b'{"kind": 7}',
        b'{"kind": "incident_closed", "tick": 1, "step": 1, "time": 1}',
        b"[" * 100_000,
    ],
    ids=[
        "zeros",
        "torn",
        "list",
        "number",
        "null",
        "text",
        "no unicode",
        "empty",
        "kind is no text",
        "keys are missing",
        "deeper than Python counts",
    ],
)
def test_a_damaged_line_is_passed_over_and_counted(tmp_path: Path, damage: bytes) -> None:
    path = write(tmp_path, encode(line(0)), damage + b"\n", encode(line(1)))
    follower = Follower(path)
    assert seqs(follower.read()) == [0, 1]
    assert follower.damaged == 1


@given(noise=st.binary(max_size=200))
def test_no_bytes_stop_a_reader(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    folder = tmp_path_factory.mktemp("noise")
    write(folder, encode(line(0)), noise, b"\n", encode(line(1)))
    assert seqs(read_journal(folder)) == [0, 1]


def test_a_follower_goes_on_where_another_stopped(tmp_path: Path) -> None:
    path = write(tmp_path, encode(line(0)))
    first = Follower(path)
    list(first.read())
    write(tmp_path, encode(line(1)))
    assert seqs(Follower(path, first.offset).read(sync=True)) == [1]
