"""Every golden dataset and blend, from configuration to samples, description, hash and cache file
names.
"""

import hashlib

import numpy as np
import pytest
from golden.megatron.cases import FOLDER, SPLITS, arrays, cases, config_of, name_of
from golden.trainers.cases import CASES, array_parts, digest, samples_digest, write_datasets
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError
from nanoset_core.loading.blended_nanoset import BlendedNanoset
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.loading.samples import SampleForm
from nanoset_core.sampling.config import NanosetConfig

BUILT = cases("gpt", "blend", "blend_per_split", "nanotron")


@pytest.fixture(autouse=True)
def in_golden_folder(monkeypatch):
    monkeypatch.chdir(FOLDER)


def assert_same(dataset, meta, arrays, prefix):
    assert len(dataset) == meta["len"]
    assert dataset.unique_description == meta["description"]
    assert dataset.unique_description_hash == meta["hash"]
    for key in arrays.files:
        part = key.removeprefix(prefix)
        if not key.startswith(prefix) or "." in part:
            continue
        if part == "samples":
            rows = np.arange(len(arrays[key]))
            np.testing.assert_array_equal(dataset.batch(rows), arrays[key])
            np.testing.assert_array_equal([dataset.tokens(k) for k in rows], arrays[key])
        else:
            np.testing.assert_array_equal(getattr(dataset, part), arrays[key])
            assert getattr(dataset, part).dtype == arrays[key].dtype
    for number, member in enumerate(meta.get("datasets", [])):
        assert_same(dataset.datasets[number], member, arrays, f"{prefix}d{number}.")


def assert_case(case, splits):
    for split, dataset in zip(SPLITS, splits, strict=True):
        meta = case["meta"][split]
        assert (dataset is None) == (meta is None)
        if dataset is not None:
            assert_same(dataset, meta, arrays(case), f"{split}.")


@pytest.mark.parametrize("case", BUILT, ids=name_of)
def test_case(case, tmp_path):
    assert_case(case, NanosetBuilder(config_of(case, tmp_path)).build())
    written = {path.name for path in tmp_path.iterdir() if not path.name.endswith("nanoset.json")}
    assert written == set(case["meta"]["cache_files"])
    if "cache_dir" in case["params"]:
        for path in (FOLDER / case["params"]["cache_dir"]).iterdir():
            assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("case", cases("gpt_error", "blend_error"), ids=name_of)
def test_what_the_peer_refuses_or_hangs_on_is_an_error(case, tmp_path):
    with pytest.raises(ConfigError, match="expected:"):
        NanosetBuilder(config_of(case, tmp_path)).build()


@pytest.mark.parametrize("case", [case for case in BUILT if "D2" in case["name"]], ids=name_of)
def test_blend_attributes(case, tmp_path):
    for dataset in filter(None, NanosetBuilder(config_of(case, tmp_path)).build()):
        assert isinstance(dataset, BlendedNanoset)
        assert len(dataset.datasets) == 2
        for file in dataset.cache_files + dataset.datasets[0].cache_files:
            assert (tmp_path / file).is_file()


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # relative paths are part of hashes
    return tmp_path


def facts(dataset, expected):
    """What is known of the trainer's dataset, of ours."""
    if dataset is None or expected is None:
        return None if dataset is None else "a dataset"
    preset, blended = dataset.config.preset, isinstance(dataset, BlendedNanoset)
    found = {"len": len(dataset)}
    if "hash" in expected:
        found["hash"] = dataset.unique_description_hash
    found["arrays"] = {
        name: digest(array_parts(getattr(dataset, name))) for name in expected["arrays"]
    }
    found["samples"] = samples_digest(dataset, preset, blended=blended)
    if blended:
        pairs = zip(dataset.datasets, expected["datasets"], strict=True)
        found["datasets"] = [facts(member, theirs) for member, theirs in pairs]
    return found


def is_split_at_spaces(case):
    """Whether only spaces separate the numbers of a split, which trainers accept and we refuse."""
    return " " in case["config"].get("split", "") and "," not in case["config"]["split"]


BUILT = [case for case in CASES if "splits" in case]


@pytest.mark.parametrize(
    "case", [case for case in BUILT if is_split_at_spaces(case)], ids=lambda case: case["name"]
)
def test_a_split_at_spaces_is_refused_since_arguments_lose_them(case, in_folder):
    write_datasets(case, in_folder)
    with pytest.raises(ConfigError, match="the split is not three shares"):
        NanosetBuilder(NanosetConfig(**case["config"], path_to_cache="cache")).build()


@pytest.mark.parametrize(
    "case", [case for case in BUILT if not is_split_at_spaces(case)], ids=lambda case: case["name"]
)
def test_the_same_as_the_trainer(case, in_folder):
    write_datasets(case, in_folder)
    config = NanosetConfig(**case["config"], path_to_cache="cache")
    splits = NanosetBuilder(config).build()
    for split, expected in zip(splits, case["splits"], strict=True):
        assert facts(split, expected) == expected
    ours = ("Blendable",) if config.preset == "nemo" else ()  # NeMo keeps no blends
    written = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in (in_folder / "cache").iterdir()
        if not path.name.endswith("nanoset.json") and not any(mark in path.name for mark in ours)
    }
    assert written == case["files"]


@pytest.mark.parametrize(
    "case", [case for case in CASES if "refused" in case], ids=lambda case: case["name"]
)
def test_an_error_where_the_trainer_fails(case, in_folder):
    write_datasets(case, in_folder)
    with pytest.raises(ConfigError, match="expected:"):
        NanosetBuilder(NanosetConfig(**case["config"], path_to_cache="cache")).build()
    assert not (in_folder / "cache").exists()


