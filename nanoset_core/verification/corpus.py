"""Is a corpus's chain whole: raw files, shards, merged dataset?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoset_core.errors import NanosetError
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.lineage.documents import Lineage
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.pipeline import indexed, raw, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key, size_bytes
from nanoset_core.raw.pieces import cut_ranges
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.tokenization.document_table import DocumentRows
from nanoset_core.tokenization.job import shard_recipe
from nanoset_core.tokenization.shards import DOCUMENTS, REJECTS, TOKENS, ShardFacts
from nanoset_core.verification.dataset import verify_dataset, verify_pieces
from nanoset_core.verification.files import AGAIN, BUILD, check_files, check_freshness, live_manifest
from nanoset_core.verification.ranges import Expected
from nanoset_core.verification.report import Report
from nanoset_core.verification.round_trip import check_round_trip
from nanoset_core.verification.tasks import ProjectCheck, Run, run_here, runs

MOST_DRIFT = 1.5
"""Change of the mean length of documents from one version to the next, as a factor, that is worth a warning."""
_COUNTS = ("lines", "documents", "skipped", "sequences", "tokens", "rejected", "faults")


def verify_corpus(project: Project, corpus: str, deep: bool = False, run: Run = run_here) -> Report:
    """Check a corpus: its files, shards and dataset, as `verify_inventory`, `verify_shards` and `verify_indexed` do."""
    report = Report(f"corpora/{corpus}")
    report.include(verify_inventory(project, corpus))
    report.include(verify_shards(project, corpus, deep, run))
    report.include(_verify_dataset(project, corpus, deep, run))
    return report


def verify_inventory(project: Project, corpus: str, deep: bool = False) -> Report:
    """Warn of what lies among a corpus's files now: those not read, empty, shrunken and vanished; the same `deep`."""
    report = Report(f"{raw.STAGE}/{corpus}")
    try:
        where = project.config.corpus_folder(corpus)
        for notice in raw.notices(project, corpus):
            report.warn(notice.text, where=where, remedy=notice.remedy)
    except NanosetError as error:
        report.note_error(error, "warning")
    return report


def verify_raw(project: Project) -> Report:
    """Warn of what lies below the raw folder and is no corpus: nothing in it is read."""
    report = Report("raw")
    for name, what in raw.aside(project).items():
        where = project.config.raw_folder / name
        report.warn(what, where=where, remedy="put files there that are read, or move it out of the raw folder")
    return report


def verify_shards(project: Project, corpus: str, deep: bool = False, run: Run = run_here) -> Report:
    """Check the current shards of a corpus against its inventory.

    Every line is accounted for (read = documents + skipped + rejected) in every shard and in all together, no more is
    lost than is allowed (what is lost and allowed is a warning), the shards are those of the inventory's ranges, their
    files are whole (`deep`: by sha256, and each table of documents holds as many tokens as its shard).
    """
    report = Report(f"tokenized/{corpus}")
    with report.catching(BUILD):
        tokenized = project.outputs.require(tokenization.STAGE, corpus, remedy=BUILD)
        shards = tokenization.current_shards(project, tokenized)
        _check_lines(report, tokenized, shards)
        _check_losses(report, project, tokenized)
        if check_freshness(report, project, tokenization.TOKENIZED, Key(corpus), tokenized):
            _check_sources(report, project, tokenized)
        if deep:
            digests, sizes = tokenized.facts[tokenization.SHARDS], [size_bytes(shard) for shard in shards]
            parts = [tuple(digests[part.start : part.stop]) for part in runs(sizes)]
            report.include(run(ShardCheck(project, report.output, corpus), parts))
        else:
            for shard in shards:
                report.include(check_files(shard, report.output, deep=False, remedy=BUILD))
                with report.catching(_remedy(shard)):
                    _rows(shard)
    return report


def verify_indexed(project: Project, corpus: str, deep: bool = False) -> Report:
    """Check the current merged dataset of a corpus.

    Its counts, .idx and tokens (see `verify_dataset`), whether it is the one that the current inventory and settings
    give, whether sampled documents give the same tokens when their source lines are tokenized again, and what was lost
    on the way to it.
    """
    report = _verify_dataset(project, corpus, deep, run_here)
    if report.passed:
        with report.catching(BUILD):
            dataset = live_manifest(project.outputs, indexed.STAGE, corpus)
            _check_losses(report, project, indexed.shards_of(project.outputs, dataset))
    return report


