"""Whatever reads a view reads what it would read of the same documents written out."""

from pathlib import Path

import numpy as np

from helpers.building import make_derived_pbin
from helpers.inspecting import current_dataset, read_dataset
from helpers.views import copy_tokens
from nanoset_core.formats.indexed.stream import Stream
from nanoset_core.stages.pbin.conversion import write_dataset_as_pbin
from nanoset_core.stages.webdataset.gathering import gather
from nanoset_core.stages.webdataset.plan import plan_shuffle
from nanoset_core.stages.webdataset.plan_settings import PlanSettings
from nanoset_core.stages.webdataset.sources import TokenSource


def test_tars_and_packs_of_a_view_are_those_of_the_same_documents_written_out(project, tmp_path):
    view = Path(read_dataset(project, "some").prefix)
    whole = copy_tokens(project, "some", tmp_path)
    for name, prefix in (("view", view), ("whole", whole)):
        write_dataset_as_pbin(prefix, tmp_path / f"{name}.pbin", end_token=5)
    assert (tmp_path / "view.pbin").read_bytes() == (tmp_path / "whole.pbin").read_bytes()
    pbin = make_derived_pbin(project, "some")
    assert pbin.facts["tokens"] == current_dataset(project, "some").facts["tokens"]
    code = TokenSource.of_dataset("code", Path(read_dataset(project, "code").prefix))
    for settings in (
        {"tail": "drop", "sequence_length": 33},
        {"tail": "pad", "pad_id": 1, "sequence_length": 100},
        {"tail": "carry", "sequence_length": 77},
        {"tail": "drop", "sequence_length": 7, "bos_id": 2},
    ):
        rows = []
        for prefix in (view, whole):
            sources = [TokenSource.of_dataset("some", prefix), code]
            plan = plan_shuffle(sources, PlanSettings(**settings))
            rows.append(
                gather(
                    sources, plan.table, np.random.default_rng(0).permutation(plan.table.contexts)
                )
            )
        assert np.array_equal(*rows), settings


def test_ranges_of_a_stream_are_those_of_a_loop(project):
    view = read_dataset(project, "some")
    tokens = np.concatenate(view[0 : len(view)])
    stream, rng = Stream(view), np.random.default_rng(1)
    assert stream.tokens == len(tokens)
    starts = rng.integers(0, len(tokens), 200)
    lengths = np.minimum(rng.integers(0, 300, 200), len(tokens) - starts)
    begins, counts = stream.ranges(starts, lengths)
    found = np.concatenate([view.tokens[b : b + c] for b, c in zip(begins, counts, strict=True)])
    assert np.array_equal(
        found, np.concatenate([tokens[s : s + n] for s, n in zip(starts, lengths, strict=True)])
    )
