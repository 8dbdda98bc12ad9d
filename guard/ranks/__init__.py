"""Ranks: processes that train together decide together, so that none ever skips, clips or goes back alone."""

from guard.ranks.agreement import CALM, Agreed
from guard.ranks.group import TIMEOUT, Ranks
from guard.ranks.merging import beyond, merged_looks, merged_metrics

__all__ = ["CALM", "TIMEOUT", "Agreed", "Ranks", "beyond", "merged_looks", "merged_metrics"]
