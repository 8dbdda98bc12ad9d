"""One fault is told once: what follows from it is marked as explained, and not counted again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from guard.doctor.finding import Finding, worst


def explain(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Turns symptoms into SKIP where another finding is their cause.

    A cause that was only a WARN becomes a FAIL if it explains one: without it there would have been a FAIL. Causes may
    stand later in the order than their symptoms: huge weights explain a huge first loss.
    """
    findings = _relieved(findings)
    roots = [f for f in findings if f.bad and not f.symptom]
    told: list[Finding] = []
    promoted: set[int] = set()
    for finding in findings:
        cause = _cause(finding, roots, findings)
        if cause is None:
            told.append(finding)
            continue
        if finding.verdict == "FAIL":
            promoted.add(id(_root(cause, roots, findings)))
        told.append(
            replace(
                finding,
                verdict="SKIP",
                sentence=f"explained by {cause.check}: {finding.sentence}",
                advice=f"see {cause.check}",
            )
        )
    return tuple(
        replace(new, verdict="FAIL") if id(old) in promoted and new.verdict == "WARN" else new
        for old, new in zip(findings, told, strict=True)
    )


def _relieved(findings: Sequence[Finding]) -> list[Finding]:
    """A FAIL says that training will not work: where the short run and the memorised batch show that it does, a symptom
    seen before the first step is a warning."""
    works = all(worst(tuple(f for f in findings if f.check == check)) == "PASS" for check in ("overfit", "curve"))
    early = ("loss", "activations", "gradients")
    return [
        replace(f, verdict="WARN") if works and f.symptom and f.verdict == "FAIL" and f.check in early else f
        for f in findings
    ]


def _cause(finding: Finding, roots: Sequence[Finding], findings: Sequence[Finding]) -> Finding | None:
    """A finding that accounts for this one: of no symptom itself if there is such a one, else an earlier symptom."""
    if not (finding.symptom and finding.bad):
        return None
    direct = [f for f in roots if finding.check in f.explains and f is not finding]
    if direct:
        return next((f for f in direct if f.verdict == "FAIL"), direct[0])
    earlier = findings[: findings.index(finding)]
    return next((f for f in earlier if f.bad and f.check != finding.check and finding.check in f.explains), None)


def _root(cause: Finding, roots: Sequence[Finding], findings: Sequence[Finding]) -> Finding:
    """The cause's own cause, and so on."""
    while (further := _cause(cause, roots, findings)) is not None and further is not cause:
        cause = further
    return cause


def next_steps(findings: Sequence[Finding]) -> tuple[str, ...]:
    """What to do when the report has been read: on PASS how to begin the real run, else where to begin mending."""
    verdict = worst(tuple(findings))
    if verdict == "FAIL":
        first = next(f for f in findings if f.verdict == "FAIL")
        return (f"Mend {first.check} first, then run the doctor again: it may explain the rest.",)
    return (
        *(("Read the warnings: each is either meant, or cheaper to mend now.",) if verdict == "WARN" else ()),
        "Train on all the data now. Begin with a small learning rate, and raise it once the loss falls.",
        "Watch training and validation loss: when they part, regularise; when both stand, raise rate or capacity.",
        "Keep a checkpoint you can go back to, and put a guard on the run: guard.attach(model, optimizer).",
        "If memory or time are short, try BF16; compare the first hundred steps with FP32.",
    )
