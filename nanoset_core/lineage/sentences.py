"""Describe documents and training steps in words, for the terminal and the UI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nanoset_core.wording import format_count

if TYPE_CHECKING:
    from nanoset_core.lineage.documents import DocumentOrigin
    from nanoset_core.lineage.run import StepOrigin


def place_of(origin: DocumentOrigin) -> str:
    """Return where a document came from, such as `web/part-0.jsonl:5` for line 5 of that file.

    Args:
        origin: The document: its number, file and line.
    """
    return f"{origin.corpus}/{origin.file}:{origin.line}"


def step_sentence(step: StepOrigin) -> str:
    """Return a sentence about a training step: how many samples it read, and on how many processes.

    For example, "step 3 read 8 samples after 16 consumed, on 2 ranks in micro-batches of 4, of
    <folder>.". A rank is a process, and a micro-batch is what it reads at once.

    Args:
        step: The step, with the settings that the trainer had, and the folder with which it was
            started.
    """
    ranks = format_count(step.data_parallel_size, "rank")
    sentence = (
        f"step {step.step:,} read {step.batch_size:,} samples "
        f"after {step.consumed_samples:,} consumed, "
        f"on {ranks} in micro-batches of {step.micro_batch_size:,}, of {step.handoff}."
    )
    if step.skipped:
        sentence += " It was skipped: its samples were consumed, but not trained on."
    return sentence
