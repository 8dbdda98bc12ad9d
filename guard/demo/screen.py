"""What a person sees: a live bar with the loss, one line an incident, the messages, the comparison."""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text as Line

from guard.demo.data import Text
from guard.demo.faults import Plan
from guard.demo.outcome import Outcome, remedy, told
from guard.demo.training import Watch
from guard.incidents import IncidentLog
from guard.notify import render, story
from guard.notify.words import count, cut, fault
from guard.types import Incident

TITLES = {"healthy": "healthy: no faults", "unguarded": "faults, no guard", "guarded": "faults, guarded"}
_WIDTH = 100  # columns in a pipe, and at most
_STYLES = {"resolved": "green", "firing": "yellow", "verifying": "yellow"}


class Screen:
    """Writes to stdout; without a terminal there is no bar, only lines."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = _WIDTH

    def problem(self, text: str) -> None:
        Console(stderr=True, highlight=False).print(f"guard demo: {text}", markup=False, soft_wrap=True)

    def introduce(self, text: Text, plan: Plan) -> None:
        """What is about to happen."""
        say = self.console.print
        say()
        say("[bold]One training run, three times: healthy, with three faults, and with the faults and the guard.[/]")
        say(
            f"A small transformer learns to write Python's own manual, {text.characters:,} characters, in {plan.steps} "
            "steps on the CPU."
        )
        say()
        for i, (title, what) in enumerate(plan.faults, 1):
            say(f"  fault {i}  [bold]{title}[/]")
            say(f"           {what}", style="bright_black")
        say()

    @contextlib.contextmanager
    def running(self, steps: int) -> Iterator[Callable[[str], Watch]]:
        """Three bars; gives what each run is to tell its steps to."""
        bars = Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(28),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        tasks = {name: bars.add_task(title, total=steps, start=False, loss="     ") for name, title in TITLES.items()}
        with bars:
            yield lambda name: self._watch(bars, tasks[name], name, steps)

    def _watch(self, bars: Progress, task: TaskID, name: str, steps: int) -> Watch:
        bars.start_task(task)
        teller = Teller(self.console)
        dead = False

        def watch(tick: int, step: int, loss: float, g: Any) -> None:
            nonlocal dead
            bars.update(task, completed=step + 1, loss=shown(loss))
            if g is not None:
                teller.tell(g.incidents)
            elif not math.isfinite(loss) and not dead:
                dead = True
                teller.line("🔴", step, "loss is NaN", "nobody is watching: every further step trains garbage", "red")
            if not bars.disable:
                return
            if tick == 1:
                self.console.print(f"\n{TITLES[name]}", style="bold")
            if step + 1 == steps or tick % 150 == 0:
                self.console.print(f"  step {step + 1:>4} of {steps}   loss {shown(loss)}")

        return watch

    def messages(self, log: IncidentLog, *, told: bool) -> None:
        """Each incident as Slack shows it; one like an earlier one is only counted."""
        where = "as your Slack channel has them" if told else "as they would stand in Slack"
        self.console.print(f"\n[bold]The guard's messages, {where}[/]")
        width = min(self.console.width, _WIDTH)
        seen: set[str] = set()
        for incident in told_alone(log):
            if incident.policy in seen:
                again = f"{fault(incident.detector)} at step {incident.opened_step}, {incident.status}"
                self.console.print(f"  and one more like it: {again}", style="bright_black")
                continue
            seen.add(incident.policy)
            body = Line(render.to_terminal(render.root(log, incident), width - 8).rstrip())
            for reply in render.replies(log, incident):
                said = textwrap.fill(f"↳ {reply.text}", width - 4, subsequent_indent="  ")
                body.append(f"\n{said}", style="bright_black")
            emoji = render.EMOJI[story.stage(log, incident)]
            self.console.print(
                Panel(
                    body,
                    title=f"{emoji} {incident.id}",
                    title_align="left",
                    width=width,
                    border_style=_STYLES.get(incident.status, "red"),
                )
            )
        if not told:
            self.console.print("  To have them in Slack, set SLACK_BOT_TOKEN and SLACK_CHANNEL.", style="bright_black")

    def compare(self, outcomes: dict[str, Outcome], picture: Path, run_dir: Path, missing: str | None) -> None:
        """The three ends side by side, and the verdict."""
        table = Table(
            title="\nFinal loss on text that was not trained on",
            title_justify="left",
            title_style="bold",
            header_style="",
        )
        table.add_column("run")
        table.add_column("validation loss", justify="right")
        table.add_column("against healthy", justify="right")
        table.add_column("what happened")
        best = outcomes["healthy"].validation
        for name, outcome in outcomes.items():
            bad = not outcome.validation <= 1.3 * best
            table.add_row(
                TITLES[name],
                f"{outcome.validation:.3f}".replace("nan", "NaN"),
                "" if name == "healthy" else _against(outcome.validation, best),
                _story(name, outcome),
                style="red" if bad else "green" if name == "guarded" else "",
            )
        self.console.print(table)
        self.console.print(f"\n  picture    {picture}\n  every step {run_dir}   (guard show {run_dir})", soft_wrap=True)
        if missing:
            self.problem(missing)
        else:
            self.console.print(
                "\n✓ Same faults, same seed: the guarded run ends where the healthy one does.", style="bold green"
            )


class Teller:
    """One line when an incident is acted on, one when it is over."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._told: dict[str, tuple[int, str]] = {}

    def tell(self, incidents: list[Incident]) -> None:
        for i in incidents:
            if not told(i):
                continue
            tries, status = self._told.get(i.id, (0, ""))
            for attempt in i.attempts[tries:]:
                self.line("🟡", attempt.step, fault(i.detector), remedy(attempt), "yellow")
            if i.status != status and i.ended:
                good = i.status == "resolved"
                lost = i.evidence["outcome"]["steps_lost"]
                words = f"it helped, {count(lost, 'step')} lost" if good else "see its message"
                self.line(
                    "🟢" if good else "🔴" if i.status != "ended" else "⚪",
                    i.opened_step,
                    fault(i.detector),
                    f"{i.status}: {words}",
                    "green" if good else "red",
                )
            self._told[i.id] = (len(i.attempts), i.status)

    def line(self, mark: str, step: int, what: str, then: str, style: str) -> None:
        """One line, never wrapped."""
        text = cut(f"{mark} step {step:>3}  {what} → {then}", self.console.width - 2)
        self.console.print(Line(f"  {text}", style=style), no_wrap=True)


def told_alone(log: IncidentLog) -> list[Incident]:
    """Incidents with a message of their own."""
    return [i for i in log.incidents.values() if told(i)]


def shown(loss: float) -> str:
    return f"{loss:5.2f}" if abs(loss) < 100 else f"{loss:5.0f}" if math.isfinite(loss) else "  NaN"


def _against(value: float, best: float) -> str:
    return f"{value / best - 1:+.1%}" if math.isfinite(value) else "lost"


def _story(name: str, outcome: Outcome) -> str:
    if name == "guarded":
        mine = [i for i in outcome.incidents if told(i)]
        return f"{len(mine)} incidents, {sum(i.status == 'resolved' for i in mine)} repaired"
    dead = next((step for step, loss in outcome.rows if not math.isfinite(loss)), None)
    return "undisturbed" if name == "healthy" else "ran to its end" if dead is None else f"NaN from step {dead} on"
