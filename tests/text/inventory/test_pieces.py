"""Ranges of pieces: what they contain, where they end, and what a change of one file changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.text.inventory.pieces import (
    Inventory,
    Piece,
    SourceRange,
    cut_ranges,
    deal_parts,
    ends_range,
)


def piece_of(path: str, size: int) -> Piece:
    """Return the piece that is all of a file."""
    return Piece(path, 0, size, 1, f"digest of {path}")


def ranges_of(pieces: Sequence[Piece], target_bytes: int) -> list[SourceRange]:
    """Return the ranges of a corpus that has these pieces."""
    return cut_ranges(Inventory("web", tuple(pieces)), target_bytes)


PIECES = st.lists(
    st.builds(piece_of, st.text("abc019", min_size=1, max_size=4), st.integers(0, 400)),
    unique_by=lambda piece: piece.path,
)


# Where ranges end


@settings(deadline=None)
@given(pieces=PIECES, target_bytes=st.integers(1, 500))
def test_ranges_contain_every_piece_once_and_in_order(pieces, target_bytes):
    ranges = ranges_of(pieces, target_bytes)

    assert all(source.pieces for source in ranges)
    assert list(chain.from_iterable(source.pieces for source in ranges)) == pieces


@settings(deadline=None)
@given(pieces=PIECES, target_bytes=st.integers(1, 500))
def test_a_range_ends_once_it_has_four_times_the_target_size(pieces, target_bytes):
    for source in ranges_of(pieces, target_bytes):
        bytes_before_last_piece = sum(piece.size for piece in source.pieces[:-1])
        assert bytes_before_last_piece < 4 * target_bytes


def test_ranges_have_about_the_target_size_on_average():
    target_bytes = 50_000
    pieces = [piece_of(f"{number}.jsonl", 1000) for number in range(20_000)]

    sizes = [source.size for source in ranges_of(pieces, target_bytes)]

    average_size = sum(sizes) / len(sizes)
    assert max(sizes) <= 4 * target_bytes
    assert 0.8 < target_bytes / average_size < 1.25


def test_ranges_end_after_the_same_pieces_as_in_earlier_versions():
    """With other ends, all shards of users would be rebuilt."""
    pieces = [Piece(f"part-{number}.jsonl", 0, 300, 1, "") for number in range(16)]

    ends = [number for number, piece in enumerate(pieces) if ends_range(piece, 1000)]

    assert ends == [0, 1, 8, 9, 11, 13]


@settings(deadline=None)
@given(parts=PIECES, target_bytes=st.integers(1, 500))
def test_parts_of_a_file_are_dealt_to_ranges_in_order(parts, target_bytes):
    ranges = deal_parts(parts, target_bytes)

    assert list(chain.from_iterable(source.pieces for source in ranges)) == parts


@settings(deadline=None)
@given(parts=PIECES, target_bytes=st.integers(1, 500))
def test_a_range_of_parts_ends_once_it_has_the_target_size(parts, target_bytes):
    ranges = list(deal_parts(parts, target_bytes))

    for source in ranges[:-1]:
        bytes_before_last_part = sum(part.size for part in source.pieces[:-1])
        assert bytes_before_last_part < target_bytes <= source.size


# Changes of a file


@dataclass
class ChangedFile:
    """A corpus, and the same corpus after one file was removed or has grown."""

    before: list[Piece]
    after: list[Piece]
    index: int
    """Index of the changed file in the corpus before."""


@st.composite
def changed_files(draw) -> ChangedFile:
    """Draw a corpus of at least one file, and a change of one of its files."""
    before = draw(PIECES.filter(len))
    index = draw(st.integers(0, len(before) - 1))
    grown = Piece(before[index].path, 0, 401, 1, "grown")
    replacement = draw(st.sampled_from([[], [grown]]))
    after = [*before[:index], *replacement, *before[index + 1 :]]
    return ChangedFile(before, after, index)


def ranges_within(ranges: Sequence[SourceRange], pieces: set[Piece]) -> list[SourceRange]:
    """Return the ranges all of whose pieces are among these."""
    return [source for source in ranges if set(source.pieces) <= pieces]


@given(change=changed_files(), target_bytes=st.integers(1, 500))
def test_a_changed_file_changes_only_ranges_between_the_natural_ends_around_it(
    change, target_bytes
):
    """A natural end is one that depends on a piece alone, whatever else is in its range."""
    natural_ends = [
        number + 1 for number, piece in enumerate(change.before) if ends_range(piece, target_bytes)
    ]
    stops_before = [end for end in natural_ends if end <= change.index]
    starts_after = [end for end in natural_ends if end > change.index + 1]

    ranges_before = ranges_of(change.before, target_bytes)
    ranges_after = ranges_of(change.after, target_bytes)

    unaffected = set(change.before[: max(stops_before, default=0)])
    if starts_after:
        unaffected.update(change.before[min(starts_after) :])
    assert ranges_within(ranges_after, unaffected) == ranges_within(ranges_before, unaffected)


def test_removing_any_file_changes_at_most_three_ranges():
    pieces = []
    for number in range(3000):
        pieces.append(piece_of(f"part-{number:05d}.jsonl.gz", 100 + number * 37 % 900))
    digests = {source.digest for source in ranges_of(pieces, 10_000)}
    assert 100 < len(digests) < 250

    for index in range(0, 3000, 101):
        fewer_pieces = pieces[:index] + pieces[index + 1 :]
        digests_without = {source.digest for source in ranges_of(fewer_pieces, 10_000)}

        assert len(digests - digests_without) <= 3
        assert len(digests_without - digests) <= 3


# Ranges


TWO_FILES = SourceRange(
    (
        Piece("b", 0, 4, 1, "x"),
        Piece("b", 4, 10, 2, "y"),
        Piece("a", 0, 5, 1, "z"),
    )
)


def test_the_files_of_a_range_have_the_order_of_its_pieces():
    assert TWO_FILES.files == ("b", "a")


def test_the_size_of_a_range_is_that_of_its_pieces():
    assert TWO_FILES.size == 4 + 6 + 5


def test_the_digest_of_a_range_is_that_of_earlier_versions():
    """With another digest, all shards of users would be rebuilt."""
    assert TWO_FILES.digest == "68bd0c20f480ac194bd5"


def test_the_digest_of_a_range_depends_on_the_order_of_its_pieces():
    assert SourceRange(TWO_FILES.pieces[::-1]).digest != TWO_FILES.digest
