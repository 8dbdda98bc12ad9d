"""Telling people: the journal is followed, and each receiver is told once, whatever the network does."""

from guard.notify import render
from guard.notify.aside import Aside, Deliver
from guard.notify.check import Finding, check_receivers, send_test
from guard.notify.courier import Courier
from guard.notify.digest import post_digest, render_digest
from guard.notify.message import Message, Reply
from guard.notify.rounds import Pending, Progress
from guard.notify.spec import Escalation, ReceiverSpec
from guard.notify.turn import Limiter

__all__ = [
    "Aside",
    "Courier",
    "Deliver",
    "Escalation",
    "Finding",
    "Limiter",
    "Message",
    "Pending",
    "Progress",
    "ReceiverSpec",
    "Reply",
    "check_receivers",
    "post_digest",
    "render",
    "render_digest",
    "send_test",
]
