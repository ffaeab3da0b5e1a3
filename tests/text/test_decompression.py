import gzip
import random
import zlib

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanoset_core.errors import InputError
from nanoset_core.text import lines
from nanoset_core.text.documents import read_documents
from nanoset_core.text.lines import codec_of, decompress
from nanoset_core.text.pieces import SourceRange
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.stored_piece import StoredPiece

SKIPPABLE = b"\x53\x2a\x4d\x18\x07\x00\x00\x00skipped"


def gz(data, level=6):
    return gzip.compress(data, level, mtime=0)


def zst(data, level=3, *, checksum=True, content_size=True):
    return zstandard.ZstdCompressor(
        level, write_checksum=checksum, write_content_size=content_size
    ).compress(data)


def whole(folder, piece) -> tuple[bytes, FaultError | None]:
    """Everything that comes out, and the fault that ends it."""
    chunks, fault = [], None
    try:
        for chunk in decompress(StoredPiece(folder, piece), codec_of(piece.path)):
            assert chunk
            chunks.append(chunk)
    except FaultError as error:
        fault = error
    return b"".join(chunks), fault


MEMBERS = st.lists(
    st.one_of(
        st.just(b""), st.binary(max_size=200), st.integers(1, 70_000).map(lambda n: b"ab" * n)
    ),
    max_size=6,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(members=MEMBERS, padding=st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_gzip_members_are_those_of_pythons_gzip(tmp_path, stored, members, padding):
    blob = b"".join(gz(data) + b"\0" * zeros for data, zeros in zip(members, padding, strict=False))
    piece = StoredPiece(tmp_path, stored("a.jsonl.gz", blob))
    assert b"".join(decompress(piece, codec_of("a.gz"))) == gzip.decompress(blob)
    assert piece.padding == sum(padding[: len(members)])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(members=MEMBERS, seed=st.integers(0, 2**20))
def test_zstd_frames_are_joined_and_skippable_ones_skipped(tmp_path, stored, members, seed):
    rng = random.Random(seed)
    parts = []
    for data in members:
        parts.append(zst(data, checksum=rng.random() < 0.5, content_size=rng.random() < 0.5))
        parts.append(SKIPPABLE * rng.randrange(3))
    assert whole(tmp_path, stored("a.jsonl.zst", b"".join(parts))) == (b"".join(members), None)


def test_zstd_frames_with_a_long_window(tmp_path, stored):
    """`zstd --long=31`, as large archives are made, needs more window than decoders allow by
    themselves.
    """
    parameters = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    blob = compressor.compress(b"text\n") + compressor.flush()
    with pytest.raises(zstandard.ZstdError):
        zstandard.ZstdDecompressor().decompressobj().decompress(blob)
    assert whole(tmp_path, stored("a.jsonl.zst", blob)) == (b"text\n", None)


@pytest.mark.parametrize(
    ("name", "blob", "given_bytes", "reason", "detail"),
    [
        ("a.jsonl.gz", b"\0" * 100, b"", "corrupt_gzip", "in bytes 0 to 100 of the stored file"),
        ("a.jsonl.gz", b"\0" * 5, b"", "truncated_gzip", "at byte 5,"),
        ("a.jsonl.gz", b'{"text": "plain"}\n', b"", "corrupt_gzip", "in bytes"),
        ("a.jsonl.gz", gz(b"one\n") + b"garbage after it", b"one\n", "corrupt_gzip", "in bytes"),
        ("a.jsonl.gz", gz(b"one\n") + b"garbage", b"one\n", "truncated_gzip", "at byte 31,"),
        (
            "a.jsonl.gz",
            gz(b"one\n") + b"\0\0" + gz(b"two\n")[:-1],
            b"one\ntwo\n",
            "truncated_gzip",
            "at byte 49",
        ),
        (
            "a.jsonl.gz",
            gz(b"one\n") + gz(b"two\n")[:-4] + b"\7\0\0\0",
            b"one\n",
            "corrupt_gzip",
            "in bytes",
        ),
        ("a.jsonl.zst", b'{"text": "plain"}\n', b"", "corrupt_zstd", "in bytes"),
        ("a.jsonl.zst", zst(b"one\n") + b"\0\0\0\0", b"one\n", "corrupt_zstd", "in bytes"),
        (
            "a.jsonl.zst",
            zst(b"one\n") + zst(b"two\n")[:-1],
            b"one\ntwo\n",
            "truncated_zstd",
            "at byte",
        ),
        (
            "a.jsonl.zst",
            zst(b"one\n") + zst(b"two\n")[:-1] + b"\0",
            b"one\n",
            "corrupt_zstd",
            "in bytes",
        ),
        ("a.jsonl.zst", gz(b"one\n"), b"", "corrupt_zstd", "in bytes"),
    ],
)
def test_foreign_and_broken_bytes(tmp_path, stored, name, blob, given_bytes, reason, detail):
    data, fault = whole(tmp_path, stored(name, blob))
    assert data == given_bytes
    assert (fault.offset, fault.reason) == (len(given_bytes), reason)
    assert detail in fault.detail


def slowly(blob: bytes) -> bytes:
    """What zlib makes of the gzip members in `blob`, fed byte by byte, up to the end of the last
    whole line.
    """
    out, decoder = b"", None
    for index in range(len(blob)):
        rest = blob[index : index + 1]
        while rest:
            decoder = decoder or zlib.decompressobj(31)
            out += decoder.decompress(rest)
            rest = decoder.unused_data
            decoder = None if decoder.eof else decoder
    return out[: out.rfind(b"\n") + 1]


def random_lines(rng: random.Random) -> bytes:
    words = [rng.randbytes(rng.randrange(1, 6)).hex() for _ in range(50)]
    return b"".join(
        " ".join(rng.choices(words, k=rng.randrange(60))).encode() + b"\n"
        for _ in range(rng.randrange(1, 80))
    )


def members_of(rng: random.Random, data: bytes, kind: str) -> list[bytes]:
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(3)))
    parts = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return [gz(part, rng.choice([0, 1, 6, 9])) if kind == "gz" else zst(part) for part in parts]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_cut_off_file_gives_every_line_before_the_cut(tmp_path, stored, kind, seed):
    rng = random.Random(seed)
    data = random_lines(rng)
    members = members_of(rng, data, kind)
    blob = b"".join(members)
    ends = {sum(map(len, members[:count])) for count in range(len(members) + 1)}
    cut = rng.randrange(1, len(blob))
    out, fault = whole(tmp_path, stored(f"a.jsonl.{kind}", blob[:cut]))
    assert data.startswith(out)
    assert (fault is None) == (cut in ends)
    if fault is not None:
        assert (fault.reason.partition("_")[0], fault.offset) == ("truncated", len(out))
        assert f"byte {cut:,}" in fault.detail
    if kind == "gz":
        assert out.startswith(slowly(blob[:cut]))


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_flipped_bit_loses_no_more_than_the_feed_in_which_it_shows(tmp_path, stored, kind, seed):
    rng = random.Random(1000 + seed)
    data = random_lines(rng) if seed % 2 else b"".join(random_lines(rng) for _ in range(60))
    blob = bytearray(b"".join(members_of(rng, data, kind)))
    at = rng.randrange(len(blob))
    blob[at] ^= 1 << rng.randrange(8)
    feed = codec_of(f".{kind}").feed_bytes
    out, fault = whole(tmp_path, stored(f"a.jsonl.{kind}", bytes(blob)))
    sound = blob[: at // feed * feed]
    before = (
        slowly(bytes(sound))
        if kind == "gz"
        else whole(tmp_path, stored("b.jsonl.zst", bytes(sound)))[0]
    )
    assert out.startswith(before)
    assert data.startswith(before)
    if fault is None:
        assert out == data  # a bit that says nothing, such as the time in a gzip header
        assert kind == "zst" or gzip.decompress(bytes(blob)) == data
    else:
        assert fault.offset == len(out)
        if kind == "gz":
            with pytest.raises((OSError, EOFError, zlib.error)):
                gzip.decompress(bytes(blob))


def test_a_window_for_which_there_is_no_room_is_no_fault_of_the_file(tmp_path, stored, monkeypatch):
    """Were it kept aside as one, a larger machine would give other bytes."""

    class Decoder:
        def decompress(self, _data):
            raise zstandard.ZstdError(
                "zstd decompressor error: Allocation error : not enough memory"
            )

    piece = stored("a.jsonl.zst", zst(b'{"text": "a"}\n'))
    monkeypatch.setattr(lines.Codec, "new_decoder", lambda _: Decoder())
    with pytest.raises(InputError, match="more memory than is available") as caught:
        list(read_documents(tmp_path, SourceRange((piece,))))
    assert caught.value.where == str(tmp_path / "a.jsonl.zst")
