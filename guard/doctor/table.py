"""The report on a terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from guard.doctor.explain import next_steps
from guard.doctor.finding import TITLES, Finding, Report, Verdict

_STYLES: dict[Verdict, str] = {"PASS": "green", "WARN": "bold yellow", "FAIL": "bold red", "SKIP": "bright_black"}
_WIDE = 110  # columns; in fewer, what to do stands below the finding


def show(report: Report, console: Console) -> None:
    """Prints table, verdict and what to do next."""
    console.print(render(report, console.width))


def render(report: Report, width: int) -> RenderableType:
    """The whole of it for a terminal of `width` columns."""
    about = Text("  ".join(report.about.values()), style="bright_black")
    return Group(about, Text(), _table(report, wide=width >= _WIDE), Text(), _ending(report))


def _table(report: Report, *, wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=wide)
    table.add_column("Check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("Finding", overflow="fold", ratio=5 if wide else None)
    table.add_column("Number", justify="right", no_wrap=True)
    if wide:
        table.add_column("What to do", overflow="fold", ratio=3)
    for check in report.checks:
        for i, finding in enumerate(report.of(check)):
            row: list[RenderableType] = [
                TITLES[check] if i == 0 else "",
                Text(finding.verdict, style=_STYLES[finding.verdict]),
                _sentence(finding, advice=not wide),
                number(finding),
            ]
            table.add_row(*row, *([Text(finding.advice)] if wide else []))
    return table


def _sentence(finding: Finding, *, advice: bool) -> Text:
    text = Text(finding.sentence, style="bright_black" if finding.verdict == "SKIP" else "")
    if advice and finding.advice and finding.verdict != "SKIP":
        text.append(f"\n> {finding.advice}", style="cyan")
    return text


def number(finding: Finding) -> str:
    """The number as it is shown; what it measures is in the sentence, the page and the JSON."""
    if finding.number is None or finding.verdict == "SKIP":
        return ""
    size = abs(finding.number)
    return f"{finding.number:,.0f}" if 1000 <= size < 1e6 else f"{finding.number:.3g}"


def _ending(report: Report) -> Text:
    counts = {v: sum(report.verdict_of(c) == v for c in report.checks) for v in ("PASS", "WARN", "FAIL", "SKIP")}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    text = Text(report.verdict, style=_STYLES[report.verdict])
    text.append(f"  {told}, in {report.seconds:.0f} s\n", style="")
    for step in next_steps(report.findings):
        text.append(f"\n- {step}", style="")
    return text
