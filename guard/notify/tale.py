"""A run's whole story as it is told: the journal and what those outside added, folded, with a version for each message
that a line may change.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from guard.incidents import IncidentLog, StoryFollower
from guard.notify import lifecycle, story
from guard.types import Entry

DAMAGED = (AttributeError, KeyError, TypeError, ValueError)  # what odd values in a journal lead to

_OF_ALL = ("run_started", "run_finished", "reopened", "silence")  # lines that may change every message


class Tale:
    """Keeps up with one run.

    Args:
        run_dir: of the run; the journal is there.
        beside: a further folder in which additions may be.
        trouble: told of lines that cannot be taken in; they silence nothing else.

    Attributes:
        versions: by message, how many lines have concerned it.
        run_key: names this run in message metadata, the same for every process that delivers it; "" before there is
            anything.
    """

    def __init__(self, run_dir: Path, beside: Path | None, trouble: Callable[[Exception], None]) -> None:
        self._run_dir, self._beside, self._trouble = run_dir, beside, trouble
        self._begin()

    def _begin(self) -> None:
        self.log, self.versions, self.run_key = IncidentLog(), Counter[str](), ""
        self._follower = StoryFollower(self._run_dir, self._beside)

    def grown(self) -> bool:
        """There may be something new. Costs a few `stat`."""
        return self._follower.grown()

    def catch_up(self, *, sync: bool = False) -> bool:
        """Takes in what is new, once it is on the disk. True if it is another run than before: its directory was made
        anew."""
        if anew := self._follower.shrunk():
            self._begin()
        before, lost, touched, everything = story.owners(self.log), story.lost(self.log), set[str](), False
        for entry in self._follower.read(sync=sync):
            if not self.run_key and entry["kind"] == "run_started":
                self.run_key = _run_key(entry)
            everything |= entry["kind"] in _OF_ALL
            touched.add(str(entry.get("incident", "")))
            try:
                self.log.apply(entry)
            except DAMAGED as error:
                self._trouble(error)
        after = story.owners(self.log)
        everything |= story.lost(self.log) is not lost
        # It may have left one message for another.
        changed = {key for i in touched for key in (before.get(i), after.get(i)) if key}
        self.versions.update({lifecycle.ID, *after.values()} if everything else changed)
        self.run_key = self.run_key or _run_key({"run_dir": str(self._run_dir)})
        return anew


def _run_key(started: Entry) -> str:
    facts = "|".join(str(started.get(k)) for k in ("host", "run_dir", "pid", "time"))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
