"""What fails in runs of this process: which output, and why. Dagster tells no more than that a run failed."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from nanoset_core.pipeline.stage import Node


@dataclass(frozen=True, slots=True)
class Failure:
    """An output that could not be made, or is not right."""

    node: Node
    error: Exception


_noted: ContextVar[list[Failure] | None] = ContextVar("noted", default=None)


@contextmanager
def noted_failures() -> Iterator[list[Failure]]:
    """What fails in this process within the block, in order."""
    found: list[Failure] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def note_failure(node: Node, error: Exception) -> None:
    """Tell whoever listens that an output could not be made, or is not right."""
    if (noted := _noted.get()) is not None:
        noted.append(Failure(node, error))
