"""Verify the shards of a corpus: every line is accounted for, few are lost, files are whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_freshness
from nanoset_core.stages.dataset.token_ranges import QUICK_TOKENS
from nanoset_core.stages.inventory.make import current_inventory
from nanoset_core.stages.report import AGAIN, BUILD, Parts, Report, Run, check_files, run_here, runs
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.make import DOCUMENTS, SHARDS
from nanoset_core.stages.shards.repeats import LOOK
from nanoset_core.stages.shards.shard_sets import (
    STAGE,
    current_shards,
    recorded_losses,
    refusal,
    repeats_warning,
    some_shards,
)
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key

_COUNTS = ("lines", "documents", "skipped", "sequences", "tokens", "rejected", "faults", "purged")


def verify_shards(project: Project, corpus: str, deep: bool = False, run: Run = run_here) -> Report:
    """Check the current shards of a corpus against its inventory.

    Every line must be accounted for, in each shard and in all together: it is a document, or was
    skipped, rejected or purged. No more may be lost than is allowed; what is lost within that is a
    warning.

    Args:
        project: The project.
        corpus: Name of the corpus.
        deep: Compare the sha256 of all files; otherwise only sizes, and the ends of the tables of
            documents.
        run: Has the deep work done, here or elsewhere.
    """
    report = Report(f"{STAGE}/{corpus}")
    with report.catching(BUILD):
        tokenized = project.outputs.require(STAGE, corpus, remedy=BUILD)
        shards = current_shards(project, tokenized)
        _check_lines(report, tokenized, shards)
        check_losses(report, project, tokenized)

        # The check of the dataset counts repeated documents exactly if it reads all tokens.
        is_counted_in_dataset = deep or tokenized.facts["tokens"] <= QUICK_TOKENS
        repeats = repeats_warning(project, tokenized)
        if repeats and not is_counted_in_dataset:
            report.warn(repeats, project.config.corpus_folder(corpus), None, None, LOOK)

        if check_freshness(report, project, TOKENIZED, Key(corpus), tokenized):
            current_inventory(project, corpus)  # raises if it is damaged

        if deep:
            sizes = [sum(fact.size for fact in shard.files.values()) for shard in shards]
            digests = tokenized.facts[SHARDS]
            parts = [digests[numbers.start : numbers.stop] for numbers in runs(sizes)]
            run(report, Parts(partial(_check_shard_files, corpus=corpus), parts, project=project))
        else:
            look = partial(_check_document_table, report.output)
            report.add_up(project.outputs.access.each_copy(look, shards))
    return report


def check_losses(report: Report, project: Project, tokenized: Manifest) -> None:
    """Check that a corpus lost no more than is allowed, and warn of what it lost within that."""
    lost = recorded_losses(project.outputs, tokenized)
    if lost.facts.faults:
        report.figures["unreadable_fraction"] = round(lost.unreadable_share, 6)
    refused = refusal(project, tokenized.name, lost)
    if refused is not None:
        report.note_error(refused)
        return

    folder = project.config.corpus_folder(tokenized.name)
    unreadable = lost.unreadable_text()
    if unreadable:
        report.warn(
            "text was not read to its end",
            folder,
            unreadable,
            "whole files",
            "fetch or write these files again; documents.max_unreadable_fraction allows them "
            "as they are",
        )
    damaged = lost.damaged_text()
    if damaged:
        report.warn(
            "lines were rejected that may be damaged",
            folder,
            damaged,
            None,
            "look at them in the shards' rejects.jsonl; if files were damaged, fetch or write "
            "these again",
        )
    zeroed = lost.zeroed_text()
    if zeroed:
        report.warn(
            "text holds runs of zero bytes",
            folder,
            zeroed,
            None,
            "look at these files; if their text was overwritten, fetch or write them again",
        )
    padded = lost.padded_text()
    if padded:
        report.warn(
            "gzip files end with zero bytes",
            folder,
            padded,
            None,
            "compare their checksums with those at their source; if a download was cut short, "
            "fetch them again",
        )


def _check_lines(report: Report, tokenized: Manifest, shards: Sequence[Manifest]) -> None:
    """Check that every line is accounted for, and that the set has the sums of its shards."""
    total = ShardFacts.of(tokenized.facts)
    added_up = ShardFacts()
    for shard in shards:
        facts = ShardFacts.of(shard.facts)
        _check_balance(report, shard, facts)
        added_up = added_up + facts
    _check_balance(report, tokenized, total)
    for name in _COUNTS:
        what = f"the shards together have another number of {name} than their corpus"
        report.compare(what, tokenized.folder, getattr(added_up, name), getattr(total, name), AGAIN)

    for name in _COUNTS:
        if name != "purged" or total.purged:
            report.figures[name] = getattr(total, name)
    n_lost = total.rejected + total.faults
    report.figures["rejected_fraction"] = round(n_lost / max(total.lines, 1), 6)


def _check_balance(report: Report, output: Manifest, facts: ShardFacts) -> None:
    """Check that each line of a shard, or of a set, became a document or is counted as lost."""
    if facts.lines == facts.documents + facts.skipped + facts.rejected + facts.purged:
        return
    expected = (
        f"{facts.documents:,} documents + {facts.skipped:,} skipped + {facts.rejected:,} rejected"
    )
    if facts.purged:
        expected += f" + {facts.purged:,} purged"
    report.error(
        "lines are not accounted for", output.folder, f"{facts.lines:,} lines read", expected, AGAIN
    )


def _check_shard_files(project: Project, digests: Sequence[str], corpus: str) -> Report:
    """Compare the files of some shards with their sha256."""
    report = Report(f"{STAGE}/{corpus}")
    for shard in some_shards(project, corpus, digests):
        check_files(report, shard, deep=True)
    return report


def _check_document_table(output: str, shard: Manifest) -> Report:
    """Check that a shard's table of documents can be opened, and has a row for each document."""
    report = Report(output)
    with report.catching(f"delete {shard.folder} and {BUILD}"):
        DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    return report
