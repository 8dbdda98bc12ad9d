"""What the daemon is told: one YAML file, read as strictly as a policy.

version: 1
home: ~/.local/state/training-guard       # or a list: a hub over several homes
receivers:
  lab: {type: slack, channel: "#training", token: "${SLACK_BOT_TOKEN:-}"}
  oncall: {type: slack, channel: "#oncall", token: "${SLACK_BOT_TOKEN:-}", min_severity: critical, mention: "<@U012>"}
remind_every: 4 h
digest: {cron: "0 9 * * mon-fri", timezone: Europe/Berlin}
escalate: {after: 30 min, to: oncall}
slack_app: {app_token: "${SLACK_APP_TOKEN:-}", operators: [U012]}
listen: 127.0.0.1:8787
retention: 30 days
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger
from pydantic import Field, field_validator, model_validator

from guard import home
from guard.errors import PolicyError, Problem
from guard.policy.build import Builder
from guard.policy.files import Unreadable, read
from guard.policy.messages import kind
from guard.policy.overlay import check_version
from guard.policy.references import SecretRef
from guard.policy.schema import Model, NonEmpty, Receiver
from guard.policy.tree import Node
from guard.policy.yaml_reader import read_yaml
from guard.units import Seconds

Long = Annotated[Seconds, Field(gt=0)]
OFF = "off"
_USER = re.compile(r"[UW][A-Z0-9]{2,}")


class Digest(Model):
    """When the summary of all runs is told.

    Args:
        cron: five fields, as in a crontab.
        timezone: of those fields, e.g. ``Europe/Berlin``; None: this host's.
        to: names of receivers; empty: all of the daemon's.
    """

    cron: NonEmpty
    timezone: str | None = None
    to: tuple[str, ...] = ()

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        try:
            ZoneInfo(value or "UTC")
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"found {value!r}; allowed: a time zone's name such as 'Europe/Berlin' or 'UTC'") from None
        return value

    @field_validator("cron")
    @classmethod
    def _readable(cls, value: str) -> str:
        try:
            CronTrigger.from_crontab(value, "UTC")
        except ValueError as error:
            raise ValueError(f"expected five fields such as '0 9 * * mon-fri' ({error})") from None
        return value

    def trigger(self) -> CronTrigger:
        """For the scheduler."""
        return CronTrigger.from_crontab(self.cron, self.timezone)


class Escalate(Model):
    """A second receiver for what needs a person whom nobody has found; it is told nothing else.

    Args:
        after: time without acknowledgement [s].
        to: name of a receiver of the daemon's.
    """

    after: Long
    to: NonEmpty


class SlackApp(Model):
    """The app through which people answer.

    Args:
        app_token: starts with ``xapp-``.
        operators: Slack user IDs of those who may.
        base_url: in place of Slack's own (a proxy).
    """

    app_token: SecretRef
    operators: tuple[str, ...] = ()
    base_url: str | None = None

    @field_validator("operators")
    @classmethod
    def _ids(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [name for name in value if not _USER.fullmatch(name)]:
            raise ValueError(f"found {wrong[0]!r}; allowed: member IDs such as 'U012AB3CD', from a person's profile")
        return value


class Settings(Model):
    """The daemon's file, resolved.

    Args:
        home: where runs announce themselves; None: the user's own.
        receivers: told of every run, beside the run's own.
        remind_every: [s] between reminders, for all receivers; None: as each receiver says.
        listen: ``HOST:PORT`` of status page and metrics, on loopback; ``off``: none.
        retention: [s] after which a run that has ended is not listed any more.
    """

    home: tuple[Path, ...] | None = None
    receivers: dict[str, Receiver] = Field(default_factory=dict)
    remind_every: Long | None = None
    digest: Digest | None = None
    escalate: Escalate | None = None
    slack_app: SlackApp | None = None
    listen: str = "127.0.0.1:8787"
    retention: Long = 30 * 86400.0

    @field_validator("listen")
    @classmethod
    def _loopback(cls, value: str) -> str:
        if value != OFF:
            host, colon, port = value.rpartition(":")
            if not (colon and port.isdigit() and int(port) < 65536 and is_loopback(host.strip("[]"))):
                raise ValueError(f"found {value!r}; allowed: '127.0.0.1:PORT' (this machine only), or 'off'")
        return value

    @model_validator(mode="after")
    def _names(self) -> Settings:
        wanted = [("digest", name) for name in (self.digest.to if self.digest else ())]
        wanted += [("escalate", self.escalate.to)] if self.escalate else []
        for key, name in wanted:
            if name not in self.receivers:
                known = ", ".join(self.receivers) or "none"
                raise ValueError(f"'{key}' names the receiver {name!r}; there are: {known}")
        return self

    def homes(self) -> tuple[Path, ...]:
        """Where to look; at least one.

        Raises:
            PolicyError: none is named, and the environment says that there is none.
        """
        if self.home:
            return self.home
        if (own := home.where()) is None:
            raise PolicyError([Problem(f"no home is named: {home.VARIABLE} is empty and the file has no 'home'")])
        return (own,)

    def address(self) -> tuple[str, int] | None:
        """Where to listen, or None."""
        host, _, port = self.listen.rpartition(":")
        return None if self.listen == OFF else (host.strip("[]"), int(port))


KEYS = ("version", *Settings.model_fields)
_MARKS = frozenset(KEYS) - {"version", "receivers"}


def is_settings(path: Path) -> bool:
    """Whether a file is meant for the daemon rather than for a run: it has a key that only the daemon knows, and none
    that only a policy has."""
    try:
        root = read_yaml(read(path), path).value
    except (Unreadable, PolicyError):
        return False
    return isinstance(root, dict) and bool(_MARKS & root.keys()) and not {"policies", "extends"} & root.keys()


def is_loopback(host: str) -> bool:
    """A name or address that only this host reaches itself by."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load(source: Path | None) -> Settings:
    """The settings in a file, or the defaults.

    Raises:
        PolicyError: with all problems found, each with its file, line and column.
    """
    if source is None:
        return Settings()
    try:
        root = read_yaml(read(source), source)
    except Unreadable as error:
        raise PolicyError([Problem(str(error), source)]) from None
    problems: list[Problem] = []
    check_version(root, problems)
    built = _Builder(problems).settings(root)
    if problems:
        raise PolicyError(sorted(problems, key=lambda p: (p.line, p.column)))
    assert built is not None
    return built


