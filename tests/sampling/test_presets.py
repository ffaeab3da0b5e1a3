"""The table of differences between trainers."""

import json
import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from golden.megatron.cases import CASES, FOLDER, arrays, cases, name_of, rows

from nanoset_core import MMapIndexedDataset
from nanoset_core.errors import ConfigError
from nanoset_core.records.settings import setting
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.descriptions import read_identifiers
from nanoset_core.sampling.indices import build_member_indices
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.presets import PRESETS, get_preset
from nanoset_core.stages.mappings.settings import NanosetSpec

ROWS = rows("size_buffers")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['weights']} {row['surplus']}")
def test_megatron_sizes(row):
    preset = get_preset("megatron")
    shares = preset.normalized(row["weights"])
    assert shares == row["mcore"]["normalized"]
    sizes = [
        [preset.member_sizes(size, share, row["surplus"]) for size in row["sizes"]]
        for share in shares
    ]
    assert [[target for target, _ in each] for each in sizes] == row["mcore"]["target"]
    assert [[buffer for _, buffer in each] for each in sizes] == row["mcore"]["buffer"]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "nemo" in row], ids=lambda row: f"{row['weights']}"
)
@pytest.mark.parametrize("name", ["nemo", "megatron-0.10", "nanotron-000"])
def test_sizes_with_a_fixed_margin(row, name):
    preset = get_preset(name)
    shares = preset.normalized(row["weights"])
    assert shares == row["nemo"][0]
    assert [
        [preset.member_sizes(size, share, 0.005)[1] for size in row["sizes"]] for share in shares
    ] == row["nemo"][1]


@pytest.mark.parametrize("case", cases("nemo"), ids=name_of)
def test_nemo_arrays_and_names(case, monkeypatch):
    monkeypatch.chdir(FOLDER)
    params, golden = case["params"], arrays(case)
    begin, end = params["documents"]
    dataset = MMapIndexedDataset(params["prefix"])
    tokens = int(dataset.sequence_lengths[begin:end].sum())
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
    whole = plan_split(config, "train").members[0]
    stem = (
        params["cache_name"]
        .replace("<prefix>", params["prefix"].split("/")[-1])
        .replace("<split>", "train")
    )
    expected = [stem.replace("(doc|sample|shuffle)", part) for part in ("doc", "sample", "shuffle")]
    assert list(whole.cache_files) == expected
    # The golden arrays leave out the first sequence, which no split string does.
    changes = {
        "tokens": tokens,
        "epochs": params["epochs"],
        "separate_last_epoch": params["separate_last_epoch"],
    }
    member = replace(whole, rows=(begin, end), **changes)
    built = build_member_indices(member, config, dataset.sequence_lengths)
    for ours, part in (
        (built.document_index, "doc"),
        (built.sample_index, "sample"),
        (built.shuffle_index, "shuffle"),
    ):
        np.testing.assert_array_equal(ours, golden[f"{part}_idx"])
        assert ours.dtype == golden[f"{part}_idx"].dtype


def test_weights_are_normalised_in_the_last_bit_as_each_peer_does():
    weights = [0.95, 0.53, 0.42, 0.27, 0.78, 0.47, 0.58, 0.03, 0.63]  # every way gives other bits
    twice, once = get_preset("megatron"), get_preset("nanotron")
    array = np.array(weights)
    first = array / array.sum()
    assert once.blend_weights(once.normalized(weights)) == first.tolist()
    assert twice.blend_weights(twice.normalized(weights)) == (first / first.sum()).tolist()
    total = 0.0
    for weight in weights:
        total += weight
    summed = [weight / total for weight in weights]
    assert get_preset("nemo").normalized(weights) == summed
    again = np.array(summed) / np.sum(summed)
    assert get_preset("nemo").blend_weights(summed) == again.tolist()
    assert len({tuple(first), tuple(first / first.sum()), tuple(summed), tuple(again)}) == 4


def test_nanotron_sizes_are_rounded_down():
    assert get_preset("nanotron").member_sizes(100, 1 / 3, 0.005) == (33, 33)
    assert get_preset("nanotron").member_sizes(1000, 0.4996, 0.005) == (500, 502)


def test_blend_sizes():
    sizes = {
        (name, per_split): PRESETS[name].weighted_size(100, [70, 31], [71, 32], per_split=per_split)
        for name in PRESETS
        for per_split in (False, True)
    }
    shared = {
        "megatron": 101,
        "megatron-0.10": 103,
        "nemo": 103,
        "nanotron": 100,
        "nanotron-000": 103,
    }
    shared |= {"nanotron-main": 100, "nanotron-main-bytes": 100}
    own = shared | {"nemo": 100}
    assert sizes == {
        (name, per_split): (own if per_split else shared)[name] for name, per_split in sizes
    }


def test_nanotron_repeats_one_more_time_than_it_has_to():
    preset = get_preset("nanotron")
    assert [preset.repeats(asked, 10) for asked in (None, 0, 9, 10, 11, 20)] == [1, 1, 1, 2, 2, 3]
    assert get_preset("megatron").repeats(100, 10) == 1


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
def test_options_that_a_trainer_does_not_have(preset, options, message):
    with pytest.raises(ConfigError, match=message):
        NanosetConfig({"d": 1.0}, sequence_length=8, preset=preset, **options)


@pytest.mark.parametrize(
    ("preset", "options", "masked"),
    [
        ("megatron", {"pad_token": 7}, 7),
        ("megatron", {}, None),
        ("megatron", {"pad_token": 0}, None),  # as core 0.16 has it
        ("megatron", {"pad_token": 0, "allow_ambiguous_pad_tokens": True}, 0),
        ("megatron-0.10", {"pad_token": 0}, 0),
        ("nemo", {"pad_token": 7}, None),
        ("nanotron", {"pad_token": 7}, None),
    ],
)
def test_a_pad_token_that_is_the_end_token_too_is_not_masked(preset, options, masked):
    config = NanosetConfig("d", sequence_length=8, preset=preset, eod_token=0, **options)
    assert config.masked_pad_token == masked


def test_every_kind_of_golden_case_is_tested():
    texts = [path.read_text() for path in (FOLDER.parent.parent).rglob("test_*.py")]
    called = {
        kind
        for text in texts
        for call in re.findall(r"\b(?:cases|rows)\(([^)]*)\)", text)
        for kind in re.findall(r'"(\w+)"', call)
    }
    assert {case["kind"] for case in CASES} <= called


OWN = {"class": "T", "tokenizer_path": ["a"]}


MEMBER = {"class": "GPTDataset", "dataset_path": "/d", "num_samples": 5, "tokenizer": OWN}


@pytest.mark.parametrize(
    "value", [OWN, MEMBER, {"class": "BlendedDataset", "datasets": [MEMBER, MEMBER]}]
)
def test_identifiers_are_read_from_what_a_trainer_wrote(tmp_path, value):
    path = tmp_path / "description.txt"
    path.write_text(json.dumps(value, indent=4))
    assert read_identifiers(path, "here") == OWN


@pytest.mark.parametrize("text", [None, "", "[]", "3", '{"datasets": []}', '{"datasets": [3]}'])
def test_texts_without_identifiers(tmp_path, text):
    path = tmp_path / "description.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="no tokenizer identifiers") as caught:
        read_identifiers(path, "here")
    assert str(path) in caught.value.found


def test_a_nanoset_may_have_any_of_the_presets():
    assert get_args(setting(NanosetSpec, "preset").hint) == tuple(PRESETS)
