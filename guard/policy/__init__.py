"""Policies: strict YAML in, a frozen `PolicySet` out, and what can be said about one. Loads no torch."""

from guard.policy.dumping import dump
from guard.policy.editor_schema import json_schema
from guard.policy.explain import explain
from guard.policy.loading import load, parse
from guard.policy.references import SecretRef
from guard.policy.schema import ActionSpec, Checkpoints, Disk, Limits, Policy, PolicySet, Receiver
from guard.policy.triggers import All, Any, Leaf, Trigger, leaves

__all__ = [
    "ActionSpec",
    "All",
    "Any",
    "Checkpoints",
    "Disk",
    "Leaf",
    "Limits",
    "Policy",
    "PolicySet",
    "Receiver",
    "SecretRef",
    "Trigger",
    "dump",
    "explain",
    "json_schema",
    "leaves",
    "load",
    "parse",
]
