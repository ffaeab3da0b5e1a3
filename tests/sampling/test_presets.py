"""The presets: where trainers differ, each is followed to the last bit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from golden.megatron.cases import CASES, FOLDER, arrays, cases, name_of, rows

from helpers.locations import TESTS
from nanoset_core import MMapIndexedDataset
from nanoset_core.errors import ConfigError
from nanoset_core.records.settings import setting
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.descriptions import read_identifiers
from nanoset_core.sampling.indices import build_member_indices
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.presets import PRESETS, get_preset
from nanoset_core.stages.mappings.settings import NanosetSpec


def test_a_nanoset_may_have_any_of_the_presets():
    assert get_args(setting(NanosetSpec, "preset").hint) == tuple(PRESETS)


def test_every_kind_of_recorded_case_is_tested():
    """Each kind is named in a call of `cases` or `rows` in some test module."""
    tested_kinds = set()
    for path in TESTS.rglob("test_*.py"):
        for arguments in re.findall(r"\b(?:cases|rows)\(([^)]*)\)", path.read_text()):
            tested_kinds.update(re.findall(r'"(\w+)"', arguments))

    recorded_kinds = {case["kind"] for case in CASES}
    assert recorded_kinds <= tested_kinds


# Samples of each dataset of a blend: recorded rows of weights, normalised shares and sizes

SIZE_ROWS = rows("size_buffers")
NEMO_SIZE_ROWS = [row for row in SIZE_ROWS if "nemo" in row]


def name_of_row(row):
    """Return the id of a row: its weights and surplus."""
    return f"{row['weights']} {row['surplus']}"


def sizes_of_datasets(preset, shares, sizes, surplus):
    """Return for each dataset the `MemberSizes` in blends of some sizes."""
    sizes_by_dataset = []
    for share in shares:
        sizes_by_dataset.append([preset.member_sizes(size, share, surplus) for size in sizes])
    return sizes_by_dataset


@pytest.mark.parametrize("row", SIZE_ROWS, ids=name_of_row)
def test_megatron_lm_adds_a_surplus_to_each_dataset(row):
    preset = get_preset("megatron")

    shares = preset.normalized(row["weights"])
    sizes_by_dataset = sizes_of_datasets(preset, shares, row["sizes"], row["surplus"])

    expected = row["mcore"]
    assert shares == expected["normalized"]
    for sizes, targets, buffers in zip(
        sizes_by_dataset, expected["target"], expected["buffer"], strict=True
    ):
        assert [size.target for size in sizes] == targets
        assert [size.built for size in sizes] == buffers


@pytest.mark.parametrize("row", NEMO_SIZE_ROWS, ids=name_of_row)
@pytest.mark.parametrize("name", ["nemo", "megatron-0.10", "nanotron-000"])
def test_older_trainers_add_a_fixed_margin_to_each_dataset(row, name):
    preset = get_preset(name)
    expected_shares, expected_sizes = row["nemo"]

    shares = preset.normalized(row["weights"])
    sizes_by_dataset = sizes_of_datasets(preset, shares, row["sizes"], 0.005)

    assert shares == expected_shares
    for sizes, expected in zip(sizes_by_dataset, expected_sizes, strict=True):
        assert [size.built for size in sizes] == expected


@pytest.mark.parametrize(
    ("size", "weight", "target", "built"), [(100, 1 / 3, 33, 33), (1000, 0.4996, 500, 502)]
)
def test_nanotron_rounds_the_samples_of_a_dataset_down(size, weight, target, built):
    sizes = get_preset("nanotron").member_sizes(size, weight, 0.005)

    assert sizes.target == target
    assert sizes.built == built


BLEND_SIZES = {
    "megatron": 101,
    "megatron-0.10": 103,
    "nemo": 103,
    "nanotron": 100,
    "nanotron-000": 103,
    "nanotron-main": 100,
    "nanotron-main-bytes": 100,
}
"""Samples of a blend of two datasets: as requested, or the sum of targets or of margins."""
BLEND_SIZES_PER_SPLIT = BLEND_SIZES | {"nemo": 100}


def size_of_blend(preset, *, per_split):
    """Return the samples of a blend of which 100 are requested."""
    targets = [70, 31]
    with_margins = [71, 32]
    return PRESETS[preset].weighted_size(100, targets, with_margins, per_split=per_split)


def test_every_preset_has_a_size_of_blends():
    assert set(BLEND_SIZES) == set(PRESETS)


@pytest.mark.parametrize(("preset", "size"), BLEND_SIZES.items())
def test_the_size_of_a_blend_is_that_of_the_trainer(preset, size):
    assert size_of_blend(preset, per_split=False) == size


@pytest.mark.parametrize(("preset", "size"), BLEND_SIZES_PER_SPLIT.items())
def test_the_size_of_a_blend_for_one_split_is_that_of_the_trainer(preset, size):
    assert size_of_blend(preset, per_split=True) == size


@pytest.mark.parametrize(
    ("n_requested", "repeats"), [(None, 1), (0, 1), (9, 1), (10, 2), (11, 2), (20, 3)]
)
def test_nanotron_repeats_a_dataset_once_more_than_necessary(n_requested, repeats):
    assert get_preset("nanotron").repeats(n_requested, 10) == repeats


def test_megatron_lm_repeats_no_shuffle_index():
    assert get_preset("megatron").repeats(100, 10) == 1


# How weights are normalised. With these, every way gives other last bits.

WEIGHTS = [0.95, 0.53, 0.42, 0.27, 0.78, 0.47, 0.58, 0.03, 0.63]


def divided_by_numpy_sum(weights):
    """Return weights divided by their sum, as numpy adds them."""
    array = np.array(weights)
    return (array / array.sum()).tolist()


def divided_by_running_sum(weights):
    """Return weights divided by their sum, added from the first to the last."""
    total = 0.0
    for weight in weights:
        total += weight
    return [weight / total for weight in weights]


def test_the_ways_to_normalise_differ_for_these_weights():
    once = divided_by_numpy_sum(WEIGHTS)
    twice = divided_by_numpy_sum(once)
    running = divided_by_running_sum(WEIGHTS)
    running_and_numpy = divided_by_numpy_sum(running)

    distinct = {tuple(once), tuple(twice), tuple(running), tuple(running_and_numpy)}
    assert len(distinct) == 4


def test_nanotron_normalises_weights_once():
    preset = get_preset("nanotron")

    weights = preset.blend_weights(WEIGHTS)

    assert weights == divided_by_numpy_sum(WEIGHTS)


def test_megatron_lm_normalises_weights_twice():
    preset = get_preset("megatron")

    weights = preset.blend_weights(WEIGHTS)

    assert weights == divided_by_numpy_sum(divided_by_numpy_sum(WEIGHTS))


def test_nemo_normalises_weights_by_a_running_sum_and_then_by_numpy():
    preset = get_preset("nemo")

    shares = preset.normalized(WEIGHTS)

    assert shares == divided_by_running_sum(WEIGHTS)
    assert preset.blend_weights(WEIGHTS) == divided_by_numpy_sum(shares)


# NeMo's index files


@pytest.mark.parametrize("case", cases("nemo"), ids=name_of)
def test_the_index_files_of_nemo_have_its_names_and_arrays(case, monkeypatch):
    monkeypatch.chdir(FOLDER)  # paths of datasets are relative
    params = case["params"]
    dataset = MMapIndexedDataset(params["prefix"])
    config = NanosetConfig(
        params["prefix"],
        sequence_length=params["seq_len"],
        random_seed=params["seed"],
        preset="nemo",
        split="1,0,0",
        train_split_samples=params["num_samples"],
        add_extra_token=bool(params["add_extra_token"]),
        shuffle_documents=params["shuffle_documents"],
    )
    member = plan_split(config, "train").members[0]

    base_name = params["prefix"].split("/")[-1]
    pattern = params["cache_name"].replace("<prefix>", base_name).replace("<split>", "train")
    expected_names = []
    for part in ("doc", "sample", "shuffle"):
        expected_names.append(pattern.replace("(doc|sample|shuffle)", part))
    assert list(member.cache_files) == expected_names

    # The recorded arrays leave out the first sequence, which no split does.
    start, stop = params["documents"]
    member = replace(
        member,
        rows=(start, stop),
        tokens=int(dataset.sequence_lengths[start:stop].sum()),
        epochs=params["epochs"],
        separate_last_epoch=params["separate_last_epoch"],
    )
    indices = build_member_indices(member, config, dataset.sequence_lengths)
    recorded_arrays = arrays(case)
    assert_identical_arrays(indices.document_index, recorded_arrays["doc_idx"])
    assert_identical_arrays(indices.sample_index, recorded_arrays["sample_idx"])
    assert_identical_arrays(indices.shuffle_index, recorded_arrays["shuffle_idx"])


def assert_identical_arrays(array, expected):
    """Check the numbers and the type of an array."""
    np.testing.assert_array_equal(array, expected)
    assert array.dtype == expected.dtype


# Options


@pytest.mark.parametrize(
    ("preset", "options", "message"),
    [
        ("nanotron", {"add_extra_token": False}, "add_extra_token"),
        ("nanotron-000", {"add_extra_token": False}, "add_extra_token"),
        ("megatron", {"shuffle_documents": False}, "shuffle_documents"),
        ("nemo", {"surplus": 0.02}, "surplus"),
        ("megatron-0.10", {"surplus": 0.02}, "surplus"),
        ("llama", {}, "unknown preset"),
    ],
)
def test_an_option_that_a_trainer_does_not_have_is_refused(preset, options, message):
    with pytest.raises(ConfigError, match=message):
        NanosetConfig({"d": 1.0}, sequence_length=8, preset=preset, **options)


@pytest.mark.parametrize(
    ("preset", "options", "masked_pad_token"),
    [
        ("megatron", {"pad_token": 7}, 7),
        ("megatron", {}, None),
        ("megatron", {"pad_token": 0}, None),  # as in core 0.16
        ("megatron", {"pad_token": 0, "allow_ambiguous_pad_tokens": True}, 0),
        ("megatron-0.10", {"pad_token": 0}, 0),
        ("nemo", {"pad_token": 7}, None),
        ("nanotron", {"pad_token": 7}, None),
    ],
)
def test_each_trainer_decides_whether_the_pad_token_is_masked(preset, options, masked_pad_token):
    """The end token is 0, so that a pad token of 0 is ambiguous."""
    config = NanosetConfig("d", sequence_length=8, preset=preset, eod_token=0, **options)

    assert config.masked_pad_token == masked_pad_token


# Identifiers of the tokenizer, in the descriptions that Megatron-LM writes

IDENTIFIERS = {"class": "T", "tokenizer_path": ["a"]}
DATASET_DESCRIPTION = {
    "class": "GPTDataset",
    "dataset_path": "/d",
    "num_samples": 5,
    "tokenizer": IDENTIFIERS,
}


@pytest.mark.parametrize(
    "description",
    [
        pytest.param(IDENTIFIERS, id="identifiers"),
        pytest.param(DATASET_DESCRIPTION, id="description of a dataset"),
        pytest.param(
            {"class": "BlendedDataset", "datasets": [DATASET_DESCRIPTION, DATASET_DESCRIPTION]},
            id="description of a blend",
        ),
    ],
)
def test_identifiers_are_read_from_a_file_that_a_trainer_wrote(tmp_path, description):
    path = tmp_path / "description.txt"
    path.write_text(json.dumps(description, indent=4))

    assert read_identifiers(path, "here") == IDENTIFIERS


@pytest.mark.parametrize("text", ["", "[]", "3", '{"datasets": []}', '{"datasets": [3]}'])
def test_a_file_without_identifiers_is_refused(tmp_path, text):
    path = tmp_path / "description.txt"
    path.write_text(text)

    with pytest.raises(ConfigError, match="no tokenizer identifiers") as caught:
        read_identifiers(path, "here")

    assert str(path) in caught.value.found


def test_a_missing_file_of_identifiers_is_refused(tmp_path):
    path = tmp_path / "description.txt"

    with pytest.raises(ConfigError, match="no tokenizer identifiers") as caught:
        read_identifiers(path, "here")

    assert str(path) in caught.value.found
