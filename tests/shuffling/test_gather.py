import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_sources import held, stored

from nanoset_core.errors import SampleIndexError
from nanoset_core.shuffling import sources as sources_module
from nanoset_core.shuffling.contexts import ContextTable
from nanoset_core.shuffling.settings import PlanSettings
from nanoset_core.shuffling.sources import gather

PAD, BOS = 9, 77


def cut_one_by_one(streams, width, tail, front):
    """All contexts, cut one after the other."""
    if tail == "carry":
        streams, tail = [[token for stream in streams for token in stream]], "drop"
    rows = []
    for stream in streams:
        rest = len(stream) % width
        if tail == "drop":
            stream = stream[: len(stream) - rest]
        elif rest or tail == "pad_always":
            stream = stream + [PAD] * (width - rest)
        rows += [front + stream[at : at + width] for at in range(0, len(stream), width)]
    return rows


@settings(deadline=None, max_examples=300)
@given(
    files=st.lists(st.lists(st.integers(0, 25), max_size=5), min_size=1, max_size=4),
    dtypes=st.lists(st.sampled_from([np.uint16, np.int32]), min_size=4, max_size=4),
    sequence_length=st.integers(2, 9),
    bos_id=st.sampled_from([None, BOS]),
    tail=st.sampled_from(["drop", "pad", "pad_always", "carry"]),
    block_bytes=st.sampled_from([1, 40, 1 << 20]),
    data=st.data(),
)
def test_rows_equal_the_streams_cut_one_by_one(files, dtypes, sequence_length, bos_id, tail, block_bytes, data):
    sources = [held(f"s{i}", (np.arange(sum(own)) + 1000 * i).astype(dtypes[i])) for i, own in enumerate(files)]
    ends = [np.cumsum(own).tolist() for own in files]
    streams = [
        source.tokens[end - count : end].tolist()
        for source, own, last in zip(sources, files, ends, strict=True)
        for count, end in zip(own, last, strict=True)
    ]
    table = ContextTable(
        [(source.name, source.count) for source in sources],
        PlanSettings(
            sequence_length=sequence_length,
            tail=tail,
            pad_id=PAD if tail.startswith("pad") else None,
            bos_id=bos_id,
            streams=None if tail == "carry" else {f"s{i}": own for i, own in enumerate(files)},
        ),
    )
    front = [] if bos_id is None else [bos_id]
    expected = cut_one_by_one(streams, sequence_length - len(front), tail, front)
    assert len(expected) == table.contexts
    wanted = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=20)) if expected else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources_module, "_COPY_BYTES", block_bytes)
        assert gather(sources, table, np.arange(table.contexts)).tolist() == expected
        assert gather(sources, table, np.arange(table.contexts)[::-1]).tolist() == expected[::-1]
        strided = np.zeros((len(wanted), sequence_length + 3), dtype=np.int64)
        gather(sources, table, np.array(wanted, dtype=np.int64), out=strided[:, 2:-1])
    assert strided[:, 2:-1].tolist() == [expected[number] for number in wanted]


def test_rows_of_a_file_go_to_their_places(tmp_path):
    source = stored(tmp_path, "web", np.arange(103, dtype=np.uint16))
    table = ContextTable([("web", 103)], PlanSettings(sequence_length=10))
    found = gather([source], table, np.array([9, 0, 4]))
    assert found.dtype == np.uint16
    assert found[:, 0].tolist() == [90, 0, 40]
    out = np.full((8, 10), 9999, dtype=np.int32)
    gather([source], table, np.array([9, 0, 4]), out=out, places=np.array([5, 7, 0]))
    assert out[:, 0].tolist() == [40, 9999, 9999, 9999, 9999, 90, 9999, 0]
    assert out[5].tolist() == list(range(90, 100))
    with pytest.raises(SampleIndexError, match="outside the table"):
        gather([source], table, np.array([3, 10]))
