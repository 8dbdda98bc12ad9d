"""Incidents: their journal, their lifecycle, and the evidence kept of them."""

from guard.incidents.journal import Follower, read_journal
from guard.incidents.log import IncidentLog

__all__ = ["Follower", "IncidentLog", "read_journal"]
