"""The page of `index_mappings` and `blend`: what a split reads, and its first samples.

A nanoset, which is a data mixture for training, has the splits train, valid and test. A *member* of
a split is one of the datasets that it mixes: a corpus, a view or packs. Index mappings say where
each sample of a member is, and a blend says from which member each sample of the split is.

The page shows how many samples the split has, and how often it repeats text, for example
"**1,000 samples of 2,048 tokens**: 1.00 to 2.50 epochs, by corpus". A member may contain several
corpora, so there are tables of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.downstream import NAME, ROOT
from nanoset_assets.ui.metadata import ROWS_SHOWN, code, markdown, place, table
from nanoset_assets.ui.previews import first_samples
from nanoset_core.loading.layout import BLEND, LACKING
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.records.text import format_count
from nanoset_core.stages.mappings.facts import CORPORA, MIXTURE, samples_read, unused_samples
from nanoset_core.stages.mappings.rows import (
    corpus_rows,
    corpus_total_row,
    corpus_totals,
    member_rows,
    mixture_rows,
)
from nanoset_core.stages.mappings.stage import split_of
from nanoset_core.untrusted import markdown_text, shell_word


def split_page(run: AssetRun) -> dict[str, Any]:
    """Make the index mappings or the blend of a split, and return what the UI shows of them.

    Args:
        run: The run of the asset `index_mappings` or `blend` for one split of a nanoset.

    Returns:
        Name → value, as Dagster's UI shows them; see `split_metadata`.

    Raises:
        NanosetError: The index files could not be made.
    """
    manifest = run.make()
    return split_metadata(run.project, manifest, run.key.subject, split_of(run.key))


def split_metadata(project: Project, manifest: Manifest, name: str, split: str) -> dict[str, Any]:
    """Return what the UI shows of one split's index mappings, or of its blend.

    Index mappings say where each sample of a dataset is; a blend, which dataset each sample of the
    split is from.

    Args:
        project: Its outputs and settings are read.
        manifest: The manifest of the index mappings or the blend.
        name: Name of the nanoset, a data mixture for training.
        split: train, valid or test.

    Returns:
        Name → value: a summary in a sentence, tables of the datasets and corpora that the split
        reads, its first samples as text, and counts.
    """
    facts = manifest.facts  # what was counted when the output was made
    length = project.nanoset(name).sequence_length
    n_samples = samples_read(facts)

    metadata: dict[str, Any] = {"summary": markdown(_summary(split, manifest, length))}
    if facts["members"]:  # the datasets; none if the split has no share of the data
        metadata |= _member_metadata(facts)
        metadata |= _corpus_metadata(facts)
        metadata |= _sample_metadata(project, manifest, name, split)
        metadata |= _epoch_metadata(facts)
    metadata["samples"] = n_samples
    metadata["unused_samples"] = unused_samples(facts)
    metadata["tokens"] = n_samples * length
    metadata["dagster/partition_row_count"] = n_samples
    metadata |= _cache_metadata(project, manifest)
    return metadata


def _member_metadata(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of the datasets of a split, and one of the mixture that nanoset.yaml defines.

    Args:
        facts: What was counted when the index mappings or the blend were made. `members` are the
            datasets of the split.
    """
    metadata: dict[str, Any] = {}
    if MIXTURE in facts:
        metadata["mixture"] = table(mixture_rows(facts[MIXTURE]), len(facts[MIXTURE]))
    members = facts["members"]
    metadata["plan"] = table(member_rows(members[:ROWS_SHOWN]), len(members))
    return metadata


