"""Documents that were erased: records below the root of where they lie in the raw text, of which no shard is made.

Once there is a record for a corpus, the recipe of each shard whose range holds such a document names it, and so does
that of everything made of these shards. Of the documents' own ids a digest is kept: one that appears in other files
later is found by it, and left out, too.
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
from nanoset_core.text.documents import DocumentBatch
from nanoset_core.text.pieces import Piece, SourceRange

FOLDER = "purged"
OPTION = "purged"
"""Name of the option of recipes: a digest of all places of a corpus."""
Place = tuple[str, int, int, str, int]
"""Path, begin, end and digest of a piece, and a document's byte in the decompressed file, or its row in a table."""


@dataclass(frozen=True, slots=True)
class Purged:
    """What was erased of a corpus."""

    ids: frozenset[str] = frozenset()
    """As `id_digest` gives them."""
    places: Mapping[tuple[str, int, int, str], frozenset[int]] = field(default_factory=dict)
    """Path, begin, end and digest of a piece → bytes, or rows, of its documents that are left out."""


class PurgedError(Exception):
    """Documents with the ids of erased ones are in the raw text at other places than before."""

    def __init__(self, places: Collection[Place]) -> None:
        super().__init__(places)
        self.places = places


def id_digest(identity: str) -> str:
    """Return what is kept of a document's own id: 32 hex digits of its sha256."""
    return hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:32]


def place_of(pieces: Iterable[Piece], file: str, line: int, offset: int) -> Place:
    """Return the place of a document in the pieces of its range, by file, line or row, and byte offset."""
    place = line if offset < 0 else offset
    of_file = [piece for piece in pieces if piece.path == file]
    within = [piece for piece in of_file if piece.begin <= place < piece.end] if len(of_file) > 1 else of_file
    return *_key(within[0]), place


def _key(piece: Piece) -> tuple[str, int, int, str]:
    return piece.path, piece.begin, piece.end, piece.digest


def note(outputs: OutputRoot, corpus: str, places: Iterable[Place], ids: Iterable[str] = ()) -> None:
    """Write a record below a root, unless all of it is noted; `ids` as `id_digest` gives them."""
    known = noted(outputs, corpus, again=True)
    ids, places = sorted({*ids}), sorted({*places})
    if known.ids.issuperset(ids) and all(one[4] in known.places.get(one[:4], ()) for one in places):
        return
    value = {"ids": ids, "places": places}
    outputs.access.write(outputs.folder / FOLDER / corpus / f"{digest_of(value)}.json", canonical_json(value) + b"\n")
    _read.pop(outputs.folder, None)


def noted(outputs: OutputRoot, corpus: str, *, again: bool = False) -> Purged:
    """Return what the records below a root say of a corpus; FormatError for one that cannot be read.

    Where outputs live in a bucket, it is remembered for some seconds, unless it is to be read `again`.
    """
    if not outputs.access.has_copies:
        return _records(outputs, corpus)
    read_at, found = _read.get(outputs.folder, (float("-inf"), {}))
    if again or time.monotonic() - read_at > SEEN_SECONDS:
        found = dict.fromkeys(outputs.access.names(outputs.folder / FOLDER))
        _read[outputs.folder] = time.monotonic(), found
    if corpus not in found:
        return Purged()
    known = found[corpus] = found[corpus] or _records(outputs, corpus)
    return known


_read: dict[Path, tuple[float, dict[str, Purged | None]]] = {}
"""Folder of a root → (when its corpora with records were listed, these → what they say; None: not read yet)."""


def _records(outputs: OutputRoot, corpus: str) -> Purged:
    ids, places = set[str](), dict[tuple[str, int, int, str], set[int]]()
    folder = outputs.folder / FOLDER / corpus
    for name in sorted(name for name in outputs.access.names(folder) if name.endswith(".json")):
        try:
            value = orjson.loads(outputs.access.read_current(folder / name))
            ids.update(map(str, value["ids"]))
            for path, begin, end, digest, place in value["places"]:
                places.setdefault((path, begin, end, digest), set()).add(int(place))
        except (ValueError, TypeError, KeyError) as error:
            what, where = "this is not a record of erased documents", outputs.access.url(folder / name)
            remedy = "restore it from a copy; without it these documents would come back"
            raise FormatError(what, where=where, found=repr(error)[:500], remedy=remedy) from error
    return Purged(frozenset(ids), {key: frozenset(found) for key, found in places.items()})


def recipe_options(purged: Purged) -> dict[str, Any]:
    """Return what the recipes of a corpus hold of its erased documents: nothing where there are none."""
    if not purged.places:
        return {}
    return {OPTION: digest_of(sorted([*key, sorted(found)] for key, found in purged.places.items()))}


def without(ranges: Iterable[SourceRange], purged: Purged) -> list[SourceRange]:
    """Return ranges of a corpus that leave out its erased documents."""

    def of(source: SourceRange) -> SourceRange:
        found = ((number, purged.places.get(_key(piece))) for number, piece in enumerate(source.pieces))
        left_out = tuple((number, tuple(sorted(places))) for number, places in found if places)
        return replace(source, without=left_out) if left_out else source

    return [*map(of, ranges)] if purged.places else [*ranges]


def come_back(purged: Purged, source: SourceRange, batch: DocumentBatch) -> list[Place]:
    """Return the places of documents of a batch that have the ids of erased ones."""
    if not purged.ids:
        return []
    hits = [number for number, one in enumerate(batch.ids) if one is not None and id_digest(one) in purged.ids]
    files = source.files
    return [place_of(source.pieces, files[batch.files[n]], batch.lines[n], batch.offsets[n]) for n in hits]
