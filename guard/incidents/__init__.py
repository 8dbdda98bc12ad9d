"""Incidents: their journal, their lifecycle, and the evidence kept of them."""

from guard.incidents.journal import Follower, read_journal
from guard.incidents.log import IncidentLog
from guard.incidents.outside import StoryFollower, read_story

__all__ = ["Follower", "IncidentLog", "StoryFollower", "read_journal", "read_story"]
