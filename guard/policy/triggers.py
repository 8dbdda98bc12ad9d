"""What a policy waits for: one detector, or a combination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny

from guard.registry import Params


class Leaf(BaseModel):
    """One detector and its parameters. Equal leaves can share one detector.

    Args:
        type: the detector's name.
        params: an instance of that detector's own `Params`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    params: SerializeAsAny[Params]

    def __hash__(self) -> int:
        # Not of the fields: a plug-in's parameters may hold a list.
        return hash((self.type, self.params.model_dump_json()))


class All(BaseModel):
    """Every one of them in the same tick."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    of: tuple[Trigger, ...] = Field(min_length=1)


class Any(BaseModel):
    """At least one of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    of: tuple[Trigger, ...] = Field(min_length=1)


Trigger: TypeAlias = Leaf | All | Any
All.model_rebuild()
Any.model_rebuild()


def leaves(trigger: Trigger) -> Iterator[Leaf]:
    """Every detector in a trigger, from left to right."""
    if isinstance(trigger, Leaf):
        yield trigger
    else:
        for part in trigger.of:
            yield from leaves(part)
