"""Sentences about documents and steps of training, which terminal and UI show alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nanoset_core.records.text import format_count

if TYPE_CHECKING:
    from nanoset_core.lineage.documents import DocumentOrigin
    from nanoset_core.lineage.run import StepOrigin


def place_of(origin: DocumentOrigin) -> str:
    """Return where a document came from, as `corpus/file:line`."""
    return f"{origin.corpus}/{origin.file}:{origin.line}"


def step_sentence(step: StepOrigin) -> str:
    """Return in a sentence how many samples a training step read, and in which layout."""
    ranks = format_count(step.data_parallel_size, "rank")
    sentence = (
        f"step {step.step:,} read {step.batch_size:,} samples "
        f"after {step.consumed_samples:,} consumed, "
        f"on {ranks} in micro-batches of {step.micro_batch_size:,}, of {step.handoff}."
    )
    if step.skipped:
        sentence += " It was skipped: consumed, and not trained on."
    return sentence
