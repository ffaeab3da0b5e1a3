"""Is a corpus's chain whole: raw files, shards, merged dataset?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import Tokens
from nanoset_core.formats.indexed.stream import token_starts
from nanoset_core.lineage.documents import InspectionContext, Lineage
from nanoset_core.lineage.texts import NotReadError, file_state, read_texts, retokenizer
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_freshness
from nanoset_core.stages.dataset import stage as indexed
from nanoset_core.stages.dataset.verify import verify_dataset
from nanoset_core.stages.dataset.verify_ranges import QUICK_TOKENS, Expected, spread_rows
from nanoset_core.stages.inventory import stage as raw
from nanoset_core.stages.report import (
    AGAIN,
    BUILD,
    Parts,
    Report,
    Run,
    Severity,
    check_files,
    live_manifest,
    run_here,
    runs,
)
from nanoset_core.stages.shards import stage as tokenization
from nanoset_core.stages.shards.document_table import DocumentRows
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.repeats import LIMIT_KEY, LOOK
from nanoset_core.stages.shards.shards import DOCUMENTS
from nanoset_core.stages.stage import Key
from nanoset_core.tokenizers.engines.reference import EncodingError

SAMPLED_DOCUMENTS = 64
"""Documents that are tokenized again."""
_MOST_TOKENS = 1 << 20
_QUICK_SKIPPED_BYTES = 16 << 20
MOST_DRIFT = 1.5
"""Change of the mean length of documents from one version to the next, as a factor, that is worth a warning."""
_DATASET_COUNTS = ("documents", "sequences", "tokens")
_COUNTS = ("lines", "documents", "skipped", "sequences", "tokens", "rejected", "faults", "purged")


def verify_corpus(project: Project, corpus: str, deep: bool = False, run: Run = run_here) -> Report:
    """Check a corpus: its files, shards and dataset, as `verify_inventory`, `verify_shards` and `verify_indexed` do."""
    report = Report(f"corpora/{corpus}")
    report.include(verify_inventory(project, corpus))
    report.include(verify_shards(project, corpus, deep, run))
    report.include(verify_indexed(project, corpus, deep, run, losses=False))
    return report


def verify_inventory(project: Project, corpus: str, deep: bool = False) -> Report:
    """Warn of what lies among a corpus's files now: those not read, empty, shrunken and vanished; the same `deep`."""
    report = Report(f"{raw.STAGE}/{corpus}")
    try:
        where = project.config.corpus_folder(corpus)
        for notice in raw.notices(project, corpus):
            if not notice.is_as_asked:
                report.warn(notice.text, where, None, None, notice.remedy)
    except NanosetError as error:
        report.note_error(error, "warning")
    return report


def verify_raw(project: Project) -> Report:
    """Warn of what lies below the raw folder and is no corpus: nothing in it is read."""
    report = Report("raw")
    for name, what in raw.scan(project, names_only=True).aside.items():
        remedy = "put files there that are read, or move it out of the raw folder"
        report.warn(what, project.config.raw_folder / name, None, None, remedy)
    return report


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
            raw.current_inventory(project, corpus)  # which is to be whole
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


def verify_indexed(
    project: Project, corpus: str, deep: bool = False, run: Run = run_here, *, losses: bool = True
) -> Report:
    """Check the current merged dataset of a corpus.

    Its counts, .idx and tokens (see `verify_dataset`), whether it is the one that the current inventory and settings
    give, whether sampled documents give the same tokens when their source lines are tokenized again, and with `losses`
    what was lost on the way to it.
    """
    report = Report(f"{indexed.STAGE}/{corpus}")
    with report.catching(BUILD):
        dataset = live_manifest(project.outputs, indexed.STAGE, corpus)
        check_files(report, dataset, deep=deep)
        options = dataset.recipe["options"]
        max_id = project.tokenizer.max_id if options["tokenizer"] == project.tokenizer.fingerprint else None
        expected, pieces = Expected.of(options, dataset.facts, max_id), indexed.pieces_of(dataset) if deep else ()
        limit = project.config.documents.max_duplicate_fraction
        expected = replace(expected, duplicates=limit, duplicates_key=LIMIT_KEY)
        if not deep and dataset.facts["tokens"] <= QUICK_TOKENS:
            indexed.bring_tokens(dataset)
        prefix, access = indexed.readable(dataset), dataset.access
        verify_dataset(prefix, expected=expected, deep=deep, report=report, access=access, pieces=pieces, run=run)
        _check_drift(report, project.outputs, dataset)
        if report.passed:
            _check_shards(report, project, dataset)
            lineage, tokens = Lineage(project.outputs, dataset), indexed.opened(dataset, is_sampled=True)
            if deep:
                _check_merged(report, lineage, tokens)
            _check_round_trip(report, project, lineage, tokens, deep=deep)
        if report.passed and losses:
            _check_losses(report, project, indexed.shards_of(project.outputs, dataset))
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


