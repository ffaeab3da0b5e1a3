"""Index files have the bytes and names of the trainer's, and are never stale or incomplete."""

from __future__ import annotations

import hashlib
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from helpers.sample_pairs import GROWING, write_pair
from nanoset_core.errors import MissingError, SampleIndexError, StaleError
from nanoset_core.loading.blended_nanoset import open_split
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling import cache
from nanoset_core.sampling.cache import blend_set, cache_dir_of, member_set
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import build_blend_indices
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.planned import SplitPlan

N_DOCUMENTS = 40
"""Documents of each dataset."""


@pytest.fixture
def config(tmp_path):
    """The settings of a blend of two datasets, a and b."""
    first = write_pair(tmp_path / "a", GROWING[:N_DOCUMENTS])
    second = write_pair(tmp_path / "b", GROWING[:N_DOCUMENTS], start=100)
    return NanosetConfig(
        {first: 2.0, second: 1.0}, sequence_length=8, split="1,0,0", train_split_samples=90
    )


@pytest.fixture
def folder(tmp_path):
    """The folder of index files, which does not exist before they are written."""
    return tmp_path / "cache"


def with_settings(config, **changes):
    """Return a configuration with some settings changed."""
    return NanosetConfig.from_json(config.to_json() | changes)


def single_dataset(config, preset="megatron"):
    """Return the settings of the first dataset alone."""
    prefix = next(iter(config.data_path))
    return NanosetConfig(prefix, sequence_length=8, split="1,0,0", preset=preset)


def sha256_of(data):
    """Return the digest of some bytes."""
    return hashlib.sha256(data).hexdigest()


class WrittenFiles(NamedTuple):
    """The index files of a blend."""

    plan: SplitPlan
    """The plan of train."""
    digests: dict[str, str]
    """Name of each file → its sha256, as it is reported."""


def write_all(config, folder):
    """Write the index files of the train split, and return what is reported of them."""
    plan = plan_split(config, "train")
    digests = blend_set(plan, plan.blend, folder).write()
    for member in plan.members:
        digests |= member_set(member, config, folder).write()
    return WrittenFiles(plan, digests)


class FileState(NamedTuple):
    """What shows whether a file was written again."""

    inode: int
    modified: int
    data: bytes


def states_of_files(folder: Path) -> dict[str, FileState]:
    """Return the state of each file in a folder, by its name."""
    states = {}
    for path in folder.iterdir():
        stat = path.stat()
        states[path.name] = FileState(stat.st_ino, stat.st_mtime_ns, path.read_bytes())
    return states


# Writing


@pytest.mark.parametrize("preset", ["megatron", "nemo", "nanotron"])
def test_the_files_and_digests_that_are_reported_are_written(config, folder, preset):
    plan, digests = write_all(with_settings(config, preset=preset), folder)

    states = states_of_files(folder)
    receipts = {plan.blend.receipt_name, *(member.receipt_name for member in plan.members)}
    assert set(states) == set(digests) | receipts
    assert {name: sha256_of(states[name].data) for name in digests} == digests


@pytest.mark.parametrize("preset", ["megatron", "nemo", "nanotron"])
def test_complete_files_are_not_written_again(config, folder, preset):
    config = with_settings(config, preset=preset)
    first = write_all(config, folder)
    states = states_of_files(folder)

    second = write_all(config, folder)

    assert second.digests == first.digests
    assert states_of_files(folder) == states


@pytest.mark.parametrize("part", ["document_index", "sample_index", "shuffle_index"])
def test_the_bytes_are_those_of_numpy_save(config, folder, part):
    plan, _ = write_all(config, folder)
    data = (folder / plan.members[0].files[part]).read_bytes()

    saved = io.BytesIO()
    np.save(saved, np.load(io.BytesIO(data)))

    assert data == saved.getvalue()


def test_the_description_is_written_after_the_arrays_and_the_receipt_is_completed_last(
    config, folder, monkeypatch
):
    """A trainer takes files for complete as soon as there is a description."""
    written_names = []
    original_replace = os.replace

    def note_and_replace(source, target):
        written_names.append(os.path.basename(target))
        original_replace(source, target)

    monkeypatch.setattr(os, "replace", note_and_replace)
    member = plan_split(config, "train").members[0]

    member_set(member, config, folder).write()

    arrays = member.cache_files[:3]
    description = member.files["description"]
    assert written_names == [member.receipt_name, *arrays, description, member.receipt_name]


