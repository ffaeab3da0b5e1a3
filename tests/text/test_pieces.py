from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.text.pieces import Inventory, Piece, SourceRange, cut_ranges, ends_range


def pieces_of(files: list[tuple[str, int]]) -> list[Piece]:
    return [Piece(path, 0, size, 1, f"digest of {path}") for path, size in files]


def group_pieces(pieces: list[Piece], target: int) -> list[SourceRange]:
    return cut_ranges(Inventory("web", tuple(pieces)), target)


FILES = st.lists(
    st.tuples(st.text("abc019", min_size=1, max_size=4), st.integers(0, 400)),
    unique_by=lambda file: file[0],
)


@settings(deadline=None)
@given(FILES, st.integers(1, 500))
def test_ranges_cover_every_piece_once_in_order(files, target):
    pieces = pieces_of(files)
    ranges = group_pieces(pieces, target)
    assert [piece for source in ranges for piece in source.pieces] == pieces
    assert all(source.pieces for source in ranges)
    for source in ranges:
        assert sum(piece.size for piece in source.pieces[:-1]) < 4 * target


@settings(deadline=None)
@given(FILES.filter(len), st.integers(1, 500), st.data())
def test_change_of_a_file_stays_between_the_natural_ends_around_it(files, target, data):
    """Ranges before the natural end that precedes it, and after the one that follows it, are as
    they were.
    """
    at = data.draw(st.integers(0, len(files) - 1))
    whole = pieces_of(files)
    for other in (
        whole[:at] + whole[at + 1 :],
        [*whole[:at], Piece(files[at][0], 0, 401, 1, "grown"), *whole[at + 1 :]],
    ):
        ends = [index for index, piece in enumerate(whole) if ends_range(piece, target)]
        before = max((index + 1 for index in ends if index < at), default=0)
        after = min((index + 1 for index in ends if index > at), default=len(whole))
        spared = set(whole[:before]) | set(whole[after:])
        assert ranges_within(group_pieces(other, target), spared) == ranges_within(
            group_pieces(whole, target), spared
        )


def ranges_within(ranges: list[SourceRange], pieces: set[Piece]) -> list[SourceRange]:
    return [source for source in ranges if set(source.pieces) <= pieces]


def test_one_file_more_or_less_changes_few_ranges():
    files = [(f"part-{number:05d}.jsonl.gz", 100 + number * 37 % 900) for number in range(3000)]
    whole = {source.digest for source in group_pieces(pieces_of(files), 10_000)}
    assert 100 < len(whole) < 250
    for at in range(0, 3000, 101):
        fewer = {
            source.digest
            for source in group_pieces(pieces_of(files[:at] + files[at + 1 :]), 10_000)
        }
        assert len(whole - fewer) <= 3
        assert len(fewer - whole) <= 3


def test_sizes_are_about_the_target():
    files = [(f"{number}.jsonl", 1000) for number in range(20_000)]
    sizes = [source.size for source in group_pieces(pieces_of(files), 50_000)]
    assert max(sizes) <= 4 * 50_000
    assert 0.8 < 50_000 / (sum(sizes) / len(sizes)) < 1.25


def test_ends_are_drawn_from_path_and_begin_and_never_change():
    """Literal draws: other ends would make every user's shards anew."""
    drawn = [ends_range(Piece(f"part-{number}.jsonl", 0, 300, 1, ""), 1000) for number in range(16)]
    assert "".join("x" if end else "." for end in drawn) == "xx......xx.x.x.."


def test_facts_of_a_range():
    source = SourceRange(
        (Piece("b", 0, 4, 1, "x"), Piece("b", 4, 10, 2, "y"), Piece("a", 0, 5, 1, "z"))
    )
    assert source.files == ("b", "a")
    assert source.size == 15
    assert source.digest == "68bd0c20f480ac194bd5"
    assert SourceRange(source.pieces[::-1]).digest != source.digest
