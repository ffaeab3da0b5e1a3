"""Summaries of a split: its samples, what it reads of its data, and what it leaves unread.

`nanoset status` shows them, such as 1,000 samples, 0.50 to 2.00 epochs and 12,345 unused tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from nanoset_core.loading.layout import LACKING
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.mappings.facts import CORPORA, cache_files, samples_read, unused_samples
from nanoset_core.stages.stage import Summary, size_bytes


def split_summary(manifest: Manifest) -> Summary:
    """Return what `nanoset status` shows of a split: counts, and details such as epochs.

    Args:
        manifest: Manifest of the split's index mappings or blend.
    """
    return Summary(_figures(manifest), _details(manifest.facts))


def mappings_summary(manifest: Manifest) -> Summary:
    """Return what `nanoset status` shows of the index files of a split.

    Index files have the order in which a trainer reads the samples of train, valid or test. If
    there are none, the trainer would fail, so the warning says why.

    Args:
        manifest: Record of the index files, with facts such as the number of samples.

    Returns:
        Counts, details, and at most one warning.
    """
    reason = reason_without_samples(manifest)
    warnings = [] if reason is None else [reason]
    return replace(split_summary(manifest), warnings=warnings)


def reason_without_samples(manifest: Manifest) -> str | None:
    """Return why a split has no sample although it has a share of the data; otherwise None.

    For example, valid gets 1 % of the documents, and these have fewer tokens than one sample needs.

    Args:
        manifest: Manifest of the split's index mappings, which records the reason.
    """
    facts = manifest.facts
    reason: str | None = facts.get(LACKING)
    # Versions before 0.2 do not record why a split is empty.
    if reason is None and facts["members"] and not facts["samples"]:
        return "it has no sample"
    return reason


def _figures(manifest: Manifest) -> dict[str, int]:
    """Return the counts that `nanoset status` shows of a split (train, valid or test).

        {"bytes": 80000, "samples": 1000, "unused_samples": 0, "tokens": 2048000, "unique_tokens":
        …}

    Args:
        manifest: Manifest of the index mappings or the blend.
    """
    # The index files are in the trainer's cache, and not among the files of the output.
    index_bytes = sum(note["bytes"] for note in cache_files(manifest).values())
    figures = {"bytes": size_bytes(manifest) + index_bytes, **_sample_figures(manifest)}

    # What is read of each corpus, which old outputs do not record.
    corpora = manifest.facts.get(CORPORA)
    if corpora:
        figures["unique_tokens"] = _total(corpora, "unique_tokens")
        figures["repeated_tokens"] = _total(corpora, "repeated_tokens")
    return figures


def _sample_figures(manifest: Manifest) -> dict[str, int]:
    """Return how many samples a split has, and how many tokens these are.

        {"samples": 1000, "unused_samples": 0, "tokens": 2048000}

    Args:
        manifest: Manifest of the index mappings or the blend.

    Returns:
        Name of a count → number; empty for outputs of old versions, which do not record it.
    """
    if "members" not in manifest.facts:
        return {}
    samples = samples_read(manifest.facts)
    figures = {"samples": samples, "unused_samples": unused_samples(manifest.facts)}
    # All samples have one length. A blend of datasets does not record it.
    sequence_length = manifest.recipe["options"].get("sequence_length")
    if sequence_length is not None:
        figures["tokens"] = samples * int(sequence_length)
    return figures


def _details(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return columns of a table on training data: what is unused, and how often the rest is
    repeated.

    `nanoset status` shows them for each split (train, valid or test), such as

        {"unused samples": "300", "epochs": "1.00 to 2.50", "unused tokens": "1,203", …}

    Args:
        facts: What was recorded of the split. `members` are the datasets that are read, and
            `corpora` the collections of texts that these were made from. Old records lack one or
            both.
    """
    if "members" not in facts:
        return {}
    details: dict[str, str] = {}
    n_unused = unused_samples(facts)
    if n_unused:
        details["unused samples"] = f"{n_unused:,}"
    details |= _repetition_details(facts)

    # The tokens that no sample contains: None for a dataset if the trainer does not show them.
    unused_tokens = [dataset["tokens_unseen"] for dataset in facts["members"]]
    if None not in unused_tokens:
        details["unused tokens"] = f"{sum(unused_tokens):,}"
    return details


def _repetition_details(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return columns of a table on training data: how often its documents are read.

    An epoch of 2.5 means that each document is read two or three times.

        {"unique tokens": "1,000", "repeated tokens": "1,500", "epochs": "1.00 to 2.50"}

    Args:
        facts: What was recorded of a split (train, valid or test), such as its datasets
            (`members`).
    """
    # Datasets of one corpus may share documents, so the counts for corpora are better. Outputs of
    # old versions lack them.
    corpora = facts.get(CORPORA)
    details: dict[str, str] = {}
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
