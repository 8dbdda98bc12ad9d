"""init, check, schema, plugins: what needs no run."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from guard.actions import ACTIONS
from guard.cli.init import PRESETS
from guard.detectors import DETECTORS
from guard.policy import load
from guard.policy.files import shipped

BAD = """\
version: 1
policies:
  - name: a
    trigger: {type: loss_spik}
    actions: [{type: clip, max_norm: auto, often: 3}]
  - name: b
    severity: bad
    trigger: {type: loss_spike}
"""
GOOD = """\
version: 1
mode: observe
policies:
  - name: back-and-slower
    severity: critical
    trigger: {type: loss_spike, threshold: 9.0}
    attempts:
      - [{type: rollback, data: replay}, {type: precision, dtype: bf16}]
      - [{type: stop}]
"""
GOOD_TOLD = """\
mine.yaml: no problems. 1 policy, mode observe.

This set only observes:
  - what follows is reported as what would have been done, and nothing is
    touched.

back-and-slower (critical): on loss spike (the loss jumps far above all that is
  usual in this run; threshold 9.0):
  - first, roll back to the last good checkpoint and replay the same batches,
    and switch to BF16
  - if that fails, stop the run with the last good state restored.

Checkpoints:
  - every 100 steps in memory, the last 3 good ones in at most 25 % of free
    memory, good after 20 steps without a fault
  - none on disk.
