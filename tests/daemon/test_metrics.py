"""Metrics: what is exported is what the dashboard, the alerts and the page about the daemon name, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from guard.clock import FakeClock
from guard.daemon.condition import STATES
from guard.daemon.metrics import Collector
from guard.daemon.service import Daemon
from guard.daemon.settings import Settings
from guard.daemon.telling import Standing
from guard.home import Home
from guard.incidents import journal
from guard.incidents.rundir import CSV_COLUMNS

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = ROOT / "deploy/grafana/dashboard.json"
ALERTS, SCRAPE = ROOT / "deploy/prometheus/alerts.yaml", ROOT / "deploy/prometheus/scrape.yaml"
PAGE = ROOT / "docs/daemon.md"
METRIC = re.compile(r"\bguard_[a-z_]+\b")
SELECTOR = re.compile(r"\b(guard_[a-z_]+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\bby \(([^)]*)\)")
OF_THE_TARGET = {"job", "instance"}  # labels that Prometheus adds


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """It watches one run, of which there is everything to say."""
    clock, run_dir = FakeClock(), tmp_path / "run"
    run_dir.mkdir()
    Home(tmp_path / "home", clock).announce_run(run_dir, "exp1")
    (run_dir / "owner.json").write_text(json.dumps({"host": "elsewhere", "expires": clock.now + 60}))
    (run_dir / "heartbeat.0").write_text(f"7 7 step {clock.now:.3f} {clock.now:.3f}".ljust(79) + "\n")
    row = ",".join({"tick": "7", "step": "7", "loss": "2.5", "segment": "0"}.get(c, "0.5") for c in CSV_COLUMNS)
    (run_dir / "signals.csv").write_text(",".join(CSV_COLUMNS) + f"\n{row}\n")
    opened = {
        "v": journal.VERSION, "seq": 0, "time": clock.now, "kind": "incident_opened", "tick": 7, "step": 7,
        "incident": "i0001", "policy": "nan", "detector": "non_finite", "severity": "warning", "attached_to": None,
        "observed": False, "signals": [],
        "detection": {"signal": "loss", "value": 1.0, "threshold": 0.0, "baseline": 0.0, "since": 7, "message": "NaN"},
    }  # fmt: skip
    (run_dir / journal.NAME).write_bytes(journal.encode(opened))
    made = Daemon(Settings(home=(tmp_path / "home",), listen="off"), tmp_path / "state", clock, lambda text: None)
    made.roster()
    made.watch()
    made.telling.told, made.telling.last_success = 3, clock.now - 60
    standing = Standing(waiting=2, waiting_since=clock.now - 5)
    monkeypatch.setattr(made.telling, "standing", lambda run: standing)
    clock.advance(2)
    yield made
    made.close(0.0)


@pytest.fixture
def exported(daemon: Daemon) -> dict[str, set[str]]:
    """Labels by metric."""
    found: dict[str, set[str]] = {}
    for family in Collector(daemon).collect():
        assert family.samples, f"{family.name}: the run here is to have everything"
        for sample in family.samples:
            found.setdefault(sample.name, set(sample.labels))
    return found


@pytest.fixture
def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text("utf-8"))


def expressions(dashboard: dict[str, Any]) -> list[str]:
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return targets + [v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in YAML(typ="safe").load(ALERTS)["groups"] for rule in group["rules"]]


def labels_used(expression: str) -> list[tuple[str, str]]:
    """Metric and label, for each label that a selector names; for `by` each metric of the expression."""
    found = []
    for metric, selectors in SELECTOR.findall(expression):
        found += [(metric, label) for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selectors)]
        found += [(metric, label.strip()) for group in GROUPED.findall(expression) for label in group.split(",")]
    return found


def test_the_values_are_those_of_the_run(daemon: Daemon) -> None:
    values = {
        (sample.name, *(sample.labels.get(key, "") for key in ("run", "state", "status"))): sample.value
        for family in Collector(daemon).collect()
        for sample in family.samples
    }
    assert values["guard_run_state", "exp1", "running", ""] == 1.0
    assert sum(value for key, value in values.items() if key[0] == "guard_run_state") == 1.0
    assert values["guard_run_heartbeat_age_seconds", "exp1", "", ""] == 2.0
    assert values["guard_run_step", "exp1", "", ""] == 7.0
    assert values["guard_run_loss", "exp1", "", ""] == 2.5
    assert values["guard_run_incidents", "exp1", "", "firing"] == 1.0
    assert values["guard_outbox_depth", "exp1", "", ""] == 2.0
    assert values["guard_outbox_oldest_age_seconds", "exp1", "", ""] == 7.0
    assert values["guard_messages_told_total", "", "", ""] == 3.0


def test_no_label_is_one_that_prometheus_overwrites(exported: dict[str, set[str]]) -> None:
    assert {name: labels for name, labels in exported.items() if labels & OF_THE_TARGET} == {}


def test_the_dashboard_shows_every_metric_and_no_other(
    exported: dict[str, set[str]], dashboard: dict[str, Any]
) -> None:
    named = {name for expression in expressions(dashboard) for name in METRIC.findall(expression)}
    assert named == set(exported)


def test_the_dashboard_names_labels_that_exist(exported: dict[str, set[str]], dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            metrics = set(METRIC.findall(target["expr"]))
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - OF_THE_TARGET
            assert all(legend <= exported[name] for name in metrics), panel["title"]
    used = [pair for expression in expressions(dashboard) for pair in labels_used(expression)]
    assert [pair for pair in used if pair[1] not in exported[pair[0]]] == []


def test_the_timeline_knows_every_state(dashboard: dict[str, Any]) -> None:
    (panel,) = [p for p in dashboard["panels"] if p["type"] == "state-timeline"]
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    shown = {int(code): value["text"] for code, value in mapping["options"].items()}
    written = re.findall(r'state="(\w+)"\} \* (\d)', panel["targets"][0]["expr"])
    assert shown == {int(code): state for state, code in written} == dict(enumerate(STATES))


def test_panels_do_not_overlap_and_have_ids_of_their_own(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        p = panel["gridPos"]
        assert p["x"] + p["w"] <= 24
        cells = {(x, y) for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_alerts_name_metrics_labels_and_states_that_exist(exported: dict[str, set[str]]) -> None:
    assert rules()
    for rule in rules():
        metrics = set(METRIC.findall(rule["expr"]))
        assert metrics <= set(exported), rule["alert"]
        assert [(m, label) for m, label in labels_used(rule["expr"]) if label not in exported[m]] == [], rule["alert"]
        told = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))) - OF_THE_TARGET
        assert all(told <= exported[name] for name in metrics), rule["alert"]
        states = re.findall(r'guard_run_state\{state="(\w+)"', rule["expr"])
        assert set(states) <= set(STATES), rule["alert"]


def test_what_is_scraped_is_where_the_daemon_listens_by_default() -> None:
    (job,) = YAML(typ="safe").load(SCRAPE)["scrape_configs"]
    assert job["static_configs"] == [{"targets": [Settings().listen]}]
    assert any(f'up{{job="{job["job_name"]}"}}' in rule["expr"] for rule in rules())


def test_the_page_about_the_daemon_has_every_metric_with_its_labels(exported: dict[str, set[str]]) -> None:
    rows = re.findall(r"^\| `(guard_\w+)` \| ([^|]+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == exported
