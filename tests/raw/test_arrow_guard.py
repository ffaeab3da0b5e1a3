import pyarrow as pa
import pytest

from nanoset_core.raw import arrow_guard
from nanoset_core.raw.arrow_guard import FileGuard, StreamGuard, UnpackedTooLargeError, unpacked_bytes

TEXTS = ["a" * 1000, "b" * 500, None]


def written(batches, compression, *, as_file=True, deltas=False):
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=deltas)
    with (pa.ipc.new_file if as_file else pa.ipc.new_stream)(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def messages(data):
    return [(message.type, unpacked_bytes(message.metadata, message.body)) for message in _all(data)]


def _all(data):
    return pa.ipc.MessageReader.open_stream(pa.BufferReader(data))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_sizes_are_those_of_the_buffers(compression):
    batch = pa.record_batch({"text": TEXTS, "n": [1, 2, 3]})
    stored = written([batch, batch], None, as_file=False)
    packed = written([batch, batch], compression, as_file=False)
    sizes = [buffer.size for column in batch.columns for buffer in column.buffers() if buffer is not None]
    assert [size for _, size in messages(stored)] == [0, 0, 0]
    (schema, first, second) = messages(packed)
    assert schema == ("schema", 0)
    assert first == second
    # Arrow pads some buffers, and stores those that do not shrink as they are.
    assert 1500 <= first[1] <= sum(sizes) + 64 * len(sizes)


def test_dictionaries_count_too():
    batch = pa.record_batch({"text": pa.array(TEXTS).dictionary_encode()})
    kinds = dict(messages(written([batch], "zstd", as_file=False)))
    assert kinds["dictionary"] >= 1500


def test_guards_look_before_anything_is_unpacked(monkeypatch):
    small, large = pa.record_batch({"text": ["a" * 100]}), pa.record_batch({"text": ["a" * 3000]})
    monkeypatch.setattr(arrow_guard, "MOST_BYTES", 2000)
    stream = StreamGuard(pa.BufferReader(written([small, large, small], "zstd", as_file=False)))
    stream.next_batch()
    with pytest.raises(UnpackedTooLargeError, match=r"3,0\d\d bytes; 2,000"):
        stream.next_batch()
    file = FileGuard(written([small, large, small], "zstd"))
    for number in (0, 2):
        file.check(number)
    with pytest.raises(UnpackedTooLargeError):
        file.check(1)


@pytest.mark.parametrize("as_file", [True, False])
def test_a_dictionary_counts_with_the_batch_that_needs_it(monkeypatch, as_file):
    batch = pa.record_batch({"text": pa.array(["a" * 3000]).dictionary_encode()})
    data = written([batch], "zstd", as_file=as_file)
    for most, fits in ((4000, True), (2000, False)):
        monkeypatch.setattr(arrow_guard, "MOST_BYTES", most)
        look = (lambda: FileGuard(data).check(0)) if as_file else StreamGuard(pa.BufferReader(data)).next_batch
        if fits:
            look()
        else:
            with pytest.raises(UnpackedTooLargeError):
                look()


def test_dictionaries_that_are_added_to_each_other_add_up(monkeypatch):
    texts = [chr(ord("a") + number) * 1000 for number in range(5)]
    batches = [
        pa.record_batch({"text": pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(texts[:count]))})
        for count in range(1, 6)
    ]
    data = written(batches, "zstd", as_file=False, deltas=True)
    assert len([kind for kind, _ in messages(data) if kind == "dictionary"]) == 5
    monkeypatch.setattr(arrow_guard, "MOST_BYTES", 3500)
    guard = StreamGuard(pa.BufferReader(data))
    with pytest.raises(UnpackedTooLargeError):
        for _ in batches:
            guard.next_batch()


def test_the_end_of_a_stream_and_an_empty_table():
    empty = pa.record_batch({"text": pa.array([], pa.string())})
    guard = StreamGuard(pa.BufferReader(written([empty], "zstd", as_file=False)))
    for _ in range(3):
        guard.next_batch()
