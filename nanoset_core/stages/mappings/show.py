"""Summaries of a split: its samples, what it reads of its data, and what it leaves unread.

`nanoset status` shows them, such as 1,000 samples, 0.50 to 2.00 epochs and 12,345 unused tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from nanoset_core.loading.layout import LACKING
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.mappings.facts import (
    CORPORA,
    LIMIT_WARNINGS,
    cache_files,
    samples_read,
    tokens_read,
    unused_samples,
    unused_tokens,
)
from nanoset_core.stages.stage import Summary, size_bytes


def split_summary(manifest: Manifest) -> Summary:
    """Return what `nanoset status` shows of a split: counts, and details such as epochs.

    Args:
        manifest: Manifest of the split's index mappings or blend.
    """
    return Summary(_figures(manifest), _details(manifest.facts))


def mappings_summary(manifest: Manifest) -> Summary:
    """Return what `nanoset status` shows of a split: counts, details, and warnings.

    There is a warning if the split has no sample, since the trainer would fail, or if documents may
    be read more often than `max_epochs` says.

    Args:
        manifest: The record of the split (train, valid or test), with its number of samples.
    """
    warnings: list[str] = list(manifest.facts.get(LIMIT_WARNINGS, ()))
    reason = reason_without_samples(manifest)
    if reason is not None:
        warnings.append(reason)
    return replace(split_summary(manifest), warnings=warnings)


def reason_without_samples(manifest: Manifest) -> str | None:
    """Return why a split of the training data has no sample, or None if it has some.

    For example: "it has no sample: tokens of valid: web 12; a sample takes 17. Give valid a larger
    share, or none, or leave out what is too small". A split without any data is empty on purpose,
    so it has no reason.

    Args:
        manifest: The record of the split.
    """
    facts = manifest.facts
    if LACKING in facts:
        reason: str | None = facts[LACKING]
        return reason
    # Versions before 0.2 do not record the reason. `members` are the datasets of the split.
    if facts["members"] and not facts["samples"]:
        return "it has no sample"
    return None


def _figures(manifest: Manifest) -> dict[str, int]:
    """Return the numbers that `nanoset status` shows of a split of the training data.

        {"bytes": 80000, "samples": 1000, "unused_samples": 0, "tokens": 2048000,
         "unique_tokens": 1024000, "repeated_tokens": 1024000}

    The bytes include the index files, by which the trainer reads samples. These are in a folder of
    the trainer.

    Args:
        manifest: The record of the split: its files, and `facts` about its data.
    """
    index_bytes = sum(entry["bytes"] for entry in cache_files(manifest).values())
    figures = {"bytes": size_bytes(manifest) + index_bytes}
    figures |= _sample_figures(manifest)
    corpora = manifest.facts.get(CORPORA)  # an entry for each collection of texts that is read
    if corpora:  # old records have none
        figures["unique_tokens"] = _total(corpora, "unique_tokens")
        figures["repeated_tokens"] = _total(corpora, "repeated_tokens")
    return figures


def _sample_figures(manifest: Manifest) -> dict[str, int]:
    """Return how many samples a split has, how many of them are unused, and how many tokens it has.

    Trainers prepare some more samples than they read: these are unused.

        {"samples": 1000, "unused_samples": 5, "tokens": 2048000}

    Args:
        manifest: The record of the split (train, valid or test).

    Returns:
        The numbers; none for records of old versions.
    """
    if "members" not in manifest.facts:
        return {}
    n_samples = samples_read(manifest.facts)
    figures = {"samples": n_samples, "unused_samples": unused_samples(manifest.facts)}
    # Some records have no length of samples.
    sequence_length = manifest.recipe["options"].get("sequence_length")
    if sequence_length is not None:
        figures["tokens"] = tokens_read(manifest.facts, int(sequence_length))
    return figures


def _details(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what `nanoset status` shows of the data that a split reads, as columns of a table.

        unused samples    epochs          unused tokens
        300               1.00 to 2.50    1,203

    Args:
        facts: What was recorded of the split (train, valid or test). `members` has an entry for
            each of its datasets; old records have no `members`.
    """
    if "members" not in facts:
        return {}
    details: dict[str, str] = {}
    n_unused_samples = unused_samples(facts)
    if n_unused_samples:
        details["unused samples"] = f"{n_unused_samples:,}"
    details |= _repetition_details(facts)
    n_unused_tokens = unused_tokens(facts)
    if n_unused_tokens is not None:  # for some trainers, it is not known
        details["unused tokens"] = f"{n_unused_tokens:,}"
    return details


def _repetition_details(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return how often documents are read for training, as columns of a table.

        unique tokens    repeated tokens    epochs
        1,000            1,500              1.00 to 2.50     (of the corpora that are read)

    Args:
        facts: What was recorded of the training data: `corpora` has an entry for each collection of
            texts, such as `{"epochs": 2.5, "unique_tokens": 600, …}`. Old records only have an
            entry for each dataset, in `members`: `{"epochs": 2.5, …}`.
    """
    details: dict[str, str] = {}
    corpora = facts.get(CORPORA)
    if corpora is None:
        epochs = [dataset["epochs"] for dataset in facts["members"]]
    else:
        epochs = [corpus["epochs"] for corpus in corpora]
        details["unique tokens"] = f"{_total(corpora, 'unique_tokens'):,}"
        details["repeated tokens"] = f"{_total(corpora, 'repeated_tokens'):,}"
    details["epochs"] = _range(epochs) if epochs else "0.00"
    return details


def _total(rows: Iterable[Mapping[str, Any]], fact: str) -> int:
    """Return the sum of one fact over all rows."""
    return sum(row[fact] for row in rows)


def _range(numbers: list[float]) -> str:
    """Return the range of some numbers, such as "1.00 to 2.50", or "1.00" if all look the same."""
    low = f"{min(numbers):.2f}"
    high = f"{max(numbers):.2f}"
    return low if low == high else f"{low} to {high}"