def options(case):
    params = case["params"]
    flags = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    return {
        "data_path": params["prefix"],
        "split": params["split"],
        "sequence_length": params["seq_len"],
        "random_seed": params["seed"],
        "train_split_samples": params["sizes"][0],
        "eod_token": params["eod"],
        **{flag: params[flag] for flag in flags},
    }


@pytest.mark.parametrize("case", cases("getitem"), ids=name_of)
def test_golden(case, monkeypatch, tmp_path):
    monkeypatch.chdir(FOLDER)
    train, _, _ = NanosetBuilder(
        NanosetConfig(**options(case), path_to_cache=str(tmp_path))
    ).build()
    golden = arrays(case)
    for asked in case["params"]["ks"]:
        sample = train[asked]
        keys = {key.split(".")[1] for key in golden.files if key.startswith(f"{asked}.")}
        assert set(sample) == keys
        for key, value in sample.items():
            expected = golden[f"{asked}.{key}"]
            if key == "attention_mask":
                assert value.dtype == bool
                assert value.shape == (1, 64, 64)
                value = np.packbits(value)
            np.testing.assert_array_equal(value, expected)
            assert value.dtype == expected.dtype


def slow_masks(tokens, eod, reset_positions, reset_attention, mask_eod):
    """As Megatron-LM's `_get_ltor_masks_and_position_ids`, one end of document after the other."""
    count = len(tokens)
    attention = np.tril(np.ones((count, count)))
    loss = np.where(tokens == eod, 0.0, 1.0) if mask_eod else np.ones(count)
    positions = np.arange(count)
    previous = 0
    for i in np.flatnonzero(tokens == eod):
        if reset_attention:
            attention[i + 1 :, : i + 1] = 0
        if reset_positions:
            positions[i + 1 :] -= i + 1 - previous
            previous = i + 1
    return attention < 0.5, loss, positions


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 4), min_size=2, max_size=20),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    extra=st.booleans(),
)
def test_masks_are_the_slow_ones(tokens, flags, extra):
    text = np.array(tokens, dtype=np.int64)
    names = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
    config = NanosetConfig(
        "d",
        sequence_length=len(tokens) - extra,
        add_extra_token=extra,
        eod_token=1,
        pad_token=3,
        create_attention_mask=True,
        **dict(zip(names, flags, strict=True)),
    )
    sample = SampleForm(config).sample(text.copy(), 0)
    inputs = text[:-1] if extra else text
    labels = text[1:] if extra else np.append(text[1:], 3)
    attention, loss, positions = slow_masks(inputs, 1, *flags)
    np.testing.assert_array_equal(sample["attention_mask"][0], attention)
    np.testing.assert_array_equal(sample["loss_mask"], np.where(labels == 3, 0, loss))
    np.testing.assert_array_equal(sample["position_ids"], positions)
    np.testing.assert_array_equal(sample["tokens"], np.where(inputs == 3, 0, inputs))
    np.testing.assert_array_equal(sample["labels"], np.where(labels == 3, 0, labels))


def test_padding_of_one_sample_does_not_reach_the_next():
    form = SampleForm(NanosetConfig("d", sequence_length=4))
    padded = form.sample(np.array([5, 6, -1, -1, -1]), 0)
    assert padded["loss_mask"].tolist() == [1, 0, 0, 0]
    assert padded["tokens"].tolist() == [5, 6, 0, 0]
    assert form.sample(np.arange(5), 1)["loss_mask"].tolist() == [1, 1, 1, 1]


def test_tokens_and_labels_are_apart():
    sample = SampleForm(NanosetConfig("d", sequence_length=4)).sample(np.arange(5), 0)
    sample["tokens"][:] = 9
    assert sample["labels"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("pad", [None, 3, 70000])
@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
def test_narrow_tokens_give_the_same_sample(pad, extra, dtype):
    form = SampleForm(NanosetConfig("d", sequence_length=5, pad_token=pad, add_extra_token=extra))
    for tokens in ([1, 3, 2, 3, 5, 3], [1, 2, 4, 5, 6, 7]):
        wide = np.array(tokens[: 5 + extra], np.int64)
        narrow, given = form.sample(wide.astype(dtype), 0), form.sample(wide, 0)
        for key, value in given.items():
            assert narrow[key].dtype == value.dtype
            np.testing.assert_array_equal(narrow[key], value)
        assert narrow["tokens"].tolist() == [0 if token == pad else token for token in tokens[:5]]


@pytest.mark.parametrize(("preset", "key"), [("nanotron", "input_ids"), ("nanotron-000", "text")])
def test_nanotron_gives_tokens_alone(preset, key):
    form = SampleForm(NanosetConfig({"d": 1}, sequence_length=4, preset=preset))
    sample = form.sample(np.arange(5), 0)
    assert list(sample) == [key]
    assert sample[key].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("preset", "index", "loss"), [("megatron", None, 0), ("megatron", -2, 1), ("nemo", -2, 0)]
)
def test_the_loss_of_padding_samples_is_masked(preset, index, loss):
    form = SampleForm(NanosetConfig("d", sequence_length=4, preset=preset, pad_token=7))
    assert form.pad == (-1 if preset == "nemo" else 7)
    assert form.sample(np.arange(5), index)["loss_mask"].tolist() == [loss] * 4
    assert form.sample(np.arange(5), 2)["loss_mask"].tolist() == [1] * 4