def test_a_receipt_says_what_its_files_were_made_from(config, folder, tmp_path):
    plan, digests = write_all(config, folder)
    member = plan.members[0]

    receipt = json.loads((folder / member.receipt_name).read_bytes())

    idx_sha256 = sha256_of((tmp_path / "a.idx").read_bytes())
    assert member.idx_sha256 == idx_sha256
    assert receipt["made_from"]["idx_sha256"] == idx_sha256
    noted_digests = {name: entry["sha256"] for name, entry in receipt["files"].items()}
    assert noted_digests.items() <= digests.items()


@pytest.mark.parametrize(
    ("preset", "folder_name"),
    [
        ("megatron", "a/cache/GPTDataset_indices"),
        ("nanotron", "a/cache/Nanoset_indices"),
        ("nemo", ""),
    ],
)
def test_without_a_cache_folder_files_are_where_the_trainer_puts_them(
    config, tmp_path, preset, folder_name
):
    config = single_dataset(config, preset)
    member = plan_split(config, "train").members[0]

    assert cache_dir_of(member, config) == tmp_path / folder_name


# Files that are damaged or stale


def remove(path):
    """Remove a file."""
    path.unlink()


def cut_off(path):
    """Remove the last byte of a file."""
    path.write_bytes(path.read_bytes()[:-1])


