import hashlib
import json
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.token_sources import plan_of, read_tar, source_in_file, write_webdataset
from nanoset_core.errors import ConfigError, FormatError, MissingError, StaleError
from nanoset_core.formats.tars.members import read_member
from nanoset_core.formats.tars.tar import iterate_members
from nanoset_core.loading import shard_reader as reader_module
from nanoset_core.loading.shard_files import iterate_shard, iterate_shards
from nanoset_core.loading.shard_reader import ShardReader

CONTEXTS = 53


def written(folder, tokens, **changes):
    """A folder with a webdataset of so many tokens."""
    source = source_in_file(folder, "web", np.arange(tokens, dtype=np.uint16))
    write_webdataset(plan_of([source], seed=1, **changes), [source], folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(
        tmp_path_factory.mktemp("webdataset"), CONTEXTS * 4, sequence_length=4, samples_per_shard=6
    )


def firsts(contexts):
    return [int(context[0]) for context in contexts]


KEEP = "keep"


def consumers(folder, world_size, workers, patch):
    """One list of samples for each rank's each worker."""
    found = []
    for rank in range(world_size):
        for worker in range(workers):
            patch.setattr(
                reader_module,
                "_torch_worker",
                lambda worker=worker: reader_module._Worker(worker, workers),
            )
            found.append(firsts(ShardReader(folder, rank=rank, world_size=world_size, uneven=KEEP)))
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
            assert [place[sample] for sample in samples] == sorted(
                place[sample] for sample in samples
            )
        assert consumers(folder, world_size, workers, patch) == found
        counts = [
            ShardReader(folder, rank=rank, world_size=world_size, uneven=KEEP).samples
            for rank in range(world_size)
        ]
        assert sum(counts) == CONTEXTS


@settings(max_examples=60, deadline=None)
@given(
    world_size=st.integers(1, 4),
    workers=st.integers(1, 3),
    stops=st.lists(st.integers(0, 20), max_size=6),
    data=st.data(),
)
def test_stopped_and_resumed_anywhere_the_order_is_the_same(
    folder, world_size, workers, stops, data
):
    rank = data.draw(st.integers(0, world_size - 1))
    worker = data.draw(st.integers(0, workers - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            reader_module, "_torch_worker", lambda: reader_module._Worker(worker, workers)
        )
        expected = firsts(ShardReader(folder, rank=rank, world_size=world_size, uneven=KEEP))
        found, state = [], None
        for stop in stops:
            reader = ShardReader(folder, rank=rank, world_size=world_size, uneven=KEEP)
            if state is not None:
                reader.load_state_dict(json.loads(json.dumps(state)))
            taken = [
                int(context[0])
                for _, context in zip(
                    range(min(stop, len(expected) - len(found))), reader, strict=False
                )
            ]
            found += taken
            state = reader.state_dict()
        reader = ShardReader(folder, rank=rank, world_size=world_size, uneven=KEEP)
        if state is not None:
            reader.load_state_dict(state)
        assert found + firsts(reader) == expected


def test_an_iteration_goes_on_and_then_starts_anew(folder):
    order = firsts(iterate_shards(folder))
    reader = ShardReader(folder)
    iterator = iter(reader)
    first = [int(next(iterator)[0]) for _ in range(8)]
    assert (reader.state_dict()["shard"], reader.state_dict()["sample"]) == (1, 2)
    travelled = pickle.loads(pickle.dumps(reader))
    for one in (reader, travelled):
        assert first + firsts(one) == order
        assert firsts(one) == order


def test_states_of_others_are_refused(folder, tmp_path, monkeypatch):
    state = ShardReader(folder, rank=1, world_size=2, uneven=KEEP).state_dict()
    for rank, world_size in ((0, 2), (0, 1), (1, 3)):
        with pytest.raises(StaleError, match="another reader"):
            ShardReader(folder, rank=rank, world_size=world_size, uneven=KEEP).load_state_dict(
                state
            )
    rows = (folder / "manifest.jsonl").read_text().splitlines()
    (tmp_path / "manifest.jsonl").write_text("\n".join(rows[:-1]) + "\n")
    with pytest.raises(StaleError, match="another reader"):
        ShardReader(tmp_path, rank=1, world_size=2, uneven=KEEP).load_state_dict(state)
    monkeypatch.setattr(reader_module, "_torch_worker", lambda: reader_module._Worker(0, 2))
    reader = ShardReader(folder)
    next(iter(reader))
    state = reader.state_dict()
    monkeypatch.setattr(reader_module, "_torch_worker", lambda: reader_module._Worker(1, 2))
    resumed = ShardReader(folder)
    resumed.load_state_dict(state)
    with pytest.raises(StaleError, match=r"worker 0 of 2"):
        next(iter(resumed))


def test_with_an_end_token_samples_come_with_boundaries_of_documents(folder):
    context = next(iter(ShardReader(folder)))
    reader = ShardReader(folder, eod_token=int(context[1]))
    sample = next(iter(reader))
    assert sample["tokens"].tolist() == context[:-1].tolist()
    assert sample["labels"].tolist() == context[1:].tolist()
    assert sample["cu_seqlens"].tolist() == [0, 2, 3, 3]
    assert reader.state_dict()["sample"] == 1


def test_ranks_and_folders_that_are_none(folder, tmp_path):
    for rank, world_size in ((1, 1), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match="no such rank"):
            ShardReader(folder, rank=rank, world_size=world_size, uneven=KEEP)
    with pytest.raises(MissingError, match="no manifest"):
        ShardReader(tmp_path)


@pytest.mark.parametrize(
    ("tars", "ranks", "uneven", "counts"),
    [
        (2, 4, "raise", "2 tars for 4 ranks: 0 to 6 samples a rank|more tars"),
        (2, 4, "drop", "0 to 6|fewer ranks"),
        (2, 4, "keep", [6, 3, 0, 0]),
        (2, 2, "raise", "3 to 6 samples a rank|uneven='drop'"),
        (2, 2, "drop", [3, 3]),
        (2, 2, "repeat", [6, 6]),
        (7, 3, "drop", [12, 12, 12]),
        (7, 3, "repeat", [15, 15, 15]),
        (7, 1, "raise", [39]),
        (4, 2, "keep", [12, 9]),
    ],
)
def test_ranks_of_different_numbers_are_refused_or_made_even(tmp_path, tars, ranks, uneven, counts):
    contexts = 6 * tars - 3
    folder = written(tmp_path, contexts * 4, sequence_length=4, samples_per_shard=6)
    if isinstance(counts, str):
        with pytest.raises(ConfigError, match="different numbers") as caught:
            ShardReader(folder, world_size=ranks, uneven=uneven)
        assert all(word in str(caught.value) for word in counts.split("|"))
        return
    readers = [
        ShardReader(folder, rank=rank, world_size=ranks, uneven=uneven) for rank in range(ranks)
    ]
    found = [firsts(reader) for reader in readers]
    assert [reader.samples for reader in readers] == list(map(len, found)) == counts
    own = [
        firsts(ShardReader(folder, rank=rank, world_size=ranks, uneven="keep"))
        for rank in range(ranks)
    ]
    for taken, whole in zip(found, own, strict=True):
        assert taken == (whole + whole)[: len(taken)]
    for reader, taken in zip(readers, found, strict=True):
        first = [int(context[0]) for _, context in zip(range(len(taken) // 2), reader)]  # noqa: B905
        resumed = ShardReader(folder, rank=reader.rank, world_size=ranks, uneven=uneven)
        resumed.load_state_dict(reader.state_dict())
        assert first + firsts(resumed) == taken


TORCH = """
import torch
from torch.utils.data import DataLoader, IterableDataset
from nanoset_core.loading.shard_reader import ShardReader

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


def digest_in_order(contexts):
    digest = hashlib.sha256()
    for context in contexts:
        digest.update(context.astype("<i8").tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("name", ["tokshuf_like", "ray_like", "npy"])
def test_golden_shards_hold_what_their_readers_saw(golden_tars, name):
    facts, contexts = json.loads((golden_tars / f"{name}.read.json").read_text())["tar"], []
    for shard in sorted((golden_tars / name).glob("*.tar")):
        data = shard.read_bytes()
        members = (
            one
            for one in iterate_members(data, shard)
            if name != "npy" or one.name.endswith(".npy")
        )
        contexts += [read_member(data, member, shard) for member in members]
    assert {row.dtype for row in contexts} == {np.dtype(np.uint16 if name == "npy" else np.int64)}
    assert (len(contexts), sum(map(len, contexts))) == (facts["contexts"], facts["tokens"])
    assert digest_in_order(contexts) == facts["sha256_in_order"]
    if name == "tokshuf_like":  # whose manifest has no final newline
        assert not (golden_tars / name / "manifest.jsonl").read_text().endswith("\n")
        assert digest_in_order(iterate_shards(golden_tars / name)) == facts["sha256_in_order"]


@pytest.fixture
def dataset(tmp_path):
    return written(tmp_path, 100)


def test_shards_that_are_not_whole(dataset, golden_tars):
    path = dataset / "shard-00000001.tar"
    data = path.read_bytes()
    for kept in (0, 1, 511, 600, 1024, 5000, 10239):
        path.write_bytes(data[:kept])
        for read in (lambda: read_tar(path), lambda: list(iterate_shards(dataset))):
            with pytest.raises(FormatError, match=r"shard-00000001\.tar, offset"):
                read()
    path.write_bytes(data[:2048] + bytes(10240 - 2048))
    with pytest.raises(FormatError, match="2 contexts"):
        list(iterate_shards(dataset))
    path.write_bytes(bytes(10240))
    assert list(iterate_shard(path)) == []
    path.unlink()
    with pytest.raises(MissingError, match="shard-00000001"):
        list(iterate_shards(dataset))
    with pytest.raises(
        FormatError, match="does not contain the tokens"
    ):  # a .json beside each .npy
        list(iterate_shard(golden_tars / "npy" / "shard-000000.tar"))


ROWS = [
    "",
    "[]",
    "{",
    '{"shard": "a"}',
    '{"shard": 1, "num_sequences": 2}',
    '{"shard": "../x", "num_sequences": 1}',
]


@pytest.mark.parametrize("line", ROWS)
def test_a_manifest_with_a_bad_row(dataset, line):
    path = dataset / "manifest.jsonl"
    rows = path.read_text().splitlines()
    path.write_text("\n".join([rows[0], line, *rows[1:]]) + "\n")
    with pytest.raises(FormatError, match=r"manifest\.jsonl, line 2"):
        list(iterate_shards(dataset))


def test_reading_and_writing_import_no_more_than_they_need(dataset):
    code = (
        "import sys; from nanoset_core.loading.shard_files import iterate_shards; "
        "import nanoset_core.stages.webdataset.writing; "
        f"n = sum(1 for _ in iterate_shards({str(dataset)!r})); "
        "print(n, sorted({'webdataset', 'torch', 'isal', 'pyarrow', 'dagster'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1) == ["10", "[]\n"]
