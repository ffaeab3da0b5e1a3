"""Nanosets equal the trainers' own datasets, which were recorded: samples, hashes and index files.

The records are in tests/golden/megatron (arrays that Megatron-LM built, one file per case) and in
tests/golden/trainers (digests of what several trainers built, from random settings).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from golden.megatron.cases import FOLDER, SPLITS, arrays, cases, config_of, name_of
from golden.trainers.cases import CASES, array_parts, digest, samples_digest, write_datasets

from nanoset_core.errors import ConfigError
from nanoset_core.loading.blended_nanoset import BlendedNanoset
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling.config import NanosetConfig


def trainer_files(folder: Path) -> list[Path]:
    """Return the files of a cache folder that a trainer reads, without our own receipts."""
    return [path for path in folder.iterdir() if not path.name.endswith("nanoset.json")]


# Arrays that Megatron-LM and nanotron built

MEGATRON_BUILDS = cases("gpt", "blend", "blend_per_split", "nanotron")
WITH_CACHE = [case for case in MEGATRON_BUILDS if "cache_dir" in case["params"]]
"""Cases whose index files are recorded, too."""
BLENDS_OF_TWO = [case for case in MEGATRON_BUILDS if "D2" in case["name"]]


class Build(NamedTuple):
    """The datasets of a case as we build them."""

    case: dict[str, Any]
    splits: list[Any]
    """Datasets of train, valid and test."""
    cache: Path
    """The folder of their index files."""


@pytest.fixture(scope="module")
def build(request, tmp_path_factory):
    """The datasets of a case."""
    case = request.param
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(FOLDER)  # paths of datasets are relative, since they are part of hashes
        splits = NanosetBuilder(config_of(case, cache)).build()
    return Build(case, splits, cache)


def assert_recorded_dataset(dataset, facts, recorded_arrays, prefix):
    """Check that a dataset is a recorded one.

    Args:
        dataset: Our dataset.
        facts: Its recorded length, description and hash, and those of the datasets that it blends.
        recorded_arrays: Arrays by name, for example "train.d0.shuffle_index".
        prefix: Start of the names of the dataset's arrays, for example "train.d0.".
    """
    assert len(dataset) == facts["len"]
    assert dataset.unique_description == facts["description"]
    assert dataset.unique_description_hash == facts["hash"]

    for key in recorded_arrays.files:
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or "." in name:
            continue  # an array of another dataset
        expected = recorded_arrays[key]
        if name == "samples":
            assert_first_samples(dataset, expected)
        else:
            index_array = getattr(dataset, name)
            np.testing.assert_array_equal(index_array, expected)
            assert index_array.dtype == expected.dtype

    for number, member_facts in enumerate(facts.get("datasets", [])):
        member_prefix = f"{prefix}d{number}."
        assert_recorded_dataset(
            dataset.datasets[number], member_facts, recorded_arrays, member_prefix
        )


def assert_first_samples(dataset, expected):
    """Check the tokens of a dataset's first samples, read in a batch and one by one."""
    indices = np.arange(len(expected))
    np.testing.assert_array_equal(dataset.batch(indices), expected)
    np.testing.assert_array_equal([dataset.tokens(index) for index in indices], expected)


@pytest.mark.parametrize("build", MEGATRON_BUILDS, ids=name_of, indirect=True)
def test_splits_have_the_arrays_samples_and_hashes_of_the_trainer(build):
    recorded_arrays = arrays(build.case)
    for split, dataset in zip(SPLITS, build.splits, strict=True):
        facts = build.case["meta"][split]
        if facts is None:
            assert dataset is None
        else:
            assert_recorded_dataset(dataset, facts, recorded_arrays, f"{split}.")


@pytest.mark.parametrize("build", MEGATRON_BUILDS, ids=name_of, indirect=True)
def test_index_files_have_the_names_that_the_trainer_gives_them(build):
    names = {path.name for path in trainer_files(build.cache)}

    assert names == set(build.case["meta"]["cache_files"])


@pytest.mark.parametrize("build", WITH_CACHE, ids=name_of, indirect=True)
def test_index_files_have_the_bytes_that_the_trainer_writes(build):
    recorded_files = list((FOLDER / build.case["params"]["cache_dir"]).iterdir())

    assert recorded_files
    for recorded_file in recorded_files:
        assert (build.cache / recorded_file.name).read_bytes() == recorded_file.read_bytes()


@pytest.mark.parametrize("build", BLENDS_OF_TWO, ids=name_of, indirect=True)
def test_a_blend_has_its_datasets_and_names_its_index_files(build):
    datasets = [dataset for dataset in build.splits if dataset is not None]

    assert datasets
    for dataset in datasets:
        assert isinstance(dataset, BlendedNanoset)
        assert len(dataset.datasets) == 2
        for file in [*dataset.cache_files, *dataset.datasets[0].cache_files]:
            assert (build.cache / file).is_file()


