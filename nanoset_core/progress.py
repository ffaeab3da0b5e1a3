"""How long work reports where it is; who listens decides how to show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One piece of news from long work."""

    stage: str
    """what is being done, such as tokenization"""
    name: str
    """to what: a corpus, a nanoset, a webdataset"""
    done: int
    """units done so far"""
    total: int
    """units in all"""
    unit: str = "bytes"
    """what is counted"""
    documents: int = 0
    """documents so far, where they are counted"""
    tokens: int = 0
    """tokens so far, where they are counted"""


Listener = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """The listener that shows nothing."""
