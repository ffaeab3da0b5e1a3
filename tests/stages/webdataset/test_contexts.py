"""Contexts of token sources: where each one is cut from a source, and how its tokens are gathered.

Slow twins of the product cut the sources context by context and token by token.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

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

PAD = 9
BOS = 77


class Place(NamedTuple):
    """Where the tokens of a context are."""

    source: int
    start: int
    """Position of the first one in the source."""
    n_tokens: int
    """How many are in this source. With `carry`, the rest is in the next ones."""


class CutSources(NamedTuple):
    """The contexts of some sources."""

    places: list[Place]
    """One of each context, in order."""
    n_dropped_by_source: list[int]
    """Tokens of each source that are in no context."""


def cut_slowly(token_counts: Sequence[int], length: int, tail: str) -> CutSources:
    """Cut sources into contexts one by one."""
    if tail == "carry":
        return cut_carried_slowly(token_counts, length)
    places = []
    n_dropped_by_source = []
    for source, n_tokens in enumerate(token_counts):
        start = 0
        # `pad_always` adds a context of padding if the last one is full.
        while start < n_tokens or (tail == "pad_always" and start == n_tokens):
            n_here = min(length, n_tokens - start)
            if n_here < length and tail == "drop":
                break
            places.append(Place(source, start, n_here))
            start += length
        n_dropped_by_source.append(max(n_tokens - start, 0))
    return CutSources(places, n_dropped_by_source)


def cut_carried_slowly(token_counts: Sequence[int], length: int) -> CutSources:
    """Cut all sources as one stream of tokens."""
    source_of_token = []
    position_of_token: list[int] = []
    for source, n_tokens in enumerate(token_counts):
        source_of_token += [source] * n_tokens
        position_of_token += range(n_tokens)

    places = []
    n_contexts = len(source_of_token) // length
    for first in range(0, n_contexts * length, length):
        places.append(Place(source_of_token[first], position_of_token[first], length))
    dropped = source_of_token[n_contexts * length :]
    return CutSources(places, [dropped.count(source) for source in range(len(token_counts))])


def located(table: ContextTable) -> list[Place]:
    """Return the places of all contexts of a table."""
    columns = np.stack(table.locate(np.arange(table.contexts)), axis=1)  # (n_contexts, 3)
    return [Place(*row) for row in columns.tolist()]


def pad_id_of(tail: str) -> int | None:
    """Return the padding token, or None if a tail needs none."""
    return PAD if tail.startswith("pad") else None


def named(values: Sequence[Any]) -> dict[str, Any]:
    """Return the values of sources by the names of the sources."""
    return {f"s{number}": value for number, value in enumerate(values)}


TAILS = st.sampled_from(["drop", "pad", "carry", "pad_always"])
TOKEN_COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=8)


@settings(deadline=None, max_examples=200)
@given(token_counts=TOKEN_COUNTS, length=st.integers(1, 17), tail=TAILS, has_bos=st.booleans())
def test_a_table_has_the_contexts_that_are_cut_one_by_one(token_counts, length, tail, has_bos):
    expected = cut_slowly(token_counts, length, tail)

    plan_settings = PlanSettings(
        sequence_length=length + has_bos,
        tail=tail,
        pad_id=pad_id_of(tail),
        bos_id=BOS if has_bos else None,
    )
    table = ContextTable([*named(token_counts).items()], plan_settings)

    # The contexts are the same.
    assert located(table) == expected.places

    # Tokens and contexts of each source are counted.
    dropped = [counts.tokens_dropped for counts in table.sources]
    assert dropped == expected.n_dropped_by_source
    for source, counts in enumerate(table.sources):
        places = [place for place in expected.places if place.source == source]
        assert counts.contexts == len(places)
        assert counts.rows == len(places)
        assert counts.contexts * length == counts.tokens_used + counts.pad_tokens
        n_in_contexts = sum(min(place.n_tokens, counts.tokens - place.start) for place in places)
        assert counts.tokens == n_in_contexts + counts.tokens_carried + counts.tokens_dropped

    # So is padding.
    n_pad_tokens = sum(counts.pad_tokens for counts in table.sources)
    assert table.pad_tokens(np.arange(table.contexts)) == n_pad_tokens


@settings(deadline=None, max_examples=200)
@given(
    streams=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=4),
    length=st.integers(1, 17),
    tail=TAILS,
    frequencies=st.lists(st.sampled_from([0, 0.3, 1, 1.7, 2]), min_size=4, max_size=4),
    first=st.integers(0, 100),
    n_tokens=st.integers(1, 40),
)
def test_the_contexts_with_some_tokens_of_a_source_are_found(
    streams, length, tail, frequencies, first, n_tokens
):
    token_counts = [sum(lengths) for lengths in streams]
    table = ContextTable(
        [*named(token_counts).items()],
        PlanSettings(
            sequence_length=length,
            tail=tail,
            pad_id=pad_id_of(tail),
            streams=None if tail == "carry" else named(streams),
            frequencies=named(frequencies[: len(streams)]),
        ),
    )
    # Number the tokens of all sources in sequence.
    source_starts = np.cumsum([0, *token_counts])
    ranges = []
    for place in located(table):
        start = source_starts[place.source] + place.start
        ranges.append(range(start, start + place.n_tokens))

    for source, n_source_tokens in enumerate(token_counts):
        start = min(first, n_source_tokens)
        stop = min(first + n_tokens, n_source_tokens)
        requested = set(range(source_starts[source] + start, source_starts[source] + stop))
        expected = [number for number, tokens in enumerate(ranges) if requested & set(tokens)]

        numbers = table.containing(source, start, stop)

        assert sorted(numbers.tolist()) == expected


@settings(deadline=None, max_examples=150)
@given(
    streams=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), min_size=1, max_size=4),
    length=st.integers(1, 11),
    tail=st.sampled_from(["drop", "pad", "pad_always"]),
    frequencies=st.lists(
        st.sampled_from([0.0, 0.3, 0.5, 1.0, 1.75, 2.0, 3.1]), min_size=4, max_size=4
    ),
    seed=st.integers(0, 1 << 63),
)
def test_each_stream_of_a_source_is_cut_separately_and_repeated(
    streams, length, tail, frequencies, seed
):
    """A stream is a file of the source."""
    token_counts = [sum(lengths) for lengths in streams]
    table = ContextTable(
        [*named(token_counts).items()],
        PlanSettings(
            sequence_length=length,
            tail=tail,
            pad_id=pad_id_of(tail),
            streams=named(streams),
            frequencies=named(frequencies[: len(streams)]),
            seed=seed,
        ),
    )
    all_places = located(table)

    for source, stream_lengths in enumerate(streams):
        counts = table.sources[source]
        places = [place for place in all_places if place.source == source]

        # Cut each stream, and say where its contexts are in the source.
        stream_starts = np.cumsum([0, *stream_lengths]).tolist()
        once = []
        for stream, start, n_tokens in cut_slowly(stream_lengths, length, tail).places:
            once.append(Place(source, stream_starts[stream] + start, n_tokens))

        # A frequency of 1.75 gives 1.75 contexts for each, rounded to the nearest number.
        frequency = Fraction(str(frequencies[source]))
        n_contexts = math.floor(len(once) * frequency + Fraction(1, 2))
        assert len(places) == n_contexts
        assert counts.contexts == n_contexts

        # First all contexts are repeated, and then some of them are there once more, in order.
        n_repeated = counts.repeats * len(once)
        assert places[:n_repeated] == once * counts.repeats
        chosen = [once.index(place) for place in places[n_repeated:]]
        assert len(chosen) == counts.chosen
        assert chosen == sorted(set(chosen))

        assert counts.pad_tokens == sum(length - place.n_tokens for place in places)
        assert counts.tokens_used == sum(place.n_tokens for place in places)


@pytest.mark.parametrize(
    ("plan_settings", "web", "first_contexts"),
    [
        pytest.param(
            {},
            SourceContexts(
                name="web",
                tokens=13,
                contexts=2,
                tokens_used=10,
                tokens_dropped=3,
                pad_tokens=0,
                rows=2,
            ),
            [0, 2, 2, 4],
            id="drop",
        ),
        pytest.param(
            {"tail": "pad", "pad_id": 7},
            SourceContexts(
                name="web",
                tokens=13,
                contexts=3,
                tokens_used=13,
                tokens_dropped=0,
                pad_tokens=2,
                rows=3,
            ),
            [0, 3, 3, 5],
            id="pad",
        ),
    ],
)
def test_contexts_and_tokens_of_each_source_are_counted(plan_settings, web, first_contexts):
    sources = [("web", 13), ("empty", 0), ("code", 10)]

    table = ContextTable(sources, PlanSettings(sequence_length=5, **plan_settings))

    empty = SourceContexts(
        name="empty",
        tokens=0,
        contexts=0,
        tokens_used=0,
        tokens_dropped=0,
        pad_tokens=0,
        rows=0,
    )
    code = SourceContexts(
        name="code",
        tokens=10,
        contexts=2,
        tokens_used=10,
        tokens_dropped=0,
        pad_tokens=0,
        rows=2,
    )
    assert table.sources == (web, empty, code)
    assert table.first_contexts.tolist() == first_contexts


# What is refused


@pytest.mark.parametrize(
    ("sources", "plan_settings", "message"),
    [
        pytest.param(
            [("web", 20)], {"sequence_length": 0}, "no room for a token", id="empty contexts"
        ),
        pytest.param(
            [("web", 20)],
            {"sequence_length": 1, "bos_id": 0},
            "no room for a token",
            id="contexts of nothing but BOS",
        ),
        pytest.param(
            [("web", 20)],
            {"sequence_length": 5, "streams": {"web": [10, 9]}},
            "not all of their source",
            id="streams of another size",
        ),
        pytest.param(
            [("web", 20)],
            {"sequence_length": 5, "streams": {"web": [10, 10]}, "tail": "carry"},
            "cannot be cut separately",
            id="streams with rows that continue in the next one",
        ),
        pytest.param(
            [("web", 20), ("web", 30)], {"sequence_length": 5}, "same name", id="equal names"
        ),
    ],
)
def test_sources_that_cannot_be_cut_are_refused(sources, plan_settings, message):
    with pytest.raises(ConfigError, match=message):
        ContextTable(sources, PlanSettings(**plan_settings))


@pytest.mark.parametrize("dtype", ["float32", "uint64", "bool"])
def test_a_source_of_a_type_that_is_not_one_of_tokens_is_refused(dtype):
    with pytest.raises(ConfigError, match="source 'web'"):
        TokenSource("web", Path("web.bin"), dtype, 4)


@pytest.mark.parametrize("numbers", [[-1], [4], [0, 1, 99]], ids=str)
def test_contexts_that_do_not_exist_cannot_be_located(numbers):
    table = ContextTable([("web", 20)], PlanSettings(sequence_length=5))

    with pytest.raises(SampleIndexError, match=r"\[0, 4\)"):
        table.locate(np.array(numbers))


# Gathering of tokens


def gather_slowly(
    streams: Sequence[list[int]], width: int, tail: str, front: list[int]
) -> list[list[int]]:
    """Return the tokens of all contexts, cut one by one.

    Args:
        streams: The tokens of each stream.
        width: Tokens of a context, without its front.
        tail: What becomes of the rest of a stream.
        front: Tokens at the start of each context.
    """
    if tail == "carry":
        streams = [list(itertools.chain.from_iterable(streams))]
    contexts = []
    for stream in streams:
        n_rest = len(stream) % width
        tokens = stream
        if tail in ("drop", "carry"):
            tokens = stream[: len(stream) - n_rest]
        elif n_rest or tail == "pad_always":
            tokens = stream + [PAD] * (width - n_rest)
        for start in range(0, len(tokens), width):
            contexts.append(front + tokens[start : start + width])
    return contexts


class SmallSources(NamedTuple):
    """Sources of some tokens that all differ."""

    sources: list[TokenSource]
    lengths: list[list[int]]
    """Of the streams of each source."""

    @property
    def streams(self) -> list[list[int]]:
        """The tokens of each stream of all sources."""
        streams = []
        for source, lengths in zip(self.sources, self.lengths, strict=True):
            start = 0
            for length in lengths:
                streams.append(source.tokens[start : start + length].tolist())
                start += length
        return streams


@st.composite
def small_sources(draw) -> SmallSources:
    """Return one to four sources of either type of tokens."""
    all_lengths = draw(st.lists(st.lists(st.integers(0, 25), max_size=5), min_size=1, max_size=4))
    sources = []
    for number, lengths in enumerate(all_lengths):
        dtype = draw(st.sampled_from([np.uint16, np.int32]))
        tokens = np.arange(sum(lengths)) + 1000 * number
        sources.append(source_in_memory(f"s{number}", tokens.astype(dtype)))
    return SmallSources(sources, all_lengths)


@settings(deadline=None, max_examples=300)
@given(
    small=small_sources(),
    length=st.integers(2, 9),
    bos_id=st.sampled_from([None, BOS]),
    tail=TAILS,
    block_bytes=st.sampled_from([1, 40, 1 << 20]),
    data=st.data(),
)
def test_gathered_contexts_are_those_that_are_cut_one_by_one(
    small, length, bos_id, tail, block_bytes, data
):
    front = [] if bos_id is None else [bos_id]
    expected = gather_slowly(small.streams, length - len(front), tail, front)
    table = ContextTable(
        [(source.name, source.count) for source in small.sources],
        PlanSettings(
            sequence_length=length,
            tail=tail,
            pad_id=pad_id_of(tail),
            bos_id=bos_id,
            streams=None if tail == "carry" else named(small.lengths),
        ),
    )
    assert table.contexts == len(expected)
    some_numbers = []
    if expected:
        numbers = st.lists(st.integers(0, len(expected) - 1), max_size=20)
        some_numbers = data.draw(numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "_COPY_BYTES", block_bytes)
        forward = gather(small.sources, table, np.arange(table.contexts))
        backward = gather(small.sources, table, np.arange(table.contexts)[::-1])
        # Some contexts in any order go to columns in the middle of a wider array.
        wider = np.zeros((len(some_numbers), length + 3), dtype=np.int64)
        gather(small.sources, table, np.array(some_numbers, dtype=np.int64), out=wider[:, 2:-1])

    assert forward.tolist() == expected
    assert backward.tolist() == expected[::-1]
    assert wider[:, 2:-1].tolist() == [expected[number] for number in some_numbers]


@pytest.fixture
def source(tmp_path) -> TokenSource:
    """A source in a file with the tokens 0 to 102."""
    return source_in_file(tmp_path, "web", np.arange(103, dtype=np.uint16))


@pytest.fixture
def table() -> ContextTable:
    """Its contexts of ten tokens."""
    return ContextTable([("web", 103)], PlanSettings(sequence_length=10))


def test_contexts_are_gathered_in_the_requested_order_and_in_the_type_of_the_source(source, table):
    contexts = gather([source], table, np.array([9, 0, 4]))

    assert contexts.dtype == np.uint16
    assert contexts[:, 0].tolist() == [90, 0, 40]


def test_contexts_can_be_gathered_into_some_rows_of_an_array(source, table):
    out = np.full((8, 10), 9999, dtype=np.int32)

    gather([source], table, np.array([9, 0, 4]), out=out, places=np.array([5, 7, 0]))

    assert out[:, 0].tolist() == [40, 9999, 9999, 9999, 9999, 90, 9999, 0]
    assert out[5].tolist() == list(range(90, 100))


def test_contexts_that_do_not_exist_cannot_be_gathered(source, table):
    with pytest.raises(SampleIndexError, match="outside the table"):
        gather([source], table, np.array([3, 10]))
