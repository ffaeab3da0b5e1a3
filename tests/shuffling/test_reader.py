import json
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_sources import plan_of, stored, write_webdataset

from nanoset_core.errors import ConfigError, MissingError, StaleError
from nanoset_core.shuffling import ShardReader, iterate_shards
from nanoset_core.shuffling import reader as reader_module

CONTEXTS = 53


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("webdataset")
    source = stored(made, "web", np.arange(CONTEXTS * 4, dtype=np.uint16))
    write_webdataset(plan_of([source], sequence_length=4, samples_per_shard=6, seed=1), [source], made)
    return made


def firsts(contexts):
    return [int(context[0]) for context in contexts]


def consumers(folder, world_size, workers, patch):
    """One list of samples for each rank's each worker."""
    found = []
    for rank in range(world_size):
        for worker in range(workers):
            patch.setattr(reader_module, "_torch_worker", lambda worker=worker: (worker, workers))
            found.append(firsts(ShardReader(folder, rank=rank, world_size=world_size)))
    return found


@settings(max_examples=40, deadline=None)
@given(world_size=st.integers(1, 12), workers=st.integers(1, 5))
def test_every_sample_once_for_any_ranks_and_workers(folder, world_size, workers):
    order = firsts(iterate_shards(folder))
    with pytest.MonkeyPatch.context() as patch:
        found = consumers(folder, world_size, workers, patch)
        assert sorted(sample for samples in found for sample in samples) == sorted(order)
        place = {sample: number for number, sample in enumerate(order)}
        for samples in found:
            assert [place[sample] for sample in samples] == sorted(place[sample] for sample in samples)
        assert consumers(folder, world_size, workers, patch) == found
        counts = [ShardReader(folder, rank=rank, world_size=world_size).samples for rank in range(world_size)]
        assert sum(counts) == CONTEXTS


@settings(max_examples=60, deadline=None)
@given(
    world_size=st.integers(1, 4),
    workers=st.integers(1, 3),
    stops=st.lists(st.integers(0, 20), max_size=6),
    data=st.data(),
)
def test_stopped_and_resumed_anywhere_the_order_is_the_same(folder, world_size, workers, stops, data):
    rank = data.draw(st.integers(0, world_size - 1))
    worker = data.draw(st.integers(0, workers - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "_torch_worker", lambda: (worker, workers))
        expected = firsts(ShardReader(folder, rank=rank, world_size=world_size))
        found, state = [], None
        for stop in stops:
            reader = ShardReader(folder, rank=rank, world_size=world_size)
            if state is not None:
                reader.load_state_dict(json.loads(json.dumps(state)))
            taken = [int(context[0]) for _, context in zip(range(min(stop, len(expected) - len(found))), reader)]  # noqa: B905
            found += taken
            state = reader.state_dict()
        reader = ShardReader(folder, rank=rank, world_size=world_size)
        if state is not None:
            reader.load_state_dict(state)
        assert found + firsts(reader) == expected


def test_an_iteration_goes_on_and_then_starts_anew(folder):
    order = firsts(iterate_shards(folder))
    reader = ShardReader(folder)
    iterator = iter(reader)
    first = [int(next(iterator)[0]) for _ in range(8)]
    assert (reader.state_dict()["shard"], reader.state_dict()["sample"]) == (1, 2)
    assert first + firsts(reader) == order
    assert firsts(reader) == order


def test_the_end_of_an_epoch_is_a_state_too(folder):
    reader = ShardReader(folder)
    iterator = iter(reader)
    for _ in range(CONTEXTS):
        next(iterator)
    resumed = ShardReader(folder)
    resumed.load_state_dict(reader.state_dict())
    assert firsts(resumed) == []
    assert len(firsts(resumed)) == CONTEXTS


def test_a_reader_travels(folder):
    reader = ShardReader(folder)
    iterator = iter(reader)
    taken = [int(next(iterator)[0]) for _ in range(5)]
    assert taken + firsts(pickle.loads(pickle.dumps(reader))) == firsts(iterate_shards(folder))


def test_states_of_others_are_refused(folder, tmp_path, monkeypatch):
    state = ShardReader(folder, rank=1, world_size=2).state_dict()
    for rank, world_size in ((0, 2), (0, 1), (1, 3)):
        with pytest.raises(StaleError, match="another reader"):
            ShardReader(folder, rank=rank, world_size=world_size).load_state_dict(state)
    rows = (folder / "manifest.jsonl").read_text().splitlines()
    (tmp_path / "manifest.jsonl").write_text("\n".join(rows[:-1]) + "\n")
    with pytest.raises(StaleError, match="another reader"):
        ShardReader(tmp_path, rank=1, world_size=2).load_state_dict(state)
    monkeypatch.setattr(reader_module, "_torch_worker", lambda: (0, 2))
    reader = ShardReader(folder)
    next(iter(reader))
    state = reader.state_dict()
    monkeypatch.setattr(reader_module, "_torch_worker", lambda: (1, 2))
    resumed = ShardReader(folder)
    resumed.load_state_dict(state)
    with pytest.raises(StaleError, match=r"worker 0 of 2"):
        next(iter(resumed))


def test_ranks_and_folders_that_are_none(folder, tmp_path):
    for rank, world_size in ((1, 1), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match="no such rank"):
            ShardReader(folder, rank=rank, world_size=world_size)
    with pytest.raises(MissingError, match="no manifest"):
        ShardReader(tmp_path)


TORCH = """
import torch
from torch.utils.data import DataLoader, IterableDataset
from nanoset_core.shuffling import PlanSettings, ShardReader

if __name__ == "__main__":
    reader = ShardReader(FOLDER)
    assert isinstance(reader, IterableDataset)
    alone = [int(tokens[0]) for tokens in DataLoader(reader, batch_size=None)]
    loader = DataLoader(reader, batch_size=4, num_workers=2)
    together = [int(token) for batch in loader for token in batch[:, 0]]
    again = [int(token) for batch in loader for token in batch[:, 0]]
    print(alone, sorted(together) == sorted(alone), together == again, len(set(together)))
"""


def test_torch_takes_it_for_an_iterable_dataset(folder, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TORCH).replace("FOLDER", repr(str(folder))))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{firsts(iterate_shards(folder))} True True {CONTEXTS}"
