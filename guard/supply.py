"""`g.batches`: hands the loop its batches, window by window, and takes the boundary between two iterations with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from guard.errors import UsageError
from guard.run.feed import Feed

if TYPE_CHECKING:
    from guard.guard import Guard


class Supply:
    """The batches of one run.

    Args:
        guard: whose run it is.

    Attributes:
        ticked: the optimizer has stepped since the present window began.
        first_pass: passes over the data before that one were made by an earlier process.
        taking_up: until the first boundary, what the loop does belongs to such a pass.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard, self._live = guard, guard.live
        self._window_open = self.ticked = self.taking_up = False
        self.first_pass = 0

    def serve(self, source: Any, steps: int | None, accumulate: int) -> Iterator[Any]:
        """See `Guard.batches`."""
        guard, live = self._guard, self._live
        feed = self._open(source, steps, accumulate)
        if feed is None:
            return
        try:
            while True:
                first = feed.at_window_start
                if first:
                    if guard.inquiry.waits:
                        yield from guard.examining.examine()
                    if not self._begin_window(feed, steps):
                        return
                guard.doing = "data"
                try:
                    batch = feed.read()
                except StopIteration:
                    if guard.verify_end():
                        return
                    continue
                guard.doing = "step"
                if live.iteration is not None:
                    live.iteration.keep(batch, first)
                guard.saw(batch)
                yield batch
        finally:
            feed.release()

    def _open(self, source: Any, steps: int | None, accumulate: int) -> Feed | None:
        """A feed for `source`; one that goes on where it was if the same source is read again, pass by pass. None: an
        earlier process has made this pass.
        """
        if steps is None and self.first_pass:
            self.first_pass -= 1
            return None
        live, boundary = self._live, self._guard.boundary
        feed = live.feed
        if feed is None or feed.source is not source or feed.accumulate != accumulate:
            feed = live.feed = Feed(source, accumulate, on_pass=boundary.cross_border)
            feed.skipped |= live.skipped_before
            live.skipped_before = frozenset()
            boundary.history_starts = True  # places in another source mean nothing here
            if not feed.can_go_back:
                self._guard.report.notice(
                    "info", "the data source can be read only once, so a rollback goes on with fresh data"
                )
        if steps is None:
            if not feed.iterable:
                raise UsageError("g.batches needs `steps` with a callable source: it has no end of its own")
            feed.passes = (live.to_pass if self.taking_up else feed.pass_number) + 1
            boundary.pass_begins = True
        else:
            feed.passes = None
        self._window_open = False
        return feed

    def _begin_window(self, feed: Feed, steps: int | None) -> bool:
        """At the start of a window; False once `steps` steps are done and verified."""
        guard, live = self._guard, self._live
        while True:
            if self._window_open and not self.ticked:
                live.step += 1  # the loop left this step out by itself
            self._window_open = self.ticked = False
            guard.cross_boundary()
            if feed.skipped:
                with contextlib.suppress(StopIteration):
                    live.step += feed.pass_over()
            if steps is None or live.step < steps:
                self._window_open = True
                return True
            if guard.verify_end():
                return False
