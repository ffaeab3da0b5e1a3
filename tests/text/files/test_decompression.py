"""Decompression of gzip and zstd: all bytes of sound files, and the whole lines of broken ones."""

import gzip
import random
import zlib
from dataclasses import dataclass
from itertools import accumulate

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.raw_files import random_parts
from nanoset_core.errors import InputError
from nanoset_core.text.documents import read_documents
from nanoset_core.text.files.compressions import Codec, codec_of
from nanoset_core.text.inventory.pieces import SourceRange
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.lines import decompress
from nanoset_core.text.rejects import FaultError

FEW_EXAMPLES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SKIPPABLE_FRAME = b"\x53\x2a\x4d\x18\x07\x00\x00\x00skipped"
"""A zstd frame without text: its magic number, its size, and content for some other program."""


def gz(data, level=6):
    """Return a gzip member."""
    return gzip.compress(data, level, mtime=0)


def zst(data, *, has_checksum=True, has_size=True):
    """Return a zstd frame."""
    compressor = zstandard.ZstdCompressor(write_checksum=has_checksum, write_content_size=has_size)
    return compressor.compress(data)


@dataclass
class Decompressed:
    """What came out of a file."""

    data: bytes
    fault: FaultError | None
    """The fault that ended the file early."""


def decompress_all(folder, piece):
    """Decompress a piece to its end or to its fault."""
    chunks = []
    fault = None
    try:
        for chunk in decompress(StoredPiece(folder, piece), codec_of(piece.path)):
            assert chunk
            chunks.append(chunk)
    except FaultError as error:
        fault = error
    return Decompressed(b"".join(chunks), fault)


# Sound files

CONTENTS = st.one_of(
    st.just(b""),
    st.binary(max_size=200),
    st.integers(1, 70_000).map(lambda count: b"ab" * count),
)


@st.composite
def padded_members(draw):
    """Draw up to six contents of gzip members, each with the number of zero bytes after it."""
    return draw(st.lists(st.tuples(CONTENTS, st.integers(0, 3)), max_size=6))


@FEW_EXAMPLES
@given(members=padded_members())
def test_gzip_members_are_decompressed_as_by_python(tmp_path, write_piece, members):
    data = b"".join(gz(content) + b"\0" * n_zeros for content, n_zeros in members)
    stored = StoredPiece(tmp_path, write_piece("a.jsonl.gz", data))

    chunks = list(decompress(stored, codec_of("a.gz")))

    assert b"".join(chunks) == gzip.decompress(data)
    assert stored.padding == sum(n_zeros for _, n_zeros in members)


@FEW_EXAMPLES
@given(contents=st.lists(CONTENTS, max_size=6), seed=st.integers(0, 2**20))
def test_zstd_frames_are_concatenated_and_skippable_ones_are_skipped(
    tmp_path, write_piece, contents, seed
):
    rng = random.Random(seed)
    frames = []
    for content in contents:
        has_checksum = rng.random() < 0.5
        has_size = rng.random() < 0.5
        frames.append(zst(content, has_checksum=has_checksum, has_size=has_size))
        frames.append(SKIPPABLE_FRAME * rng.randrange(3))
    piece = write_piece("a.jsonl.zst", b"".join(frames))

    result = decompress_all(tmp_path, piece)

    assert result.data == b"".join(contents)
    assert result.fault is None


def test_zstd_frames_with_a_long_window_are_decompressed(tmp_path, write_piece):
    """Large archives are made with `zstd --long=31`, which decoders refuse by default."""
    parameters = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = compressor.compress(b"text\n") + compressor.flush()
    with pytest.raises(zstandard.ZstdError):
        zstandard.ZstdDecompressor().decompressobj().decompress(data)

    result = decompress_all(tmp_path, write_piece("a.jsonl.zst", data))

    assert result.data == b"text\n"
    assert result.fault is None


# Broken files


@dataclass
class BrokenFile:
    """A file that is not, or not only, of the format of its name."""

    name: str
    data: bytes
    text: bytes
    """What comes out of it."""
    reason: str
    detail: str
    """A part of the fault's detail."""


