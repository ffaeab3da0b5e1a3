"""Summaries of a split: its samples, what it reads of its data, and what it leaves unread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from nanoset_core.loading.layout import LACKING
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.mappings.facts import CORPORA, cache_files, samples_read, unused_samples
from nanoset_core.stages.stage import Summary, size_bytes


def split_summary(manifest: Manifest) -> Summary:
    """Return the figures and details of the index mappings or the blend of a split."""
    return Summary(_figures(manifest), _details(manifest.facts))


def mappings_summary(manifest: Manifest) -> Summary:
    """Return the figures and details of index mappings, and a warning if they have no sample."""
    facts = manifest.facts
    shortage = facts.get(LACKING)
    # Versions before 0.2 do not record why a split is empty.
    if shortage is None and facts["members"] and not facts["samples"]:
        shortage = "it has no sample"
    warnings = [] if shortage is None else [shortage]
    return replace(split_summary(manifest), warnings=warnings)


def _figures(manifest: Manifest) -> dict[str, int]:
    """Return the counts that `nanoset status` shows of a split: bytes, samples, tokens and others.

    Args:
        manifest: Manifest of the index mappings or the blend.
    """
    # The index files are in the trainer's cache, and not among the files of the output.
    facts = manifest.facts
    index_bytes = sum(note["bytes"] for note in cache_files(manifest).values())
    figures = {"bytes": size_bytes(manifest) + index_bytes}
    if "members" in facts:
        samples = samples_read(facts)
        figures["samples"] = samples
        figures["unused_samples"] = unused_samples(facts)
        # Only index mappings record the length; a blend belongs to the mappings that it is made
        # from.
        length = manifest.recipe["options"].get("sequence_length")
        if length is not None:
            figures["tokens"] = samples * int(length)
    # Outputs of earlier versions do not record what is read of each corpus.
    corpora = facts.get(CORPORA)
    if corpora:
        figures["unique_tokens"] = _total(corpora, "unique_tokens")
        figures["repeated_tokens"] = _total(corpora, "repeated_tokens")
    return figures


def _details(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return columns of a table on a split: what is unused, and how often its data is repeated.

    Args:
        facts: Facts of the index mappings or the blend; a blend has no `members`.
    """
    if "members" not in facts:
        return {}
    members = facts["members"]
    details: dict[str, str] = {}
    n_unused = unused_samples(facts)
    if n_unused:
        details["unused samples"] = f"{n_unused:,}"

    # Outputs of earlier versions count epochs for each dataset, not for each corpus.
    corpora = facts.get(CORPORA)
    rows = members
    if corpora is not None:
        rows = corpora
        details["unique tokens"] = f"{_total(corpora, 'unique_tokens'):,}"
        details["repeated tokens"] = f"{_total(corpora, 'repeated_tokens'):,}"
    epochs = [row["epochs"] for row in rows]
    details["epochs"] = _range(epochs or [0])

    # For some trainers it is not known which tokens no sample contains.
    unseen_tokens = [member["tokens_unseen"] for member in members]
    if None not in unseen_tokens:
        details["unused tokens"] = f"{sum(unseen_tokens):,}"
    return details


def _total(rows: Iterable[Mapping[str, Any]], fact: str) -> int:
    """Return the sum of one fact over all rows."""
    return sum(row[fact] for row in rows)


def _range(numbers: list[float]) -> str:
    """Return the range of some numbers, such as "1.00 to 2.50", or "1.00" if all look the same."""
    low = f"{min(numbers):.2f}"
    high = f"{max(numbers):.2f}"
    return low if low == high else f"{low} to {high}"
