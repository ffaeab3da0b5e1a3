"""Previews of outputs: their first documents, rejected lines and samples, each with where it came from.

Each reads a handful of documents, or those of a handful of samples, whatever the size of the output. Where a preview
fails, its error is shown instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

import dagster as dg
import numpy as np

from nanoset_assets.ui.metadata import code, markdown, table
from nanoset_core.cli.terminal import place_of
from nanoset_core.errors import NanosetError
from nanoset_core.lineage.documents import InspectionContext
from nanoset_core.lineage.excerpts import shorten
from nanoset_core.lineage.explain import SampleOrigin, explain_samples, piece_origins
from nanoset_core.lineage.run import Run, explain_step
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_count
from nanoset_core.stages.shards.document_table import LineNumbers
from nanoset_core.stages.shards.losses import read_rejects
from nanoset_core.stages.shards.make import REJECTS

SHOWN = 3
_PIECES_SHOWN = 3
_TOKENS_DECODED = 96
SHUFFLED_AT_ONCE = 1 << 20
"""Samples that a sampler may shuffle for a preview: without torch half a second; ten times as many, a gigabyte."""
STEP_SAMPLES = 8
"""Of a handoff's first step, as many are shown; without a schedule, a step has as many."""


def first_documents(project: Project, dataset: Manifest) -> dg.MarkdownMetadataValue:
    """Return the first documents of a merged dataset, decoded, with file and line."""
    return _shown(lambda: _documents(_place(project), dataset))


def first_rejects(shards: Sequence[Manifest], numbers: LineNumbers) -> dg.MarkdownMetadataValue:
    """Return the first rejected lines with place and reason; `numbers` are those of the lines of the shards' corpus."""
    return _shown(lambda: _rejects(shards, numbers))


def first_samples(project: Project, name: str, split: str) -> dg.MarkdownMetadataValue:
    """Return the first samples of a built split: the documents that each is made of, and its first tokens as text."""
    return _shown(lambda: _samples(project, name, split))


def first_step(project: Project, handoff: Manifest) -> dg.MarkdownMetadataValue | dg.TableMetadataValue:
    """Return the samples of the first step that is started with a handoff: their documents, and text."""
    try:
        run = Run.begun(project.outputs, handoff, STEP_SAMPLES)
        if (dealer := run.parts[0].dealer).seed is not None and dealer.total > SHUFFLED_AT_ONCE:
            return markdown(
                f"The trainer's sampler shuffles all {dealer.total:,} samples: the job `explain_step` does."
            )
        step = explain_step(project, run, 1, most=STEP_SAMPLES)
    except (NanosetError, OSError, ValueError) as error:
        return markdown(code(f"cannot be shown: {error}"))
    return table(map(sample_row, step.samples), step.batch_size)


def sample_row(sample: SampleOrigin) -> dict[str, object]:
    """Return a row of a table of samples: what each is made of, and its first tokens as text."""
    return {"sample": sample.sample, "corpus": sample.corpus, "documents": _pieces(sample), "text": _text(sample) or ""}


def _pieces(sample: SampleOrigin, shown: Callable[[str], str] = str) -> str:
    """Return the first documents of a sample, with the tokens that it holds of them."""
    first = [(shown(place_of(piece.origin)), piece.document_tokens) for piece in sample.pieces[:_PIECES_SHOWN]]
    told = [f"{place} tokens {begin:,}–{end:,}" for place, (begin, end) in first]
    left = len(sample.pieces) - len(first)
    return ", ".join([*told, *([f"{format_count(left, 'document')} more"] if left else [])])


def _text(sample: SampleOrigin) -> str | None:
    return next((piece.text for piece in sample.pieces), None)


def _shown(look: Callable[[], Iterator[str]]) -> dg.MarkdownMetadataValue:
    try:
        return markdown(*islice(look(), SHOWN))
    except (NanosetError, OSError, ValueError) as error:
        return markdown(code(f"cannot be shown: {error}"))


def _place(project: Project) -> InspectionContext:
    """A context without the raw folder: finding a line of a compressed file means reading all that is before it."""
    return InspectionContext.of_root(project.outputs, tokenizer_file=project.config.tokenizer_file)


def _documents(place: InspectionContext, manifest: Manifest) -> Iterator[str]:
    dataset = place.datasets.open(manifest)
    first = np.arange(min(SHOWN, len(dataset.sequences)))  # documents without tokens have no sequence
    lengths = np.minimum(dataset.sequences.sequence_lengths[first], _TOKENS_DECODED + 1)
    spans = np.stack([first, np.zeros_like(first), lengths], axis=1)
    for piece in chain.from_iterable(piece_origins(place, dataset, spans)):
        identity = f", id {code(piece.origin.id)}" if piece.origin.id is not None else ""
        tokens = format_count(piece.origin.tokens, "token")
        yield f"**{code(place_of(piece.origin))}**{identity}: {tokens}{_quoted(piece.text)}"


def _quoted(text: str | None) -> str:
    """Return the text below what it belongs to; nothing without the tokenizer that made the tokens."""
    return "" if text is None else f"\n\n> {code(text if text.strip() else '(empty)')}"


def _rejects(shards: Sequence[Manifest], numbers: LineNumbers) -> Iterator[str]:
    for shard in shards:
        for reject in read_rejects(shard.path(REJECTS), numbers) if shard.facts["reasons"] else ():
            place, detail = code(f"{shard.name}/{reject.file}:{reject.line}"), code(shorten(reject.detail, False))
            yield f"**{place}**: {reject.reason}, {detail}\n\n> {code(shorten(reject.excerpt, False) or '(nothing)')}"


def _samples(project: Project, name: str, split: str) -> Iterator[str]:
    place, loaded = _place(project), load_nanoset(project.outputs, name, split)
    begin = loaded.config.consumed_samples if split == "train" else 0
    for sample in explain_samples(place, loaded, name, split, range(begin, min(begin + SHOWN, len(loaded)))):
        said = f"**sample {sample.sample}** of {code(sample.corpus)}: {_pieces(sample, code)}"
        yield said + _quoted(_text(sample))
