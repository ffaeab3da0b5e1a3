"""Sentences about documents and steps of training, which terminal and UI show alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nanoset_core.records.text import format_count

if TYPE_CHECKING:
    from nanoset_core.lineage.documents import DocumentOrigin

_STEP = (
    "step {step:,} read {batch_size:,} samples after {consumed_samples:,} consumed, on {ranks} in "
    "micro-batches of {micro_batch_size:,}, of {handoff}."
)


def place_of(origin: DocumentOrigin) -> str:
    """Return where a document came from, as `corpus/file:line`."""
    return f"{origin.corpus}/{origin.file}:{origin.line}"


def step_sentence(step: Mapping[str, Any]) -> str:
    """Return in a sentence what a step of a run is.

    Args:
        step: The JSON values of `StepOrigin`.
    """
    ranks = format_count(step["data_parallel_size"], "rank")
    sentence = _STEP.format_map({**step, "ranks": ranks})
    if step["skipped"]:
        sentence += " It was skipped: consumed, and not trained on."
    return sentence
