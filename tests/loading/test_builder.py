"""Building the datasets of a nanoset: where index files go, who builds them, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from helpers.building import output_root
from helpers.records import plain
from helpers.sample_pairs import write_pair, write_tokenized
from nanoset_core import MMapIndexedDatasetBuilder, NanosetConfig
from nanoset_core.errors import ConfigError, FormatError, MissingError, StaleError
from nanoset_core.loading.blended_nanoset import open_split
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.plan_file import PLAN_FILE, StoredSplit, read_split
from nanoset_core.outputs.manifest import Recipe, Written
from nanoset_core.sampling.indices import MemberIndices
from nanoset_core.sampling.plan import plan_split


@pytest.fixture
def prefix(tmp_path):
    """The prefix of a dataset of 30 documents, each of which has the tokens 0 to 24."""
    with MMapIndexedDatasetBuilder(tmp_path / "d", np.uint16) as builder:
        for _ in range(30):
            builder.add_document(np.arange(25))
    return str(tmp_path / "d")


def file_names(folder):
    """Return the names of the files in a folder."""
    return sorted(path.name for path in folder.iterdir())


# Where index files go


def test_without_a_cache_folder_the_index_files_of_a_blend_are_not_stored(tmp_path, prefix):
    """Those of its datasets are stored next to the data, as Megatron-LM does."""
    config = NanosetConfig({prefix: 1.0}, sequence_length=8, split="1,0,0", train_split_samples=20)

    train, _, _ = NanosetBuilder(config).build()

    assert len(train) == 20
    assert train.cache_dir is None
    stored = file_names(tmp_path / "d" / "cache" / "GPTDataset_indices")
    assert stored
    assert not any("Blended" in name for name in stored)


@pytest.fixture
def read_only(monkeypatch):
    """Let all folders seem to be read-only, which they never are for root."""
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)


def test_without_a_writable_folder_the_index_arrays_are_in_memory(tmp_path, prefix, read_only):
    config = NanosetConfig(
        prefix, sequence_length=8, split="1,0,0", path_to_cache=str(tmp_path / "cache")
    )

    train, _, _ = NanosetBuilder(config).build()

    assert isinstance(train, Nanoset)
    assert train.cache_dir is None
    assert train.batch([0]).shape == (1, 9)


@pytest.mark.parametrize("is_per_split", [False, True])
def test_datasets_of_different_tokenizers_are_not_mixed(tmp_path, is_per_split):
    write_tokenized(tmp_path / "a", "1" * 64)
    write_tokenized(tmp_path / "b", "2" * 64)
    prefixes = [str(tmp_path / "a"), str(tmp_path / "b")]
    config = NanosetConfig({prefix: 0.5 for prefix in prefixes}, sequence_length=1)
    if is_per_split:
        config = NanosetConfig(sequence_length=1, blend_per_split=[*prefixes, None])

    with pytest.raises(FormatError, match="different tokenizers"):
        NanosetBuilder(config).build()


@pytest.mark.parametrize("name", ["file", "file/cache", "file/a/b"])
def test_a_cache_folder_that_is_a_file_or_below_one_is_refused(tmp_path, prefix, name):
    (tmp_path / "file").touch()
    config = NanosetConfig(prefix, sequence_length=8, path_to_cache=str(tmp_path / name))

    with pytest.raises(ConfigError, match="a file is in the way") as caught:
        NanosetBuilder(config)
    assert caught.value.found == f"{tmp_path / name}: {tmp_path / 'file'} is a file"


def test_an_empty_cache_folder_is_refused(prefix):
    config = NanosetConfig(prefix, sequence_length=8, path_to_cache="")

    with pytest.raises(ConfigError, match="has no name"):
        NanosetBuilder(config)


def test_nothing_is_written_if_one_of_the_splits_is_refused(tmp_path, prefix):
    folder = tmp_path / "cache"
    config = NanosetConfig(
        prefix, sequence_length=8, split="999,0,1", test_split_samples=5, path_to_cache=str(folder)
    )

    with pytest.raises(ConfigError, match="never return"):
        NanosetBuilder(config).build()

    assert not folder.exists()


# Several processes


@pytest.fixture
def blend_config(tmp_path, prefix):
    """Settings of a blend with a cache folder, and with samples of train and valid."""
    return NanosetConfig(
        {prefix: 1.0},
        sequence_length=8,
        split="8,2,0",
        train_split_samples=30,
        valid_split_samples=5,
        path_to_cache=str(tmp_path / "cache"),
    )


def test_a_process_can_wait_for_the_files_that_another_one_builds(blend_config):
    other_process = threading.Timer(0.2, NanosetBuilder(blend_config).build)
    other_process.start()

    train, valid, test = NanosetBuilder(blend_config).wait(timeout_seconds=20, poll_seconds=0.01)
    other_process.join()

    assert len(train) == 30
    assert len(valid) == 5
    assert test is None


def test_a_process_stops_waiting_after_a_time(blend_config):
    with pytest.raises(MissingError, match="within 0 s"):
        NanosetBuilder(blend_config).wait(0.0)


def test_processes_without_a_shared_cache_folder_cannot_wait(prefix):
    with pytest.raises(ConfigError, match="shared cache folder"):
        NanosetBuilder(NanosetConfig(prefix, sequence_length=8)).wait(0.0)


def test_processes_that_build_at_the_same_time_end_with_one_complete_set_of_files(tmp_path, prefix):
    config = NanosetConfig(
        prefix, sequence_length=8, split="1,1,1", path_to_cache=str(tmp_path / "cache")
    )
    batches_of_processes = []
    errors = []

    def build():
        try:
            splits = NanosetBuilder(config).build()
            batches_of_processes.append([split.batch(range(len(split))) for split in splits])
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=build) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert len(batches_of_processes) == 6
    for batches in batches_of_processes:
        for batch, first_batch in zip(batches, batches_of_processes[0], strict=True):
            np.testing.assert_array_equal(batch, first_batch)
    assert len(file_names(tmp_path / "cache")) == 15


# Imports

TRAINING_PROGRAM = """
import sys

