"""From detections to deeds: asks the policy engine what is to be done, does it, and journals both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from guard.actions import OTHER, STRENGTH
from guard.bank import Bank, Rules
from guard.diagnosis import Inquiry, Subject
from guard.errors import GuardError
from guard.incidents.diagnose import Diagnosis
from guard.policy import engine, memory
from guard.policy.schema import ActionSpec, Policy
from guard.reporter import Reporter
from guard.run import standing
from guard.run.live import LiveRun
from guard.signals import History
from guard.types import Detection, Mode, Result

_SHOWN = 20  # ticks of signals kept with an incident
_CHANGES_COURSE = frozenset({"rollback", "scale_lr", "precision", "reset_optimizer", "warmup_lr", "accumulate"})


class _Held(NamedTuple):
    """A tick that waits for its cause, with what the engine is to be asked then."""

    policy: int
    moment: engine.Moment
    fired: Mapping[int, Detection]
    evidence: Mapping[str, Any]


class Responder:
    """Holds the engine's state and answers its questions about the run (`policy.engine.World`).

    Args:
        rules: policies and their detectors.
        live: the run that actions change.
        report: the journal.
        banks: detectors per optimizer; refilled after a remedy.
        history: recent ticks, for evidence.
        mode: enforce or observe.
        opened: incidents that are numbered already.
        inquiry: examines the failing step.

    Attributes:
        history: as given.
        unclean: the last response was to something of severity warning or worse, beyond clipping.
    """

    def __init__(
        self,
        rules: Rules,
        live: LiveRun,
        report: Reporter,
        banks: Sequence[Bank],
        history: History,
        *,
        mode: Mode,
        opened: int,
        inquiry: Inquiry,
    ) -> None:
        self._rules, self._live, self._report, self._banks, self.history = rules, live, report, banks, history
        self._state = engine.State.new(rules.policies, mode, opened)
        self._broken: list[object] = []  # actions that failed
        self._inquiry = inquiry
        self._held: _Held | None = None
        self._examined = ""  # incident whose diagnosis is under way
        self.unclean = False

    @property
    def mode(self) -> Mode:
        return self._state.mode

    @property
    def acting(self) -> bool:
        return self._state.mode == "enforce"

    @property
    def examines(self) -> bool:
        """Some policy wants to know the cause of its incidents."""
        return any(p.diagnoses for p in self._rules.policies)

    @property
    def due(self) -> int:
        """The tick at which it must be asked even if nothing fires."""
        return self._state.due

    def respond(
        self,
        hits: Mapping[int, Detection],
        evidence: Mapping[str, Any],
        loss: float = math.nan,
        *,
        may_wait: bool = False,
    ) -> bool:
        """Lets the engine decide, and does what it decides, in its order.

        Args:
            hits: index of a detector -> its detection.
            evidence: kept with incidents that open now.
            loss: of the step.
            may_wait: the step may be left out until its cause is known.

        Returns:
            False: the policy wants to know the cause first, and the run's loop is needed for that. The update must not
            run, and the tick is not over until `conclude` is called.
        """
        live, rules = self._live, self._rules.policies
        fired = self._rules.satisfied(hits)
        nonfinite = any(d.detector == "non_finite" for d in hits.values())
        # A state that is not finite was poisoned by the step before the one that shows it.
        poisoned = nonfinite and not live.start_finite()
        moment = engine.Moment(live.tick, live.step, live.position - poisoned)
        if fired:
            self.history.flagged.append(live.tick)
        index = self._to_examine(fired, moment)
        diagnosis: Diagnosis | None = None
        subject: Subject | None = None
        if index is not None:
            subject = self._inquiry.note(rules[index], fired[index], loss, poisoned=poisoned)
        if index is not None and subject is not None:
            if not self._inquiry.can_wait():
                self._report.examining(rules[index], fired[index])
                diagnosis, subject = self._inquiry.aside(subject), None
            elif rules[index].auto and may_wait:
                self._inquiry.keep(subject)
                self._held = _Held(index, moment, fired, evidence)
                self._report.examining(rules[index], fired[index])
                return False
        self._decide(moment, fired, evidence, index=index, diagnosis=diagnosis, subject=subject)
        return True

    def conclude(self, diagnosis: Diagnosis | None) -> None:
        """What was examined through the loop is known now; what waited for it is decided."""
        held, self._held = self._held, None
        if held is not None:
            self._decide(held.moment, held.fired, held.evidence, index=held.policy, diagnosis=diagnosis)
        elif diagnosis is not None:
            self._report.diagnosed(self._examined, diagnosis)
        self._examined = ""

    def holds(self) -> bool:
        """A tick waits for its cause."""
        return self._held is not None

    def _to_examine(self, fired: Mapping[int, Detection], moment: engine.Moment) -> int | None:
        """The policy whose incident opens now, and that wants to know the cause; those that choose by it first."""
        rules = self._rules.policies
        wanted = [i for i in fired if rules[i].diagnoses and engine.opens(self._state, rules, moment, i, fired[i])]
        return min(wanted, key=lambda i: (not rules[i].auto, i), default=None)

    def _decide(
        self,
        moment: engine.Moment,
        fired: Mapping[int, Detection],
        evidence: Mapping[str, Any],
        *,
        index: int | None,
        diagnosis: Diagnosis | None,
        subject: Subject | None = None,
    ) -> None:
        """Asks the engine, does what it says.

        Args:
            index: the policy about whose fault there is, or is to be, a diagnosis.
            subject: what is to be examined once this is done.
        """
        rules = self._rules.policies
        chosen = {} if index is None or diagnosis is None else {index: diagnosis.remedy}
        self._state, events = engine.advance(self._state, rules, moment, fired, self, remedies=chosen)
        only_clipped, worth_keeping = True, False
        for event in events:
            match event:
                case engine.Opened():
                    worth_keeping = True
                    self._report.opened(event, self.history.rows, _SHOWN, evidence)
                    if index is not None and event.policy is rules[index]:
                        self._know(event.incident, diagnosis, subject)
                case engine.Attempted(would=True):
                    self._report.attempted(event, moment.step, [self._would(a) for a in event.actions])
                case engine.Attempted():
                    only_clipped = only_clipped and all(_gentle(a) for a in event.actions)
                    worth_keeping |= self._report.attempted(event, moment.step, self._act(event))
                case _:
                    worth_keeping |= isinstance(event, engine.Closed)
                    self._tell(event)
        if worth_keeping:
            self.remember()
        self.unclean = not only_clipped or any(rules[i].severity != "info" and not _clips(rules[i]) for i in fired)

    def _know(self, incident: str, diagnosis: Diagnosis | None, subject: Subject | None) -> None:
        """The incident has its name: its diagnosis is journaled, or begins when the loop asks for its next batch."""
        if diagnosis is not None:
            self._report.diagnosed(incident, diagnosis)
        elif subject is not None:
            self._inquiry.keep(subject)
            self._examined = incident

    def remember(self) -> None:
        """Journals what must outlive the process."""
        self._report.memory(memory.to_plain(self._state, self._rules.policies), standing.to_plain(self._live))

    def recall(self, entry: Mapping[str, Any]) -> set[str]:
        """Takes up what `remember` wrote in an earlier process; returns the incidents that are still open."""
        self._state = memory.from_plain(entry["engine"], self._state, self._rules.policies)
        standing.stand(self._live, entry["standing"])
        return {p.open.id for p in self._state.policies if p.open is not None and not p.open.spent}

    def refill(self) -> None:
        """After a remedy: detectors' windows start anew; after a rollback with the baselines of that time."""
        for number, bank in enumerate(self._banks):
            bank.refill(self._live.went_back, number)

    def set_mode(self, mode: Mode, policy: str | None) -> None:
        """Observe or enforce, for one policy or (None) for the whole run, from now on."""
        self._state = engine.set_mode(self._state, self._rules.policies, mode, policy)

    def end(self) -> None:
        """The run is over: closes what is open, without a verdict."""
        self._state, events = engine.end_all(self._state, self._rules.policies)
        for event in events:
            self._tell(event)

    # ---- the engine's questions

    def unavailable(self, spec: ActionSpec, detection: Detection) -> str | None:
        if any(spec.action is action for action in self._broken):
            return "it failed before"
        try:
            return spec.action.unavailable(self._live, detection)
        except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
            self._failed(spec, error)
            return f"it failed: {error}"

    def state_finite(self) -> bool:
        return self._live.start_finite()

    # ---- deeds

    def _act(self, event: engine.Attempted) -> list[Result]:
        """Takes the actions of one attempt: those that only look, then strongest first. One that fails is reported and
        left out."""
        results: list[Result] = []
        self._live.incident = event.incident
        for spec in sorted(event.actions, key=lambda a: (a.action.remedy, STRENGTH.get(a.type, OTHER))):
            result, failed = None, None
            try:
                result = spec.action.apply(self._live, event.detection)
            except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
                failed = error
            if self._live.ranks.all(result is not None) and result is not None:
                results.append(result)
            else:
                self._failed(spec, failed or GuardError("it failed on another rank"))
        if any(r.type in _CHANGES_COURSE for r in results):
            self.refill()
        return results

    def _would(self, spec: ActionSpec) -> Result:
        try:
            return Result(spec.type, f"would {spec.action.describe()}")
        except Exception as error:  # noqa: BLE001 - a plug-in that fails must not kill the run
            self._failed(spec, error)
            return Result(spec.type, f"would do {spec.type}")

    def _failed(self, spec: ActionSpec, error: Exception) -> None:
        """Reported once; from now on the action is not available."""
        self._broken.append(spec.action)
        self._report.failure(f"action {spec.type}", error)

    def _tell(self, event: engine.Event) -> None:
        if isinstance(event, engine.Fired):
            self._report.fired(event)
        elif isinstance(event, engine.Closed):
            self._live.incident_over(event.incident)
            self._report.closed(event, self.history.rows)


def _clips(policy: Policy) -> bool:
    return bool(policy.attempts) and not policy.auto and all(_gentle(a) for rung in policy.attempts for a in rung)


def _gentle(spec: ActionSpec) -> bool:
    """It leaves a tick clean."""
    return spec.type == "clip" or not spec.action.remedy
