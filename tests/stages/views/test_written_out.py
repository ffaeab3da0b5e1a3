"""Other outputs read the same tokens from a view as from a dataset with a copy of its documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.building import make_derived_pbin
from helpers.inspecting import current_dataset, read_dataset
from helpers.views import copy_tokens
from nanoset_core.formats.indexed.stream import Stream
from nanoset_core.stages.pbin.conversion import write_dataset_as_pbin
from nanoset_core.stages.webdataset.gathering import gather
from nanoset_core.stages.webdataset.plan import plan_shuffle
from nanoset_core.stages.webdataset.plan_settings import PlanSettings
from nanoset_core.stages.webdataset.sources import TokenSource


def prefix_of(project: Any, name: str) -> Path:
    """Return the prefix of a dataset."""
    return Path(read_dataset(project, name).prefix)


def test_a_pbin_of_a_view_has_the_same_bytes_as_one_of_a_copy(project, tmp_path):
    copy_prefix = copy_tokens(project, "some", tmp_path)

    write_dataset_as_pbin(prefix_of(project, "some"), tmp_path / "view.pbin", end_token=5)
    write_dataset_as_pbin(copy_prefix, tmp_path / "copy.pbin", end_token=5)

    assert (tmp_path / "view.pbin").read_bytes() == (tmp_path / "copy.pbin").read_bytes()


def test_a_pbin_of_a_view_has_all_of_its_tokens(project):
    pbin = make_derived_pbin(project, "some")

    assert pbin.facts["tokens"] == current_dataset(project, "some").facts["tokens"]


def gather_shuffled(sources: list[TokenSource], settings: PlanSettings) -> np.ndarray:
    """Return all contexts of some sources, in a random order that is the same in each call."""
    table = plan_shuffle(sources, settings).table
    return gather(sources, table, np.random.default_rng(0).permutation(table.contexts))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"tail": "drop", "sequence_length": 33}, id="drop"),
        pytest.param({"tail": "pad", "pad_id": 1, "sequence_length": 100}, id="pad"),
        pytest.param({"tail": "carry", "sequence_length": 77}, id="carry"),
        pytest.param({"tail": "drop", "sequence_length": 7, "bos_id": 2}, id="bos"),
    ],
)
def test_contexts_of_a_view_are_those_of_a_copy(project, tmp_path, settings):
    code = TokenSource.of_dataset("code", prefix_of(project, "code"))
    view = TokenSource.of_dataset("some", prefix_of(project, "some"))
    copy = TokenSource.of_dataset("some", copy_tokens(project, "some", tmp_path))

    contexts_of_view = gather_shuffled([view, code], PlanSettings(**settings))
    contexts_of_copy = gather_shuffled([copy, code], PlanSettings(**settings))

    assert np.array_equal(contexts_of_view, contexts_of_copy)


def test_ranges_of_the_tokens_of_a_view_are_found_in_the_bin(project):
    view = read_dataset(project, "some")
    tokens = np.concatenate(view[0 : len(view)])
    generator = np.random.default_rng(1)
    starts = generator.integers(0, len(tokens), 200)
    lengths = np.minimum(generator.integers(0, 300, 200), len(tokens) - starts)
    expected = []
    for start, length in zip(starts, lengths, strict=True):
        expected.append(tokens[start : start + length])
    stream = Stream(view)

    bin_starts, bin_lengths = stream.ranges(starts, lengths)

    parts = []
    for start, length in zip(bin_starts, bin_lengths, strict=True):
        parts.append(view.tokens[start : start + length])
    assert stream.tokens == len(tokens)
    assert np.array_equal(np.concatenate(parts), np.concatenate(expected))