BROKEN_FILES = {
    "gzip: nothing but zeros": BrokenFile(
        "a.jsonl.gz",
        b"\0" * 100,
        text=b"",
        reason="corrupt_gzip",
        detail="in bytes 0 to 100 of the stored file",
    ),
    "gzip: few zeros": BrokenFile(
        "a.jsonl.gz",
        b"\0" * 5,
        text=b"",
        reason="truncated_gzip",
        detail="at byte 5,",
    ),
    "gzip: plain text": BrokenFile(
        "a.jsonl.gz",
        b'{"text": "plain"}\n',
        text=b"",
        reason="corrupt_gzip",
        detail="in bytes",
    ),
    "gzip: other bytes after a member": BrokenFile(
        "a.jsonl.gz",
        gz(b"one\n") + b"garbage after it",
        text=b"one\n",
        reason="corrupt_gzip",
        detail="in bytes",
    ),
    "gzip: few other bytes after a member": BrokenFile(
        "a.jsonl.gz",
        gz(b"one\n") + b"garbage",  # less than the header of a member
        text=b"one\n",
        reason="truncated_gzip",
        detail="at byte 31,",
    ),
    "gzip: last byte missing": BrokenFile(
        "a.jsonl.gz",
        gz(b"one\n") + b"\0\0" + gz(b"two\n")[:-1],
        text=b"one\ntwo\n",
        reason="truncated_gzip",
        detail="at byte 49",
    ),
    "gzip: wrong size": BrokenFile(
        "a.jsonl.gz",
        gz(b"one\n") + gz(b"two\n")[:-4] + b"\7\0\0\0",
        text=b"one\n",
        reason="corrupt_gzip",
        detail="in bytes",
    ),
    "zstd: plain text": BrokenFile(
        "a.jsonl.zst",
        b'{"text": "plain"}\n',
        text=b"",
        reason="corrupt_zstd",
        detail="in bytes",
    ),
    "zstd: zeros after a frame": BrokenFile(
        "a.jsonl.zst",
        zst(b"one\n") + b"\0\0\0\0",
        text=b"one\n",
        reason="corrupt_zstd",
        detail="in bytes",
    ),
    "zstd: last byte missing": BrokenFile(
        "a.jsonl.zst",
        zst(b"one\n") + zst(b"two\n")[:-1],
        text=b"one\ntwo\n",
        reason="truncated_zstd",
        detail="at byte",
    ),
    "zstd: wrong checksum": BrokenFile(
        "a.jsonl.zst",
        zst(b"one\n") + zst(b"two\n")[:-1] + b"\0",
        text=b"one\n",
        reason="corrupt_zstd",
        detail="in bytes",
    ),
    "zstd: gzip": BrokenFile(
        "a.jsonl.zst",
        gz(b"one\n"),
        text=b"",
        reason="corrupt_zstd",
        detail="in bytes",
    ),
}


@pytest.mark.parametrize("broken_file", BROKEN_FILES.values(), ids=BROKEN_FILES.keys())
def test_the_fault_of_a_broken_file_says_where_and_why_it_ends(tmp_path, write_piece, broken_file):
    piece = write_piece(broken_file.name, broken_file.data)

    result = decompress_all(tmp_path, piece)

    assert result.data == broken_file.text
    assert result.fault.offset == len(broken_file.text)
    assert result.fault.reason == broken_file.reason
    assert broken_file.detail in result.fault.detail


def slow_gzip_lines(data):
    """Return the whole lines in gzip members, from zlib's decoder that is fed byte by byte."""
    text = bytearray()
    decoder = zlib.decompressobj(31)
    for index in range(len(data)):
        unread = data[index : index + 1]
        while unread:
            text += decoder.decompress(unread)
            unread = decoder.unused_data
            if decoder.eof:
                decoder = zlib.decompressobj(31)
    return bytes(text[: text.rfind(b"\n") + 1])


def random_lines(rng):
    """Return up to 80 lines of random words."""
    words = [rng.randbytes(rng.randrange(1, 6)).hex() for _ in range(50)]
    lines = []
    for _ in range(rng.randrange(1, 80)):
        line = " ".join(rng.choices(words, k=rng.randrange(60)))
        lines.append(line.encode() + b"\n")
    return b"".join(lines)