def _epoch_metadata(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return how often the datasets of a split are read, least and most, for plots over time."""
    epochs = [member["epochs"] for member in facts["members"]]
    return {"epochs_least": round(min(epochs), 3), "epochs_most": round(max(epochs), 3)}


def _cache_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return the folder of the trainer's index files, and a table of their names.

    Args:
        project: The folder is shown relative to that of its nanoset.yaml.
        manifest: Manifest of the index mappings or the blend, the record of its files and counts.
    """
    # The folder of the version is <root>/nanosets/<nanoset>/<split>/<output>/<digest>.
    nanoset_folder = manifest.folder.parents[2]
    cache_folder = nanoset_folder / "cache"
    files = manifest.facts["cache_files"]
    rows = ({"file": file} for file in files)
    return {
        "cache": place(project, manifest.access.url(cache_folder)),
        "cache_files": table(rows, len(files)),
    }


def _summary(split: str, manifest: Manifest, length: int) -> str:
    """Return how many samples a split has and how often it repeats text, in a sentence.

    Args:
        split: train, valid or test.
        manifest: The manifest of the index mappings or the blend.
        length: Tokens of a sample.

    Returns:
        Such as "**1,000 samples of 2,048 tokens**: 2.50 epochs; 70 tokens of the split are unused."
    """
    facts = manifest.facts  # what was counted when the output was made
    empty_reason = facts.get(LACKING)
    if empty_reason is not None:
        return f"**{split}: {markdown_text(empty_reason)}.**"
    reads_no_dataset = not facts["members"]
    if reads_no_dataset:
        return f"**{split} has no share of the data**: a trainer gets no samples of it."

    samples = format_count(samples_read(facts), "sample")
    sample_length = format_count(length, "token")
    notes = [_epochs_text(facts), *_token_notes(facts)]  # "2.50 epochs", "70 tokens … unused"
    return f"**{samples} of {sample_length}**: {'; '.join(notes)}."


def _token_notes(facts: Mapping[str, Any]) -> list[str]:
    """Return how many tokens a split repeats, and how many it never reads, as clauses.

    Args:
        facts: What was counted when the index mappings or the blend were made.
    """
    notes: list[str] = []
    if CORPORA in facts:  # older outputs lack these counts
        totals = corpus_totals(facts[CORPORA])
        unique = totals["unique_tokens"]
        repeated = totals["repeated_tokens"]
        notes.append(f"{unique:,} unique tokens, {repeated:,} repeated")

    # Tokens that no sample contains. For some trainers, this count is None: it is not known.
    n_unused = sum(member["tokens_unseen"] or 0 for member in facts["members"])
    if n_unused:
        notes.append(f"{format_count(n_unused, 'token')} of the split are unused")
    return notes


def _epochs_text(facts: Mapping[str, Any]) -> str:
    """Return how often a split reads its data, in words: `1.00 to 2.50 epochs, by corpus`.

    Args:
        facts: What was counted when the index mappings or the blend were made, for the whole split
            and for each dataset that it mixes.
    """
    datasets = facts["members"]
    # Each corpus has a count of epochs. In outputs of earlier versions, each dataset has one.
    rows_with_epochs = facts.get(CORPORA, datasets)
    epochs = [row["epochs"] for row in rows_with_epochs]

    # Compare them as texts: numbers that look the same in the sentence are no range.
    fewest = f"{min(epochs):.2f}"
    most = f"{max(epochs):.2f}"
    text = f"{most} epochs"
    if fewest != most:
        text = f"{fewest} to {most} epochs, by corpus"

    # Does the split continue what earlier phases of the training have read?
    continues_earlier_phases = any(dataset.get("before") for dataset in datasets)
    if continues_earlier_phases:
        text += ", earlier phases included"
    return text


def _corpus_metadata(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of what a split reads of each corpus, and the totals.

    Args:
        facts: What was counted when the index mappings or the blend were made. Outputs of earlier
            versions lack the counts CORPORA, and have no table.
    """
    corpora = facts.get(CORPORA)
    if not corpora:
        return {}
    rows = corpus_rows(corpora[:ROWS_SHOWN])  # one for each corpus: heading of a column → text
    if len(corpora) > 1:
        # The last row has the sums. A column without one, such as "most epochs", stays empty.
        sum_by_heading = corpus_total_row(corpora)
        total_row = {heading: _total_cell(sum_by_heading.get(heading, "")) for heading in rows[0]}
        rows.append(total_row)
    totals = corpus_totals(corpora)  # also of those that the table leaves out
    return {
        "by_corpus": table(rows, len(corpora)),
        "unique_tokens": totals["unique_tokens"],
        "repeated_tokens": totals["repeated_tokens"],
    }


def _total_cell(value: Any) -> Any:
    """Return a cell of the row for all corpora; cells of the other rows are formatted already."""
    return f"{value:,}" if isinstance(value, int) else value


def _sample_metadata(project: Project, manifest: Manifest, name: str, split: str) -> dict[str, Any]:
    """Return the first samples of a split as text, and a command that shows other samples.

    Args:
        project: Its outputs are read.
        manifest: The manifest of index mappings, or of the blend of several datasets.
        name: Name of the nanoset, a data mixture for training.
        split: train, valid or test.

    Returns:
        Metadata for the UI. Empty if the split has no samples, or if the page of its blend, which
        is made later, shows them.
    """
    # Samples of several datasets can only be read once their blend, the order in which they are
    # mixed, is made: then its page shows them.
    has_blend = manifest.facts["blended"]
    is_page_of_blend = manifest.name.endswith(f"/{BLEND}")
    can_be_read = is_page_of_blend or not has_blend
    has_samples = bool(manifest.facts["samples"])
    if not can_be_read or not has_samples:
        return {}
    command = f"nanoset explain {name} {split} 0"
    file = project.config.file.name
    if file != CONFIG_FILE:
        command += f" --config {shell_word(file)}"
    return {
        "first_samples": first_samples(project, name, split),
        "explain": markdown(code(command)),
    }


def reader_metadata(project: Project, name: str) -> dict[str, str]:
    """Return what a program needs to open a nanoset: its name, and where its outputs are.

    It is recorded in Dagster with each handoff (the files that a trainer is started with), where
    the function `load_materialized` reads it.

    Args:
        project: Its root is recorded: the folder or bucket of all outputs.
        name: Name of the nanoset, a data mixture for training.

    Returns:
        Such as `{"nanoset": "pretrain", "root": "s3://bucket/data"}`.
    """
    config = project.config
    is_in_bucket = config.root_place is not None
    # A folder may be relative to that of nanoset.yaml: record the absolute path.
    root = config.root if is_in_bucket else str(config.root_folder)
    return {NAME: name, ROOT: root}
