import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_sources import held, stored

from nanoset_core.errors import SampleIndexError
from nanoset_core.shuffling import sources as sources_module
from nanoset_core.shuffling.contexts import cut_contexts
from nanoset_core.shuffling.settings import PlanSettings
from nanoset_core.shuffling.sources import gather


def every_context(sources, sequence_length, pad_id):
    """All contexts, cut one after the other."""
    rows = []
    for source in sources:
        stream = source.tokens.tolist()
        for start in range(0, len(stream), sequence_length):
            row = stream[start : start + sequence_length]
            if len(row) == sequence_length or pad_id is not None:
                rows.append(row + [pad_id] * (sequence_length - len(row)))
    return rows


@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    dtypes=st.lists(st.sampled_from([np.uint16, np.int32]), min_size=6, max_size=6),
    sequence_length=st.integers(1, 9),
    pad_id=st.sampled_from([None, 0, 9999]),
    data=st.data(),
)
def test_rows_equal_the_streams_cut_one_by_one(lengths, dtypes, sequence_length, pad_id, data):
    sources = [held(f"s{i}", (np.arange(length) + 1000 * i).astype(dtypes[i])) for i, length in enumerate(lengths)]
    pairs = [(source.name, source.count) for source in sources]
    table = cut_contexts(
        pairs, PlanSettings(sequence_length=sequence_length, tail="drop" if pad_id is None else "pad", pad_id=pad_id)
    )
    rows = every_context(sources, sequence_length, pad_id)
    assert len(rows) == table.contexts
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)) if rows else []
    found = gather(sources, table, np.array(wanted, dtype=np.int64))
    assert found.shape == (len(wanted), sequence_length)
    assert found.tolist() == [rows[number] for number in wanted]
    strided = np.zeros((len(wanted), sequence_length + 3), dtype=np.int64)
    gather(sources, table, np.array(wanted, dtype=np.int64), out=strided[:, 2:-1])
    assert np.array_equal(strided[:, 2:-1], found)


def test_rows_of_a_file_go_to_their_places(tmp_path):
    source = stored(tmp_path, "web", np.arange(103, dtype=np.uint16))
    table = cut_contexts([("web", 103)], PlanSettings(sequence_length=10))
    found = gather([source], table, np.array([9, 0, 4]))
    assert found.dtype == np.uint16
    assert found[:, 0].tolist() == [90, 0, 40]
    out = np.full((8, 10), 9999, dtype=np.int32)
    gather([source], table, np.array([9, 0, 4]), out=out, places=np.array([5, 7, 0]))
    assert out[:, 0].tolist() == [40, 9999, 9999, 9999, 9999, 90, 9999, 0]
    assert out[5].tolist() == list(range(90, 100))
    with pytest.raises(SampleIndexError, match="outside the table"):
        gather([source], table, np.array([3, 10]))


@settings(deadline=None, max_examples=100)
@given(
    lengths=st.lists(st.lists(st.integers(0, 25), max_size=5), min_size=1, max_size=4),
    sequence_length=st.integers(2, 7),
    bos_id=st.sampled_from([None, 77]),
    tail=st.sampled_from(["drop", "pad", "pad_always"]),
    block_bytes=st.sampled_from([1, 40, 1 << 20]),
)
def test_streams_cut_on_their_own_with_a_bos(lengths, sequence_length, bos_id, tail, block_bytes):
    sources = [held(f"s{i}", np.arange(sum(files)) + 1000 * i) for i, files in enumerate(lengths)]
    width = sequence_length - (bos_id is not None)
    front = [] if bos_id is None else [bos_id]
    expected = []
    for source, files in zip(sources, lengths, strict=True):
        end = 0
        for count in files:
            begin, end = end, end + count
            stream = source.tokens[begin:end].tolist()
            rest = len(stream) % width
            if tail == "drop":
                stream = stream[: len(stream) - rest]
            elif rest or tail == "pad_always":
                stream += [9] * (width - rest)
            expected += [front + stream[at : at + width] for at in range(0, len(stream), width)]
    table = cut_contexts(
        [(source.name, source.count) for source in sources],
        PlanSettings(
            sequence_length=sequence_length,
            tail=tail,
            pad_id=None if tail == "drop" else 9,
            bos_id=bos_id,
            streams={source.name: files for source, files in zip(sources, lengths, strict=True)},
        ),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources_module, "_COPY_BYTES", block_bytes)
        assert gather(sources, table, np.arange(table.contexts)).tolist() == expected
        backwards = np.arange(table.contexts)[::-1]
        assert gather(sources, table, backwards).tolist() == expected[::-1]


@settings(deadline=None, max_examples=100)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    sequence_length=st.integers(2, 7),
    bos_id=st.sampled_from([None, 77]),
)
def test_rows_that_are_carried_over_into_the_next_sources(lengths, sequence_length, bos_id):
    sources = [held(f"s{i}", np.arange(count) + 1000 * i) for i, count in enumerate(lengths)]
    width = sequence_length - (bos_id is not None)
    front = [] if bos_id is None else [bos_id]
    stream = [token for source in sources for token in source.tokens.tolist()]
    expected = [front + stream[at : at + width] for at in range(0, len(stream) - width + 1, width)]
    pairs = [(source.name, source.count) for source in sources]
    table = cut_contexts(pairs, PlanSettings(sequence_length=sequence_length, tail="carry", bos_id=bos_id))
    assert gather(sources, table, np.arange(table.contexts)).tolist() == expected
