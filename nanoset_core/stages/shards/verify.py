"""Verify the shards of a corpus: every line is accounted for, few are lost, files are whole.

A quick check compares counts, and the sizes of files. A deep one reads all bytes, and compares
their sha256 with what the manifests record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_files, check_freshness, remedy_for_bytes
from nanoset_core.stages.dataset.token_ranges import QUICK_TOKENS
from nanoset_core.stages.inventory.make import current_inventory
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.report import (
    BUILD,
    FORCE_BUILD,
    CheckRunner,
    DividedCheck,
    Report,
    group_by_bytes,
)
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.losses import Losses
from nanoset_core.stages.shards.names import FOLDER
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.shards.repeats import LOOK
from nanoset_core.stages.shards.shard_sets import (
    current_shards,
    error_of_losses,
    recorded_losses,
    repeats_warning,
    some_shards,
)
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key
from nanoset_core.storage.location import Location

_COUNTS = ("lines", "documents", "skipped", "sequences", "tokens", "rejected", "faults", "purged")
"""Counts of a corpus that must be the sums of those of its shards."""


def verify_shards(project: Project, corpus: str, *, deep: bool, run: CheckRunner) -> Report:
    """Check the tokens of a corpus as they were made: in parts, the shards, before they are merged.

    It checks that

    - each line of the raw text became a document, or is counted as lost or left out;
    - not more text was lost than the settings allow, and not more documents repeat others;
    - the tokens were made from the current raw text, with the current settings;
    - the files have the recorded sizes, or, if `deep`, the recorded sha256.

    Args:
        project: Its outputs are checked, against the limits for lost text in its settings.
        corpus: Name of the corpus.
        deep: Compare the sha256 of all files, instead of their sizes and the ends of tables.
        run: Runs a deep check, which is divided into parts: here, or on other machines.

    Returns:
        The report. An error that is raised during the checks becomes an entry of it.
    """
    report = Report(f"{FOLDER}/{corpus}")
    with report.catching(remedy=BUILD):
        tokenized = project.outputs.require(FOLDER, corpus, remedy=BUILD)
        shards = current_shards(project, tokenized)  # this checks the sizes of their files
        _check_lines(report, tokenized, shards)
        check_losses(report, project, tokenized, shards)
        _warn_of_repeats(report, project, tokenized, deep=deep)

        is_fresh = check_freshness(report, project, TOKENIZED, Key(corpus), tokenized)
        if is_fresh:  # made from the current list of files
            current_inventory(project, corpus)  # raises an error if the list cannot be read
        if deep:
            run(report, _check_of_shard_files(project, corpus, tokenized, shards))
        else:
            _check_document_tables(report, project, shards)
    return report


def _warn_of_repeats(report: Report, project: Project, tokenized: Manifest, *, deep: bool) -> None:
    """Warn if more documents of a corpus than allowed have the tokens of another document.

        12.0% of the documents repeat others, more than documents.max_duplicate_fraction: 0.05

    The share is an estimate that was recorded when the corpus was tokenized.

    Args:
        report: Report on the tokenized corpus.
        project: Its limit for repeated documents is read.
        tokenized: Manifest of the tokenized corpus.
        deep: Whether all tokens are read in any case.
    """
    reads_all_tokens = deep or tokenized.facts["tokens"] <= QUICK_TOKENS
    if reads_all_tokens:
        return  # the check of the tokens counts such documents exactly, and warns of them
    warning = repeats_warning(project, tokenized)
    if warning:
        folder = project.config.corpus_folder(tokenized.name)
        report.warn(warning, where=folder, remedy=LOOK)  # LOOK: how to find these documents


def check_losses(
    report: Report,
    project: Project,
    tokenized: Manifest,
    shards: Iterable[Manifest] | None = None,
) -> None:
    """Check that a corpus lost no more text than is allowed, and warn of text that it lost.

    Text is lost if a line is no document, or if a file cannot be read to its end.

    Args:
        report: Report on the tokenized corpus, or on the dataset that was made from it; errors and
            warnings are added to it.
        project: The project, whose settings say how much may be lost.
        tokenized: Manifest of the tokenized corpus.
        shards: Its shards, if the caller has read them already.
    """
    lost = recorded_losses(project.outputs, tokenized, shards)
    if lost.facts.faults:
        report.figures["unreadable_fraction"] = round(lost.unreadable_share, 6)

    # Too much was lost: an error, which names the files.
    error = error_of_losses(project, tokenized.name, lost)
    if error is not None:
        report.add_exception(error)
        return

    _warn_of_losses(report, project.config.corpus_folder(tokenized.name), lost)


def _warn_of_losses(report: Report, folder: Location, lost: Losses) -> None:
    """Warn of each kind of text that was lost, though not so much that it is an error.

        a file that could not be read to its end        a.jsonl.gz, from line 7 on
        lines that look damaged                         a line that was cut: {"text": "the c
        runs of zero bytes in a text                    as after a crash while it was written
        zero bytes at the end of a gzip file            as of a download that was cut short

    Args:
        report: The report, to which warnings are added.
        folder: The corpus's folder of raw text.
        lost: What was lost.
    """
    _warn_of_loss(
        report,
        "text was not read to its end",
        folder,
        found=lost.unreadable_text(),
        expected="whole files",
        remedy="fetch or write these files again; documents.max_unreadable_fraction allows "
        "them as they are",
    )
    _warn_of_loss(
        report,
        "lines were rejected that may be damaged",
        folder,
        found=lost.damaged_text(),
        remedy="look at them in the shards' rejects.jsonl; if files were damaged, fetch or "
        "write these again",
    )
    _warn_of_loss(
        report,
        "text holds runs of zero bytes",
        folder,
        found=lost.zeroed_text(),
        remedy="look at these files; if their text was overwritten, fetch or write them again",
    )
    _warn_of_loss(
        report,
        "gzip files end with zero bytes",
        folder,
        found=lost.padded_text(),
        remedy="compare their checksums with those at their source; if a download was cut "
        "short, fetch them again",
    )
    _warn_of_loss(
        report,
        "files have no text",
        folder,
        found=lost.empty_text(),
        remedy="fill or remove them",
    )


def _warn_of_loss(
    report: Report,
    what: str,
    folder: Location,
    *,
    found: str,
    expected: str | None = None,
    remedy: str,
) -> None:
    """Add a warning to a report if text of one kind was lost.

        text was not read to its end
        where: raw/web
        found: 1 file not readable to the end (…): a.jsonl.gz from line 7 on (…)

    Args:
        report: The report.
        what: The kind of loss.
        folder: The corpus's folder of raw text.
        found: How much was lost in which files; empty if nothing was.
        expected: What the files should be, if that is not obvious.
        remedy: What the user can do.
    """
    if found:
        report.warn(what, where=folder, found=found, expected=expected, remedy=remedy)


def _check_lines(report: Report, tokenized: Manifest, shards: Sequence[Manifest]) -> None:
    """Check that no line of a corpus has got lost without being counted.

    A corpus is tokenized in parts (shards). In each, and in all together, all lines must be
    accounted for:

        shard        lines    documents    rejected
        3f9c…        1,000          997           3
        a07e…          500          500           0
        corpus       1,500        1,497           3

    Args:
        report: Report on the shards; errors and figures are added to it.
        tokenized: Manifest of the set of shards, which has the counts of the whole corpus.
        shards: Manifests of the shards, each with the counts of its part.
    """
    total = ShardFacts.of(tokenized.facts)
    sums = ShardFacts()
    for shard in shards:
        facts = ShardFacts.of(shard.facts)
        _check_balance(report, shard, facts)
        sums = sums + facts
    _check_balance(report, tokenized, total)
    _compare_with_sums(report, tokenized, total, sums)
    _show_counts(report, total)


def _compare_with_sums(
    report: Report, tokenized: Manifest, total: ShardFacts, sums: ShardFacts
) -> None:
    """Check that the counts of a corpus are the sums of the counts of its shards.

    Args:
        report: Report on the shards, to which errors are added.
        tokenized: Manifest of the set of shards.
        total: The counts in this manifest.
        sums: The sums of the counts of the shards.
    """
    for name in _COUNTS:
        report.compare(
            f"the shards together have another number of {name} than their corpus",
            where=tokenized.folder,
            found=getattr(sums, name),
            expected=getattr(total, name),
            remedy=FORCE_BUILD,
        )


def _show_counts(report: Report, total: ShardFacts) -> None:
    """Add the counts of a corpus, such as `{"lines": 1500, "documents": 1497, …}`, to a report.

    Args:
        report: The report.
        total: The counts.
    """
    for name in _COUNTS:
        # Few corpora have documents that users have erased ("purged"). A figure that is always 0
        # would only distract.
        if name == "purged" and total.purged == 0:
            continue
        report.figures[name] = getattr(total, name)
    n_lost = total.rejected + total.faults  # faults are files that could not be read to their end
    report.figures["rejected_fraction"] = round(n_lost / max(total.lines, 1), 6)


def _check_balance(report: Report, output: Manifest, facts: ShardFacts) -> None:
    """Check that each line became a document, or is counted as lost or left out.

        1,000 lines = 990 documents + 5 skipped + 3 rejected + 2 purged

    Skipped are empty texts, rejected are lines that are no documents, and purged are documents that
    the user has erased.

    Args:
        report: Report on the tokenized corpus.
        output: Manifest of the corpus, or of a shard, which has the tokens of a part of it.
        facts: The counts in this manifest.
    """
    n_accounted = facts.documents + facts.skipped + facts.rejected + facts.purged
    if facts.lines == n_accounted:
        return
    expected = (
        f"{facts.documents:,} documents + {facts.skipped:,} skipped + {facts.rejected:,} rejected"
    )
    if facts.purged:
        expected += f" + {facts.purged:,} purged"
    report.error(
        "lines are not accounted for",
        where=output.folder,
        found=f"{facts.lines:,} lines read",
        expected=expected,
        remedy=remedy_for_bytes(output),
    )


def _check_of_shard_files(
    project: Project, corpus: str, tokenized: Manifest, shards: Sequence[Manifest]
) -> DividedCheck:
    """Return the check of all bytes of a tokenized corpus, divided into parts for several machines.

    The corpus consists of shards, each a folder with the tokens of a part of the text. Each part of
    the check is for some of these folders:

        [["3f9c…", "a07e…"], ["b113…"]]

    Args:
        project: Other machines may read its outputs for a part of the check.
        corpus: Name of the corpus.
        tokenized: Manifest of the set of shards, which lists their digests.
        shards: Manifests of the shards, in the same order.
    """
    digests = tokenized.facts[SHARDS]
    parts: list[Sequence[str]] = []
    for group in group_by_bytes([_bytes_of_files(shard) for shard in shards]):
        parts.append(digests[group.start : group.stop])  # range(0, 2), and then range(2, 3)
    return DividedCheck(
        parts=parts,
        check_part=partial(_check_shard_files, corpus=corpus),
        project=project,
    )


def _bytes_of_files(shard: Manifest) -> int:
    """Return the size of all files of a shard together."""
    return sum(file.size for file in shard.files.values())


def _check_shard_files(project: Project, digests: Sequence[str], corpus: str) -> Report:
    """Compare the files of some shards with the sha256 that were recorded when they were written.

    Args:
        project: Its outputs have the shards.
        digests: Which shards: the names of their folders.
        corpus: Name of the corpus.
    """
    report = Report(f"{FOLDER}/{corpus}")
    for shard in some_shards(project, corpus, digests):
        check_files(report, shard, deep=True)
    return report


def _check_document_tables(report: Report, project: Project, shards: Sequence[Manifest]) -> None:
    """Check that the tables of documents of shards can be opened, and have all rows.

    Args:
        report: Report on the shards.
        project: Its outputs are read, some of them perhaps from a bucket.
        shards: Manifests of the shards.
    """
    check_table = partial(_check_document_table, report.output)
    report.add_up(project.outputs.access.each_copy(check_table, shards))


def _check_document_table(output: str, shard: Manifest) -> Report:
    """Check that a shard's table of documents can be opened, and has a row for each document.

    Args:
        output: What the report calls the shards.
        shard: Manifest of the shard.
    """
    report = Report(output)
    with report.catching(remedy=remedy_for_bytes(shard)):
        DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    return report
