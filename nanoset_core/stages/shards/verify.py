"""Is a corpus's chain whole: shards, merged dataset?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_freshness
from nanoset_core.stages.dataset.token_ranges import QUICK_TOKENS
from nanoset_core.stages.inventory.make import current_inventory
from nanoset_core.stages.report import (
    AGAIN,
    BUILD,
    Parts,
    Report,
    Run,
    check_files,
    run_here,
    runs,
)
from nanoset_core.stages.shards import stage as tokenization
from nanoset_core.stages.shards.document_table import DocumentRows
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.repeats import LOOK
from nanoset_core.stages.shards.shards import DOCUMENTS
from nanoset_core.stages.stage import Key

_COUNTS = ("lines", "documents", "skipped", "sequences", "tokens", "rejected", "faults", "purged")


def verify_shards(project: Project, corpus: str, deep: bool = False, run: Run = run_here) -> Report:
    """Check the current shards of a corpus against its inventory.

    Every line is accounted for (read = documents + skipped + rejected) in every shard and in all together, no more is
    lost than is allowed (what is lost and allowed is a warning), and the shards' files are whole, `deep` by sha256.
    """
    report = Report(f"tokenized/{corpus}")
    with report.catching(BUILD):
        tokenized = project.outputs.require(tokenization.STAGE, corpus, remedy=BUILD)
        shards = tokenization.current_shards(project, tokenized)
        _check_lines(report, tokenized, shards)
        _check_losses(report, project, tokenized)
        counted = deep or tokenized.facts["tokens"] <= QUICK_TOKENS  # with the tokens, see verify_indexed
        if not counted and (repeated := tokenization.repeats_warning(project, tokenized)):
            report.warn(repeated, project.config.corpus_folder(corpus), None, None, LOOK)
        if check_freshness(report, project, tokenization.TOKENIZED, Key(corpus), tokenized):
            current_inventory(project, corpus)  # which is to be whole
        if deep:
            digests = tokenized.facts[tokenization.SHARDS]
            parts = [
                digests[part.start : part.stop]
                for part in runs([sum(fact.size for fact in shard.files.values()) for shard in shards])
            ]
            run(report, Parts(partial(_look_at_shards, corpus=corpus), parts, project=project))
        else:
            report.add_up(project.outputs.access.each_copy(partial(_look_at_documents, report.output), shards))
    return report


def _look_at_documents(output: str, shard: Manifest) -> Report:
    report = Report(output)
    with report.catching(f"delete {shard.folder} and {BUILD}"):
        DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    return report


def _check_lines(report: Report, tokenized: Manifest, shards: Sequence[Manifest]) -> None:
    total, parts = ShardFacts.of(tokenized.facts), [ShardFacts.of(shard.facts) for shard in shards]
    for one, facts in zip((*shards, tokenized), (*parts, total), strict=True):
        wish = f"{facts.documents:,} documents + {facts.skipped:,} skipped + {facts.rejected:,} rejected"
        wish += f" + {facts.purged:,} purged" if facts.purged else ""
        if facts.lines != facts.documents + facts.skipped + facts.rejected + facts.purged:
            report.error("lines are not accounted for", one.folder, f"{facts.lines:,} lines read", wish, AGAIN)
    added = sum(parts, ShardFacts())
    for name in _COUNTS:
        what = f"the shards together have another number of {name} than their corpus"
        report.compare(what, tokenized.folder, getattr(added, name), getattr(total, name), AGAIN)
    rejected = (total.rejected + total.faults) / max(total.lines, 1)
    counts = {name: getattr(total, name) for name in _COUNTS if name != "purged" or total.purged}
    report.figures.update(counts | {"rejected_fraction": round(rejected, 6)})


def _check_losses(report: Report, project: Project, tokenized: Manifest) -> None:
    """Check that a corpus lost no more than is allowed now; what it lost within that is a warning."""
    lost = tokenization.losses(project.outputs, tokenized)
    if lost.facts.faults:
        report.figures["unreadable_fraction"] = round(lost.unreadable_share, 6)
    if (refused := tokenization.refusal(project, tokenized.name, lost)) is not None:
        report.note_error(refused)
        return
    for what, found, expected, remedy in (
        (
            "text was not read to its end",
            lost.unreadable_text(),
            "whole files",
            "fetch or write these files again; documents.max_unreadable_fraction allows them as they are",
        ),
        (
            "lines were rejected that may be damaged",
            lost.damaged_text(),
            None,
            "look at them in the shards' rejects.jsonl; where files were damaged, fetch or write these again",
        ),
        (
            "text holds runs of zero bytes",
            lost.zeroed_text(),
            None,
            "look at these files; where their text was overwritten, fetch or write them again",
        ),
        (
            "gzip files end with zero bytes",
            lost.padded_text(),
            None,
            "compare their checksums with those at their source; where a download was cut short, fetch them again",
        ),
    ):
        if found:
            report.warn(what, project.config.corpus_folder(tokenized.name), found, expected, remedy)


def _look_at_shards(project: Project, part: Sequence[str], corpus: str) -> Report:
    report = Report(f"tokenized/{corpus}")
    for shard in tokenization.some_shards(project, corpus, part):
        check_files(report, shard, deep=True)
    return report
