import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.token_sources import source_in_file, source_in_memory
from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.stages.webdataset import gathering
from nanoset_core.stages.webdataset.contexts import ContextTable, SourceContexts
from nanoset_core.stages.webdataset.gathering import gather
from nanoset_core.stages.webdataset.plan_settings import PlanSettings
from nanoset_core.stages.webdataset.sources import TokenSource


def rows_one_by_one(lengths, sequence_length, tail):
    """The table written out: (source, start, length) per context, plus dropped tokens per source."""
    if tail == "carry":
        return carried_one_by_one(lengths, sequence_length)
    rows, dropped = [], []
    for source, tokens in enumerate(lengths):
        start = 0
        while start < tokens or (tail == "pad_always" and start == tokens):
            length = min(sequence_length, tokens - start)
            if length < sequence_length and tail == "drop":
                break
            rows.append((source, start, length))
            start += sequence_length
        dropped.append(max(tokens - start, 0))
    return rows, dropped


def carried_one_by_one(lengths, sequence_length):
    """Every token's (source, place), cut as one stream."""
    places = [(source, place) for source, tokens in enumerate(lengths) for place in range(tokens)]
    rows = len(places) // sequence_length
    left = places[rows * sequence_length :]
    firsts = [places[row * sequence_length] for row in range(rows)]
    rest = [sum(source == i for source, _ in left) for i in range(len(lengths))]
    return [(source, place, sequence_length) for source, place in firsts], rest


LENGTHS = st.lists(st.integers(0, 60), min_size=1, max_size=8)
TAILS = st.sampled_from(["drop", "pad", "carry", "pad_always"])


@settings(deadline=None, max_examples=200)
@given(lengths=LENGTHS, sequence_length=st.integers(1, 17), tail=TAILS, bos=st.booleans())
def test_table_equals_the_rows_written_out(lengths, sequence_length, tail, bos):
    names = [(f"s{i}", tokens) for i, tokens in enumerate(lengths)]
    ids = {"pad_id": 3 if tail.startswith("pad") else None, "bos_id": 1 if bos else None}
    table = ContextTable(
        names, PlanSettings(sequence_length=sequence_length + bos, tail=tail, **ids)
    )
    rows, dropped = rows_one_by_one(lengths, sequence_length, tail)
    source, start, length = table.locate(np.arange(table.contexts))
    assert list(zip(source.tolist(), start.tolist(), length.tolist(), strict=True)) == rows
    assert [counts.tokens_dropped for counts in table.sources] == dropped
    for i, counts in enumerate(table.sources):
        own = [row for row in rows if row[0] == i]
        assert counts.contexts == counts.rows == len(own)
        assert counts.contexts * sequence_length == counts.tokens_used + counts.pad_tokens
        held = sum(min(length, counts.tokens - start) for _, start, length in own)
        assert counts.tokens == held + counts.tokens_carried + counts.tokens_dropped
    assert table.pad_tokens(np.arange(table.contexts)) == sum(
        counts.pad_tokens for counts in table.sources
    )


@settings(deadline=None, max_examples=200)
@given(
    streams=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=4),
    sequence_length=st.integers(1, 17),
    tail=TAILS,
    frequencies=st.lists(st.sampled_from([0, 0.3, 1, 1.7, 2]), min_size=4, max_size=4),
    span=st.tuples(st.integers(0, 100), st.integers(1, 40)),
)
def test_the_contexts_that_hold_tokens_are_those_that_are_located_there(
    streams, sequence_length, tail, frequencies, span
):
    names = [(f"s{i}", sum(lengths)) for i, lengths in enumerate(streams)]
    table = ContextTable(
        names,
        PlanSettings(
            sequence_length=sequence_length,
            tail=tail,
            pad_id=3 if tail.startswith("pad") else None,
            streams=None
            if tail == "carry"
            else {f"s{i}": lengths for i, lengths in enumerate(streams)},
            frequencies={f"s{i}": frequencies[i] for i in range(len(streams))},
        ),
    )
    bounds = np.cumsum([0, *(tokens for _, tokens in names)])
    held = [
        set(range(bounds[source] + start, bounds[source] + start + length))
        for source, start, length in zip(*table.locate(np.arange(table.contexts)), strict=True)
    ]
    for source, (_, tokens) in enumerate(names):
        begin, end = min(span[0], tokens), min(sum(span), tokens)
        wanted = set(range(bounds[source] + begin, bounds[source] + end))
        expected = [context for context, own in enumerate(held) if own & wanted]
        assert sorted(table.containing(source, begin, end).tolist()) == expected


