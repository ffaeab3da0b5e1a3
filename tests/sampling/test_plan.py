"""Plans say what is built; impossible ones are refused before anything is built."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers.records import through_json
from helpers.sample_pairs import write_pair
from nanoset_core.errors import ConfigError, FormatError, MissingError, SampleIndexError
from nanoset_core.formats.indexed.layout import write_idx
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import build_blend_indices, build_member_indices
from nanoset_core.sampling.plan import largest_epoch_size, plan_split
from nanoset_core.sampling.presets import PRESETS
from nanoset_core.sampling.splits import SPLITS

DATASETS = {"a": [20] * 10, "b": [9] * 10, "c": [5] * 9}
"""Lengths of the documents of three datasets, which have 200, 90 and 45 tokens."""


def write_datasets(folder, lengths_by_name):
    """Write datasets, and return their prefixes."""
    return [write_pair(folder / name, lengths) for name, lengths in lengths_by_name.items()]


@pytest.fixture
def data(tmp_path):
    """The prefixes of the three datasets."""
    return write_datasets(tmp_path, DATASETS)


def equal_weights(prefixes):
    """Return a blend with the same weight for each dataset."""
    return dict.fromkeys(prefixes, 1.0)


def rows_of(config, split):
    """Return which sequences of a single dataset a split has, or None."""
    plan = plan_split(config, split)
    if plan is None:
        return None
    return plan.members[0].rows


# What is planned, is built


def has_no_samples(config, n_tokens, n_requested):
    """Return whether a trainer has no samples under some settings, and may refuse them."""
    is_nanotron_main = config.rules.windows
    is_too_short = n_tokens < config.sequence_length + int(config.add_extra_token)
    if n_tokens == 0:
        return True
    if is_too_short and (config.preset == "nanotron" or is_nanotron_main):
        return True
    if config.preset == "nanotron-000" or is_nanotron_main:
        return n_requested == 0 or (n_requested is None and is_too_short)
    return False


@pytest.mark.parametrize(("split", "shares"), [("train", "1,0,0"), ("valid", "0,1,0")])
@given(
    lengths=st.lists(st.integers(0, 30), min_size=3, max_size=25),
    n_requested=st.one_of(st.none(), st.integers(0, 60)),
    sequence_length=st.integers(1, 12),
    preset=st.sampled_from(sorted(PRESETS)),
    add_extra_token=st.booleans(),
    keeps_partial=st.booleans(),
)
def test_what_is_planned_is_what_is_built(
    tmp_path_factory,
    split,
    shares,
    lengths,
    n_requested,
    sequence_length,
    preset,
    add_extra_token,
    keeps_partial,
):
    rules = PRESETS[preset]
    if split == "valid":
        # nanotron's main has only train, and nanotron reads one epoch of valid.
        assume(not rules.windows)
        assume(preset != "nanotron" or n_requested is None)
    prefix = write_pair(tmp_path_factory.mktemp("plan") / "d", lengths)
    n_tokens = sum(lengths)
    config = NanosetConfig(
        prefix,
        sequence_length=sequence_length,
        preset=preset,
        split=shares,
        add_extra_token=add_extra_token or preset.startswith("nanotron"),
        drop_last_partial_validation_sequence=not keeps_partial,
        **{f"{split}_split_samples": n_requested},
    )
    n_extra = int(config.add_extra_token)
    may_end_in_empty_sequence = keeps_partial and config.add_extra_token and 0 in lengths

    try:
        member = plan_split(config, split).members[0]
    except ConfigError:
        assert has_no_samples(config, n_tokens, n_requested)
        return
    try:
        indices = build_member_indices(member, config, np.array(lengths, dtype=np.int32))
    except ConfigError as refusal:
        if not may_end_in_empty_sequence or "empty sequence" not in refusal.what:
            raise
        return

    assert len(indices.document_index) == member.epochs * len(lengths)
    assert len(indices.sample_index) == member.samples_built + 1
    assert len(indices.shuffle_index) == member.samples_given
    if n_requested is not None and not rules.windows:
        assert member.samples_given >= n_requested
        if member.epochs > 1:
            # One epoch less would not suffice.
            n_tokens_of_fewer = (member.epochs - 1) * n_tokens - n_extra
            assert n_tokens_of_fewer // sequence_length < n_requested


def test_a_blend_is_planned_by_the_weights_of_its_datasets(data):
    config = NanosetConfig(
        dict(zip(data, (5, 3, 2), strict=True)),
        sequence_length=4,
        train_split_samples=100,
        split="1,0,0",
    )

    plan = plan_split(config, "train")

    assert [member.weight for member in plan.members] == [0.5, 0.3, 0.2]
    assert [member.samples_target for member in plan.members] == [50, 30, 20]
    assert [member.samples_requested for member in plan.members] == [51, 31, 21]  # with a surplus
    assert [member.epochs for member in plan.members] == [2, 2, 2]
    assert [member.tokens for member in plan.members] == [200, 90, 45]
    assert plan.samples == 100
    assert not plan.blend.exhaustive


def test_a_split_without_a_share_has_no_plan(data):
    config = NanosetConfig(
        equal_weights(data), sequence_length=4, train_split_samples=100, split="1,0,0"
    )

    assert plan_split(config, "valid") is None


def test_a_blend_may_have_no_samples(data):
    config = NanosetConfig(
        equal_weights(data), sequence_length=4, train_split_samples=0, split="1,0,0"
    )

    plan = plan_split(config, "train")

    assert plan.samples == 0
    assert [member.epochs for member in plan.members] == [1, 1, 1]
    assert len(build_blend_indices(plan).dataset_index) == 0


def test_a_list_without_weights_is_read_for_one_epoch_at_most(data):
    config = NanosetConfig(data, sequence_length=4, train_split_samples=1000, split="1")

    plan = plan_split(config, "train")

    assert plan.samples == 49 + 22 + 11
    assert not plan.blend.exhaustive
    assert sum(plan.blend.weights) == pytest.approx(1)


def test_each_split_may_have_its_own_datasets(data):
    config = NanosetConfig(
        blend_per_split=[{data[0]: 2.0}, data[1:], None], sequence_length=4, train_split_samples=60
    )

    train = plan_split(config, "train")
    valid = plan_split(config, "valid")
    test = plan_split(config, "test")

    assert train.blend is None
    assert train.members[0].samples_requested == 60
    assert train.members[0].rows == (0, 10)
    assert json.loads(train.members[0].description)["split"] is None
    assert valid.blend.exhaustive
    assert valid.blend.weights == (22, 11)
    assert test is None


def test_descriptions_and_hashes_are_those_of_the_paths_of_the_trainer(data):
    """The trainer may see the same files under other paths, which are part of its hashes."""
    untranslated = plan_split(NanosetConfig(data[0], sequence_length=4), "train").members[0]
    config = NanosetConfig(data[0], sequence_length=4, trainer_paths={data[0]: "/lustre/a"})

    member = plan_split(config, "train").members[0]

    assert json.loads(member.description)["dataset_path"] == "/lustre/a"
    assert member.prefix == data[0]
    assert member.hash != untranslated.hash


def test_tokens_are_counted_exactly_beyond_2_to_the_24(tmp_path):
    """In 32-bit floats, as the trainer counts, there would be two samples."""
    with (tmp_path / "d.idx").open("wb") as file:
        write_idx(file, np.uint16, np.array([2**24 + 2]), np.array([0, 1]))
    config = NanosetConfig(
        tmp_path / "d",
        sequence_length=2**23,
        drop_last_partial_validation_sequence=False,
        split="0,1,0",
    )

    assert plan_split(config, "valid").samples == 3


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_plan_survives_json(data, preset):
    config = NanosetConfig(
        dict(zip(data, (5, 3, 2), strict=True)),
        sequence_length=4,
        preset=preset,
        train_split_samples=30,
        split="8,1,1",
    )
    plan = plan_split(config, "train")

    stored_plan = through_json(plan)

    assert stored_plan == plan
    assert stored_plan.samples == plan.samples
    assert len(build_blend_indices(stored_plan).dataset_index) == plan.samples
    assert through_json(config) == config


# The largest blend that reads no dataset more than once


@pytest.mark.parametrize("preset", ["megatron", "megatron-0.10", "nemo", "nanotron"])
@pytest.mark.parametrize("weights", [(1, 1, 1), (7, 2, 1), (0.98, 0.01, 0.01)])
def test_the_largest_blend_of_one_epoch_is_found(data, preset, weights):
    config = NanosetConfig(
        dict(zip(data, weights, strict=True)), sequence_length=4, preset=preset, split="1,0,0"
    )
    samples_of_epochs = (49, 22, 11)

    def is_within_one_epoch(size):
        shares = config.rules.normalized(weights)
        for share, samples_of_epoch in zip(shares, samples_of_epochs, strict=True):
            if config.rules.member_sizes(size, share, 0.005).built > samples_of_epoch:
                return False
        return True

    size = largest_epoch_size(config)

    assert is_within_one_epoch(size)
    assert not is_within_one_epoch(size + 1)


def test_the_largest_blend_of_datasets_that_are_too_short_has_no_samples(data):
    config = NanosetConfig(equal_weights(data), sequence_length=100, split="1,0,0")

    assert largest_epoch_size(config) == 0


def test_a_list_without_weights_has_no_largest_blend(data):
    with pytest.raises(ConfigError, match="weights is needed"):
        largest_epoch_size(NanosetConfig(data, sequence_length=4))


# Plans that are refused


class Refusal(NamedTuple):
    """Settings that are refused, and a part of the message."""

    message: str
    lengths_by_name: Mapping[str, Sequence[int]] = DATASETS
    """Lengths of the documents of each dataset."""
    has_weights: bool = False
    options: Mapping[str, Any] = {}


DATASET_A = {"a": DATASETS["a"]}
FIVE_SAMPLES_OF_NEMO = {
    "preset": "nemo",
    "train_split_samples": 5,
    "valid_split_samples": 5,
    "test_split_samples": 5,
}

REFUSALS = {
    "weights without samples": Refusal("needs a number of samples", has_weights=True),
    "weights without samples, nanotron-000": Refusal(
        "needs a number of samples", has_weights=True, options={"preset": "nanotron-000"}
    ),
    "list, nemo": Refusal("needs weights", options={"preset": "nemo"}),
    "list, nanotron": Refusal("needs weights", options={"preset": "nanotron"}),
    "list with a dataset that is too short": Refusal(
        "no samples in the split", options={"sequence_length": 60}
    ),
    "list of datasets that are too short": Refusal(
        "no samples in the split",
        {"a": [3], "b": [3]},
        options={"sequence_length": 64, "train_split_samples": 10},
    ),
    "samples of a split without data": Refusal(
        "never return", DATASET_A, options={"split": "98,1,1", "test_split_samples": 1}
    ),
    "samples of a split without data, in a blend": Refusal(
        "never return",
        has_weights=True,
        options={"split": "0,99,1", "valid_split_samples": 9, "test_split_samples": 1},
    ),
    "split without data, nanotron": Refusal(
        "no sequences", DATASET_A, options={"split": "98,1,1", "preset": "nanotron"}
    ),
    "samples of test, nanotron": Refusal(
        "always reads",
        DATASET_A,
        options={"split": "1,1,1", "test_split_samples": 5, "preset": "nanotron"},
    ),
    "dataset that is too short, nanotron": Refusal(
        "too few tokens",
        DATASET_A,
        options={"sequence_length": 2000, "preset": "nanotron", "train_split_samples": 1},
    ),
    "samples of a split beyond the data, nemo": Refusal(
        "outside of the data",
        {"a": [30] * 3},
        options={"preset": "nemo", "split": "0,1,1", "valid_split_samples": 1},
    ),
    "one dataset of a blend has no test split, nemo": Refusal(
        "no samples in the split",
        {"few": [30] * 4, "many": [30] * 400},
        has_weights=True,
        options=FIVE_SAMPLES_OF_NEMO | {"split": "98,1,1"},
    ),
    "one dataset of a blend is too short, nemo": Refusal(
        "no samples in the split",
        {"short": [5, 5, 5], "long": [50, 50, 50]},
        has_weights=True,
        options=FIVE_SAMPLES_OF_NEMO
        | {"test_split_samples": 0, "sequence_length": 9, "split": "1,1,1"},
    ),
    "no samples, nanotron": Refusal(
        "needs samples",
        has_weights=True,
        options={"train_split_samples": 0, "split": "1,0,0", "preset": "nanotron"},
    ),
    "no samples, nanotron-000": Refusal(
        "needs samples",
        has_weights=True,
        options={"train_split_samples": 0, "split": "1,0,0", "preset": "nanotron-000"},
    ),
    "255 datasets, nemo": Refusal(
        "too many",
        {str(number): [9] for number in range(255)},
        has_weights=True,
        options={"preset": "nemo", "train_split_samples": 9},
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
def test_splits_that_a_trainer_cannot_build_are_refused(tmp_path, refusal):
    prefixes = write_datasets(tmp_path, refusal.lengths_by_name)
    data_path = equal_weights(prefixes) if refusal.has_weights else prefixes
    config = NanosetConfig(data_path, **({"sequence_length": 4} | refusal.options))

    with pytest.raises(ConfigError, match=refusal.message) as caught:
        for split in SPLITS:
            plan_split(config, split)

    assert caught.value.where.startswith("split ")


def test_a_blend_for_each_split_is_refused_for_nanotron(data):
    config = NanosetConfig(
        blend_per_split=[data[0], None, None], sequence_length=4, preset="nanotron"
    )

    with pytest.raises(ConfigError, match="other datasets for each split"):
        plan_split(config, "train")


def test_a_missing_dataset_is_reported(tmp_path):
    config = NanosetConfig(str(tmp_path / "none"), sequence_length=4)

    with pytest.raises(MissingError, match=r"none\.idx"):
        plan_split(config, "train")


def test_a_damaged_dataset_is_reported(tmp_path, data):
    (tmp_path / "a.idx").write_bytes(b"{}")

    with pytest.raises(FormatError, match=r"a\.idx"):
        plan_split(NanosetConfig(data[0], sequence_length=4), "train")


# NeMo


@pytest.fixture
def few(tmp_path):
    """The prefix of a dataset with too few documents for a test split of 1 %."""
    return write_pair(tmp_path / "few", [30] * 4)


@pytest.fixture
def short(tmp_path):
    """The prefix of a dataset whose documents are shorter than a sample."""
    return write_pair(tmp_path / "short", [5, 5, 5])


def nemo_config(data=None, **options):
    """Return settings for NeMo, with samples of nine tokens."""
    return NanosetConfig(data, sequence_length=9, preset="nemo", **options)


def test_nemo_leaves_out_a_split_without_sequences(few):
    config = nemo_config(few, split="98,1,1")

    assert plan_split(config, "test") is None


def test_nemo_leaves_out_a_split_without_sequences_of_a_blend(few):
    config = NanosetConfig({few: 1.0}, sequence_length=9, split="98,1,1", **FIVE_SAMPLES_OF_NEMO)

    assert plan_split(config, "test") is None


def test_nemo_leaves_out_a_split_without_samples(short):
    config = nemo_config({short: 1.0}, split="1,1,1", test_split_samples=0)

    assert plan_split(config, "test") is None


def test_nemo_plans_a_split_of_no_samples_if_it_has_its_own_blend(few, short):
    config = nemo_config(blend_per_split=[None, None, {short: 1.0, few: 1.0}], test_split_samples=0)

    assert plan_split(config, "test").samples == 0


@pytest.fixture
def blend_of_one_name(tmp_path):
    """A blend of two datasets with the same name in different folders."""
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    prefixes = write_datasets(tmp_path, {"x/d": [30] * 4, "y/d": [30] * 4})
    return equal_weights(prefixes)


def test_nemo_reads_datasets_of_one_name_from_their_own_folders(blend_of_one_name):
    config = nemo_config(blend_of_one_name, split="1,0,0", train_split_samples=5)

    assert plan_split(config, "train") is not None


def test_nemo_datasets_of_one_name_cannot_share_a_cache_folder(tmp_path, blend_of_one_name):
    config = nemo_config(
        blend_of_one_name, split="1,0,0", train_split_samples=5, path_to_cache=str(tmp_path)
    )

    with pytest.raises(ConfigError, match="share index files"):
        plan_split(config, "train")


@pytest.mark.parametrize(
    ("preset", "rows"),
    [("nemo", (0, 1)), ("megatron", None), ("nanotron", None), ("nanotron-000", None)],
)
def test_only_nemo_builds_a_split_that_has_sequences_without_a_share(tmp_path, preset, rows):
    """Rounding gives the first sequence to train, which has no share."""
    prefix = write_pair(tmp_path / "d", [23, 29, 2, 21, 35])
    config = NanosetConfig(
        prefix, sequence_length=7, split="0,1,1", train_split_samples=4, preset=preset
    )

    assert rows_of(config, "train") == rows


@pytest.mark.parametrize(
    ("compensated_sums", "rows"),
    [
        pytest.param(False, [(0, 3), (3, 4), (4, 5)], id="Python 3.11"),
        pytest.param(True, [(0, 4), (4, 5), None], id="Python 3.12"),
    ],
)
def test_nemo_cuts_splits_as_the_python_on_which_it_runs(tmp_path, compensated_sums, rows):
    """From Python 3.12 on, 0.7 + 0.2 + 0.1 is 1, and not slightly less."""
    prefix = write_pair(tmp_path / "d", [30] * 5)
    config = nemo_config(prefix, split="0.7,0.2,0.1", compensated_sums=compensated_sums)

    assert [rows_of(config, split) for split in SPLITS] == rows
    assert NanosetConfig.from_json(config.to_json()) == config


def test_the_sums_of_older_pythons_are_not_stored():
    """So the digests of existing outputs stay the same."""
    config = nemo_config("d", compensated_sums=False)

    assert "compensated_sums" not in config.to_json()


@pytest.mark.parametrize("preset", sorted(set(PRESETS) - {"nemo"}))
def test_other_trainers_do_not_depend_on_the_version_of_python(preset):
    with pytest.raises(ConfigError, match="no such option"):
        NanosetConfig("d", sequence_length=4, preset=preset, compensated_sums=True)


@pytest.mark.parametrize(
    ("python", "compensates"),
    [("3.9", False), ("3.11.7", False), ("3.12", True), ("3.14", True), (None, False)],
)
def test_the_version_of_python_decides_how_floats_are_added(python, compensates):
    assert PRESETS["nemo"].compensates(python) is compensates


# nanotron


@pytest.fixture
def three_nanotron_datasets(tmp_path):
    """The prefixes of three datasets, whose valid splits have one sample, one and none."""
    return write_datasets(tmp_path, {"first": [9, 9], "second": [9, 9], "third": [9, 5]})


def nanotron_blend(prefixes, weights):
    """Return the settings of a blend for nanotron, in which valid has two samples."""
    return NanosetConfig(
        dict(zip(prefixes, weights, strict=True)),
        sequence_length=6,
        split="5,5,0",
        train_split_samples=20,
        preset="nanotron",
    )


def test_nanotron_reads_a_blend_that_takes_nothing_of_a_dataset_without_samples(
    three_nanotron_datasets,
):
    config = nanotron_blend(three_nanotron_datasets, (0.5, 0.45, 0.05))

    plan = plan_split(config, "valid")

    assert [member.samples_given for member in plan.members] == [1, 1, 0]
    assert json.loads(plan.blend.description)["dataset_sizes"] == [1, 1, 0]
    indices = build_blend_indices(plan)
    assert indices.dataset_index.tolist() == [0, 1]
    assert indices.dataset_sample_index.tolist() == [0, 0]
    _, valid, _ = NanosetBuilder(config).build()
    second_document = list(range(9, 16))
    assert valid.batch([0, 1]).tolist() == [second_document, second_document]


def test_nanotron_cannot_read_a_blend_that_takes_samples_of_a_dataset_without_any(
    three_nanotron_datasets,
):
    config = nanotron_blend(three_nanotron_datasets, (0.5, 0.05, 0.45))

    with pytest.raises(SampleIndexError, match="third") as caught:
        build_blend_indices(plan_split(config, "valid"))

    assert caught.value.expected == "at most 0"  # nothing was planned, so there is no reserve


def test_nanotron_builds_no_indices_of_a_single_token(tmp_path, three_nanotron_datasets):
    write_pair(tmp_path / "third", [9, 1])
    config = nanotron_blend(three_nanotron_datasets, (0.5, 0.45, 0.05))

    with pytest.raises(ConfigError, match="no samples in the split"):
        plan_split(config, "valid")


# Settings


WRONG_OPTIONS = {
    "sequence_length": [
        {"sequence_length": 0},
        {"sequence_length": 2.0},
        {"sequence_length": True},
    ],
    "random_seed": [{"random_seed": -1}, {"random_seed": 2**32}],
    "train_split_samples": [{"train_split_samples": -1}],
    "surplus": [{"surplus": -0.1}, {"surplus": float("nan")}],
    "split": [{"split": "0,0,0"}, {"split": "1,1", "preset": "nemo"}],
    "data_path": [
        {"data_path": None},
        {"data_path": ""},
        {"data_path": {}},
        {"data_path": [1]},
        {"data_path": 3},
        {"blend_per_split": ["d", None, None]},  # in addition to a data_path
    ],
    "data_path, a": [
        {"data_path": {"a": -1.0}},
        {"data_path": {"a": float("inf")}},
        {"data_path": {"a": "1"}},
    ],
    "data_path, b": [{"data_path": {"a": 1.0, "b": 0}}],
    "blend_per_split": [
        {"data_path": None, "blend_per_split": ["d"]},
        {"data_path": None, "blend_per_split": [None, None, None]},
    ],
    "blend_per_split, train": [{"data_path": None, "blend_per_split": [[""], None, "d"]}],
    "blend_per_split, valid, d": [{"data_path": None, "blend_per_split": [None, {"d": 0}, "d"]}],
    "eod_token": [{"eod_mask_loss": True}],
}
"""Options that are refused, by what the error names."""


def cases_of_wrong_options():
    """Return the cases of WRONG_OPTIONS one by one: what the error names, and the options."""
    cases = []
    for where, list_of_options in WRONG_OPTIONS.items():
        for options in list_of_options:
            cases.append(pytest.param(where, options, id=f"{where}: {options}"))
    return cases


@pytest.mark.parametrize(("where", "options"), cases_of_wrong_options())
def test_an_impossible_setting_is_named(where, options):
    with pytest.raises(ConfigError) as caught:
        NanosetConfig(**({"data_path": "d", "sequence_length": 8} | options))

    assert caught.value.where == where


def test_numbers_of_numpy_are_accepted():
    config = NanosetConfig("d", sequence_length=np.int64(8), train_split_samples=np.uint32(5))
    weighted = NanosetConfig({"d": np.float32(0.5)}, sequence_length=8)

    assert type(config.sequence_length) is int
    assert type(config.train_split_samples) is int
    assert weighted.blend("train") == (["d"], [0.5])


def test_the_numbers_of_samples_of_all_splits_are_replaced():
    config = NanosetConfig("d", sequence_length=8, train_split_samples=5, valid_split_samples=6)

    changed = config.with_samples({"valid": 7, "test": 8})

    assert changed == replace(
        config, train_split_samples=None, valid_split_samples=7, test_split_samples=8
    )


def test_a_negative_number_of_samples_is_refused():
    config = NanosetConfig("d", sequence_length=8)

    with pytest.raises(ConfigError, match="test_split_samples"):
        config.with_samples({"test": -1})


def test_a_configuration_does_not_change_with_the_blend_that_it_was_made_from():
    blend = {Path("a"): 2, "b": 1}
    config = NanosetConfig(blend, sequence_length=8)

    blend["c"] = 3

    assert config.blend("train") == (["a", "b"], [2.0, 1.0])


def test_a_configuration_cannot_be_changed():
    config = NanosetConfig({"a": 2.0}, sequence_length=8)

    with pytest.raises(TypeError, match="cannot be changed"):
        config.data_path["d"] = 1


def test_equal_configurations_have_equal_hashes():
    config = NanosetConfig(
        {Path("a"): 2, "b": 1},
        sequence_length=8,
        trainer_paths={Path("a"): "/x/a"},
        tokenizer_identifiers={"k": [1]},
    )

    assert hash(config) == hash(NanosetConfig.from_json(config.to_json()))


def test_paths_are_stored_as_text():
    trainer_paths = {Path("a"): "/x/a"}
    single = NanosetConfig(Path("a"), sequence_length=8, trainer_paths=trainer_paths)
    several = NanosetConfig([Path("a"), "b"], sequence_length=8)

    assert single.data_path == "a"
    assert single.trainer_path("a") == "/x/a"
    assert several.data_path == ("a", "b")