def _verify_dataset(project: Project, corpus: str, deep: bool, run: Run) -> Report:
    report = Report(f"{indexed.STAGE}/{corpus}")
    with report.catching(BUILD):
        dataset = live_manifest(project.outputs, indexed.STAGE, corpus)
        report.include(check_files(dataset, report.output, deep=deep, remedy=BUILD))
        pieces, prefix = indexed.pieces_of(dataset) if deep else (), dataset.folder / dataset.facts["prefix"]
        opening = Report(report.output)
        with opening.catching(BUILD):
            indexed.readable(dataset)
        report.include(opening)
        if not opening.passed:
            report.include(verify_pieces(prefix, pieces, report.output, dataset.access, run))
            return report
        found = verify_dataset(
            prefix,
            expected=_expected(project, dataset),
            deep=deep,
            output=report.output,
            access=dataset.access,
            pieces=pieces,
            run=run,
        )
        report.include(found)
        _check_drift(report, project.outputs, dataset)
        if report.passed:
            _check_shards(report, project, dataset)
            lineage = Lineage(project.outputs, dataset)
            tokens = indexed.opened(dataset)
            if deep:
                _check_merged(report, lineage, tokens)
            check_round_trip(report, project, lineage, tokens, deep=deep)
    return report


def _expected(project: Project, dataset: Manifest) -> Expected:
    options, facts = dataset.recipe["options"], dataset.facts
    same = options["tokenizer"] == project.tokenizer.fingerprint
    return Expected(
        max_id=project.tokenizer.max_id if same else None,
        dtype=options["dtype"],
        before=tuple(options["framing"]["before"]),
        after=tuple(options["framing"]["after"]),
        **{name: facts[name] for name in ("documents", "sequences", "tokens")},
    )


def _check_lines(report: Report, tokenized: Manifest, shards: Iterable[Manifest]) -> None:
    total = tokenization.tokenized_facts(tokenized)
    added = ShardFacts()
    for shard in shards:
        facts = ShardFacts.of(shard.facts)
        added += facts
        _check_sum(report, shard.folder, facts)
    _check_sum(report, tokenized.folder, total)
    for name in _COUNTS:
        what = f"the shards together have another number of {name} than their corpus"
        report.compare(what, tokenized.folder, getattr(added, name), getattr(total, name), AGAIN)
    rejected = (total.rejected + total.faults) / max(total.lines, 1)
    report.figures.update({name: getattr(total, name) for name in _COUNTS} | {"rejected_fraction": round(rejected, 6)})


def _check_losses(report: Report, project: Project, tokenized: Manifest) -> None:
    """Check that a corpus lost no more than is allowed now; what it lost within that is a warning."""
    lost = tokenization.losses(project.outputs, tokenized)
    if lost.facts.faults:
        report.figures["unreadable_fraction"] = round(lost.unreadable_share, 6)
    if (refused := tokenization.refusal(project, tokenized.name, lost)) is not None:
        report.note_error(refused)
        return
    folder = project.config.corpus_folder(tokenized.name)
    if found := lost.unreadable_text():
        remedy = "fetch or write these files again; documents.max_unreadable_fraction allows them as they are"
        report.warn("text was not read to its end", where=folder, found=found, expected="whole files", remedy=remedy)
    if found := lost.damaged_text():
        remedy = "look at them in the shards' rejects.jsonl; where files were damaged, fetch or write these again"
        report.warn("lines were rejected that may be damaged", where=folder, found=found, remedy=remedy)
    if found := lost.zeroed_text():
        remedy = "look at these files; where their text was overwritten, fetch or write them again"
        report.warn("text holds runs of zero bytes", where=folder, found=found, remedy=remedy)


def _check_sum(report: Report, where: Path, facts: ShardFacts) -> None:
    accounted = facts.documents + facts.skipped + facts.rejected
    if facts.lines != accounted:
        report.error(
            "lines are not accounted for",
            where=where,
            found=f"{facts.lines:,} lines read",
            expected=f"{accounted:,} = {facts.documents:,} documents + {facts.skipped:,} skipped "
            f"+ {facts.rejected:,} rejected",
            remedy=AGAIN,
        )


def _check_sources(report: Report, project: Project, tokenized: Manifest) -> None:
    """Check that the shards are those of the inventory's ranges."""
    _, inventory = raw.current_inventory(project, tokenized.name)
    ranges = cut_ranges(inventory, tokenized.recipe["options"]["range_bytes"])
    options = tokenization.token_options(project, tokenized.name)
    expected = [shard_recipe(tokenized.name, source, options).digest for source in ranges]
    found = list(tokenized.facts[tokenization.SHARDS])
    if found != expected:
        report.error(
            "the shards are not those of the corpus's files",
            where=tokenized.folder,
            found=f"{len(found):,} shards, {len(set(expected) - set(found)):,} of the expected ones missing",
            expected=f"{len(expected):,} shards, one for each range of files, in that order",
            remedy=AGAIN,
        )


