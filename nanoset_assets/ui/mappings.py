"""The page of `index_mappings` and `blend`: what a split reads, and its first samples.

A nanoset, which is a data mixture for training, has the splits train, valid and test. A *member* of
a split is one of the datasets that it mixes: a corpus, a view or packs. Index mappings say where
each sample of a member is, and a blend says from which member each sample of the split is.

The page shows how many samples the split has, and how often it repeats text, for example
"**1,000 samples of 2,048 tokens**: 1.00 to 2.50 epochs, by corpus". A member may contain several
corpora, so there are tables of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.downstream import NAME, ROOT
from nanoset_assets.ui.metadata import ROWS_SHOWN, code, markdown, place, table
from nanoset_assets.ui.previews import first_samples
from nanoset_core.loading.layout import BLEND, LACKING
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.stages.mappings.facts import (
    CORPORA,
    MIXTURE,
    samples_read,
    tokens_read,
    unused_samples,
    unused_tokens,
)
from nanoset_core.stages.mappings.rows import (
    corpus_rows,
    corpus_total_row,
    corpus_totals,
    member_rows,
    mixture_rows,
)
from nanoset_core.stages.mappings.stage import split_of
from nanoset_core.untrusted import markdown_text, shell_word
from nanoset_core.wording import format_count


def split_page(run: AssetRun) -> dict[str, Any]:
    """Write the index files of a split, and return what Dagster's UI shows of it.

    The splits are train, valid and test. Their index files say where a trainer finds each sample.

    Args:
        run: Executes a Dagster asset for one split. `run.make()` writes the files, and returns
            their manifest: the record of the files and of what was counted.

    Returns:
        What the page of the asset shows: heading → value. See `split_metadata`.

    Raises:
        NanosetError: The index files could not be made.
    """
    manifest = run.make()
    return split_metadata(run.project, manifest, run.key.subject, split_of(run.key))


def split_metadata(project: Project, manifest: Manifest, name: str, split: str) -> dict[str, Any]:
    """Return what Dagster's UI shows of the samples that a trainer reads in one split.

    For example:

        summary                     "**1,000 samples of 2,048 tokens**: 2.50 epochs; …"
        plan                        a table of the datasets that the split mixes
        by_corpus                   a table of what is read of each text collection
        first_samples, explain      the first samples as text, and a command that shows others
        epochs_least, epochs_most   1.0, 2.5
        samples, tokens             1000, 2048000
        cache                       the folder in which the trainer finds the index files

    Args:
        project: Gives access to the samples and to the settings.
        manifest: The record of the split's index files, with what was counted when they were made.
        name: Name of the data mixture (a nanoset), such as "pretrain".
        split: train, valid or test.

    Returns:
        Heading → value. Dagster plots the numbers over time.
    """
    facts = manifest.facts  # what was counted
    length = project.nanoset(name).sequence_length
    metadata: dict[str, Any] = {"summary": markdown(_summary(split, manifest, length))}
    has_share_of_data = bool(facts["members"])  # the datasets that it mixes
    if has_share_of_data:
        metadata |= _member_metadata(facts)
        metadata |= _corpus_metadata(facts)
        metadata |= _sample_metadata(project, manifest, name, split)
        metadata |= _epoch_metadata(facts)
    metadata |= _size_metadata(facts, length)
    metadata |= _cache_metadata(project, manifest)
    return metadata


def _size_metadata(facts: Mapping[str, Any], length: int) -> dict[str, int]:
    """Return how many samples and tokens a trainer reads in a split, for plots over time.

    Args:
        facts: What was counted when the index files of the split were made.
        length: How many tokens a sample has.

    Returns:
        Such as `{"samples": 1000, "unused_samples": 0, "tokens": 2048000,
        "dagster/partition_row_count": 1000}`. Dagster shows the last one as the size of the split.
    """
    n_samples = samples_read(facts)
    return {
        "samples": n_samples,
        "unused_samples": unused_samples(facts),
        "tokens": tokens_read(facts, length),
        "dagster/partition_row_count": n_samples,
    }


def _member_metadata(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of the samples of each dataset that a split mixes.

    If the settings combine the datasets in groups, a table repeats these. For example, the group
    `prose` has 70 % of the samples:

        mixture                          plan
        prose     70%                    web      500 samples
        · web     50%                    books    200 samples
        · books   20%                    code     300 samples
        code      30%

    Args:
        facts: What was counted when the index files of the split were made.

    Returns:
        The tables `mixture`, if there are groups, and `plan`.
    """
    metadata: dict[str, Any] = {}
    if MIXTURE in facts:
        groups = facts[MIXTURE]
        metadata["mixture"] = table(mixture_rows(groups), len(groups))
    datasets = facts["members"]
    metadata["plan"] = table(member_rows(datasets[:ROWS_SHOWN]), len(datasets))
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
    """Return the folder in which a trainer finds the index files of a split, and their names.

    A trainer such as Megatron-LM searches this folder for files with certain names. If it finds
    them, it need not compute them when it starts.

    Args:
        project: The folder is shown relative to that of the settings file, nanoset.yaml.
        manifest: The record of the index files, in the folder of this version of them.
    """
    version_folder = manifest.folder  # nanosets/pretrain/train/blend/5f0c…
    mixture_folder = version_folder.parents[2]  # nanosets/pretrain, whose splits share a cache
    cache_folder = mixture_folder / "cache"
    files = manifest.facts["cache_files"]
    rows = [{"file": file} for file in files]
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

    # Tokens that no sample contains. If samples are chosen by chance, their number is not known.
    n_unused = unused_tokens(facts)
    if n_unused:
        notes.append(f"{format_count(n_unused, 'token')} of the split are unused")
    return notes


