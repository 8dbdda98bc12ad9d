"""What a policy set is, once loaded: frozen models that the rest of the guard reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, WithJsonSchema, model_validator
from pydantic.fields import FieldInfo

from guard.actions import ACTIONS, Action
from guard.detectors import DETECTORS
from guard.incidents.diagnose import SLOW, SUDDEN
from guard.policy.references import SecretRef
from guard.policy.triggers import Trigger, leaves
from guard.types import Mode, Severity
from guard.units import Bytes, Seconds, Share, Steps, parse_seconds, parse_steps


class Model(BaseModel):
    """Frozen, and refuses what it does not know. Input is kept out of its errors: it may hold a secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)


def yaml_name(name: str, field: FieldInfo) -> str:
    """What a model's field is called in YAML."""
    return field.validation_alias if isinstance(field.validation_alias, str) else name


def _interval(value: Any) -> Any:
    if value == "auto" or isinstance(value, (int, float)):
        return value
    for parse in (parse_steps, parse_seconds):
        try:
            return parse(value)
        except ValueError:
            continue
    raise ValueError("expected something like '500 steps', '30 min' or 'auto'")


Interval = Annotated[
    int | float | Literal["auto"],
    BeforeValidator(_interval),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}], "examples": ["30 min"]}),
]
NonEmpty = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(ge=1)]
AtLeastOneStep = Annotated[Steps, Field(ge=1)]
NonNegativeSteps = Annotated[Steps, Field(ge=0)]


class Disk(Model):
    """Checkpoints that survive the process.

    Args:
        dir: folder, relative to the run directory unless it is absolute.
        every: a whole number is steps, a float is seconds; ``auto``: as often as 0.5 % of the run's time allows.
        keep: the newest good ones; up to as many older ones, ever further apart, are kept as well.
        max_bytes: what all of them may take; None: no bound.
        signal: one that asks for a checkpoint now; None: none does, because others may use it.
    """

    dir: NonEmpty = "checkpoints"
    every: Interval = 1800.0
    keep: Positive = 3
    max_bytes: Annotated[Bytes, Field(ge=1)] | None = None
    signal: Literal["SIGUSR1", "SIGUSR2", "SIGHUP"] | None = None

    @model_validator(mode="after")
    def _positive(self) -> Disk:
        if self.every != "auto" and self.every <= 0:
            raise ValueError("'every' must be more than 0")
        return self


class Checkpoints(Model):
    """How often the run's state is kept, and how much of it.

    Args:
        every: steps between snapshots in memory, or ``auto``.
        keep: good ones that are kept.
        memory: share of free RAM they may take.
        probation: clean ticks before a checkpoint counts as good.
        disk: None: memory only.
    """

    every: AtLeastOneStep | Literal["auto"] = 100
    keep: Positive = 3
    memory: Share = 0.25
    probation: NonNegativeSteps = 20
    disk: Disk | None = None


class Limits(Model):
    """How often a policy may act.

    Args:
        cooldown: ticks after an incident in which no new one starts.
        max: attempts, within any `per` ticks or, without `per`, in the whole run.
    """

    cooldown: NonNegativeSteps = 0
    max: Positive | None = None
    per: AtLeastOneStep | None = None

    @model_validator(mode="after")
    def _per_needs_max(self) -> Limits:
        if self.per is not None and self.max is None:
            raise ValueError("'per' needs 'max': so many attempts per so many steps")
        return self


