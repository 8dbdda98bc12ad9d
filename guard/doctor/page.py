"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape
from typing import Any

from guard.doctor.explain import next_steps
from guard.doctor.finding import TITLES, Finding, Report
from guard.doctor.plots import draw, pixels
from guard.doctor.table import number

_STYLE = """
:root { --page: #f6f7f9; --card: #ffffff; --ink: #1d232b; --soft: #66707c; --line: #dfe3e8;
  --pass: #1f7a45; --warn: #945c00; --fail: #b3261e; --skip: #66707c; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --card: #1d2127; --ink: #e5e8ec; --soft: #9aa3ae;
  --line: #323841; --pass: #57c785; --warn: #e3ad4a; --fail: #f2837b; --skip: #9aa3ae; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 36px 0 12px; } h3 { font-size: 15px; margin: 0; }
.soft { color: var(--soft); } .about { margin: 0 0 20px; }
.card { background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 8px 12px; border-top: 1px solid var(--line); }
thead th { border-top: 0; color: var(--soft); font-weight: 600; font-size: 13px; white-space: nowrap; }
tbody th { font-weight: 600; white-space: nowrap; }
.more > * { border-top: 0; padding-top: 0; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.number small { display: block; color: var(--soft); white-space: normal; min-width: 90px; }
.verdict { font-weight: 700; font-size: 13px; }
.PASS { color: var(--pass); } .WARN { color: var(--warn); } .FAIL { color: var(--fail); } .SKIP { color: var(--skip); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 16px; }
figure { margin: 0; padding: 14px 16px; } figure img { width: 100%; display: block; margin-top: 6px; }
figcaption p { margin: 0; font-size: 13px; }
.batches { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 16px; }
.batch { padding: 14px 16px; }
.images { display: grid; grid-template-columns: repeat(3, 1fr); gap: 10px; margin-top: 10px; }
.images img { width: 100%; image-rendering: pixelated; border-radius: 3px; display: block; }
.sample { font-size: 13px; overflow-wrap: anywhere; }
.rows .sample { border-top: 1px solid var(--line); padding: 6px 0; }
.sample code { font: 12px/1.4 ui-monospace, monospace; white-space: pre-wrap; }
@media (max-width: 700px) { thead { display: none; }
  tbody tr { display: grid; grid-template-columns: 1fr auto; gap: 2px 12px;
  padding: 10px 12px; border-top: 1px solid var(--line); } tbody th, tbody td { border: 0; padding: 0; }
  td:nth-child(n+3) { grid-column: 1 / -1; } .number { text-align: left; } .number small { display: inline; } }
ul { margin: 0; padding-left: 20px; }
"""


def render(report: Report) -> str:
    """The whole page."""
    about = " &middot; ".join(escape(f"{k}: {v}") for k, v in report.about.items())
    steps = "".join(f"<li>{escape(step)}</li>" for step in next_steps(report.findings))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Guard doctor: {report.verdict}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>Before the run: <span class="{report.verdict}">{report.verdict}</span></h1>
<p class="about soft">{about} &middot; {report.seconds:.0f} s</p>
<div class="card scroll">
<table>
<thead><tr><th>Check</th><th></th><th>Finding</th><th class="number">Number</th><th>What to do</th></tr></thead>
<tbody>
{_rows(report)}
</tbody>
</table>
</div>
<h2>Next</h2>
<ul>{steps}</ul>
{_samples(report)}
{_plots(report)}
</main>
</body>
</html>
"""


def _rows(report: Report) -> str:
    return "\n".join(
        _row(finding, TITLES[check] if i == 0 else "")
        for check in report.checks
        for i, finding in enumerate(report.of(check))
    )


def _row(finding: Finding, title: str) -> str:
    shown = number(finding)
    measure = f" <small>{escape(finding.measure)}</small>" if shown and finding.measure else ""
    more = "" if title else ' class="more"'
    soft = ' class="soft"' if finding.verdict == "SKIP" else ""
    return (
        f'<tr{more}><th>{escape(title)}</th><td class="verdict {finding.verdict}">{finding.verdict}</td>'
        f'<td{soft}>{escape(finding.sentence)}</td><td class="number">{shown}{measure}</td>'
        f"<td{soft}>{escape(finding.advice)}</td></tr>"
    )


def _samples(report: Report) -> str:
    batches = [b for b in report.plots("samples") or [] if b]
    if not batches:
        return ""
    cards = "".join(f'<div class="card batch"><h3>Batch {i + 1}</h3>{_batch(b)}</div>' for i, b in enumerate(batches))
    return f'<h2>What the loader gives</h2>\n<div class="batches">{cards}</div>'


def _batch(samples: list[dict[str, Any]]) -> str:
    if all(isinstance(s["input"], list) for s in samples):
        cells = (
            f'<div class="sample"><img src="{pixels(s["input"])}" alt="input">{escape(s["target"])}</div>'
            for s in samples
        )
        return f'<div class="images">{"".join(cells)}</div>'
    lines = (
        f'<div class="sample"><code>{escape(str(s["input"]))}</code>'
        + (f'<br><span class="soft">&rarr;</span> <code>{escape(s["target"])}</code>' if s["target"] else "")
        + "</div>"
        for s in samples
    )
    return f'<div class="rows">{"".join(lines)}</div>'


def _plots(report: Report) -> str:
    figures = "".join(
        f'<figure class="card"><figcaption><h3>{escape(title)}</h3><p class="soft">{escape(caption)}</p></figcaption>'
        f'<img src="{picture}" alt="{escape(title)}"></figure>'
        for title, caption, picture in draw(report)
    )
    return f'<h2>Measured</h2>\n<div class="plots">{figures}</div>' if figures else ""