def _epochs_text(facts: Mapping[str, Any]) -> str:
    """Say how often a split reads its data: `2.50 epochs`, or `1.00 to 2.50 epochs, by corpus`.

    Reading all documents of a corpus (a text collection) once is one epoch. A split that mixes
    several corpora may read each of them another number of times.

    If the training continues an earlier one, the epochs of that are counted, too, which the text
    says: `2.50 epochs, earlier phases included`.

    Args:
        facts: What was counted when the index files of the split were made. `members` is such as
            [{"corpus": "web", "epochs": 2.5, "before": 0}, …], with an entry for each dataset.
            `before` is what an earlier training has read of it.
    """
    epochs = _epochs_by_corpus(facts)
    # Compare the numbers as they are shown: 2.499 and 2.501 are the same, "2.50".
    fewest = f"{min(epochs):.2f}"
    most = f"{max(epochs):.2f}"
    if fewest == most:
        text = f"{most} epochs"
    else:
        text = f"{fewest} to {most} epochs, by corpus"

    continues_training = any(dataset.get("before") for dataset in facts["members"])
    if continues_training:
        text += ", earlier phases included"
    return text


def _epochs_by_corpus(facts: Mapping[str, Any]) -> list[float]:
    """Return how often a split reads each corpus (text collection), such as [1.0, 2.5].

    A dataset that the split reads may have documents of several corpora. Outputs of earlier
    versions lack the counts of each corpus: for them, the result is by dataset.

    Args:
        facts: What was counted when the index files of the split were made.
    """
    rows = facts.get(CORPORA, facts["members"])
    return [row["epochs"] for row in rows]


def _corpus_metadata(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of how many tokens a split reads of each corpus, with a row for the sums.

    A corpus is a collection of documents; a split mixes several. For example:

        corpus    tokens       unique tokens    repeated tokens    epochs
        web       800,000      800,000          0                  1.00
        books     250,000      100,000          150,000            2.50
        all       1,050,000    900,000          150,000            1.17

    Args:
        facts: What was counted when the index files of the split were made.

    Returns:
        The table `by_corpus`, and the sums `unique_tokens` and `repeated_tokens` as numbers. Empty
        if nothing was counted, as in earlier versions.
    """
    corpora = facts.get(CORPORA)
    if not corpora:
        return {}
    rows = corpus_rows(corpora[:ROWS_SHOWN])
    if len(corpora) > 1:
        rows.append(_total_row(corpora, headings=list(rows[0])))
    totals = corpus_totals(corpora)
    return {
        "by_corpus": table(rows, len(corpora)),  # says how many corpora there are, if more
        "unique_tokens": totals["unique_tokens"],
        "repeated_tokens": totals["repeated_tokens"],
    }


def _total_row(corpora: Sequence[Mapping[str, Any]], headings: Sequence[str]) -> dict[str, str]:
    """Return the last row of a table of corpora, with the sums of their numbers.

    For example, `{"corpus": "all", "tokens": "1,050,000", …}`. A column without a sum is empty.

    Args:
        corpora: What was counted for each corpus, also for those that the table does not show.
        headings: The columns of the table.
    """
    totals = corpus_total_row(corpora)
    cells: dict[str, str] = {}
    for heading in headings:
        total = totals.get(heading, "")
        cells[heading] = f"{total:,}" if isinstance(total, int) else total
    return cells


def _sample_metadata(project: Project, manifest: Manifest, name: str, split: str) -> dict[str, Any]:
    """Return the first samples of a split as text, and a command that shows any other sample.

    Args:
        project: Gives access to the samples.
        manifest: The record of index files of the split.
        name: Name of the mixture, such as "pretrain".
        split: train, valid or test.

    Returns:
        `first_samples`, and as `explain` the command `nanoset explain pretrain train 0`. Empty if
        the samples are not known yet, or if there are none.
    """
    has_samples = bool(manifest.facts["samples"])
    if not has_samples or not _are_samples_known(manifest):
        return {}

    command = f"nanoset explain {name} {split} 0"
    file = project.config.file.name
    if file != CONFIG_FILE:  # nanoset.yaml, the name that commands use by default
        command += f" --config {shell_word(file)}"
    return {
        "first_samples": first_samples(project, name, split),
        "explain": markdown(code(command)),
    }


def _are_samples_known(manifest: Manifest) -> bool:
    """Return whether some index files of a split say which samples a trainer reads.

    The index files of a split are made in two steps: those of each dataset, and then the blend, the
    order in which the datasets are mixed. With a single dataset, there is no blend.

        index files of                        result
        a single dataset                      True
        each dataset of several               False
        the blend of several datasets         True

    Args:
        manifest: The record of the index files.
    """
    mixes_several_datasets = manifest.facts["blended"]
    if not mixes_several_datasets:
        return True
    return manifest.name.endswith(f"/{BLEND}")


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
