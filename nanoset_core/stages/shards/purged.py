"""Documents that were erased: records below the root of where they are in the raw text, which no
shard is made of.

Once a corpus has a record, the recipe of each shard whose range has such a document names it, and
so does the recipe of everything that is made of these shards. Of the documents' own ids a digest is
kept: a document with such an id that appears in another file later is found by it, and left out,
too.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import canonical_json, digest_of
from nanoset_core.outputs.root import SEEN_SECONDS, OutputRoot
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.pieces import Piece, SourceRange

FOLDER = "purged"
OPTION = "purged"
"""Name of the option of recipes: a digest of all places of a corpus."""
PieceKey = tuple[str, int, int, str]
"""Path, first byte, byte after the last, and digest of a piece of a file."""
Place = tuple[str, int, int, str, int]
"""A document in the raw text: a PieceKey, and its byte in the decompressed file, or its row in a
table.
"""


@dataclass(frozen=True, slots=True)
class Purged:
    """What was erased of a corpus."""

    ids: frozenset[str] = frozenset()
    """Digests of the documents' ids, as `id_digest` computes them."""
    places: Mapping[PieceKey, frozenset[int]] = field(default_factory=dict)
    """Piece → bytes, or rows, of its documents that are left out."""


class PurgedError(Exception):
    """Documents with the ids of erased ones are in the raw text at other places than before."""

    def __init__(self, places: Collection[Place]) -> None:
        super().__init__(places)
        self.places = places


def id_digest(identity: str) -> str:
    """Return what is kept of a document's own id: 32 hex digits of its sha256."""
    return hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:32]


def place_of(pieces: Iterable[Piece], file: str, line: int, offset: int) -> Place:
    """Return the place of a document.

    Args:
        pieces: The pieces of its range.
        file: Its file.
        line: Its line, or its row in a table.
        offset: Its byte in the decompressed file; -1 for a row of a table.
    """
    position = line if offset < 0 else offset
    candidates = [piece for piece in pieces if piece.path == file]
    # Compressed files and tables have one piece, in whose stored bytes a position is no byte.
    if len(candidates) > 1:
        candidates = [piece for piece in candidates if piece.begin <= position < piece.end]
    return *_key(candidates[0]), position


def _key(piece: Piece) -> PieceKey:
    return piece.path, piece.begin, piece.end, piece.digest


def note(
    outputs: OutputRoot, corpus: str, places: Iterable[Place], ids: Iterable[str] = ()
) -> None:
    """Record erased documents of a corpus below a root, unless all of them are recorded.

    Args:
        outputs: The root.
        corpus: Name of the corpus.
        places: Where they are.
        ids: Digests of their ids, as `id_digest` computes them.
    """
    known = noted(outputs, corpus, again=True)
    new_ids = sorted(set(ids))
    new_places = sorted(set(places))
    if known.ids.issuperset(new_ids) and all(_is_noted(known, place) for place in new_places):
        return
    value = {"ids": new_ids, "places": new_places}
    record_path = outputs.folder / FOLDER / corpus / f"{digest_of(value)}.json"
    outputs.access.write(record_path, canonical_json(value) + b"\n")
    _remembered.pop(outputs.folder, None)


def _is_noted(purged: Purged, place: Place) -> bool:
    """Return whether a place is among those of a corpus."""
    positions = purged.places.get(place[:4], frozenset())
    return place[4] in positions


@dataclass(slots=True)
class _RememberedRecords:
    """What the records of a root in a bucket say, as they were listed a few seconds ago."""

    listed_at: float
    """By the monotonic clock."""
    by_corpus: dict[str, Purged | None]
    """Corpora with records; None for those whose records were not read yet."""


_remembered: dict[Path, _RememberedRecords] = {}
"""Folder of a root → its records."""


def noted(outputs: OutputRoot, corpus: str, *, again: bool = False) -> Purged:
    """Return what the records below a root say about a corpus.

    Args:
        outputs: The root. In a bucket, its records are remembered for a few seconds.
        corpus: Name of the corpus.
        again: Read them in any case.

    Raises:
        FormatError: A record cannot be read.
    """
    if not outputs.access.has_copies:
        return _read_records(outputs, corpus)
    records = _remembered.get(outputs.folder)
    if again or records is None or time.monotonic() - records.listed_at > SEEN_SECONDS:
        corpora = outputs.access.names(outputs.folder / FOLDER)
        records = _RememberedRecords(time.monotonic(), dict.fromkeys(corpora))
        _remembered[outputs.folder] = records
    if corpus not in records.by_corpus:
        return Purged()
    purged = records.by_corpus[corpus]
    if purged is None:
        purged = _read_records(outputs, corpus)
        records.by_corpus[corpus] = purged
    return purged


def _read_records(outputs: OutputRoot, corpus: str) -> Purged:
    """Read the records of a corpus."""
    ids: set[str] = set()
    positions_by_piece: dict[PieceKey, set[int]] = {}
    folder = outputs.folder / FOLDER / corpus
    names = [name for name in outputs.access.names(folder) if name.endswith(".json")]
    for name in sorted(names):
        try:
            value = orjson.loads(outputs.access.read_current(folder / name))
            ids.update(map(str, value["ids"]))
            for path, begin, end, digest, position in value["places"]:
                positions_by_piece.setdefault((path, begin, end, digest), set()).add(int(position))
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(
                "this is not a record of erased documents",
                where=outputs.access.url(folder / name),
                found=repr(error)[:500],
                remedy="restore it from a copy; without it these documents would come back",
            ) from error
    places = {key: frozenset(positions) for key, positions in positions_by_piece.items()}
    return Purged(frozenset(ids), places)


def recipe_options(purged: Purged) -> dict[str, Any]:
    """Return what the recipes of a corpus say about its erased documents: nothing if there are
    none.
    """
    if not purged.places:
        return {}
    rows = [[*key, sorted(positions)] for key, positions in purged.places.items()]
    return {OPTION: digest_of(sorted(rows))}


def without(ranges: Iterable[SourceRange], purged: Purged) -> list[SourceRange]:
    """Return ranges of a corpus that leave out its erased documents."""
    if not purged.places:
        return list(ranges)
    return [_without(source, purged) for source in ranges]


def _without(source: SourceRange, purged: Purged) -> SourceRange:
    """Return a range that leaves out the erased documents in its pieces."""
    left_out = []
    for number, piece in enumerate(source.pieces):
        positions = purged.places.get(_key(piece))
        if positions:
            left_out.append((number, tuple(sorted(positions))))
    return replace(source, without=tuple(left_out)) if left_out else source


def come_back(purged: Purged, source: SourceRange, batch: DocumentBatch) -> list[Place]:
    """Return the places of documents of a batch that have the ids of erased ones."""
    if not purged.ids:
        return []
    files = source.files
    places = []
    for number, identity in enumerate(batch.ids):
        if identity is not None and id_digest(identity) in purged.ids:
            file = files[batch.files[number]]
            places.append(place_of(source.pieces, file, batch.lines[number], batch.offsets[number]))
    return places