def _check_drift(report: Report, outputs: OutputRoot, dataset: Manifest) -> None:
    """Warn where documents became much longer or shorter than in the version before."""
    before = outputs.previous(dataset)
    if before is None or not before.facts["documents"] or not dataset.facts["documents"]:
        return
    was, now = (one.facts["tokens"] / one.facts["documents"] for one in (before, dataset))
    report.figures |= {"tokens_per_document": round(now, 1), "tokens_per_document_before": round(was, 1)}
    if was and not 1 / MOST_DRIFT <= now / was <= MOST_DRIFT:
        report.warn(
            "documents have another length than in the version before",
            dataset.folder,
            f"{now:,.1f} tokens a document, {was:,.1f} before ({before.digest})",
            f"a change by less than a factor of {MOST_DRIFT:g}",
            f"look at what changed with `nanoset diff {dataset.name}`; nothing is to be done if it was meant",
        )


def _check_shards(report: Report, project: Project, dataset: Manifest) -> None:
    """Check that the dataset is what the present shards and settings give."""
    try:
        tokenized = project.outputs.require(tokenization.STAGE, dataset.name, remedy=BUILD)
    except NanosetError as error:
        report.note_error(error, "warning")
        return
    fresh = check_freshness(report, project, indexed.DATASET, Key(dataset.name), dataset)
    if fresh and tokenized.recipe["parents"] == dataset.recipe["parents"]:
        for name in _DATASET_COUNTS:
            what = f"the dataset has another number of {name} than the shards that it was merged from"
            report.compare(what, dataset.folder, dataset.facts[name], tokenized.facts[name], AGAIN)


def _check_merged(report: Report, lineage: Lineage, dataset: MMapIndexedDataset) -> None:
    """Check that documents are as long in the dataset as their shards' tables say."""
    for shard, table in lineage.tables(range(len(lineage.shards))):
        for row, lengths in table.lengths():
            first = lineage.first_document(shard) + row
            found = np.diff(token_starts(dataset, dataset.document_indices[first : first + len(lengths) + 1]))
            if (wrong := found != lengths).any():
                at = int(np.argmax(wrong))
                what = f"document {first + at} has another length than its shard says"
                report.compare(what, dataset.prefix, int(found[at]), int(lengths[at]), AGAIN)
                return


def _check_round_trip(
    report: Report, project: Project, lineage: Lineage, dataset: MMapIndexedDataset, *, deep: bool
) -> None:
    """Tokenize the source lines of 64 evenly spread documents again, and compare.

    What lies deep in compressed files is left out unless `deep`; so are documents of more than a Mi tokens. Other
    tokens are an error, unless the file was changed since or is gone: that is a warning.
    """
    options, folder = lineage.dataset.recipe["options"], project.config.corpus_folder(lineage.corpus)
    file = project.config.tokenizer_file
    again = retokenizer(file, options)
    if again is None:
        what = "the tokenizer is not the one that made the tokens: documents were not compared with their source"
        report.warn(what, file, None, None, "run `nanoset build`: it tokenizes the corpus anew")
        return
    origins = lineage.origins(spread_rows(len(dataset.document_indices) - 1, SAMPLED_DOCUMENTS).tolist())
    short = [origin for origin in origins if origin.tokens <= _MOST_TOKENS]
    bounds = dataset.document_indices
    begins, ends = (token_starts(dataset, bounds[[one.document + at for one in short]]) for at in (0, 1))
    texts = read_texts(folder, short, options["text_key"], most_skipped_bytes=None if deep else _QUICK_SKIPPED_BYTES)
    compared, inventory, memory = 0, None, None
    wrong: dict[Severity, list[tuple[str | None, ...]]] = {"error": [], "warning": []}
    for origin, text, there in zip(short, texts, _each_read(dataset, begins, ends), strict=True):
        if isinstance(text, NotReadError):
            continue
        compared += 1
        if isinstance(text, NanosetError):
            what, found, expected = text.what, text.found or "nothing", None
        else:
            try:
                made, _ = again.encode(text)
            except EncodingError as error:
                what, found, expected = error.what, error.found or "", None
            else:
                if np.array_equal(made, there):
                    continue
                what, found, expected = "a document's source line gives other tokens", _spelled(there), _spelled(made)
        inventory = inventory or InspectionContext.of(project).inventory_of(lineage.dataset)
        memory = memory or raw.memory_of(project, folder)
        state = file_state(inventory, memory, folder, origin.file, max(origin.byte_offset, 0))
        found = {"changed": "the file was changed since", "gone": "the file is gone"}.get(state, found)
        remedy = AGAIN if state == "unchanged" else f"{BUILD}: it reads the files anew"
        where = f"{folder}/{origin.file}:{origin.line} (document {origin.document})"
        wrong["error" if state == "unchanged" else "warning"].append((what, where, found, expected, remedy))
    report.figures |= {"documents_sampled": len(origins), "documents_compared": compared}
    for severity, alike in wrong.items():
        more = f" ({len(alike):,} of {len(origins):,} sampled documents)" if len(alike) > 1 else ""
        for one in alike[:1]:
            report.note(severity, f"{one[0]}{more}", *one[1:])


def _each_read(dataset: MMapIndexedDataset, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[Tokens]:
    """Yield the tokens of each range [begins, ends), which are there until the next is asked for."""
    size = dataset.dtype.itemsize
    for some in dataset.spans(len(begins), 1):
        tokens = dataset.tokens_for(begins[some] * size, ends[some] * size)
        yield from (tokens[begin:end] for begin, end in zip(begins[some], ends[some], strict=True))


def _spelled(tokens: NDArray[Any]) -> str:
    return f"{', '.join(map(str, tokens[:8].tolist()))} …: {len(tokens):,} tokens"