from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.loading.samplers import PretrainingSampler
from nanoset_core.sampling.config import NanosetConfig

prefix, cache = sys.argv[1:]
config = NanosetConfig(
    {prefix: 1.0},
    sequence_length=8,
    split="1,0,0",
    train_split_samples=60,
    path_to_cache=cache,
    create_attention_mask=True,
)
train, _, _ = NanosetBuilder(config).build()
opened, _, _ = NanosetBuilder(config).wait(0.0)
for batch in PretrainingSampler(len(opened), 0, 4, 0, 1):
    assert (opened.batch(batch)[0, :-1] == train[batch[0]]["tokens"]).all()

heavy = ["torch", "pyarrow", "dagster", "tokenizers", "orjson", "yaml", "fsspec", "click", "rich"]
print([name for name in heavy if name in sys.modules])
"""


def test_building_opening_and_reading_need_no_package_except_numpy(tmp_path, prefix):
    arguments = [prefix, str(tmp_path / "cache")]

    output = subprocess.check_output(
        [sys.executable, "-c", TRAINING_PROGRAM, *arguments], text=True
    )

    assert output == "[]\n"


# Splits that are sent to other processes


def train_of_preset(prefix, preset, cache):
    """Return the train split of a blend for a trainer."""
    config = NanosetConfig(
        {prefix: 1.0},
        sequence_length=8,
        split="1,0,0",
        train_split_samples=5000,
        preset=preset,
        path_to_cache=str(cache),
    )
    return NanosetBuilder(config).build()[0]


PRESETS = ["megatron", "megatron-0.10", "nemo", "nanotron", "nanotron-000"]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_split_with_index_files_is_pickled_as_paths(tmp_path, prefix, preset):
    train = train_of_preset(prefix, preset, cache=tmp_path / "cache")

    data = pickle.dumps(train)

    assert len(data) < 10_000
    assert_same_samples(pickle.loads(data), train)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_split_without_index_files_is_pickled_with_its_arrays(
    tmp_path, prefix, preset, read_only
):
    train = train_of_preset(prefix, preset, cache=tmp_path / "cannot be created")

    data = pickle.dumps(train)

    assert len(data) >= 10_000
    assert_same_samples(pickle.loads(data), train)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([25] * 29, id="fewer sequences"),
        pytest.param([25] * 29 + [24], id="fewer tokens"),
        pytest.param([20, 30] * 15, id="other lengths"),
    ],
)
@pytest.mark.parametrize("has_weight", [False, True])
def test_a_pickled_split_is_stale_if_its_dataset_was_written_again(
    tmp_path, prefix, has_weight, lengths
):
    config = NanosetConfig(
        {prefix: 1.0} if has_weight else prefix,
        sequence_length=8,
        split="1,0,0",
        train_split_samples=20,
        path_to_cache=str(tmp_path / "cache"),
    )
    train, _, _ = NanosetBuilder(config).build()
    data = pickle.dumps(train)
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        for length in lengths:
            builder.add_document(np.arange(length))

    with pytest.raises(StaleError, match="written again since") as caught:
        pickle.loads(data)
    assert caught.value.where == prefix


def test_pickled_samples_with_arrays_are_stale_if_their_dataset_was_written_again(prefix):
    config = NanosetConfig(prefix, sequence_length=8, split="1,0,0")
    train, _, _ = NanosetBuilder(config).build()
    indices = MemberIndices(train.document_index, train.sample_index, train.shuffle_index)
    data = pickle.dumps(Nanoset(train.dataset, train.member, config, indices))
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        builder.add_document(np.arange(750))

    with pytest.raises(StaleError, match="written again since"):
        pickle.loads(data)


def test_a_pickled_split_can_be_read_if_its_dataset_was_written_again_with_the_same_bytes(
    tmp_path, prefix
):
    train = train_of_preset(prefix, "megatron", cache=tmp_path / "cache")
    data = pickle.dumps(train)
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        for _ in range(30):
            builder.add_document(np.arange(25))

    assert_same_samples(pickle.loads(data), train)


def assert_same_samples(copied, train):
    """Check that a split has the samples of another one, by some of them."""
    assert len(copied) == len(train)
    np.testing.assert_array_equal(copied.batch([0, 7, -1]), train.batch([0, 7, len(train) - 1]))


# Samples


def test_negative_samples_of_a_nemo_blend_are_left_out_of_the_loss(prefix):
    config = NanosetConfig(
        {prefix: 1.0}, sequence_length=8, split="1,0,0", train_split_samples=50, preset="nemo"
    )

    train, _, _ = NanosetBuilder(config).build()

    assert not train[-1]["loss_mask"].any()
    assert train[len(train) - 1]["loss_mask"].all()


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [
        pytest.param(np.uint16, 65535, id="16 bits"),
        pytest.param(np.int32, 65535, id="32 bits, although 16 would do"),
        pytest.param(np.int32, 65536, id="32 bits"),
    ],
)
def test_the_type_of_tokens_is_that_of_the_idx(tmp_path, dtype, largest):
    tokens = np.arange(largest - 40, largest + 1)
    with MMapIndexedDatasetBuilder(tmp_path / "v", dtype) as builder:
        builder.add_document(tokens)

    config = NanosetConfig(tmp_path / "v", sequence_length=40, split="1,0,0")
    train, _, _ = NanosetBuilder(config).build()

    np.testing.assert_array_equal(train.tokens(0), tokens)


# Damaged index files


def config_of_root(root):
    """Write two datasets below a root, and return the settings of their blend."""
    (root / "datasets").mkdir(exist_ok=True)
    first = write_pair(root / "datasets" / "a", [30] * 30)
    second = write_pair(root / "datasets" / "b", [30] * 30, start=5000)
    return NanosetConfig(
        {first: 1.0, second: 1.0},
        sequence_length=9,
        split="1,0,0",
        train_split_samples=60,
        path_to_cache=str(root / "c"),
    )


def open_with_damage(root, array_name, damage):
    """Build a blend, change one of its index files, and open its train split again.

    Args:
        root: An empty folder.
        array_name: Name of the index array that the file has: of the blend, or of its first
            dataset.
        damage: Changes the array in place.
    """
    train, _, _ = NanosetBuilder(config_of_root(root)).build()
    files = train.datasets[0].member.files
    if array_name not in files:
        files = train.plan.blend.files
    path = root / "c" / files[array_name]
    array = np.load(path)
    damage(array)
    path.unlink()  # the old file is mapped, so it must not be changed
    np.save(path, array)
    return open_split(train.plan, train.config, root / "c")


def replace_all(value):
    """Return a function that sets all entries of an array."""

    def damage(array):
        array[:] = value

    return damage


def replace_column(column, value):
    """Return a function that sets a column of an array."""

    def damage(array):
        array[:, column] = value

    return damage


def sort_descending(array):
    """Sort the rows of an array, the largest first."""
    array.sort(axis=0)
    array[:] = array[::-1].copy()


@pytest.mark.parametrize(
    ("array_name", "damage"),
    [
        pytest.param("document_index", replace_all(10_000), id="no such document"),
        pytest.param("document_index", replace_all(-1), id="negative document"),
        pytest.param("sample_index", replace_column(0, -1), id="negative entry"),
        pytest.param("sample_index", replace_column(0, 1 << 30), id="no such entry"),
        pytest.param("sample_index", replace_column(1, -5), id="negative token"),
        pytest.param("sample_index", sort_descending, id="samples that end before they start"),
        pytest.param("shuffle_index", replace_all(1 << 20), id="no such sample"),
        pytest.param("dataset_index", replace_all(7), id="no such dataset"),
        pytest.param("dataset_index", replace_all(-1), id="negative dataset"),
        pytest.param("dataset_sample_index", replace_all(-3), id="negative sample of a dataset"),
        pytest.param("dataset_sample_index", replace_all(1 << 40), id="no such sample of it"),
    ],
)
def test_index_files_with_impossible_numbers_are_reported_by_our_own_errors(
    tmp_path, array_name, damage
):
    split = open_with_damage(tmp_path, array_name, damage)

    with pytest.raises((StaleError, IndexError)) as caught_by_single:
        for index in range(len(split)):
            split.tokens(index)
    with pytest.raises((StaleError, IndexError)) as caught_by_batch:
        split.batch(range(len(split)))

    for caught in (caught_by_single, caught_by_batch):
        assert type(caught.value).__module__ == "nanoset_core.errors"
        assert str(tmp_path) in str(caught.value)


# Plans that are stored in outputs


def stored_split(root):
    """Return what is stored of the train split of a blend of two datasets below a root."""
    config = config_of_root(root)
    return StoredSplit.of(root, plan_split(config, "train"), config)


def test_a_stored_plan_has_the_prefixes_of_its_datasets(tmp_path):
    plan, config = stored_split(tmp_path).below(tmp_path)

    prefixes = [member.prefix for member in plan.members]
    assert [Path(prefix).parent for prefix in prefixes] == [tmp_path / "datasets"] * 2
    assert list(config.data_path) == prefixes


def with_value(key, value):
    """Return a function that changes a value of a dataset in a stored plan."""

    def forge(member):
        member[key] = value

    return forge


def with_absolute_index_file(member):
    """Let an index file of a dataset be a file of the system."""
    member["files"]["shuffle_index"] = "/etc/passwd"


FORGERIES = {
    "prefix above the root": with_value("prefix", "../datasets/a"),
    "absolute prefix": with_value("prefix", "/etc/passwd"),
    "prefix that is a number": with_value("prefix", 7),
    "receipt above the folder": with_value("sidecar", "../../x.json"),
    "absolute index file": with_absolute_index_file,
    "no index files": with_value("files", {}),
    "rows that are no range": with_value("rows", [1]),
    "text in place of a number": with_value("samples_built", "9"),
}
"""Changes of a stored plan, after which it would read other files, or is not a plan."""


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_stored_plan_that_was_forged_is_refused(tmp_path, forge):
    root = tmp_path / "root"
    root.mkdir()
    forged = json.loads(json.dumps(plain(stored_split(root))))
    forge(forged["plan"]["members"][0])

    def write_plan(folder):
        (folder / PLAN_FILE).write_text(json.dumps(forged))
        return Written({})

    outputs = output_root(root)
    manifest = outputs.commit(Recipe("nanosets", "forged", 1), write_plan)

    with pytest.raises(FormatError, match="not as it was written") as caught:
        read_split(manifest, outputs.folder)

    assert caught.value.where == str(manifest.path(PLAN_FILE))


# End-of-document tokens


def test_an_end_token_that_the_dataset_cannot_contain_is_refused(tmp_path, prefix):
    config = NanosetConfig(
        prefix,
        sequence_length=8,
        split="1,0,0",
        path_to_cache=str(tmp_path / "cache"),
        eod_token=99_999,
        eod_mask_loss=True,
    )

    with pytest.raises(ConfigError, match="from 0 to 65535, since the tokens are uint16"):
        NanosetBuilder(config).build()


def test_settings_must_be_a_nanoset_config():
    with pytest.raises(ConfigError, match="not a NanosetConfig"):
        NanosetBuilder({"data_path": "web", "sequence_length": 8})
