"""Where index files go, who builds them, and index files and plans that lead nowhere: an error of
ours.
"""

import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from helpers.building import output_root
from helpers.records import plain
from nanoset_core import MMapIndexedDatasetBuilder, NanosetConfig
from nanoset_core.errors import ConfigError, FormatError, MissingError, StaleError
from nanoset_core.loading.blended_nanoset import open_split
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.plan_file import PLAN_FILE, StoredSplit, read_split
from nanoset_core.outputs.manifest import Recipe, Written
from nanoset_core.sampling.plan import plan_split


@pytest.fixture
def prefix(tmp_path):
    with MMapIndexedDatasetBuilder(tmp_path / "d", np.uint16) as builder:
        for _ in range(30):
            builder.add_document(np.arange(25))
    return str(tmp_path / "d")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_blends_need_a_cache_folder_to_be_kept(tmp_path, prefix):
    config = NanosetConfig({prefix: 1.0}, sequence_length=8, split="1,0,0", train_split_samples=20)
    train, _, _ = NanosetBuilder(config).build()
    assert train.cache_dir is None
    assert not [
        name for name in names(tmp_path / "d" / "cache" / "GPTDataset_indices") if "Blended" in name
    ]
    assert len(train) == 20


def test_a_folder_that_cannot_be_written_is_no_hindrance(tmp_path, prefix):
    (tmp_path / "file").write_text("")
    config = NanosetConfig(
        prefix, sequence_length=8, split="1,0,0", path_to_cache=str(tmp_path / "file" / "cache")
    )
    train, _, _ = NanosetBuilder(config).build()
    assert isinstance(train, Nanoset)
    assert train.cache_dir is None
    assert train.batch([0]).shape == (1, 9)


def test_nothing_is_written_when_one_split_cannot_be(tmp_path, prefix):
    folder = tmp_path / "cache"
    config = NanosetConfig(
        prefix, sequence_length=8, split="999,0,1", test_split_samples=5, path_to_cache=str(folder)
    )
    with pytest.raises(ConfigError, match="never return"):
        NanosetBuilder(config).build()
    assert not folder.exists()


def test_one_process_builds_and_others_wait(tmp_path, prefix):
    config = NanosetConfig(
        {prefix: 1.0},
        sequence_length=8,
        split="8,2,0",
        train_split_samples=30,
        valid_split_samples=5,
        path_to_cache=str(tmp_path / "cache"),
    )
    timer = threading.Timer(0.2, lambda: NanosetBuilder(config).build())
    timer.start()
    train, valid, test = NanosetBuilder(config).wait(timeout_seconds=20, poll_seconds=0.01)
    timer.join()
    assert (len(train), len(valid), test) == (30, 5, None)
    with pytest.raises(MissingError, match="within 0 s"):
        NanosetBuilder(NanosetConfig.from_json(config.to_json() | {"random_seed": 2})).wait(0.0)
    with pytest.raises(ConfigError, match="shared cache folder"):
        NanosetBuilder(NanosetConfig(prefix, sequence_length=8)).wait(0.0)


def test_processes_that_build_at_once_end_with_one_whole_set(tmp_path, prefix):
    config = NanosetConfig(
        prefix, sequence_length=8, split="1,1,1", path_to_cache=str(tmp_path / "cache")
    )
    results, errors = [], []

    def build():
        try:
            results.append(
                [split.batch(range(len(split))) for split in NanosetBuilder(config).build()]
            )
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=build) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for result in results:
        for ours, first in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(ours, first)
    assert len(names(tmp_path / "cache")) == 15