@settings(deadline=None, max_examples=150)
@given(
    files=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), min_size=1, max_size=4),
    sequence_length=st.integers(1, 11),
    tail=st.sampled_from(["drop", "pad", "pad_always"]),
    frequencies=st.lists(
        st.sampled_from([0.0, 0.3, 0.5, 1.0, 1.75, 2.0, 3.1]), min_size=4, max_size=4
    ),
    seed=st.integers(0, 1 << 63),
)
def test_streams_are_cut_on_their_own_and_repeated(files, sequence_length, tail, frequencies, seed):
    names = [f"s{i}" for i in range(len(files))]
    table = ContextTable(
        [(name, sum(lengths)) for name, lengths in zip(names, files, strict=True)],
        PlanSettings(
            sequence_length=sequence_length,
            tail=tail,
            pad_id=3 if tail != "drop" else None,
            streams=dict(zip(names, files, strict=True)),
            frequencies=dict(zip(names, frequencies, strict=False)),
            seed=seed,
        ),
    )
    found = list(
        zip(*(part.tolist() for part in table.locate(np.arange(table.contexts))), strict=True)
    )
    for i, (lengths, counts) in enumerate(zip(files, table.sources, strict=True)):
        begins = np.cumsum([0, *lengths])
        rows = [
            (i, int(begins[f]) + start, n)
            for f, start, n in rows_one_by_one(lengths, sequence_length, tail)[0]
        ]
        own = [place for place in found if place[0] == i]
        repeats, chosen = counts.repeats, counts.chosen
        assert (
            counts.contexts
            == len(own)
            == math.floor(len(rows) * Fraction(str(frequencies[i])) + Fraction(1, 2))
        )
        assert own[: repeats * len(rows)] == rows * repeats
        rest = [rows.index(place) for place in own[repeats * len(rows) :]]
        assert len(rest) == chosen
        assert rest == sorted(set(rest))
        assert counts.pad_tokens == sum(sequence_length - n for _, _, n in own)
        assert counts.tokens_used == sum(n for _, _, n in own)


@pytest.mark.parametrize(
    ("changes", "web", "firsts"),
    [
        ({}, (2, 10, 3, 0, 2), [0, 2, 2, 4]),
        ({"tail": "pad", "pad_id": 7}, (3, 13, 0, 2, 3), [0, 3, 3, 5]),
    ],
)
def test_counts_per_source(changes, web, firsts):
    sources = [("web", 13), ("empty", 0), ("code", 10)]
    table = ContextTable(sources, PlanSettings(sequence_length=5, **changes))
    counts = (web, (0, 0, 0, 0, 0), (2, 10, 0, 0, 2))
    assert table.sources == tuple(
        SourceContexts(*one, *own) for one, own in zip(sources, counts, strict=True)
    )
    assert table.first_contexts.tolist() == firsts


def test_what_cannot_be():
    web = [("web", 20)]
    for sources, changes, message in (
        (web, {"sequence_length": 0}, "no room for a token"),
        (web, {"sequence_length": 1, "bos_id": 0}, "no room for a token"),
        (web, {"sequence_length": 5, "streams": {"web": [10, 9]}}, "not all of their source"),
        ([*web, ("web", 30)], {"sequence_length": 5}, "same name"),
    ):
        with pytest.raises(ConfigError, match=message):
            ContextTable(sources, PlanSettings(**changes))
    for dtype in ("float32", "uint64", "bool"):
        with pytest.raises(ConfigError, match="source 'web'"):
            TokenSource("web", Path("web.bin"), dtype, 4)
    for contexts in ([-1], [4], [0, 1, 99]):
        with pytest.raises(SampleIndexError, match=r"\[0, 4\)"):
            ContextTable(web, PlanSettings(sequence_length=5)).locate(np.array(contexts))


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
def test_rows_equal_the_streams_cut_one_by_one(
    files, dtypes, sequence_length, bos_id, tail, block_bytes, data
):
    sources = [
        source_in_memory(f"s{i}", (np.arange(sum(own)) + 1000 * i).astype(dtypes[i]))
        for i, own in enumerate(files)
    ]
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
        patch.setattr(gathering, "_COPY_BYTES", block_bytes)
        assert gather(sources, table, np.arange(table.contexts)).tolist() == expected
        assert gather(sources, table, np.arange(table.contexts)[::-1]).tolist() == expected[::-1]
        strided = np.zeros((len(wanted), sequence_length + 3), dtype=np.int64)
        gather(sources, table, np.array(wanted, dtype=np.int64), out=strided[:, 2:-1])
    assert strided[:, 2:-1].tolist() == [expected[number] for number in wanted]


def test_rows_of_a_file_go_to_their_places(tmp_path):
    source = source_in_file(tmp_path, "web", np.arange(103, dtype=np.uint16))
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