def compress_in_parts(rng, data, ending):
    """Return a text as up to three members or frames."""
    parts = random_parts(data, rng, max_parts=3)
    if ending == "gz":
        return [gz(part, level=rng.choice([0, 1, 6, 9])) for part in parts]
    return [zst(part) for part in parts]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_file_that_was_cut_off_has_every_line_before_the_cut(tmp_path, write_piece, ending, seed):
    rng = random.Random(seed)
    data = random_lines(rng)
    members = compress_in_parts(rng, data, ending)
    compressed = b"".join(members)
    cut = rng.randrange(1, len(compressed))
    truncated = compressed[:cut]
    # A cut between two members cannot be noticed.
    member_ends = list(accumulate(len(member) for member in members))
    is_noticed = cut not in member_ends

    result = decompress_all(tmp_path, write_piece(f"a.jsonl.{ending}", truncated))

    assert data.startswith(result.data)
    if ending == "gz":
        assert result.data.startswith(slow_gzip_lines(truncated))
    assert (result.fault is not None) == is_noticed
    if result.fault is not None:
        assert result.fault.reason.startswith("truncated_")
        assert result.fault.offset == len(result.data)
        assert f"byte {cut:,}" in result.fault.detail


def flipped_bit(rng, data):
    """Return the index of a random byte, and the bytes with one wrong bit in this byte."""
    index = rng.randrange(len(data))
    damaged = bytearray(data)
    damaged[index] ^= 1 << rng.randrange(8)
    return index, bytes(damaged)


def lines_for_flips(rng, seed):
    """Return a few lines for odd seeds, and many for even ones."""
    if seed % 2:
        return random_lines(rng)
    return b"".join(random_lines(rng) for _ in range(60))


@pytest.mark.parametrize("seed", range(24))
def test_a_flipped_bit_of_gzip_loses_at_most_the_block_in_which_it_is_noticed(
    tmp_path, write_piece, seed
):
    rng = random.Random(1000 + seed)
    data = lines_for_flips(rng, seed)
    compressed = b"".join(compress_in_parts(rng, data, "gz"))
    index, damaged = flipped_bit(rng, compressed)
    block_bytes = codec_of(".gz").feed_bytes
    blocks_before = damaged[: index // block_bytes * block_bytes]

    result = decompress_all(tmp_path, write_piece("a.jsonl.gz", damaged))

    lines_before = slow_gzip_lines(blocks_before)
    assert result.data.startswith(lines_before)
    assert data.startswith(lines_before)
    if result.fault is None:
        # A bit that does not matter, such as one of the time in a header.
        assert result.data == data
        assert gzip.decompress(damaged) == data
    else:
        assert result.fault.offset == len(result.data)
        with pytest.raises((OSError, EOFError, zlib.error)):
            gzip.decompress(damaged)


@pytest.mark.parametrize("seed", range(24))
def test_a_flipped_bit_of_zstd_loses_at_most_the_block_in_which_it_is_noticed(
    tmp_path, write_piece, seed
):
    rng = random.Random(1000 + seed)
    data = lines_for_flips(rng, seed)
    compressed = b"".join(compress_in_parts(rng, data, "zst"))
    index, damaged = flipped_bit(rng, compressed)
    block_bytes = codec_of(".zst").feed_bytes
    blocks_before = damaged[: index // block_bytes * block_bytes]

    result = decompress_all(tmp_path, write_piece("a.jsonl.zst", damaged))

    text_before = decompress_all(tmp_path, write_piece("b.jsonl.zst", blocks_before)).data
    assert result.data.startswith(text_before)
    assert data.startswith(text_before)
    if result.fault is None:
        assert result.data == data
    else:
        assert result.fault.offset == len(result.data)


class DecoderWithoutMemory:
    """A zstd decoder on a machine whose memory is exhausted."""

    def decompress(self, _data):
        raise zstandard.ZstdError("zstd decompressor error: Allocation error : not enough memory")


def test_a_lack_of_memory_for_the_window_is_an_error_and_not_a_fault_of_the_file(
    tmp_path, write_piece, monkeypatch
):
    """If it were recorded as a fault, a larger machine would produce other bytes."""
    piece = write_piece("a.jsonl.zst", zst(b'{"text": "a"}\n'))
    monkeypatch.setattr(Codec, "new_decoder", lambda _: DecoderWithoutMemory())

    with pytest.raises(InputError, match="more memory than is available") as caught:
        list(read_documents(tmp_path, SourceRange((piece,))))

    assert caught.value.where == str(tmp_path / "a.jsonl.zst")
