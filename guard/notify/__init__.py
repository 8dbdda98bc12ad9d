"""Telling people: the journal is followed, and each receiver is told once, whatever the network does."""

from guard.notify import render
from guard.notify.check import Finding, check_receivers, send_test
from guard.notify.courier import Courier, Pending, Progress
from guard.notify.message import Message, Reply
from guard.notify.spec import ReceiverSpec

__all__ = [
    "Courier",
    "Finding",
    "Message",
    "Pending",
    "Progress",
    "ReceiverSpec",
    "Reply",
    "check_receivers",
    "render",
    "send_test",
]