@dataclass(frozen=True, slots=True)
class ShardCheck(ProjectCheck[tuple[str, ...]]):
    """Files as they were written, tokens and tables as the manifests say, of some shards of a corpus, by digest."""

    corpus: str

    def look_within(self, project: Project, part: tuple[str, ...]) -> Report:
        report = Report(self.output)
        for shard in tokenization.some_shards(project, self.corpus, part):
            _check_shard(report, shard)
        return report


def _check_shard(report: Report, shard: Manifest) -> None:
    report.include(check_files(shard, report.output, deep=True, remedy=BUILD))
    facts = ShardFacts.of(shard.facts)
    with report.catching(_remedy(shard)):
        what = "the table of documents holds another number of tokens than its shard"
        report.compare(what, shard.path(DOCUMENTS), _rows(shard).tokens(), facts.tokens, _remedy(shard))
    expected = Expected(dtype=shard.recipe["options"]["dtype"], sequences=facts.sequences, tokens=facts.tokens)
    part = verify_dataset(shard.path(TOKENS), expected=expected, output=report.output)
    report.findings.extend(part.findings)
    with open_regular(shard.path(REJECTS)) as lines:
        rejects = sum(1 for _ in lines)
    what, expected_rejects = "rejected lines are not all listed", facts.rejected + facts.faults
    report.compare(what, shard.path(REJECTS), rejects, expected_rejects, _remedy(shard))
    shard.access.drop(shard.folder / name for name in shard.files)


def _remedy(shard: Manifest) -> str:
    return f"delete {shard.folder} and {BUILD}"


def _rows(shard: Manifest) -> DocumentRows:
    return DocumentRows(shard.path(DOCUMENTS), ShardFacts.of(shard.facts).documents)


def _check_drift(report: Report, outputs: OutputRoot, dataset: Manifest) -> None:
    """Warn where documents became much longer or shorter than in the version before."""
    before = outputs.previous(dataset)
    if before is None or not before.facts["documents"] or not dataset.facts["documents"]:
        return
    was, now = (one.facts["tokens"] / one.facts["documents"] for one in (before, dataset))
    report.figures["tokens_per_document"] = round(now, 1)
    report.figures["tokens_per_document_before"] = round(was, 1)
    if was and not 1 / MOST_DRIFT <= now / was <= MOST_DRIFT:
        report.warn(
            "documents have another length than in the version before",
            where=dataset.folder,
            found=f"{now:,.1f} tokens a document, {was:,.1f} before ({before.digest})",
            expected=f"a change by less than a factor of {MOST_DRIFT:g}",
            remedy=f"look at what changed with `nanoset diff {dataset.name}`; nothing is to be done if it was meant",
        )


def _check_shards(report: Report, project: Project, dataset: Manifest) -> None:
    """Check that the dataset is what the present shards and settings give."""
    try:
        tokenized = project.outputs.require(tokenization.STAGE, dataset.name, remedy=BUILD)
    except NanosetError as error:
        report.note_error(error, "warning")
        return
    fresh = check_freshness(report, project, indexed.DATASET, Key(dataset.name), dataset)
    if not fresh or tokenized.recipe["parents"] != dataset.recipe["parents"]:
        return
    for name in ("documents", "sequences", "tokens"):
        what = f"the dataset has another number of {name} than the shards that it was merged from"
        report.compare(what, dataset.folder, dataset.facts[name], tokenized.facts[name], AGAIN)


def _check_merged(report: Report, lineage: Lineage, dataset: MMapIndexedDataset) -> None:
    """Check that documents are as long in the dataset as their shards' tables say."""
    pointers, tokens = dataset.sequence_pointers, dataset.token_count
    for shard in range(len(lineage.shards)):
        for row, lengths in lineage.table(shard).lengths():
            first = lineage.first_document(shard) + row
            bounds = dataset.document_indices[first : first + len(lengths) + 1]
            # [documents + 1]: where each begins in the token array, and the end of the last
            starts = np.full(len(bounds), tokens, np.int64)
            inside = bounds < len(dataset)
            starts[inside] = pointers[bounds[inside]] // dataset.dtype.itemsize
            found = np.diff(starts)
            if (wrong := found != lengths).any():
                at = int(np.argmax(wrong))
                what = f"document {first + at} has another length than its shard says"
                report.compare(what, dataset.prefix, int(found[at]), int(lengths[at]), AGAIN)
                return
