"""The run itself as something to tell: that it began, went on, and how it ended. For receivers with `lifecycle`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from guard.incidents import IncidentLog
from guard.notify import account, blocks, render, story
from guard.notify.message import Message, Reply
from guard.notify.subject import Subject
from guard.notify.words import clean, count, nth, number, one_line, sentence, span, utc
from guard.types import Entry

ID = "@run"
_EMOJI = {"running": "🔵", "finished": "🟢", "preempted": "🟡", "stopped": "🔴", "crashed": "🔴"}
_ENDINGS = {
    "finished": "No action needed: the run has finished",
    "preempted": "No action needed: the run was preempted, and goes on when it is started again",
    "stopped": "Needs you: the run was stopped",
    "crashed": "Needs you: the run crashed",
}


class Run(Subject):
    """One run, from its first start to its last end."""

    id = ID

    def __init__(self, log: IncidentLog) -> None:
        self.log = log
        self.begun = float(log.lifecycle[0]["time"]) if log.lifecycle else 0.0

    def message(self, *, listening: bool = False) -> Message:  # noqa: ARG002 - a run's message has no buttons
        first, run = self._first_line(), one_line(self.log.run.get("run") or "this run", 80)
        emoji, fields = _EMOJI.get(self._status(), "⚪"), tuple(self._fields())
        command = f"guard status {render.run_dir(self.log)}"
        body = [
            blocks.header(f"{emoji} {first}"),
            blocks.section("", f"run {run}"),
            blocks.fields(fields, self.begun),
            blocks.code("To see how it is, type", command),
        ]
        return Message(f"{emoji} {first} (run {run})", body, first, f"run {run}", fields, command=command)

    def replies(self) -> list[Reply]:
        found: dict[str, Reply] = {}
        starts = 0
        for entry in self.log.lifecycle:
            if entry["kind"] == "run_started":
                starts += 1
                if starts > 1:
                    text = f"Started again at step {number(entry['step'])} ({nth(starts)} start)."
                    found[f"started:{starts}"] = Reply(f"started:{starts}", text)
            elif (key := f"ended:{starts}") not in found:  # who ended it twice is told of once
                found[key] = Reply(key, self._ending(entry), self._wakes(entry))
        return list(found.values())

    def state(self) -> str:
        starts = sum(e["kind"] == "run_started" for e in self.log.lifecycle)
        return f"{self._status()}/{starts}" if self._status() != "running" or starts == 1 else "running"

    def muted_until(self, now: float) -> float:
        entry = self.log.silence("", now)
        return float(entry["until"]) if entry else 0.0

    def unresolved(self) -> bool:
        return self.log.finished is None

    def calls(self) -> bool:
        return bool(self.log.lifecycle) and self._wakes(self.log.lifecycle[-1])

    def facts(self) -> dict[str, Any]:
        return {"incident": None, "run": self.log.run.get("run"), "status": self._status()}

    # ---- in words

    def _status(self) -> str:
        return "running" if self.log.finished is None else str(self.log.finished.get("status"))

    def _first_line(self) -> str:
        status = self._status()
        if status == "running":
            again = sum(e["kind"] == "run_started" for e in self.log.lifecycle) > 1
            return f"No action needed: the run has {'gone on' if again else 'started'}"
        if status == "stopped" and (why := self._person()):
            return f"No action needed: the run was stopped, {why}"
        if status == "crashed" and (fault := story.lost(self.log)):
            return story.first_line(self.log, fault)
        return _ENDINGS.get(status, f"No action needed: the run is {one_line(status, 40)}")

    def _person(self) -> str:
        """Who stopped it, if a person did."""
        last = next(reversed(self.log.incidents.values()), None)
        return clean(account.detection(last).get("message"), 120) if last and last.policy == "person" else ""

    def _wakes(self, ending: Entry) -> bool:
        """It went wrong, and no incident says so."""
        bad = ending is self.log.lifecycle[-1] and ending.get("status") in ("crashed", "stopped")
        told = story.lost(self.log) or any(story.needs_person(self.log, i) for i in self.log.incidents.values())
        return bad and not told and not self._person()

    def _ending(self, entry: Entry) -> str:
        status = one_line(entry.get("status"), 40)
        at = f" at step {number(entry['step'])}" if entry["step"] else ""
        return f"{sentence(f'{status}{at}')[:-1]}, {span(entry['time'] - self.begun)} after it began. {self._counted()}"

    def _counted(self) -> str:
        return sentence(", ".join(counted(self.log, self.log.incidents.values())) or "no incidents")

    def _fields(self) -> Iterator[tuple[str, str]]:
        log, last = self.log, self.log.lifecycle[-1] if self.log.lifecycle else {}
        for label, key in (("Run", "run"), ("Host", "host"), ("Script", "script"), ("Policy", "policy")):
            if log.run.get(key) is not None:
                yield label, clean(log.run[key], 120)
        yield "Started", utc(self.begun)
        if last.get("kind") == "run_finished":
            if last["step"]:
                yield "Steps", number(last["step"])
            yield "Duration", span(last["time"] - self.begun)
            yield "Incidents", ", ".join(counted(log, log.incidents.values())) or "none"


def counted(log: IncidentLog, incidents: Any) -> list[str]:
    """``["3 incidents", "2 repaired", "1 needs you"]``; empty if there are none. Those that rode along do not count."""
    own = [i for i in incidents if story.carrier(log, i).id == i.id]
    stages = [story.stage(log, i) for i in own]
    needs = sum(story.needs_person(log, i) for i in own)
    repaired = sum(s == "resolved" for s in stages)
    under_way = sum(s in ("firing", "verifying") for s in stages)
    return [
        *([count(len(own), "incident")] if own else []),
        *([f"{repaired} repaired"] if repaired else []),
        *([f"{under_way} under way"] if under_way else []),
        *([f"{needs} {'needs' if needs == 1 else 'need'} you"] if needs else []),
    ]
