"""Every compression in the table is read in every kind of file, and its damages are reported."""

from __future__ import annotations

import bz2
import gzip
import secrets
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard

from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.documents import read_documents
from nanoset_core.text.files.compressions import CODECS, Codec, codec_of, without_compression
from nanoset_core.text.files.endings import FORMATS, is_text
from nanoset_core.text.inventory.pieces import Piece, SourceRange
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.lines import begins_with_object, decompress

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "bzip2": bz2.compress,
}
"""Name of a codec → function that writes such files. A new codec needs an entry here."""
N_LINES = 2000
LINES = b"".join(
    b'{"text": "%s"}\n' % sha256(b"%d" % number).hexdigest().encode() for number in range(N_LINES)
)

each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
WritePiece = Callable[[str, bytes], Piece]


def read(folder: Path, piece: Piece) -> Sequence[DocumentBatch]:
    """Read all documents of a file."""
    return list(read_documents(folder, SourceRange((piece,))))


def texts_of(batches: Sequence[DocumentBatch]) -> list[str]:
    """Return the texts of all batches."""
    texts: list[str] = []
    for batch in batches:
        texts.extend(batch.texts)
    return texts


@each_codec
def test_a_compressed_file_of_json_lines_is_text(codec: Codec):
    assert is_text(f"a.jsonl{codec.ending}")


@each_codec
@pytest.mark.parametrize("ending", [".jsonl", ".json", ".ndjson", ".txt", ".csv", ".tsv"])
def test_a_compressed_file_has_the_format_of_the_file_in_it(codec: Codec, ending: str):
    assert FORMATS[ending + codec.ending] == FORMATS[ending]


@each_codec
def test_a_name_without_its_compression_is_in_small_letters(codec: Codec):
    assert without_compression(f"web/A.TSV{codec.ending.upper()}") == "web/a.tsv"


def test_the_name_of_an_uncompressed_file_stays_as_it_is():
    assert without_compression("web/a.tsv") == "web/a.tsv"
    assert codec_of("web/a.tsv") is None


@each_codec
def test_compressed_files_start_with_the_magic_bytes(codec: Codec):
    assert codec.magic.match(COMPRESS[codec.name](LINES))
    assert codec.magic.match(COMPRESS[codec.name](b""))


@each_codec
def test_compressed_lines_are_documents(tmp_path: Path, write_piece: WritePiece, codec: Codec):
    piece = write_piece(f"a.jsonl{codec.ending}", COMPRESS[codec.name](LINES))

    assert len(texts_of(read(tmp_path, piece))) == N_LINES


@each_codec
def test_the_fields_of_a_compressed_tsv_file_are_separated_by_tabs(
    tmp_path: Path, write_piece: WritePiece, codec: Codec
):
    rows = b"text\tid\none, two\t1\n"
    piece = write_piece(f"a.tsv{codec.ending}", COMPRESS[codec.name](rows))

    assert texts_of(read(tmp_path, piece)) == ["one, two"]


@each_codec
def test_a_compressed_json_array_is_described(
    tmp_path: Path, write_piece: WritePiece, codec: Codec
):
    array = b'[\n  {"text": "a"}\n]\n'
    piece = write_piece(f"a.json{codec.ending}", COMPRESS[codec.name](array))

    [batch] = read(tmp_path, piece)

    [fault] = batch.rejects
    assert "one JSON array" in fault.detail


@each_codec
def test_a_compressed_file_without_its_ending_is_described(
    tmp_path: Path, write_piece: WritePiece, codec: Codec
):
    piece = write_piece("a.jsonl", COMPRESS[codec.name](LINES))

    [batch] = read(tmp_path, piece)

    [fault] = batch.rejects
    expected = f"the file is {codec.name} data, whose name should end in {codec.ending}"
    assert expected in fault.detail


@each_codec
def test_a_compressed_file_that_is_cut_off_is_a_fault_of_the_file(
    tmp_path: Path, write_piece: WritePiece, codec: Codec
):
    data = COMPRESS[codec.name](LINES)[:-20]
    piece = write_piece(f"a.jsonl{codec.ending}", data)

    batches = read(tmp_path, piece)

    fault = batches[-1].rejects[-1]
    assert (fault.file, fault.reason) == (piece.path, f"truncated_{codec.name}")


@each_codec
def test_a_damaged_compressed_file_is_a_fault_of_the_file(
    tmp_path: Path, write_piece: WritePiece, codec: Codec
):
    data = bytearray(COMPRESS[codec.name](LINES))
    middle = len(data) // 2
    data[middle : middle + 50] = b"\xff" * 50
    piece = write_piece(f"a.jsonl{codec.ending}", bytes(data))

    batches = read(tmp_path, piece)

    fault = batches[-1].rejects[-1]
    assert (fault.file, fault.reason) == (piece.path, f"corrupt_{codec.name}")


@each_codec
def test_compressed_files_that_were_joined_are_one_text(
    tmp_path: Path, write_piece: WritePiece, codec: Codec
):
    compress = COMPRESS[codec.name]
    middle = len(LINES) // 2  # within a line
    data = compress(LINES[:middle]) + compress(b"") + compress(LINES[middle:])
    piece = write_piece(f"a.jsonl{codec.ending}", data)

    assert len(texts_of(read(tmp_path, piece))) == N_LINES


@each_codec
def test_the_beginning_of_a_file_shows_its_text(tmp_path: Path, codec: Codec):
    """A block of bzip2 has 900 kB of text, and is decompressed as a whole."""
    documents = b"".join(b'{"text": "%s"}\n' % secrets.token_hex(500).encode() for _ in range(2000))
    (tmp_path / f"a.txt{codec.ending}").write_bytes(COMPRESS[codec.name](documents))

    assert begins_with_object(tmp_path, f"a.txt{codec.ending}")


@each_codec
def test_a_small_file_of_much_text_is_decompressed_in_small_chunks(
    tmp_path: Path, write_piece: WritePiece, codec: Codec
):
    """45 bytes of bzip2 can stand for 45 MB, and 20 kB of gzip for 20 MB."""
    n_bytes = 100_000_000
    piece = write_piece(f"a.jsonl{codec.ending}", COMPRESS[codec.name](b" " * n_bytes))

    sizes = [len(chunk) for chunk in decompress(StoredPiece(tmp_path, piece), codec)]

    assert sum(sizes) == n_bytes
    assert max(sizes) <= 17 << 20


def test_a_text_that_begins_like_bzip2_is_a_text(tmp_path: Path, write_piece: WritePiece):
    piece = write_piece("a.csv", b"BZh,text\n1,Hello\n")

    assert texts_of(read(tmp_path, piece)) == ["Hello"]