class ActionSpec(Model):
    """One action of an attempt, ready to be applied."""

    type: str
    action: Annotated[InstanceOf[Action], WithJsonSchema({})]

    @classmethod
    def of(cls, type_: str, **params: Any) -> ActionSpec:
        """The registered action `type_` with these parameters."""
        found = ACTIONS.get(type_)
        assert found is not None, type_
        return cls(type=type_, action=found(found.Params(**params)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionSpec) and (self.type, self.action.params) == (other.type, other.action.params)

    def __hash__(self) -> int:
        return hash((self.type, self.action.params.model_dump_json()))


class Policy(Model):
    """A trigger, what to do, and how often.

    Args:
        attempts: the ladder; empty: the policy only tells. In YAML ``auto`` may be in its place, or its first rung.
        auto: the cause that a diagnosis finds chooses the first remedy; `attempts` is what follows, or is taken if none
            is found.
        repeats: written as `actions`: one rung that may be taken again and again within `limits`.
        for_: ticks in a row that the trigger must hold; `for` in YAML.
        resolve_after: ticks without the trigger after which an incident is over; if it is not given, a detector that
            judges windows gets one window more.
        on_exhausted: when rungs or budget are spent.
        mode: overrides the set's.
        enabled: False drops it from the set when it is loaded.
        diagnose: the failing step is examined when an incident opens; default: if severity is critical or the remedy is
            ``auto``.
        max_seconds: [s] after which a diagnosis begins no further experiment.
    """

    name: NonEmpty
    description: str = ""
    severity: Severity = "warning"
    trigger: Trigger
    attempts: tuple[tuple[ActionSpec, ...], ...] = ()
    repeats: bool = False
    limits: Limits = Limits()
    for_: AtLeastOneStep = Field(default=1, validation_alias="for", serialization_alias="for")
    resolve_after: AtLeastOneStep = 20
    on_exhausted: Literal["notify", "stop"] = "notify"
    mode: Mode | None = None
    enabled: bool = True
    auto: bool = False
    diagnose: bool | None = None
    max_seconds: Annotated[Seconds, Field(gt=0)] = 5.0

    @property
    def diagnoses(self) -> bool:
        """Its incidents are examined when they open."""
        return self.diagnose if self.diagnose is not None else self.auto or self.severity == "critical"

    @property
    def examined(self) -> bool:
        """It waits for a fault whose cause can be looked for."""
        return any(leaf.type in SUDDEN | SLOW for leaf in leaves(self.trigger))

    @property
    def rungs(self) -> int:
        """Length of the ladder, with the rung that a diagnosis chooses."""
        return len(self.attempts) + self.auto

    @property
    def verify_for(self) -> int:
        """Quiet ticks after which an incident is over: `resolve_after`, but where that is not given no less than its
        detectors need to see the fault again after a remedy."""
        if "resolve_after" in self.model_fields_set:
            return self.resolve_after
        blind = (DETECTORS.get(leaf.type).blind_after_refill(leaf.params) for leaf in leaves(self.trigger))  # type: ignore[union-attr]
        return self.resolve_after + max(blind)

    @model_validator(mode="after")
    def _auto_needs_a_cause(self) -> Policy:
        if self.auto and self.diagnose is False:
            raise ValueError("'attempts: auto' needs the cause, so 'diagnose' cannot be false")
        if self.auto and not self.examined:
            raise ValueError(
                "'attempts: auto' needs a fault that can be examined; allowed: "
                f"a trigger with one of {', '.join(sorted(SUDDEN | SLOW))}"
            )
        return self

    @model_validator(mode="after")
    def _gate_never_waits(self) -> Policy:
        if self.for_ > 1 and any(leaf.type == "non_finite" for leaf in leaves(self.trigger)):
            raise ValueError(
                "'for' cannot be used with non_finite: one non-finite step is enough to lose the weights, "
                "so the gate never waits"
            )
        return self


class Escalate(Model):
    """Whom to tell as well when nobody answers.

    Args:
        after: [s] in which nobody acknowledged an incident that needs a person.
        to: name of another receiver of the same file.
    """

    after: Annotated[Seconds, Field(gt=0)]
    to: NonEmpty


class Receiver(Model):
    """Where incidents are told.

    Args:
        min_severity: nothing milder is told; default ``info`` for the console, else ``warning``.
        mention: who is called when things get worse, e.g. ``<@U012>``.
        channel: Slack channel; needed with a token.
        token, token_file: Slack bot token, or the file that holds it.
        webhook_url: a Slack webhook in place of token and channel.
        url: where a webhook receiver posts to.
        base_url: in place of Slack's own (a proxy).
        secret: signs what a webhook receiver is sent.
        remind_every: [s] until an unresolved incident that nobody acknowledged is told once more, then twice as long
            and so on; None: no reminders.
        escalate: who is told of what nobody acknowledges, and of nothing else.
        lifecycle: starts and ends of the run are told too.
    """

    type: Literal["slack", "webhook", "console"]
    min_severity: Severity = "warning"
    mention: str | None = None
    channel: str | None = None
    token: SecretRef | None = None
    token_file: Path | None = None
    webhook_url: SecretRef | None = None
    url: SecretRef | None = None
    secret: SecretRef | None = None
    base_url: str | None = None
    remind_every: Annotated[Seconds, Field(gt=0)] | None = 4 * 3600.0
    escalate: Escalate | None = None
    lifecycle: bool = False

    @model_validator(mode="before")
    @classmethod
    def _console_tells_all(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type") == "console":
            return {"min_severity": "info", **data}
        return data

    @model_validator(mode="after")
    def _reachable(self) -> Receiver:
        if self.type == "webhook" and self.url is None:
            raise ValueError("a webhook receiver needs 'url'")
        if self.type == "slack":
            given = [key for key in ("token", "token_file", "webhook_url") if getattr(self, key) is not None]
            if len(given) != 1:
                raise ValueError(
                    "a slack receiver needs one of token, token_file and webhook_url; "
                    f"found {' and '.join(given) or 'none'}"
                )
            if not self.channel and self.webhook_url is None:
                raise ValueError("a slack receiver with a token needs 'channel'")
        return self

    @property
    def off_reason(self) -> str | None:
        """Why nothing can be told here (``SLACK_BOT_TOKEN is not set``), or None. Looks at the environment of now."""
        for key in ("token", "webhook_url", "url", "secret"):
            secret: SecretRef | None = getattr(self, key)
            if secret is not None and (why := secret.missing()):
                return why
        return self._file_reason() if self.token_file is not None else None

    def credential(self) -> str:
        """Token or URL to send with, read now; empty if there is none. Never log it."""
        for reference in (self.token, self.webhook_url, self.url):
            if reference is not None:
                return reference.reveal()
        return "" if self.token_file is None or self._file_reason() else self.token_file.read_text("utf-8").strip()

    def _file_reason(self) -> str | None:
        assert self.token_file is not None
        try:
            return None if self.token_file.read_text("utf-8").strip() else f"{self.token_file} is empty"
        except (OSError, UnicodeDecodeError):
            return f"{self.token_file} cannot be read"


class PolicySet(Model):
    """A whole policy file, resolved.

    Args:
        mode: observe or enforce; None: the caller decides.
        deliver: who tells the receivers: the training process, a daemon, or (auto) a daemon if one of this host says
            that it does, else the process.
        name: as given in the file, else its stem, or ``inline``.
    """

    version: Literal[1] = 1
    mode: Mode | None = None
    deliver: Literal["auto", "process", "daemon"] = "auto"
    name: NonEmpty = "inline"
    checkpoints: Checkpoints = Checkpoints()
    policies: tuple[Policy, ...] = ()
    receivers: dict[str, Receiver] = {}
