"""Requests from a person: taken once, in order; what is none is said, and harms nobody."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.errors import UsageError
from guard.incidents.control import VERBS, Request, incarnation, submit, take

NOW = 1.7e9


def leave(run_dir: Path, content: bytes | dict[str, Any], name: str = "a.json") -> Path:
    folder = run_dir / "control"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_nothing_asked(tmp_path: Path) -> None:
    assert take(tmp_path, NOW) == []
    assert take(tmp_path / "nowhere", NOW) == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_request_arrives_as_it_was_made_and_only_once(tmp_path: Path, verb: Any) -> None:
    request = Request(verb, "ada", policy="p", incident="i0001", to="start")
    submit(tmp_path, request)
    assert take(tmp_path, NOW) == [request]
    assert take(tmp_path, NOW) == []
    assert list((tmp_path / "control").iterdir()) == []


def test_oldest_first(tmp_path: Path) -> None:
    for age, verb in ((30, "observe"), (20, "enforce"), (10, "stop")):
        path = submit(tmp_path, Request(verb, "ada"))  # type: ignore[arg-type]
        os.utime(path, (1e9 - age, 1e9 - age))
    assert [r.verb for r in take(tmp_path, NOW) if isinstance(r, Request)] == ["observe", "enforce", "stop"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe\x00", "codec"),
        (b"[]", "the verb must be one of"),
        ({"verb": "explode", "author": "ada"}, "the verb must be one of observe, enforce, undo"),
        ({"author": "ada"}, "the verb must be one of"),
        ({"verb": "stop"}, "author"),
        ({"verb": "stop", "author": "ada", "force": "yes"}, "force"),
        ({"verb": "stop", "author": ["ada"]}, "all values must be text"),
        ({"verb": "rollback", "author": "ada", "to": 7}, "all values must be text"),
        (b'{"verb": "stop", "author": "' + b"a" * (80 << 10) + b'"}', "Unterminated string"),
        (b"[" * 60_000, "not understood"),
    ],
    ids=[
        "empty",
        "no unicode",
        "list",
        "no such verb",
        "no verb",
        "no author",
        "unknown key",
        "author is a list",
        "value is a number",
        "oversized",
        "deeper than Python counts",
    ],
)
def test_what_is_no_request_is_said_and_removed(tmp_path: Path, content: Any, why: str) -> None:
    path = leave(tmp_path, content)
    (said,) = take(tmp_path, NOW)
    assert isinstance(said, str)
    assert why in said
    assert "a.json" in said
    assert len(said) <= 300
    assert not path.exists()


@given(content=st.binary(max_size=300))
def test_no_bytes_raise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("control")
    leave(folder, content)
    assert len(take(folder, NOW)) == 1


def test_a_bad_request_does_not_hide_a_good_one(tmp_path: Path) -> None:
    leave(tmp_path, b"nonsense", "0.json")
    submit(tmp_path, Request("stop", "ada"))
    assert sorted(type(r).__name__ for r in take(tmp_path, NOW)) == ["Request", "str"]


def test_a_link_is_no_request(tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps({"verb": "stop", "author": "mallory"}))
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "a.json").symlink_to(outside)
    assert take(tmp_path, NOW) == []
    assert outside.exists()


def test_folders_pipes_and_unfinished_files_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "control"
    folder.mkdir()
    (folder / "a.json").mkdir()
    (folder / ".b.tmp").write_text(json.dumps({"verb": "stop", "author": "ada"}))
    os.mkfifo(folder / "c.json")  # reading it would wait for ever
    assert take(tmp_path, NOW) == []


@pytest.mark.parametrize("id", ["../escaped", "/tmp/escaped-request", "a/b", ".."])
def test_an_id_cannot_lead_out_of_the_folder(tmp_path: Path, id: str) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    try:
        path = submit(run_dir, Request("stop", "ada", id=id))
    except (UsageError, ValueError):
        return
    assert path.resolve().parent == run_dir / "control"


def test_a_directory_that_cannot_be_written_is_an_error_for_the_person(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot leave a request"):
        submit(tmp_path / "nowhere", Request("stop", "ada"))


def test_what_nobody_wants_any_more_is_refused(tmp_path: Path) -> None:
    submit(tmp_path, Request("stop", "ada", expires=NOW - 30))
    submit(tmp_path, Request("stop", "ada", expires=NOW + 30))
    assert [r.refused for r in take(tmp_path, NOW)] == ["it expired 30 s ago", ""]  # type: ignore[union-attr]


def test_a_request_is_for_one_process_of_the_run(tmp_path: Path) -> None:
    owner = tmp_path / "owner.json"
    owner.write_text(json.dumps({"boot": "b", "pid": 1, "started": "10"}))
    asked = incarnation(tmp_path)
    submit(tmp_path, Request("stop", "ada", run=asked))
    assert [r.refused for r in take(tmp_path, NOW)] == [""]  # type: ignore[union-attr]
    submit(tmp_path, Request("stop", "ada", run=asked))
    owner.write_text(json.dumps({"boot": "b", "pid": 1, "started": "11"}))
    (refused,) = take(tmp_path, NOW)
    assert isinstance(refused, Request)
    assert refused.refused == "it was meant for an earlier process of this run"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file away")
def test_what_another_user_has_left_is_refused(tmp_path: Path) -> None:
    path = submit(tmp_path, Request("stop", "root"))
    os.chown(path, 12345, 12345)
    (refused,) = take(tmp_path, NOW)
    assert isinstance(refused, Request)
    assert refused.refused == "it was left by another user (uid 12345)"
