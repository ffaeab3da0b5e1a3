"""Webdatasets are read as streams: divided among ranks and workers, resumed at any sample."""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.tars import iterate_members
from helpers.token_sources import plan_of, read_tar, source_in_file, write_webdataset
from nanoset_core.errors import ConfigError, FormatError, MissingError, StaleError
from nanoset_core.formats.tars.members import read_member
from nanoset_core.loading import shard_reader as reader_module
from nanoset_core.loading.shard_reader import ShardReader
from nanoset_core.loading.tar_files import iterate_shard, iterate_shards

LENGTH = 4
"""Tokens of a context."""
N_CONTEXTS = 53


def write_tars(folder, n_contexts):
    """Write a webdataset with six contexts in a tar, and return its folder."""
    return write_tokens(folder, n_contexts * LENGTH, sequence_length=LENGTH, samples_per_shard=6)


def write_tokens(folder, n_tokens, **settings):
    """Write a webdataset of the tokens 0, 1, 2, …, and return its folder."""
    source = source_in_file(folder, "web", np.arange(n_tokens, dtype=np.uint16))
    write_webdataset(plan_of([source], seed=1, **settings), [source], folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A webdataset of 53 contexts in nine tars."""
    return write_tars(tmp_path_factory.mktemp("webdataset"), N_CONTEXTS)


def first_tokens(contexts):
    """Return the first token of each context, by which it is known."""
    return [int(context[0]) for context in contexts]


def take(reader, n_contexts):
    """Return the first tokens of the next contexts; the reader remembers its position."""
    return first_tokens(itertools.islice(reader, n_contexts))


@contextmanager
def in_worker(number, n_workers) -> Iterator[None]:
    """Let readers believe that they are in a worker of torch's DataLoader."""
    worker = reader_module._Worker(number, n_workers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "_torch_worker", lambda: worker)
        yield


# Ranks and workers


def read_by_workers(folder, world_size, n_workers):
    """Return what each worker of each rank reads: a list of first tokens for each of them."""
    contexts_of_workers = []
    for rank in range(world_size):
        for worker in range(n_workers):
            with in_worker(worker, n_workers):
                reader = ShardReader(folder, rank=rank, world_size=world_size, uneven="keep")
                contexts_of_workers.append(first_tokens(reader))
    return contexts_of_workers


with_ranks_and_workers = given(world_size=st.integers(1, 12), n_workers=st.integers(1, 5))


@settings(max_examples=40, deadline=None)
@with_ranks_and_workers
def test_ranks_and_workers_read_every_sample_once(folder, world_size, n_workers):
    contexts_of_workers = read_by_workers(folder, world_size, n_workers)

    contexts = itertools.chain.from_iterable(contexts_of_workers)
    assert sorted(contexts) == sorted(first_tokens(iterate_shards(folder)))


@settings(max_examples=40, deadline=None)
@with_ranks_and_workers
def test_each_worker_reads_its_samples_in_the_order_of_the_tars(folder, world_size, n_workers):
    order = first_tokens(iterate_shards(folder))
    position_by_context = {context: position for position, context in enumerate(order)}

    for contexts in read_by_workers(folder, world_size, n_workers):
        positions = [position_by_context[context] for context in contexts]
        assert positions == sorted(positions)


@settings(max_examples=40, deadline=None)
@with_ranks_and_workers
def test_workers_read_the_same_samples_every_time(folder, world_size, n_workers):
    contexts_of_workers = read_by_workers(folder, world_size, n_workers)

    assert read_by_workers(folder, world_size, n_workers) == contexts_of_workers


@settings(max_examples=12, deadline=None)
@given(world_size=st.integers(1, 12))
def test_the_readers_of_all_ranks_have_as_many_samples_as_the_tars(folder, world_size):
    n_samples = 0
    for rank in range(world_size):
        reader = ShardReader(folder, rank=rank, world_size=world_size, uneven="keep")
        n_samples += reader.samples

    assert n_samples == N_CONTEXTS


TORCH_PROGRAM = """
import json
import sys

import torch
from torch.utils.data import DataLoader, IterableDataset
from nanoset_core.loading.shard_reader import ShardReader


def read_by_two_workers(reader):
    loader = DataLoader(reader, batch_size=4, num_workers=2)
    return [int(token) for batch in loader for token in batch[:, 0]]


if __name__ == "__main__":
    reader = ShardReader(sys.argv[1])
    facts = {
        "is_iterable_dataset": isinstance(reader, IterableDataset),
        "one_process": [int(context[0]) for context in DataLoader(reader, batch_size=None)],
        "two_workers": read_by_two_workers(reader),
        "two_workers_again": read_by_two_workers(reader),
    }
    print(json.dumps(facts))
"""


def test_torch_takes_a_reader_for_an_iterable_dataset(folder, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    script = tmp_path / "train.py"
    script.write_text(TORCH_PROGRAM)

    output = subprocess.check_output([sys.executable, str(script), str(folder)], text=True)

    facts = json.loads(output)
    order = first_tokens(iterate_shards(folder))
    assert facts["is_iterable_dataset"]
    assert facts["one_process"] == order
    assert sorted(facts["two_workers"]) == sorted(order)
    assert facts["two_workers_again"] == facts["two_workers"]


@pytest.mark.parametrize(("rank", "world_size"), [(1, 1), (-1, 2), (0, 0), ("0", 1), (0, "1")])
def test_a_rank_outside_its_group_is_refused(folder, rank, world_size):
    with pytest.raises(ConfigError, match="no such rank"):
        ShardReader(folder, rank=rank, world_size=world_size, uneven="keep")


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(MissingError, match="no such file"):
        ShardReader(tmp_path)


def test_with_an_end_token_samples_have_boundaries_of_documents(folder):
    context = next(iter(ShardReader(folder)))
    reader = ShardReader(folder, eod_token=int(context[1]))

    sample = next(iter(reader))

    assert sample["tokens"].tolist() == context[:-1].tolist()
    assert sample["labels"].tolist() == context[1:].tolist()
    assert sample["cu_seqlens"].tolist() == [0, 2, 3, 3]
    assert reader.state_dict()["sample"] == 1


@pytest.mark.parametrize("eod_token", ["0", -1, True])
def test_an_end_token_that_is_not_the_id_of_a_token_is_refused(folder, eod_token):
    with pytest.raises(ConfigError, match="eod_token: not the id of a token"):
        ShardReader(folder, eod_token=eod_token)


# Ranks with different numbers of samples: `uneven`


def write_uneven_tars(folder, n_tars):
    """Write tars of six contexts, the last of which has three."""
    return write_tars(folder, n_contexts=6 * n_tars - 3)


@pytest.mark.parametrize(
    ("n_tars", "world_size", "uneven", "words"),
    [
        (2, 4, "raise", ["2 tars for 4 ranks: 0 to 6 samples a rank", "more tars"]),
        (2, 4, "drop", ["0 to 6", "fewer ranks"]),  # a rank would drop all others' samples
        (2, 2, "raise", ["3 to 6 samples a rank", "uneven='drop'"]),
    ],
)
def test_ranks_with_different_numbers_of_samples_are_refused(
    tmp_path, n_tars, world_size, uneven, words
):
    folder = write_uneven_tars(tmp_path, n_tars)

    with pytest.raises(ConfigError, match="different numbers") as caught:
        ShardReader(folder, world_size=world_size, uneven=uneven)

    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("uneven", ["Drop", "dropp", "", False, 7, None])
def test_another_value_of_uneven_is_refused(folder, uneven):
    with pytest.raises(ConfigError, match="one of 'raise', 'drop', 'repeat', 'keep'"):
        ShardReader(folder, uneven=uneven)


@pytest.mark.parametrize(
    ("n_tars", "uneven", "counts"),
    [
        (2, "keep", [6, 3, 0, 0]),
        (2, "drop", [3, 3]),
        (2, "repeat", [6, 6]),
        (4, "keep", [12, 9]),
        (7, "drop", [12, 12, 12]),
        (7, "repeat", [15, 15, 15]),
        (7, "raise", [39]),
    ],
)
def test_ranks_drop_or_repeat_samples_on_request(tmp_path, n_tars, uneven, counts):
    folder = write_uneven_tars(tmp_path, n_tars)
    world_size = len(counts)
    for rank, count in enumerate(counts):
        reader = ShardReader(folder, rank=rank, world_size=world_size, uneven=uneven)
        contexts = first_tokens(reader)
        assert reader.samples == count
        assert len(contexts) == count

        # Samples are dropped at the end, and repeated from the start.
        every_sample = ShardReader(folder, rank=rank, world_size=world_size, uneven="keep")
        expected = first_tokens(every_sample) * 2
        assert contexts == expected[:count]

        # Such a reader can be stopped and resumed, too.
        first_half = take(reader, count // 2)
        resumed = ShardReader(folder, rank=rank, world_size=world_size, uneven=uneven)
        resumed.load_state_dict(reader.state_dict())
        assert first_half + first_tokens(resumed) == contexts


# States


@given(
    world_size=st.integers(1, 4),
    n_workers=st.integers(1, 3),
    stops=st.lists(st.integers(0, 20), max_size=6),
    data=st.data(),
)
def test_a_reader_that_is_stopped_and_resumed_anywhere_keeps_the_order(
    folder, world_size, n_workers, stops, data
):
    rank = data.draw(st.integers(0, world_size - 1))
    worker = data.draw(st.integers(0, n_workers - 1))

    def new_reader():
        return ShardReader(folder, rank=rank, world_size=world_size, uneven="keep")

    with in_worker(worker, n_workers):
        expected = first_tokens(new_reader())

        contexts = []
        state = new_reader().state_dict()
        for stop in stops:
            reader = new_reader()
            reader.load_state_dict(json.loads(json.dumps(state)))
            n_left = len(expected) - len(contexts)
            contexts += take(reader, min(stop, n_left))
            state = reader.state_dict()
        last_reader = new_reader()
        last_reader.load_state_dict(state)
        contexts += first_tokens(last_reader)

    assert contexts == expected


def test_an_iteration_cannot_be_continued_after_another_has_begun(folder):
    reader = ShardReader(folder)
    first = iter(reader)
    second = iter(reader)
    tokens = [next(first), next(second), next(second)]

    with pytest.raises(StaleError, match="another iteration of this reader has begun"):
        next(first)

    # The second one is not affected.
    tokens += list(second)
    assert first_tokens(tokens) == first_tokens(ShardReader(folder))


def test_an_iteration_that_has_read_everything_does_not_move_the_position_of_another(folder):
    reader = ShardReader(folder)
    first = iter(reader)
    tokens_of_first = [next(first) for _ in range(N_CONTEXTS)]
    assert list(reader) == []  # nothing was left to read; the next iteration starts again
    second = iter(reader)
    tokens_of_second = [next(second)]

    with pytest.raises(StaleError, match="another iteration of this reader has begun"):
        next(first)

    tokens_of_second += list(second)
    assert first_tokens(tokens_of_second) == first_tokens(tokens_of_first)


def test_an_iteration_cannot_be_continued_after_a_state_was_loaded(folder):
    reader = ShardReader(folder)
    iteration = iter(reader)
    next(iteration)
    reader.load_state_dict(reader.state_dict())

    with pytest.raises(StaleError, match="a state was loaded"):
        next(iteration)


def copy_by_pickle(reader):
    """Return a reader that was sent to another process."""
    return pickle.loads(pickle.dumps(reader))


@pytest.mark.parametrize("pass_on", [lambda reader: reader, copy_by_pickle], ids=["same", "pickle"])
def test_an_iteration_continues_where_the_last_one_stopped_and_then_starts_again(folder, pass_on):
    order = first_tokens(iterate_shards(folder))
    stopped = ShardReader(folder)
    first_contexts = take(stopped, 8)
    state = stopped.state_dict()
    assert state["shard"] == 1  # of six samples
    assert state["sample"] == 2

    reader = pass_on(stopped)

    assert first_contexts + first_tokens(reader) == order
    assert first_tokens(reader) == order


@pytest.mark.parametrize(("rank", "world_size"), [(0, 2), (0, 1), (1, 3)])
def test_the_state_of_another_rank_is_refused(folder, rank, world_size):
    state = ShardReader(folder, rank=1, world_size=2, uneven="keep").state_dict()
    reader = ShardReader(folder, rank=rank, world_size=world_size, uneven="keep")

    with pytest.raises(StaleError, match="another reader"):
        reader.load_state_dict(state)


def test_the_state_of_another_webdataset_is_refused(folder, tmp_path):
    state = ShardReader(folder, rank=1, world_size=2, uneven="keep").state_dict()
    rows = (folder / "manifest.jsonl").read_text().splitlines()
    (tmp_path / "manifest.jsonl").write_text("\n".join(rows[:-1]) + "\n")
    reader = ShardReader(tmp_path, rank=1, world_size=2, uneven="keep")

    with pytest.raises(StaleError, match="another reader"):
        reader.load_state_dict(state)


def test_the_state_of_another_worker_is_refused(folder):
    with in_worker(0, 2):
        reader = ShardReader(folder)
        next(iter(reader))
        state = reader.state_dict()
    resumed = ShardReader(folder)
    resumed.load_state_dict(state)

    with in_worker(1, 2), pytest.raises(StaleError, match=r"worker 0 of 2"):
        next(iter(resumed))


@pytest.mark.parametrize("state", [{}, {"epoch": 3}, None])
def test_what_is_not_the_state_of_a_reader_is_refused(folder, state):
    with pytest.raises(ConfigError, match="not the state of a ShardReader"):
        ShardReader(folder).load_state_dict(state)


@pytest.mark.parametrize(
    ("key", "value"),
    [("shard", 99), ("shard", -1), ("sample", -1), ("sample", 7), ("worker", 1), ("workers", 0)],
)
def test_a_position_that_no_reader_has_is_refused(folder, key, value):
    reader = ShardReader(folder)
    state = {**reader.state_dict(), key: value}

    with pytest.raises(ConfigError, match=f"{key}: not a whole number in range"):
        reader.load_state_dict(state)


def test_the_state_after_the_last_sample_can_be_loaded(folder):
    reader = ShardReader(folder)
    take(reader, N_CONTEXTS)
    resumed = ShardReader(folder)

    resumed.load_state_dict(reader.state_dict())

    assert first_tokens(resumed) == []


# Tars by other tools, and what their own readers saw


def digest_in_order(contexts):
    """Return the sha256 of the tokens of contexts as little-endian integers of 64 bits."""
    digest = hashlib.sha256()
    for context in contexts:
        digest.update(context.astype("<i8").tobytes())
    return digest.hexdigest()


def facts_of_reader(golden_tars, name):
    """Return what another tool's reader saw in its tars."""
    facts = json.loads((golden_tars / f"{name}.read.json").read_text())
    return facts["tar"]


@pytest.mark.parametrize(
    ("name", "suffix", "dtype"),
    [
        ("tokshuf_like", "", np.int64),
        ("ray_like", "", np.int64),
        ("npy", ".npy", np.uint16),  # a .json is next to each .npy
    ],
)
def test_tars_by_other_tools_hold_what_their_readers_saw(golden_tars, name, suffix, dtype):
    facts = facts_of_reader(golden_tars, name)

    contexts = []
    for shard in sorted((golden_tars / name).glob("*.tar")):
        data = shard.read_bytes()
        for member in iterate_members(data, shard):
            if member.name.endswith(suffix):
                contexts.append(read_member(data, member, shard))

    assert {context.dtype for context in contexts} == {np.dtype(dtype)}
    assert len(contexts) == facts["contexts"]
    assert sum(len(context) for context in contexts) == facts["tokens"]
    assert digest_in_order(contexts) == facts["sha256_in_order"]


def test_a_manifest_may_end_without_a_newline(golden_tars):
    """tokshuf-rust writes it so."""
    folder = golden_tars / "tokshuf_like"
    assert not (folder / "manifest.jsonl").read_text().endswith("\n")

    digest = digest_in_order(iterate_shards(folder))

    assert digest == facts_of_reader(golden_tars, "tokshuf_like")["sha256_in_order"]


# Damaged files


@pytest.fixture
def dataset(tmp_path):
    """A webdataset of 100 tokens, ten contexts in three tars, to be damaged."""
    return write_tokens(tmp_path, 100)


@pytest.mark.parametrize("n_bytes", [0, 1, 511, 600, 1024, 5000, 10239])
def test_a_tar_that_was_cut_off_is_refused(dataset, n_bytes):
    tar = dataset / "shard-00000001.tar"
    tar.write_bytes(tar.read_bytes()[:n_bytes])

    with pytest.raises(FormatError, match=r"shard-00000001\.tar, offset"):
        read_tar(tar)
    with pytest.raises(FormatError, match=r"shard-00000001\.tar, offset"):
        list(iterate_shards(dataset))


def test_a_tar_with_fewer_contexts_than_in_the_manifest_is_refused(dataset):
    tar = dataset / "shard-00000001.tar"
    two_contexts = tar.read_bytes()[:2048]
    tar.write_bytes(two_contexts.ljust(10240, b"\0"))

    with pytest.raises(FormatError, match="2 contexts"):
        list(iterate_shards(dataset))


def test_a_tar_without_members_has_no_contexts(dataset):
    tar = dataset / "shard-00000001.tar"
    tar.write_bytes(bytes(10240))

    assert list(iterate_shard(tar)) == []


@pytest.mark.parametrize("name", ["manifest.jsonl", "x.tar"])
@pytest.mark.parametrize("read", [ShardReader, lambda path: list(iterate_shards(path))])
def test_a_file_in_place_of_the_folder_of_tars_is_refused(tmp_path, name, read):
    (tmp_path / name).touch()

    with pytest.raises(MissingError, match="no such file") as caught:
        read(tmp_path / name)
    assert "a folder of tars" in caught.value.expected


def test_a_folder_in_place_of_a_tar_is_refused(tmp_path):
    with pytest.raises(MissingError, match="this is a folder"):
        next(iterate_shard(tmp_path))


@pytest.mark.parametrize("begin", [-1, 1.0])
def test_the_number_of_skipped_samples_is_a_whole_number(tmp_path, begin):
    with pytest.raises(ConfigError, match="begin: not a whole number"):
        next(iterate_shard(tmp_path / "x.tar", begin))


def test_a_missing_tar_is_reported(dataset):
    (dataset / "shard-00000001.tar").unlink()

    with pytest.raises(MissingError, match="shard-00000001"):
        list(iterate_shards(dataset))


def test_a_tar_with_members_that_are_no_tokens_is_refused(golden_tars):
    tar = golden_tars / "npy" / "shard-000000.tar"  # a .json is next to each .npy

    with pytest.raises(FormatError, match="does not contain the tokens"):
        list(iterate_shard(tar))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="a list"),
        pytest.param("{", id="no JSON"),
        pytest.param('{"shard": "a"}', id="no number of samples"),
        pytest.param('{"shard": 1, "num_sequences": 2}', id="a number for a name"),
        pytest.param('{"shard": "../x", "num_sequences": 1}', id="a tar elsewhere"),
    ],
)
def test_a_manifest_with_a_wrong_line_is_refused(dataset, line):
    manifest = dataset / "manifest.jsonl"
    lines = manifest.read_text().splitlines()
    lines.insert(1, line)
    manifest.write_text("\n".join(lines) + "\n")

    with pytest.raises(FormatError, match=r"manifest\.jsonl, line 2"):
        list(iterate_shards(dataset))


