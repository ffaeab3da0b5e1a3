"""Handoff: the files with which a trainer is started on a built nanoset, in the trainer's own words."""

from nanoset_core.handoff.writers import Handoff, handoff_files

__all__ = ["Handoff", "handoff_files"]