def change_last_byte(path):
    """Change the last byte of a file."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "part", ["document_index", "sample_index", "shuffle_index", "description", "receipt"]
)
@pytest.mark.parametrize("damage", [remove, cut_off, change_last_byte])
def test_a_damaged_file_is_rebuilt(config, folder, part, damage):
    plan, digests = write_all(config, folder)
    member = plan.members[0]
    names = {**member.files, "receipt": member.receipt_name}
    path = folder / names[part]
    data = path.read_bytes()
    damage(path)

    rebuilt_digests = member_set(member, config, folder).write()

    assert rebuilt_digests.items() <= digests.items()
    assert path.read_bytes() == data


def assert_same_samples(split, expected):
    """Check that a split has the samples of another one; both may be None."""
    if expected is None:
        assert split is None
    else:
        samples = split.batch(range(len(split)))
        np.testing.assert_array_equal(samples, expected.batch(range(len(expected))))


VALID_ONLY = {"split": "0,1,0", "valid_split_samples": 90}


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({"preset": "megatron"}, {"random_seed": 5}),
        ({"preset": "megatron"}, {"train_split_samples": 200}),
        ({"preset": "megatron"}, {"add_extra_token": False}),
        (
            {"preset": "megatron"} | VALID_ONLY,
            {"drop_last_partial_validation_sequence": False} | VALID_ONLY,
        ),
        ({"preset": "nanotron"}, {"random_seed": 5}),
        ({"preset": "nanotron"}, {"train_split_samples": 200}),
    ],
    ids=str,
)
def test_files_of_other_settings_are_not_used_although_the_names_are_equal(
    config, tmp_path, folder, settings, change
):
    before = config.to_json() | settings
    changed = before | change

    for number, values in enumerate([before, changed, before]):
        in_one_folder = NanosetConfig.from_json(values | {"path_to_cache": str(folder)})
        alone = NanosetConfig.from_json(values | {"path_to_cache": str(tmp_path / f"{number}")})
        splits = NanosetBuilder(in_one_folder).build()
        expected_splits = NanosetBuilder(alone).build()
        for split, expected in zip(splits, expected_splits, strict=True):
            assert_same_samples(split, expected)


def test_files_that_a_receipt_describes_in_another_form_are_no_match(config, folder):
    """The form of another version: a setting that was null is not in the receipt at all."""
    config = single_dataset(config)
    member = plan_split(config, "train").members[0]
    files = member_set(member, config, folder)
    files.write()
    path = folder / member.receipt_name
    receipt = json.loads(path.read_bytes())
    assert files.describe_mismatch("files", path.read_bytes()) is None

    made_from = receipt["made_from"]
    receipt["made_from"] = {name: value for name, value in made_from.items() if value is not None}
    assert receipt["made_from"] != made_from

    mismatch = files.describe_mismatch("files", json.dumps(receipt).encode())
    assert mismatch == "files, made by a version of nanoset that records settings in another form"
    assert not files.file_entries_in(json.dumps(receipt).encode())


@pytest.mark.parametrize("preset", ["megatron", "nanotron", "nemo"])
def test_data_that_grew_are_not_read_by_an_old_index(config, tmp_path, folder, preset):
    config = with_settings(config, preset=preset, path_to_cache=str(folder))
    opened_before, _, _ = NanosetBuilder(config).build()
    file_name = opened_before.datasets[0].cache_files[0]
    write_pair(tmp_path / "a", GROWING[: 4 * N_DOCUMENTS])

    opened_after, _, _ = NanosetBuilder(config).build()

    assert (folder / file_name).exists()  # the name did not change
    assert opened_after.datasets[0].document_index.max() == 4 * N_DOCUMENTS - 1
    # An open reader keeps the file that it opened.
    assert opened_before.datasets[0].document_index.max() == N_DOCUMENTS - 1


def test_data_that_changed_between_plan_and_build_are_noticed(config, tmp_path, folder):
    member = plan_split(config, "train").members[0]
    write_pair(tmp_path / "a", GROWING[: N_DOCUMENTS + 1])

    with pytest.raises(StaleError, match="plan again"):
        member_set(member, config, folder).write()


# Processes that stop, or write at the same time


@pytest.mark.parametrize("preset", ["megatron", "nemo"])
def test_a_stop_while_files_are_replaced_leaves_no_set_that_a_trainer_takes(
    config, tmp_path, folder, preset, monkeypatch
):
    config = with_settings(config, preset=preset)
    plan, _ = write_all(config, folder)
    write_pair(tmp_path / "a", GROWING[: 4 * N_DOCUMENTS])
    member = plan_split(config, "train").members[0]
    assert member.files == plan.members[0].files
    original_replace = os.replace

    def stop_at_sample_index(source, target):
        if os.path.basename(target) == member.files["sample_index"]:
            raise KeyboardInterrupt
        original_replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop_at_sample_index)
        with pytest.raises(KeyboardInterrupt):
            member_set(member, config, folder).write()
    assert not all((folder / name).exists() for name in member.cache_files)

    member_set(member, config, folder).write()

    assert all((folder / name).exists() for name in member.cache_files)


def test_files_that_another_process_completed_meanwhile_stay(config, folder, monkeypatch):
    """They are not removed for a moment: the other process may be about to read their sizes."""
    member = plan_split(config, "train").members[0]
    states_of_other_process = {}
    original_build = cache.build_member_indices

    def build_after_other_process(member, *arguments, **options):
        indices = original_build(member, *arguments, **options)
        monkeypatch.setattr(cache, "build_member_indices", original_build)
        member_set(member, config, folder).write()
        states_of_other_process.update(states_of_files(folder))
        return indices

    monkeypatch.setattr(cache, "build_member_indices", build_after_other_process)

    digests = member_set(member, config, folder).write()

    states = states_of_files(folder)
    assert states_of_other_process
    assert states == states_of_other_process
    assert {name: sha256_of(states[name].data) for name in digests} == digests


# Opening


def test_complete_files_are_opened(config, folder):
    plan, _ = write_all(config, folder)

    assert len(open_split(plan, config, folder)) == 90


def test_a_file_of_another_shape_is_not_opened(config, folder):
    plan, _ = write_all(config, folder)
    np.save(folder / plan.members[1].files["shuffle_index"], np.arange(3, dtype=np.uint32))

    with pytest.raises(StaleError, match="shape"):
        open_split(plan, config, folder)


def test_a_file_of_something_else_is_not_opened(config, folder):
    plan, _ = write_all(config, folder)
    (folder / plan.members[1].files["shuffle_index"]).write_bytes(b"nonsense")

    with pytest.raises(StaleError, match="not an index file"):
        open_split(plan, config, folder)


def test_a_missing_file_is_reported(config, folder):
    plan, _ = write_all(config, folder)
    (folder / plan.members[1].files["shuffle_index"]).unlink()

    with pytest.raises(MissingError, match="index file"):
        open_split(plan, config, folder)


# Blends


def test_a_blend_that_takes_more_samples_than_a_dataset_has_is_refused(config):
    plan = plan_split(config, "train")
    first, second = plan.members
    short_plan = replace(plan, members=(first, replace(second, samples_given=29)))

    with pytest.raises(SampleIndexError, match="raise surplus") as caught:
        build_blend_indices(short_plan)

    assert caught.value.found == "more than 29"


def test_a_single_dataset_has_no_blend(config):
    plan = plan_split(single_dataset(config), "train")

    assert plan.blend is None
    with pytest.raises(SampleIndexError, match="plain dataset"):
        build_blend_indices(plan)
