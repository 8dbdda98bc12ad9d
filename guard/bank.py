"""The detectors that a policy set needs, and which policies their detections satisfy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from guard.checkpoints import Snapshot
from guard.detectors import DETECTORS, Detector
from guard.policy import PolicySet, parse
from guard.policy.schema import Policy
from guard.policy.triggers import All, Leaf, Trigger, leaves
from guard.types import Detection, Signals

_NOTHING: dict[int, Detection] = {}
_REVIEW = 64  # accepted ticks between two looks for detectors that are settled

# What holds the gate if a policy set says nothing about non-finite numbers.
_GATE = """
version: 1
policies:
  - name: gate
    description: Non-finite gradients never reach the optimizer.
    severity: critical
    trigger: {type: non_finite}
    actions: [{type: skip_step}]
"""


class Rules:
    """Policies, with each different detector once.

    Attributes:
        policies: those of the set, and the gate if none of them waits for non_finite.
        keys: what each detector is, so that it can be found again under another policy file.
    """

    def __init__(self, policies: PolicySet) -> None:
        chosen = [p for p in policies.policies if p.enabled]
        if not any(leaf.type == "non_finite" for p in chosen for leaf in leaves(p.trigger)):
            chosen += parse(_GATE, None).policies
        self.policies: Sequence[Policy] = tuple(chosen)
        self._leaves = list(dict.fromkeys(leaf for p in chosen for leaf in leaves(p.trigger)))
        self._index = {leaf: i for i, leaf in enumerate(self._leaves)}
        self.keys = [f"{leaf.type} {leaf.params!r}" for leaf in self._leaves]

    def bank(self, *, curves: bool = True) -> Bank:
        """A fresh set of detectors.

        Args:
            curves: with those that judge the shape of the loss curve; several optimizers play a game whose losses
                have an equilibrium, where flat is how it should be.
        """
        detectors = {}
        for i, leaf in enumerate(self._leaves):
            cls = DETECTORS.get(leaf.type)
            assert cls is not None, "checked when the policy was loaded"
            if curves or not cls.of_curve:
                detectors[i] = cls(leaf.params)
        return Bank(detectors)

    def needs(self) -> dict[str, int]:
        """Parts of `Signals.deep` that the detectors read -> the shortest interval [ticks] one of them asks for."""
        asked = [
            (need, int(getattr(leaf.params, "every", 1)))
            for leaf in self._leaves
            if (cls := DETECTORS.get(leaf.type)) is not None
            for need in cls.needs
        ]
        return {need: min(every for other, every in asked if other == need) for need, _ in asked}

    def indices(self, name: str) -> list[int]:
        """Indices of the detectors called `name`."""
        return [i for i, leaf in enumerate(self._leaves) if leaf.type == name]

    def satisfied(self, hits: Mapping[int, Detection]) -> dict[int, Detection]:
        """Index of a policy -> the detection that satisfies its trigger.

        Args:
            hits: index of a detector -> its detection.
        """
        if not hits:
            return {}
        found = ((i, self._evaluate(p.trigger, hits)) for i, p in enumerate(self.policies))
        return {i: detection for i, detection in found if detection is not None}

    def _evaluate(self, trigger: Trigger, hits: Mapping[int, Detection]) -> Detection | None:
        if isinstance(trigger, Leaf):
            return hits.get(self._index[trigger])
        parts = [self._evaluate(part, hits) for part in trigger.of]
        seen = [p for p in parts if p is not None]
        if not seen or (isinstance(trigger, All) and len(seen) < len(parts)):
            return None
        return min(seen, key=lambda d: d.since)


class Bank:
    """The detectors of one optimizer.

    Attributes:
        flagged: what fired in this tick.
        failed: ``(name, error)`` of detectors that raised; they are out.
    """

    __slots__ = ("_asked", "_indexed", "_learns", "_left", "_scores", "_taught", "failed", "flagged")

    def __init__(self, detectors: Mapping[int, Detector]) -> None:
        self._indexed = list(detectors.items())
        self.flagged: dict[int, Detection] = _NOTHING
        self.failed: list[tuple[str, Exception]] = []
        self._choose()

    def score(self, s: Signals) -> dict[int, Detection]:
        """Index of a detector -> its detection; empty in a healthy tick."""
        hits = _NOTHING
        score = None
        try:
            for score in self._scores:
                hit = score(s)
                if hit is not None:
                    hits = {**hits, self._asked[self._scores.index(score)][0]: hit}
        except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
            assert score is not None
            self._disable(self._asked[self._scores.index(score)][1], error)
            return self.score(s)
        return hits

    def learn(self, s: Signals) -> None:
        """An accepted tick: detectors that saw nothing learn, the others count it."""
        self._left -= 1
        if not self._left:
            self._choose()
        if self.flagged:
            self._learn_or_hold(s)
            return
        learn = None
        try:
            for learn in self._learns:
                learn(s)
        except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
            assert learn is not None
            self._disable(self._taught[self._learns.index(learn)], error)

    def _learn_or_hold(self, s: Signals) -> None:
        for i, detector in self._asked:
            try:
                if i in self.flagged:
                    detector.hold(s)
                else:
                    detector.learn(s)
            except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
                self._disable(detector, error)
                return

    def refill(self, went_back: Snapshot | None, number: int) -> None:
        """After a remedy; after a rollback also with the baselines of that time.

        Args:
            went_back: the snapshot that was restored, if one was.
            number: which optimizer's bank this is.
        """
        saved = None if went_back is None else went_back.context["baselines"][number]
        for i, detector in list(self._indexed):
            try:
                if saved is not None and i in saved:
                    detector.load_state_dict(saved[i])
                detector.refill()
            except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
                self._disable(detector, error)
        self._choose()  # with a state of earlier, one that was settled may not be any more

    def load(self, saved: Mapping[int, Any]) -> None:
        """Takes up where another process was: windows go on, nothing is refilled."""
        for i, detector in list(self._indexed):
            try:
                if i in saved:
                    detector.load_state_dict(saved[i])
            except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
                self._disable(detector, error)
        self._choose()

    def state_dict(self) -> dict[int, Any]:
        state = {}
        for i, detector in list(self._indexed):
            try:
                state[i] = detector.state_dict()
            except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
                self._disable(detector, error)
        return state

    def _disable(self, detector: Detector, error: Exception) -> None:
        self.failed.append((detector.name, error))
        self._indexed = [(i, d) for i, d in self._indexed if d is not detector]
        self._choose()

    def _choose(self) -> None:
        """Whom to ask in the next ticks: not those that are settled, nor those that learn nothing. Their methods are
        looked up here rather than in every tick."""
        self._left = _REVIEW
        self._asked: list[tuple[int, Detector]] = []
        for i, detector in self._indexed:
            try:
                if not detector.settled:
                    self._asked.append((i, detector))
            except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
                self._disable(detector, error)  # chooses anew
                return
        self._scores = [d.score for _, d in self._asked]
        self._taught = [d for _, d in self._asked if getattr(d.learn, "__func__", None) is not Detector.learn]
        self._learns = [d.learn for d in self._taught]