def explain(settings: Settings) -> list[str]:
    """What the daemon will do, in plain sentences."""
    said = [f"Watches the runs announced in {' and '.join(map(str, settings.homes()))}."]
    for name, receiver in settings.receivers.items():
        where = receiver.channel or receiver.type
        off = f" It is off: {receiver.off_reason}." if receiver.off_reason else ""
        if settings.escalate is not None and name == settings.escalate.to:
            after = _duration(settings.escalate.after)
            said.append(f"Tells {name} ({where}) what needs a person and nobody has acknowledged for {after}.{off}")
            continue
        said.append(
            f"Tells {name} ({where}) of every run's incidents of severity {receiver.min_severity} and worse.{off}"
        )
    if not settings.receivers:
        said.append("Tells the receivers that each run's own policy names.")
    if settings.remind_every is not None:
        said.append(f"Reminds of what is unresolved and not acknowledged every {_duration(settings.remind_every)}.")
    if settings.digest is not None:
        zone, to = settings.digest.timezone or "this host's time", ", ".join(settings.digest.to) or "all of these"
        said.append(f"Tells a summary of all runs at '{settings.digest.cron}' ({zone}) to {to}.")
    if settings.slack_app is not None:
        why = settings.slack_app.app_token.missing()
        who = ", ".join(settings.slack_app.operators) or "nobody"
        said.append(f"Listens on Slack, and obeys {who}." + (f" It is off: {why}." if why else ""))
    said.append("Serves no page." if settings.address() is None else f"Serves status and metrics on {settings.listen}.")
    said.append(f"Forgets a run {_duration(settings.retention)} after its end; its directory is left as it is.")
    return said


def _duration(seconds: float) -> str:
    for unit, size in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}{'' if seconds == size else 's'}"
    return f"{seconds:g} seconds"


class _Builder(Builder):
    def settings(self, root: Node) -> Settings | None:
        done = self.parts(
            root,
            {
                "home": self._homes,
                "receivers": self.receivers,
                "digest": lambda node: self.model(Digest, node, done=self.parts(node, {"to": self._names})),
                "escalate": lambda node: self.model(Escalate, node),
                "slack_app": self._slack_app,
            },
        )
        return self.model(Settings, root, KEYS, done=done, leave_out={"version"})

    def _homes(self, node: Node) -> tuple[Path, ...] | None:
        if not isinstance(node.value, list):
            found = self.path(node)
            return None if found is None else (found,)
        found_all = [self.path(item) for item in node.value]
        if not found_all:
            self.note(node, "found an empty list; allowed: a path, or a list of paths")
        return tuple(p for p in found_all if p is not None) if all(found_all) and found_all else None

    def _slack_app(self, node: Node) -> SlackApp | None:
        if self.mapping(node) is None:
            return None
        done = self.parts(node, {"operators": self._names})
        return self.model(SlackApp, node, done=done, raw=frozenset({"app_token"}))

    def _names(self, node: Node) -> tuple[str, ...] | None:
        items = self.items(node, "a list of names")
        for item in items or ():
            if not isinstance(item.value, str):
                self.note(item, f"found {kind(item.value)}; allowed: text")
        return None if items is None else tuple(str(self.filled(item)) for item in items)
