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
    """Write the index files that say what each training sample is, and return what the UI shows.

    A trainer reads a mixture of datasets with the splits train, valid and test. For each split,
    index files say where its samples are: `index_mappings` for each dataset, and `blend` for the
    order in which the datasets are mixed.

    Args:
        run: Executes the Dagster asset `index_mappings` or `blend` for one split. `run.make()`
            writes the files, and returns their manifest: the record of the files and of what was
            counted.

    Returns:
        What the page of the asset shows: heading → value. See `split_metadata`.

    Raises:
        NanosetError: The index files could not be made.
    """
    manifest = run.make()
    return split_metadata(run.project, manifest, run.key.subject, split_of(run.key))


def split_metadata(project: Project, manifest: Manifest, name: str, split: str) -> dict[str, Any]:
    """Return what Dagster's UI shows of the samples that a trainer reads in one split.

    For example, the split train of a mixture of `web` and `books`:

        summary          "**1,000 samples of 2,048 tokens**: 1.00 to 2.50 epochs, by corpus; …"
        plan             a table: samples and epochs of each dataset of the mixture
        by_corpus        a table: tokens that are read of each collection of documents
        first_samples    the start of the first samples, as text
        samples          1000
        tokens           2048000
        epochs_most      2.5

    A split without a share of the data has only a summary, counts, and the names of its files.

    Args:
        project: Gives access to the samples and to the settings.
        manifest: The record of the split's index files, with what was counted when they were made.
        name: Name of the mixture (a nanoset), such as "pretrain".
        split: train, valid or test.

    Returns:
        Heading → value, as in the example. Dagster plots the numbers over time.
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
    """Return a table of the datasets that a split mixes, and one of the mixture in the settings.

    A mixture may have groups. Then the first table repeats the settings, the second one shows the
    result. For example, the group `prose` has 70 % of the samples:

        mixture          plan
        prose     70%    web      500 samples
        · web     50%    books    200 samples
        · books   20%    code     300 samples
        code      30%

    Args:
        facts: What was counted when the index files of the split were made. `members` has an entry
            for each dataset.

    Returns:
        The tables under the headings `mixture`, which is left out if it was not recorded, and
        `plan`.
    """
    metadata: dict[str, Any] = {}
    if MIXTURE in facts:
        metadata["mixture"] = table(mixture_rows(facts[MIXTURE]), len(facts[MIXTURE]))
    members = facts["members"]
    metadata["plan"] = table(member_rows(members[:ROWS_SHOWN]), len(members))
    return metadata


def _epoch_metadata(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return how often a split reads its datasets: the smallest and the greatest number of epochs.

    For example, it reads `web` once and `books` two and a half times: `{"epochs_least": 1.0,
    "epochs_most": 2.5}`. Dagster plots both over time.

    Args:
        facts: What was counted when the index files of the split were made. `members` has an entry
            for each dataset.
    """
    epochs = [member["epochs"] for member in facts["members"]]
    return {"epochs_least": round(min(epochs), 3), "epochs_most": round(max(epochs), 3)}