"""


@pytest.mark.parametrize("preset", sorted(shipped()))
def test_every_preset_is_written_with_its_comments_and_checks(guard, preset):
    written = guard("init", "--preset", preset, "mine.yaml")
    assert (written.code, written.err) == (0, "")
    assert "guard check mine.yaml" in written.out
    text = Path("mine.yaml").read_text()
    assert text.startswith("# Written by `guard init")
    assert text.endswith(shipped()[preset].read_text())
    assert load("./mine.yaml").policies == load(preset).policies
    assert guard("check", "mine.yaml").code == 0


def test_help_names_every_preset(guard):
    assert set(shipped()) <= set(PRESETS.split(", "))
    assert all(name in guard("init", "--help").out for name in PRESETS.split(", "))


def test_init_replaces_nothing_unasked(guard):
    Path("guard.yaml").write_text("precious")
    refused = guard("init")
    assert refused.code == 2
    assert "already there" in refused.err
    assert "--force" in refused.err
    assert Path("guard.yaml").read_text() == "precious"
    assert guard("init", "--force").code == 0
    assert load("./guard.yaml").name == "guard"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--preset", "defualt"], "did you mean 'default'?"),
        (["--preset", "../x.yaml"], "no preset is called '../x.yaml'"),
        (["mine"], "did you mean mine.yaml?"),
        (["no/such/folder.yaml"], "there is no folder no/such"),
        (["a_folder.yaml"], "a_folder.yaml is already there"),
        (["--force", "a_folder.yaml"], "a_folder.yaml cannot be written: Is a directory"),
    ],
)
def test_mistakes_of_init(guard, arguments, said):
    Path("a_folder.yaml").mkdir()
    answer = guard("init", *arguments)
    assert answer.code == 2
    assert said in answer.err
    assert answer.out == ""


def test_check_tells_what_a_policy_will_do_within_80_columns(guard):
    Path("mine.yaml").write_text(GOOD)
    answer = guard("check", "mine.yaml")
    assert answer == (0, GOOD_TOLD, "")
    assert max(map(len, guard("check", *sorted(shipped())).out.splitlines())) <= 80


def test_check_tells_all_problems_of_all_files_with_their_places(guard):
    Path("bad.yaml").write_text(BAD)
    answer = guard("check", "bad.yaml", "gone.yaml", "default")
    assert answer.code == 1
    assert "bad.yaml:4:21: policies[0].trigger.type:" in answer.err
    assert "did you mean 'loss_spike'?" in answer.err
    assert "bad.yaml:5:" in answer.err
    assert "bad.yaml:7:" in answer.err
    assert "guard: bad.yaml: 3 problems\n" in answer.err
    assert "gone.yaml: there is no such file" in answer.err
    assert "default: no problems" in answer.out
    assert "bad.yaml" not in answer.out


@pytest.mark.parametrize(
    ("name", "said"), [("defualt", "did you mean 'default'?"), (".", "folder"), ("nul\0.yaml", "cannot")]
)
def test_mistakes_of_check(guard, name, said):
    answer = guard("check", name)
    assert answer.code == 1
    assert said in answer.err


def test_check_takes_a_file_without_the_ending(guard):
    Path("mine").write_text("version: 1\nextends: default\n")
    assert guard("check", "mine").out.startswith("mine: no problems")


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    got: list[bytes] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setenv("GUARD_TEST_HOOK", f"http://127.0.0.1:{server.server_port}/secret-path")
    yield got
    server.shutdown()
    server.server_close()


def test_send_test_reaches_each_receiver_and_hides_secrets(guard, hook, night):
    answer = guard("check", "runs/exp1/policy.yaml", "--send-test")
    assert answer.code == 0
    assert "  - out: test message sent\n" in answer.out
    assert "  - here: test message sent\n" in answer.out
    assert json.loads(hook[0])["first_line"] == "No action needed: this is a test of the training guard"
    assert "secret-path" not in answer.out + answer.err


def test_send_test_fails_where_nobody_can_be_told(guard, night):
    answer = guard("check", "runs/exp1/policy.yaml", "--send-test")
    assert answer.code == 1
    assert "- out: FAILED: off: GUARD_TEST_HOOK is not set" in answer.out


def test_notify_delivers_what_is_left_once(guard, hook, night):
    first = guard("notify", "runs/exp1")
    assert first.code == 0
    assert first.out.endswith("Nothing is left to tell.\n")
    assert [json.loads(body)["incident"] for body in hook] == ["i0001", "i0003", "i0004"]
    assert "No action needed: repaired, 40 steps lost" in first.err  # the console receiver
    again = guard("notify", "runs/exp1")
    assert again.out == "0 messages sent or brought up to date. Nothing is left to tell.\n"
    assert len(hook) == 3
    assert json.loads(guard("status", "runs/exp1", "--json").out)["untold"] == []


def test_notify_says_what_could_not_be_told(guard, night, monkeypatch):
    monkeypatch.setenv("GUARD_TEST_HOOK", "http://127.0.0.1:9/x")
    answer = guard("notify", "runs/exp1", "--wait", "0")
    assert answer.code == 1
    assert "connection refused" in answer.out
    assert "out, i0001" in answer.out
    status = guard("status", "runs/exp1").out
    assert "3 not delivered; to deliver them: guard notify runs/exp1" in status
    assert "out, i0001: connection refused" in status


def test_notify_without_a_policy_or_receivers(guard, night):
    (night.path / "policy.yaml").write_text("version: 1\n")
    assert guard("notify", "runs/exp1").out == "The run's policy names no receivers.\n"
    (night.path / "policy.yaml").unlink()
    answer = guard("notify", "runs/exp1")
    assert answer.code == 3
    assert "the receivers of runs/exp1 are not known" in answer.err


def test_schema_is_json_and_knows_every_plug_in(guard):
    schema = json.loads(guard("schema").out)
    assert schema["$schema"]
    assert {f"detector.{d}" for d in DETECTORS} <= set(schema["$defs"])


def test_plugins_lists_each_on_one_line(guard):
    answer = guard("plugins")
    lines = answer.out.splitlines()
    for name in (*DETECTORS, *ACTIONS):
        (line,) = [line for line in lines if line.split("  ")[0] == name]
        assert line.endswith("built in")
    facts = json.loads(guard("plugins", "--json").out)
    assert [name for name, _, _ in facts["actions"]] == list(ACTIONS)


def test_a_plug_in_that_does_not_load_is_named_and_the_rest_listed(guard, monkeypatch):
    broken = EntryPoint("broken", "elsewhere.detectors:Broken", "guard.detectors")
    monkeypatch.setattr("guard.registry.entry_points", lambda group: [broken] if group == broken.group else [])
    monkeypatch.setattr(DETECTORS, "_loaded", False)
    monkeypatch.setattr(DETECTORS, "failed", {})
    answer = guard("plugins")
    assert answer.code == 1
    assert "loss_spike" in answer.out
    assert "clip" in answer.out
    assert (
        "the detector 'broken' cannot be loaded: ModuleNotFoundError: No module named 'elsewhere' "
        "(entry point elsewhere.detectors:Broken)"
    ) in answer.err
