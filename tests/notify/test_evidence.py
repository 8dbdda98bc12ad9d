"""The evidence folder: a picture and a page, from the journal alone."""

from __future__ import annotations

from pathlib import Path

from guard.notify import evidence


def test_picture_and_report_are_made_in_a_process_of_their_own(night) -> None:
    night.opened("i0001")
    picture = evidence.make_in_subprocess(night.run_dir, "i0001")
    assert picture is not None
    assert picture.read_bytes().startswith(b"\x89PNG")
    report = (picture.parent / "report.md").read_text("utf-8")
    assert "## What happened" in report
    assert "![loss and gradient norm](plot.png)" in report


def test_no_such_incident_is_no_picture(night, tmp_path: Path) -> None:
    night.opened("i0001")
    assert evidence.make_in_subprocess(night.run_dir, "i0002") is None