@pytest.mark.parametrize("case", cases("gpt_error", "blend_error"), ids=name_of)
def test_settings_with_which_the_trainer_fails_or_hangs_are_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(FOLDER)

    with pytest.raises(ConfigError, match="expected:"):
        NanosetBuilder(config_of(case, tmp_path)).build()


@pytest.mark.parametrize("case", cases("getitem"), ids=name_of)
def test_samples_have_the_masks_and_positions_of_the_trainer(case, monkeypatch, tmp_path):
    monkeypatch.chdir(FOLDER)
    params = case["params"]
    config = NanosetConfig(
        params["prefix"],
        split=params["split"],
        sequence_length=params["seq_len"],
        random_seed=params["seed"],
        train_split_samples=params["sizes"][0],
        eod_token=params["eod"],
        reset_position_ids=params["reset_position_ids"],
        reset_attention_mask=params["reset_attention_mask"],
        eod_mask_loss=params["eod_mask_loss"],
        create_attention_mask=params["create_attention_mask"],
        path_to_cache=str(tmp_path),
    )

    train, _, _ = NanosetBuilder(config).build()

    recorded_arrays = arrays(case)
    for index in params["ks"]:
        recorded_keys = [key for key in recorded_arrays.files if key.startswith(f"{index}.")]
        sample = train[index]
        assert {f"{index}.{key}" for key in sample} == set(recorded_keys)
        for key, value in sample.items():
            assert_recorded_value(key, value, recorded_arrays[f"{index}.{key}"])


def assert_recorded_value(key, value, expected):
    """Check an entry of a sample; attention masks are recorded as bits."""
    if key == "attention_mask":
        assert value.dtype == bool
        assert value.shape == (1, 64, 64)
        value = np.packbits(value)
    np.testing.assert_array_equal(value, expected)
    assert value.dtype == expected.dtype


# Digests of what several trainers built


def is_split_at_spaces(case):
    """Return whether only spaces separate the shares of a split.

    Trainers accept that, and we refuse it.
    """
    split = case["config"].get("split", "")
    return " " in split and "," not in split


BUILT_BY_TRAINER = [case for case in CASES if "splits" in case]
TRAINER_BUILDS = [case for case in BUILT_BY_TRAINER if not is_split_at_spaces(case)]
SPLIT_AT_SPACES = [case for case in BUILT_BY_TRAINER if is_split_at_spaces(case)]
REFUSED_BY_TRAINER = [case for case in CASES if "refused" in case]


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """An empty working folder: paths of datasets are relative, since they are part of hashes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def build_splits(case, folder):
    """Write the datasets of a case, and build ours with index files in `cache`."""
    write_datasets(case, folder)
    return NanosetBuilder(NanosetConfig(**case["config"], path_to_cache="cache")).build()


def facts_of(dataset, recorded_facts):
    """Return the facts of our dataset that are recorded of the trainer's, as they are recorded."""
    facts = {"len": len(dataset)}
    if "hash" in recorded_facts:
        facts["hash"] = dataset.unique_description_hash
    array_digests = {}
    for name in recorded_facts["arrays"]:
        array_digests[name] = digest(array_parts(getattr(dataset, name)))
    facts["arrays"] = array_digests

    is_blended = isinstance(dataset, BlendedNanoset)
    facts["samples"] = samples_digest(dataset, dataset.config.preset, blended=is_blended)
    if is_blended:
        member_facts = []
        members = zip(dataset.datasets, recorded_facts["datasets"], strict=True)
        for member, recorded_member_facts in members:
            member_facts.append(facts_of(member, recorded_member_facts))
        facts["datasets"] = member_facts
    return facts


@pytest.mark.parametrize("case", TRAINER_BUILDS, ids=name_of)
def test_datasets_and_index_files_have_the_digests_of_the_trainer(case, in_folder):
    splits = build_splits(case, in_folder)

    for dataset, recorded_facts in zip(splits, case["splits"], strict=True):
        if recorded_facts is None:
            assert dataset is None
        else:
            assert facts_of(dataset, recorded_facts) == recorded_facts

    digest_by_file = {}
    for path in trainer_files(in_folder / "cache"):
        # NeMo stores no index files of blends; ours have this mark.
        if case["config"]["preset"] == "nemo" and "Blendable" in path.name:
            continue
        digest_by_file[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    assert digest_by_file == case["files"]


@pytest.mark.parametrize("case", SPLIT_AT_SPACES, ids=name_of)
def test_a_split_at_spaces_is_refused_since_arguments_lose_them(case, in_folder):
    with pytest.raises(ConfigError, match="the split is not three shares"):
        build_splits(case, in_folder)


@pytest.mark.parametrize("case", REFUSED_BY_TRAINER, ids=name_of)
def test_settings_that_the_trainer_refuses_are_refused_before_anything_is_written(case, in_folder):
    with pytest.raises(ConfigError, match="expected:"):
        build_splits(case, in_folder)

    assert not (in_folder / "cache").exists()
