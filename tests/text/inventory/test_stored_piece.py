"""Pieces of files are hashed while they are read, but only if a hash will be compared.

tests/text/inventory/test_fingerprints.py specifies what is compared.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from nanoset_core.errors import SourceChangedError
from nanoset_core.text.documents import read_documents
from nanoset_core.text.inventory import stored_piece
from nanoset_core.text.inventory.pieces import Piece, SourceRange, etag_digest
from nanoset_core.text.inventory.stored_piece import StoredPiece

DATA = b'{"text": "hello"}\n'
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one file of JSON lines."""
    (tmp_path / "a.jsonl").write_bytes(DATA)
    return tmp_path


@pytest.fixture
def forbid_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every attempt to hash bytes of pieces fail."""

    def refuse() -> None:
        raise AssertionError("no hash will be compared")

    monkeypatch.setattr(stored_piece, "Crc32", refuse)
    monkeypatch.setattr(stored_piece.hashlib, "sha256", refuse)


def piece_with(digest: str) -> Piece:
    """Return the whole file as a piece with a digest."""
    return Piece("a.jsonl", begin=0, end=len(DATA), first_line=1, digest=digest)


@pytest.mark.usefixtures("forbid_hashing")
@pytest.mark.parametrize("digest", ["", pytest.param(etag_digest(7), id="etag")])
def test_a_piece_without_a_hash_is_not_hashed(folder, digest, monkeypatch):
    monkeypatch.setattr(StoredPiece, "_check_etag", lambda piece, etag_number: None)
    stored = StoredPiece(folder, piece_with(digest))

    assert b"".join(stored.blocks()) == DATA


@pytest.mark.usefixtures("forbid_hashing")
@pytest.mark.parametrize("digest", ["", SHA256, "crc32:00000000"])
def test_documents_that_are_read_without_verification_are_not_hashed(folder, digest):
    [batch] = read_documents(folder, SourceRange((piece_with(digest),)), verify=False)

    assert batch.texts == ["hello"]


@pytest.mark.usefixtures("forbid_hashing")
def test_lines_of_a_refused_file_are_counted_without_hashing(folder):
    """The file is read a second time for this, and was checked when it was first read."""
    (folder / "a.jsonl").write_bytes(b"PAR1\n\n")
    piece = Piece("a.jsonl", begin=0, end=6, first_line=0, digest="")

    [batch] = read_documents(folder, SourceRange((piece,)), verify=False)

    assert batch.lines_of_pieces == [(piece, 2)]


def test_a_piece_with_a_hash_is_checked(folder):
    StoredPiece(folder, piece_with(SHA256)).check()

    with pytest.raises(SourceChangedError):
        StoredPiece(folder, piece_with("0" * 64)).check()


def test_a_piece_that_is_read_without_hashing_cannot_be_checked(folder):
    with pytest.raises(ValueError, match="without hashing"):
        StoredPiece(folder, piece_with(SHA256), is_checked=False).check()
