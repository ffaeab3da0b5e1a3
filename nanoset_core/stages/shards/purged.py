"""Records of erased documents, which no shard is made from again.

`nanoset purge` stores a record below the root: where the documents are in the raw text, and digests
of their own ids. The text itself is not changed. Once a corpus has a record,

- shards leave the documents out; the recipe of each shard whose range has one of them says so, and
  so does the recipe of everything that is made from the corpus;
- a document with the id of an erased one that appears elsewhere in the text later, for example in a
  new file, is left out as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from nanoset_core.outputs.notebook import Note, Notebook
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.records.digests import digest_of
from nanoset_core.records.json_records import JsonForm
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.inventory.pieces import Piece, SourceRange

FOLDER = "purged"
"""Folder of the records, below the root."""
OPTION = "purged"
"""Name of the option of recipes: a digest of all places of a corpus."""


class PieceKey(NamedTuple):
    """Identifies a piece of a file, and its content."""

    path: str
    start: int
    """First byte."""
    stop: int
    """Byte after the last."""
    digest: str

    @staticmethod
    def of(piece: Piece) -> PieceKey:
        """Return the key by which a piece of a file is recognised in a later inventory.

        Args:
            piece: The piece. The number of its first line does not count.
        """
        return PieceKey(piece.path, piece.begin, piece.end, piece.digest)


class ErasedPlace(NamedTuple):
    """Where an erased document is in the raw text. Records contain it as a list of its fields."""

    path: str
    start: int
    stop: int
    digest: str
    position: int
    """First byte of the document in the decompressed file, or its row in a table."""

    @property
    def piece(self) -> PieceKey:
        """The piece that contains the document."""
        return PieceKey(self.path, self.start, self.stop, self.digest)


@dataclass(frozen=True, slots=True)
class ErasureRecord(Note):
    """The documents of a corpus that one purge erased, or that one build found again."""

    json_form: ClassVar = JsonForm(
        "this is not a record of erased documents",
        remedy="restore it from a copy; without it these documents would come back",
        sorts_keys=True,
        is_compact=True,
        ends_with_newline=True,
    )

    ids: tuple[str, ...]
    """Digests of their ids, as `id_digest` computes them; ascending."""
    places: tuple[ErasedPlace, ...]
    """Where they are in the raw text; ascending."""


_NOTEBOOK = Notebook(FOLDER, ErasureRecord, skips_damaged=False)
"""All records, with a section for each corpus. A damaged one is an error: if it were skipped, its
documents would come back.
"""


@dataclass(frozen=True, slots=True)
class ErasedDocuments:
    """The erased documents of a corpus."""

    ids: frozenset[str] = frozenset()
    """Digests of their ids, as `id_digest` computes them."""
    places: Mapping[PieceKey, frozenset[int]] = field(default_factory=dict)
    """Piece → positions of its erased documents; see `ErasedPlace`."""

    def contains(self, place: ErasedPlace) -> bool:
        """Return whether a document at a place is recorded as erased.

        Args:
            place: A piece of a file, and the document's position in the file.

        Returns:
            False if the piece has other bytes than when the document was erased.
        """
        return place.position in self.places.get(place.piece, frozenset())


class ReturnedDocumentsError(Exception):
    """Documents with the ids of erased ones are in the raw text in places that are not recorded."""

    def __init__(self, places: Collection[ErasedPlace]) -> None:
        super().__init__(places)
        self.places = places


def id_digest(identity: str) -> str:
    """Return what is stored of an erased document's own id, which may itself be personal data.

    By the digest, the document is recognised if it comes back in another file.

    Args:
        identity: The id, as the raw text has it.

    Returns:
        The first 32 hex digits of its sha256.
    """
    return hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:32]


def place_of(pieces: Iterable[Piece], file: str, line: int, offset: int) -> ErasedPlace:
    """Return where an erased document is in the raw text, so that later builds leave it out.

    The place is a piece of a file, with a digest of its bytes, and a position in the file. (Large
    files are read in pieces.) For example:

        document                            piece                              position
        line 7 of a.jsonl, at byte 4,096    bytes 0 to 1,000,000 of a.jsonl    4,096
        row 7 of the table c.parquet        all of c.parquet                   7

    If the file is changed, another document may be at this position. Then the digest of the piece
    is another one, too, and later builds leave nothing out there.

    Args:
        pieces: Pieces of files. One of them contains the document.
        file: Path of its file.
        line: Its line, or its row in a table.
        offset: Its first byte in the decompressed file; -1 for a row of a table.
    """
    is_row_of_table = offset < 0
    if is_row_of_table:
        position = line
    else:
        position = offset
    pieces_of_file = [piece for piece in pieces if piece.path == file]
    piece = _piece_with(pieces_of_file, position)
    return ErasedPlace(
        path=piece.path,
        start=piece.begin,
        stop=piece.end,
        digest=piece.digest,
        position=position,
    )


def _piece_with(pieces_of_file: Sequence[Piece], position: int) -> Piece:
    """Return the piece of a text file that contains a document, which begins at a position.

    Large files are read in pieces, but compressed files and tables are not divided. For example:

        file            pieces                                  document            result
        a.jsonl         bytes 0 to 1,000, bytes 1,000 to 1,800  at byte 1,200       the second one
        b.jsonl.gz      bytes 0 to 300                          at byte 1,200 of    the only one
                                                                the decompressed
        c.parquet       bytes 0 to 500                          in row 700          the only one

    Args:
        pieces_of_file: The pieces of the file, in order; at least one.
        position: First byte of the document in the decompressed file, or its row in a table.
    """
    first_piece = pieces_of_file[0]
    if len(pieces_of_file) == 1:
        return first_piece

    # A file with several pieces is uncompressed text, so the position is a byte of the file.
    for piece in pieces_of_file:
        if piece.begin <= position < piece.end:
            return piece

    # The position, which was stored with the document, is not in the file, so it must be damaged.
    # With any piece, it stands for no document, and nothing is left out.
    return first_piece


def add_record(
    outputs: OutputRoot, corpus: str, places: Iterable[ErasedPlace], ids: Iterable[str] = ()
) -> None:
    """Record that documents were erased on request, so that they never get into an output again.

    The raw text still contains them. So each later build skips the documents whose places or ids
    are recorded. Nothing is written if all of them are recorded already.

    Args:
        outputs: The root of the project's outputs, below which records are stored.
        corpus: Name of the corpus, the collection of texts that contains the documents.
        places: Where they are, such as byte 4,096 of a.jsonl.
        ids: Digests of their ids, as `id_digest` computes them. An id such as "doc-17" may itself
            be personal data, so it is not recorded.
    """
    record = ErasureRecord(
        ids=tuple(sorted(set(ids))),
        places=tuple(sorted(set(places))),
    )
    recorded = read_erased(outputs, corpus, again=True)  # also what other machines have recorded
    are_ids_recorded = recorded.ids.issuperset(record.ids)
    are_places_recorded = all(recorded.contains(place) for place in record.places)
    if are_ids_recorded and are_places_recorded:
        return
    _NOTEBOOK.add(outputs, record, corpus)


def has_records(outputs: OutputRoot) -> bool:
    """Return whether users have ever erased documents of any corpus.

    In a bucket, this takes no request if records were looked for a moment ago.

    Args:
        outputs: The root of the project's outputs, below which records are stored.
    """
    return not _NOTEBOOK.is_empty(outputs)


def read_erased(outputs: OutputRoot, corpus: str, *, again: bool = False) -> ErasedDocuments:
    """Return the documents of a corpus that users have erased, by the records of all purges.

    A purge erases documents, for example because their author asks for it. It leaves a record, so
    that they are left out whenever the text is read again.

    Args:
        outputs: The root of the project's outputs, below which records are stored. In a bucket,
            they are remembered for a few seconds.
        corpus: Name of the corpus.
        again: Read them even if they are remembered.

    Raises:
        FormatError: A record cannot be read.
    """
    ids: set[str] = set()
    positions_by_piece: dict[PieceKey, set[int]] = {}
    for record in _NOTEBOOK.read(outputs, corpus, refresh=again):
        ids.update(record.ids)
        for place in record.places:
            positions_by_piece.setdefault(place.piece, set()).add(place.position)
    places = {piece: frozenset(positions) for piece, positions in positions_by_piece.items()}
    return ErasedDocuments(frozenset(ids), places)


def recipe_options(erased: ErasedDocuments) -> dict[str, Any]:
    """Return the option by which a corpus is tokenized again after documents of it were erased.

    A recipe has all options that an output is made with. If the present recipe differs from that of
    an output, the output is out of date. So one of the options is a digest of the places of all
    erased documents:

        no document was erased       {}
        a document was erased        {"purged": "77cd…"}
        another one was erased       {"purged": "a07e…"}

    Args:
        erased: The erased documents.
    """
    if not erased.places:
        return {}
    # A row for each piece of a file: its path, first byte, byte after the last one and digest, and
    # the positions of the erased documents in it.
    rows = [[*piece, sorted(positions)] for piece, positions in erased.places.items()]
    return {OPTION: digest_of(sorted(rows))}


def leave_out(ranges: Iterable[SourceRange], erased: ErasedDocuments) -> list[SourceRange]:
    """Return ranges of a corpus's text that leave out the documents that a user has erased.

    A range is read and tokenized as a whole. One that contains an erased document gets a list of
    their positions, which readers skip. It also gets another digest, so that it is tokenized again.

    Args:
        ranges: The ranges, in document order.
        erased: The erased documents of the corpus.

    Returns:
        The same ranges. Those that contain an erased document say so, and get another digest.
    """
    if not erased.places:
        return list(ranges)
    return [_leave_out(source, erased) for source in ranges]


def _leave_out(source: SourceRange, erased: ErasedDocuments) -> SourceRange:
    """Return a range of text that names the erased documents in it, which readers skip.

        piece 0    a.jsonl, bytes 0 to 1,000,000
        piece 1    b.jsonl, bytes 0 to 500,000      erased: the documents at the bytes 0 and 4,096
        without    ((1, (0, 4096)),)

    Args:
        source: The range, which consists of pieces of files.
        erased: The erased documents of the corpus.

    Returns:
        The range, in which `without` has (number of the piece, positions of its erased documents)
        for each piece with erased documents.
    """
    skipped_by_piece = []
    for number, piece in enumerate(source.pieces):
        positions = erased.places.get(PieceKey.of(piece))
        if positions:
            skipped_by_piece.append((number, tuple(sorted(positions))))
    if not skipped_by_piece:
        return source  # it has the same digest as before, so it is not tokenized again
    return replace(source, without=tuple(skipped_by_piece))


def find_erased(
    erased: ErasedDocuments, source: SourceRange, batch: DocumentBatch
) -> list[ErasedPlace]:
    """Return where a batch of text contains documents that a user has erased.

    Where they were erased, readers skip them. But another file may contain them, too, for example a
    newer export. They are recognised by their ids.

    Args:
        erased: The erased documents of the corpus.
        source: The range of text that the batch was read from.
        batch: The documents that were read. Entry n of its lists is about document n.
    """
    if not erased.ids:
        return []
    places = []
    for number, identity in enumerate(batch.ids):
        is_erased = identity is not None and id_digest(identity) in erased.ids
        if not is_erased:
            continue
        file = source.files[batch.files[number]]  # the batch has the number of the file
        line = batch.lines[number]
        offset = batch.offsets[number]
        places.append(place_of(source.pieces, file, line, offset))
    return places
