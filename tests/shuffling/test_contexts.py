import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.shuffling.contexts import SourceContexts, TokenSource, cut_contexts


def rows_one_by_one(lengths, sequence_length, tail):
    """The table written out: (source, start, length) per context, plus dropped tokens per source."""
    rows, dropped = [], []
    for source, tokens in enumerate(lengths):
        start = 0
        while start < tokens:
            length = min(sequence_length, tokens - start)
            if length < sequence_length and tail == "drop":
                break
            rows.append((source, start, length))
            start += length
        dropped.append(max(tokens - start, 0))
    return rows, dropped


@settings(deadline=None, max_examples=200)
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    sequence_length=st.integers(1, 17),
    tail=st.sampled_from(["drop", "pad"]),
)
def test_table_equals_the_rows_written_out(lengths, sequence_length, tail):
    names = [(f"s{i}", tokens) for i, tokens in enumerate(lengths)]
    table = cut_contexts(names, sequence_length=sequence_length, tail=tail, pad_id=None if tail == "drop" else 3)
    rows, dropped = rows_one_by_one(lengths, sequence_length, tail)
    source, start, length = table.locate(np.arange(table.contexts))
    assert list(zip(source.tolist(), start.tolist(), length.tolist(), strict=True)) == rows
    assert [counts.tokens_dropped for counts in table.sources] == dropped
    for counts in table.sources:
        assert counts.tokens == counts.tokens_used + counts.tokens_dropped
        assert counts.contexts * sequence_length == counts.tokens_used + counts.pad_tokens
    assert table.pad_tokens(np.arange(table.contexts)) == sum(counts.pad_tokens for counts in table.sources)


def test_counts_per_source_when_tails_are_dropped():
    table = cut_contexts([("web", 13), ("empty", 0), ("code", 10)], sequence_length=5)
    assert table.sources == (
        SourceContexts("web", 13, 2, 10, 3, 0),
        SourceContexts("empty", 0, 0, 0, 0, 0),
        SourceContexts("code", 10, 2, 10, 0, 0),
    )
    assert table.first_contexts.tolist() == [0, 2, 2, 4]


def test_counts_per_source_when_tails_are_padded():
    table = cut_contexts([("web", 13), ("empty", 0), ("code", 10)], sequence_length=5, tail="pad", pad_id=7)
    assert table.sources == (
        SourceContexts("web", 13, 3, 13, 0, 2),
        SourceContexts("empty", 0, 0, 0, 0, 0),
        SourceContexts("code", 10, 2, 10, 0, 0),
    )


@pytest.mark.parametrize("contexts", [[-1], [4], [0, 1, 99]])
def test_locate_refuses_numbers_outside_the_table(contexts):
    table = cut_contexts([("web", 20)], sequence_length=5)
    with pytest.raises(SampleIndexError, match=r"\[0, 4\)"):
        table.locate(np.array(contexts))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequence_length": 0}, "at least one token"),
        ({"sequence_length": 5, "tail": "carry"}, "no such rule"),
        ({"sequence_length": 5, "tail": "pad"}, "pad token goes with"),
        ({"sequence_length": 5, "pad_id": 0}, "pad token goes with"),
    ],
)
def test_settings_that_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        cut_contexts([("web", 20)], **arguments)


def test_two_sources_of_one_name():
    with pytest.raises(ConfigError, match="same name"):
        cut_contexts([("web", 20), ("web", 30)], sequence_length=5)


@pytest.mark.parametrize(
    "tokens",
    [
        np.zeros((2, 3), dtype=np.uint16),
        np.zeros(4, dtype=np.float32),
        np.zeros(4, dtype=np.uint64),
        np.zeros(4, dtype=bool),
        np.zeros(8, dtype=np.uint16)[::2],
    ],
)
def test_a_source_is_one_flat_array_of_integers(tokens):
    with pytest.raises(ConfigError, match="source 'web'"):
        TokenSource("web", tokens)