def _cache_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return where the trainer finds the index files of a split, and a table of their names.

    A trainer such as Megatron-LM searches one folder, its cache, for index files with certain
    names. If it finds them, it need not compute them when it starts.

    Args:
        project: The folder is shown relative to that of the settings file, nanoset.yaml.
        manifest: The record of the index files. Its folder is in that of the mixture:

                outputs/nanosets/pretrain/train/blend/5f0c…    folder of this version
                outputs/nanosets/pretrain/cache                folder that the trainer searches
    """
    nanoset_folder = manifest.folder.parents[2]  # outputs/nanosets/pretrain
    cache_folder = nanoset_folder / "cache"
    files = manifest.facts["cache_files"]
    rows = ({"file": file} for file in files)
    return {
        "cache": place(project, manifest.access.url(cache_folder)),
        "cache_files": table(rows, len(files)),
    }


def _summary(split: str, manifest: Manifest, length: int) -> str:
    """Say in a sentence how many samples a split has, and how often it repeats text.

    - Usually: "**1,000 samples of 2,048 tokens**: 2.50 epochs; 70 tokens of the split are unused."
    - If the settings give the split no data: "**test has no share of the data**: a trainer gets no
      samples of it."
    - If its share is too small for a single sample, the reason: "**test: …**"

    Args:
        split: train, valid or test.
        manifest: The record of the split's index files, with what was counted when they were made.
        length: How many tokens a sample has.
    """
    facts = manifest.facts  # what was counted when the output was made
    empty_reason = facts.get(LACKING)  # recorded if the share is too small for a sample
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
    """Say how many tokens a split reads again and again, and how many it never reads.

    For example, a split reads 1,000,000 different tokens, 200,000 of them twice, and 70 tokens are
    left over because they do not fill a sample:

        1,000,000 unique tokens, 200,000 repeated
        70 tokens of the split are unused

    Args:
        facts: What was counted when the index files of the split were made.

    Returns:
        These clauses. Each is left out if it was not counted, the second one also if it is zero.
    """
    notes: list[str] = []
    if CORPORA in facts:  # older outputs lack these counts
        totals = corpus_totals(facts[CORPORA])
        unique = totals["unique_tokens"]
        repeated = totals["repeated_tokens"]
        notes.append(f"{unique:,} unique tokens, {repeated:,} repeated")

    # Add up the tokens of all datasets that no sample contains. For trainers that choose the
    # samples by chance, this count is None: it is not known.
    n_unused = 0
    for dataset in facts["members"]:
        n_unused += dataset["tokens_unseen"] or 0
    if n_unused:
        notes.append(f"{format_count(n_unused, 'token')} of the split are unused")
    return notes


def _epochs_text(facts: Mapping[str, Any]) -> str:
    """Say how often a split reads its data: `2.50 epochs`, or `1.00 to 2.50 epochs, by corpus`.

    Reading all documents of a corpus (a collection of documents) once is one epoch. A split that
    mixes several corpora may read each of them another number of times.

    If the training continues an earlier one, what that has read is counted as well, and the text
    ends with "earlier phases included".

    Args:
        facts: What was counted when the index files of the split were made. `members` has an entry
            for each dataset of the split, such as `{"corpus": "web", "epochs": 2.5, "before": 0}`.
            A dataset may have documents of several corpora; CORPORA is the key of entries for each
            of these.
    """
    datasets = facts["members"]
    # The epochs of each corpus. Outputs of earlier versions only have those of each dataset.
    rows_with_epochs = facts.get(CORPORA, datasets)
    epochs = [row["epochs"] for row in rows_with_epochs]  # [1.0, 2.5]

    # Compare the numbers as they are shown: 2.499 and 2.501 are the same, "2.50".
    fewest = f"{min(epochs):.2f}"  # "1.00"
    most = f"{max(epochs):.2f}"  # "2.50"
    if fewest == most:
        text = f"{most} epochs"
    else:
        text = f"{fewest} to {most} epochs, by corpus"

    # `before` counts what earlier phases of the training have read of a dataset.
    continues_earlier_phases = any(dataset.get("before") for dataset in datasets)
    if continues_earlier_phases:
        text += ", earlier phases included"
    return text


def _corpus_metadata(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of how many tokens a split reads of each corpus, with a row for the sums.

    A corpus is a collection of documents; a split mixes several. For example:

        corpus    tokens     unique tokens    repeated tokens    epochs
        web       800,000    800,000          0                  1.00
        books     250,000    100,000          150,000            2.50
        all       1,050,000  900,000          150,000            1.17

    Args:
        facts: What was counted when the index files of the split were made. Outputs of earlier
            versions lack the counts of corpora.

    Returns:
        The table as `by_corpus`, and the sums `unique_tokens` and `repeated_tokens` as numbers.
        Empty if nothing was counted.
    """
    corpora = facts.get(CORPORA)
    if not corpora:
        return {}
    rows = corpus_rows(corpora[:ROWS_SHOWN])  # one for each corpus: heading of a column → text
    if len(corpora) > 1:
        # The last row has the sums. A column without one, such as "most epochs", stays empty.
        total_by_heading = corpus_total_row(corpora)
        total_row: dict[str, Any] = {}
        for heading in rows[0]:
            total = total_by_heading.get(heading, "")
            if isinstance(total, int):
                total = f"{total:,}"
            total_row[heading] = total
        rows.append(total_row)
    totals = corpus_totals(corpora)  # also of those that the table leaves out
    return {
        "by_corpus": table(rows, len(corpora)),
        "unique_tokens": totals["unique_tokens"],
        "repeated_tokens": totals["repeated_tokens"],
    }


def _sample_metadata(project: Project, manifest: Manifest, name: str, split: str) -> dict[str, Any]:
    """Return the first samples of a split as text, and a command that shows any other sample.

    A split may mix several datasets. Dagster then makes its index files in two steps, each with a
    page of its own: first those of each dataset (`index_mappings`), then the order in which they
    are mixed (`blend`). Before the second step, nobody can say what the first sample is. So the
    samples are shown as follows:

        the split has        on the page of index_mappings    on the page of blend
        one dataset          samples                          (there is no blend)
        several datasets     nothing                          samples
        no samples           nothing                          nothing

    Args:
        project: Gives access to the samples.
        manifest: The record of the index files that were made in one of these steps.
        name: Name of the mixture, such as "pretrain".
        split: train, valid or test.

    Returns:
        `first_samples`, and as `explain` the command `nanoset explain pretrain train 0`; or
        nothing.
    """
    has_blend = manifest.facts["blended"]  # True if the split mixes several datasets
    is_page_of_blend = manifest.name.endswith(f"/{BLEND}")
    can_be_read = is_page_of_blend or not has_blend
    has_samples = bool(manifest.facts["samples"])
    if not can_be_read or not has_samples:
        return {}

    command = f"nanoset explain {name} {split} 0"
    file = project.config.file.name
    if file != CONFIG_FILE:  # nanoset.yaml, the name that commands use by default
        command += f" --config {shell_word(file)}"
    return {
        "first_samples": first_samples(project, name, split),
        "explain": markdown(code(command)),
    }


def reader_metadata(project: Project, name: str) -> dict[str, str]:
    """Return what a program needs to find the data that a trainer reads: a name and a folder.

    When the data is ready for training, this is recorded in Dagster. So a Python program, for
    example another team's Dagster asset, can open the data with the function `load_materialized`,
    without knowing where it is stored.

    Args:
        project: Its settings say in which folder or bucket all outputs are.
        name: Name of the mixture of training data (a nanoset).

    Returns:
        Such as `{"nanoset": "pretrain", "root": "s3://bucket/data"}`.
    """
    config = project.config
    is_in_bucket = config.root_place is not None
    # A folder may be relative to that of nanoset.yaml: record the absolute path.
    root = config.root if is_in_bucket else str(config.root_folder)
    return {NAME: name, ROOT: root}