def test_building_opening_and_reading_need_numpy_alone(tmp_path, prefix):
    heavy = (
        "torch",
        "pyarrow",
        "dagster",
        "tokenizers",
        "orjson",
        "yaml",
        "fsspec",
        "click",
        "rich",
    )
    code = f"""
import sys
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.loading.samplers import PretrainingSampler
config = NanosetConfig({{{prefix!r}: 1.0}}, sequence_length=8, split="1,0,0", train_split_samples=60,
                       path_to_cache={str(tmp_path / "cache")!r}, create_attention_mask=True)
train, _, _ = NanosetBuilder(config).build()
again, _, _ = NanosetBuilder(config).wait(0.0)
for batch in PretrainingSampler(len(again), 0, 4, 0, 1):
    assert (again.batch(batch)[0, :-1] == train[batch[0]]["tokens"]).all()
print([name for name in {heavy} if name in sys.modules])
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    "preset", ["megatron", "megatron-0.10", "nemo", "nanotron", "nanotron-000"]
)
def test_pickled_splits_are_the_same_and_small_where_files_are_kept(
    tmp_path, prefix, preset, cached
):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "cache" if cached else tmp_path / "file" / "none"
    config = NanosetConfig(
        {prefix: 1.0},
        sequence_length=8,
        split="1,0,0",
        train_split_samples=5000,
        preset=preset,
        path_to_cache=str(folder),
    )
    train, _, _ = NanosetBuilder(config).build()
    data = pickle.dumps(train)
    assert (len(data) < 10_000) == cached
    again = pickle.loads(data)
    assert len(again) == len(train)
    np.testing.assert_array_equal(again.batch([0, 7, -1]), train.batch([0, 7, len(train) - 1]))


def test_negative_samples_of_a_nemo_blend_are_masked(tmp_path, prefix):
    config = NanosetConfig(
        {prefix: 1.0}, sequence_length=8, split="1,0,0", train_split_samples=50, preset="nemo"
    )
    train, _, _ = NanosetBuilder(config).build()
    assert not train[-1]["loss_mask"].any()
    assert train[len(train) - 1]["loss_mask"].all()


@pytest.mark.parametrize(
    ("dtype", "largest"), [(np.uint16, 65535), (np.int32, 65535), (np.int32, 65536)]
)
def test_the_type_of_tokens_is_read_from_the_idx_whatever_the_vocabulary(tmp_path, dtype, largest):
    with MMapIndexedDatasetBuilder(tmp_path / "v", dtype) as builder:
        builder.add_document(np.arange(largest - 40, largest + 1))
    train, _, _ = NanosetBuilder(
        NanosetConfig(tmp_path / "v", sequence_length=40, split="1,0,0")
    ).build()
    np.testing.assert_array_equal(train.tokens(0), np.arange(largest - 40, largest + 1))


def configured(folder):
    for name, first in (("a", 0), ("b", 5000)):
        (folder / "datasets").mkdir(exist_ok=True)
        with MMapIndexedDatasetBuilder(folder / "datasets" / name, np.uint16) as builder:
            builder.add_documents(np.arange(first, first + 900), [30] * 30, [1] * 30)
    blend = {str(folder / "datasets" / name): 1.0 for name in ("a", "b")}
    return NanosetConfig(
        blend,
        sequence_length=9,
        split="1,0,0",
        train_split_samples=60,
        path_to_cache=str(folder / "c"),
    )


def damaged(folder, part, change):
    """A split whose one index file was changed."""
    train, _, _ = NanosetBuilder(configured(folder)).build()
    member = train.datasets[0].member
    names = member.files if part in member.files else train.plan.blend.files
    path = folder / "c" / names[part]
    array = np.load(path)
    change(array)
    path.unlink()  # it is mapped
    np.save(path, array)
    return open_split(train.plan, train.config, folder / "c")


def put(value, *place):
    def change(array):
        array[place] = value

    return change


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("document_index", put(10_000)),
        ("document_index", put(-1)),
        ("sample_index", put(-1, slice(None), 0)),
        ("sample_index", put(1 << 30, slice(None), 0)),
        ("sample_index", put(-5, slice(None), 1)),
        (
            "sample_index",
            lambda array: array.sort(axis=0) or array.__setitem__(slice(None), array[::-1].copy()),
        ),
        ("shuffle_index", put(1 << 20)),
        ("dataset_index", put(7)),
        ("dataset_index", put(-1)),
        ("dataset_sample_index", put(-3)),
        ("dataset_sample_index", put(1 << 40)),
    ],
)
def test_numbers_that_lead_nowhere(tmp_path, part, change):
    split = damaged(tmp_path, part, change)
    with pytest.raises((StaleError, IndexError)) as one:
        for index in range(len(split)):
            split.tokens(index)
    with pytest.raises((StaleError, IndexError)) as many:
        split.batch(range(len(split)))
    for caught in (one, many):
        assert type(caught.value).__module__ == "nanoset_core.errors"
        assert str(tmp_path) in str(caught.value)


def stored_split(folder):
    config = configured(folder)
    plan = plan_split(config, "train")
    return StoredSplit.of(folder, plan, config)


def test_a_plan_is_read_back(tmp_path):
    plan, config = stored_split(tmp_path).below(tmp_path)
    assert [Path(member.prefix).parent for member in plan.members] == [tmp_path / "datasets"] * 2
    assert list(config.data_path) == [member.prefix for member in plan.members]


def test_plans_stay_below_the_root(tmp_path):
    (tmp_path / "root").mkdir()
    value = plain(stored_split(tmp_path / "root"))
    outputs = output_root(tmp_path / "root")
    hostile = {
        "up": ("prefix", "../datasets/a"),
        "absolute": ("prefix", "/etc/passwd"),
        "number": ("prefix", 7),
        "sidecar": ("sidecar", "../../x.json"),
        "files": ("files", value["plan"]["members"][0]["files"] | {"shuffle_index": "/etc/passwd"}),
        "missing": ("files", {}),
        "rows": ("rows", [1]),
        "text": ("samples_built", "9"),
    }
    for name, (key, text) in hostile.items():
        forged = json.loads(json.dumps(value))
        forged["plan"]["members"][0][key] = text

        def write(folder, forged=forged):
            (folder / PLAN_FILE).write_text(json.dumps(forged))
            return Written({})

        manifest = outputs.commit(Recipe("nanosets", name, 1), write)
        with pytest.raises(FormatError, match="not as it was written") as caught:
            read_split(manifest, outputs.folder)
        assert caught.value.where == str(manifest.path(PLAN_FILE))