@pytest.mark.parametrize("uneven", ["raise", "keep"])
def test_an_empty_manifest_is_refused(dataset, uneven):
    (dataset / "manifest.jsonl").write_text("")

    with pytest.raises(FormatError, match="the manifest of tars is empty"):
        list(iterate_shards(dataset))
    with pytest.raises(FormatError, match="the manifest of tars is empty"):
        ShardReader(dataset, uneven=uneven)


def test_tars_without_samples_are_refused_unless_they_are_kept(dataset):
    row = {"shard": "shard-00000000", "num_sequences": 0}
    (dataset / "manifest.jsonl").write_text(json.dumps(row) + "\n")

    assert ShardReader(dataset, uneven="keep").samples == 0
    with pytest.raises(ConfigError, match="the tars have no samples"):
        ShardReader(dataset)


# Imports

READING_PROGRAM = """
import sys

from nanoset_core.loading.tar_files import iterate_shards
import nanoset_core.stages.webdataset.writing

n_contexts = sum(1 for _ in iterate_shards(sys.argv[1]))
heavy = {"webdataset", "torch", "isal", "pyarrow", "dagster"}
print(n_contexts, sorted(heavy & set(sys.modules)))
"""


def test_reading_and_writing_tars_imports_no_heavy_packages(dataset):
    output = subprocess.check_output(
        [sys.executable, "-c", READING_PROGRAM, str(dataset)], text=True
    )

    assert output == "10 []\n"
