"""Previews of outputs: their first documents, rejected lines and samples, each with where it came from.

Each reads a handful of documents, whatever the size of the output. Where a preview fails, its error is shown instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import dagster as dg
import numpy as np
from numpy.typing import NDArray

from nanoset_assets.ui.metadata import code, markdown
from nanoset_core.cli.rows import place_of
from nanoset_core.errors import NanosetError
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.lineage.documents import InspectionContext, Lineage
from nanoset_core.lineage.explain import PieceOrigin, piece_origins
from nanoset_core.lineage.texts import Excerpts, shorten
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline.indexed import opened
from nanoset_core.pipeline.project import Project
from nanoset_core.serialization.text import format_count
from nanoset_core.tokenization.document_table import LineNumbers
from nanoset_core.tokenization.losses import read_rejects
from nanoset_core.tokenization.shards import REJECTS

SHOWN = 3
_PIECES_SHOWN = 3
_TOKENS_DECODED = 96


def first_documents(project: Project, dataset: Manifest) -> dg.MarkdownMetadataValue:
    """Return the first documents of a merged dataset, decoded, with file and line."""
    return _shown(lambda: _documents(_place(project), dataset))


def first_rejects(shards: Sequence[Manifest], numbers: LineNumbers) -> dg.MarkdownMetadataValue:
    """Return the first rejected lines with place and reason; `numbers` are those of the lines of the shards' corpus."""
    return _shown(lambda: _rejects(shards, numbers))


def first_samples(project: Project, name: str, split: str) -> dg.MarkdownMetadataValue:
    """Return the first samples of a built split: the documents that each is made of, and its first tokens as text."""
    return _shown(lambda: _samples(project, name, split))


def _shown(look: Callable[[], Iterator[str]]) -> dg.MarkdownMetadataValue:
    try:
        return markdown(*islice(look(), SHOWN))
    except (NanosetError, OSError, ValueError) as error:
        return markdown(code(f"cannot be shown: {error}"))


def _place(project: Project) -> InspectionContext:
    """A context without the raw folder: finding a line of a compressed file means reading all that is before it."""
    return InspectionContext(project.outputs, None, project.config.tokenizer_file)


def _documents(place: InspectionContext, manifest: Manifest) -> Iterator[str]:
    dataset = opened(manifest)
    excerpts = Excerpts(place, manifest)
    for origin in Lineage(place.outputs, manifest).origins(range(min(SHOWN, manifest.facts["documents"]))):
        tokens = _document(dataset, origin.document)
        identity = f", id {code(origin.id)}" if origin.id is not None else ""
        decoded = excerpts.decoded(tokens)  # None where the tokenizer that made them is not the current one
        text = decoded if decoded is not None else " ".join(map(str, tokens[:24].tolist()))
        tokens_told = format_count(origin.tokens, "token")
        yield f"**{code(place_of(origin))}**{identity}: {tokens_told}\n\n> {code(text if text.strip() else '(empty)')}"


def _document(dataset: MMapIndexedDataset, document: int) -> NDArray[np.generic]:
    """The first tokens of a document; of its first sequence, where it has several."""
    begin, end = dataset.document_indices[document : document + 2].tolist()
    if begin == end:
        return np.zeros(0, dataset.dtype)
    return dataset.get(begin, 0, min(_TOKENS_DECODED + 1, int(dataset.sequence_lengths[begin])))


def _rejects(shards: Sequence[Manifest], numbers: LineNumbers) -> Iterator[str]:
    for shard in shards:
        for reject in read_rejects(shard.path(REJECTS), numbers) if shard.facts["reasons"] else ():
            place, detail = code(f"{shard.name}/{reject.file}:{reject.line}"), code(shorten(reject.detail, False))
            yield f"**{place}**: {reject.reason}, {detail}\n\n> {code(shorten(reject.excerpt, False) or '(nothing)')}"


def _samples(project: Project, name: str, split: str) -> Iterator[str]:
    place, loaded = _place(project), load_nanoset(project.outputs, name, split)
    for sample in range(min(SHOWN, len(loaded))):
        if isinstance(loaded, Nanoset):
            nanoset, pieces = loaded, loaded.sources(sample)
        else:
            number, pieces = loaded.sources(sample)
            nanoset = loaded.datasets[number]
        pieces = pieces[pieces[:, 2] > pieces[:, 1]]
        origins = piece_origins(place, nanoset.dataset, pieces[:_PIECES_SHOWN])
        places = ", ".join(map(_piece, origins))
        more = f" and {format_count(left, 'document')} more" if (left := len(pieces) - len(origins)) else ""
        first = origins[0].text if origins else None
        text = "" if first is None else f"\n\n> {code(first)}"
        yield f"**sample {sample}** of {code(place.dataset_at(nanoset.member.prefix).name)}: {places}{more}{text}"


def _piece(piece: PieceOrigin) -> str:
    begin, end = piece.document_tokens
    return f"{code(place_of(piece.origin))} tokens {begin:,}–{end:,}"
