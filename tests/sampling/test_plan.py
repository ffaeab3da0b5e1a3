"""Plans: what they promise is what is built, and what cannot be is refused before anything is
built.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.records import through_json
from helpers.sample_pairs import write_pair as write
from nanoset_core.errors import ConfigError, FormatError, MissingError, SampleIndexError
from nanoset_core.formats.indexed.layout import write_idx
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import build_blend_indices, build_member_indices
from nanoset_core.sampling.plan import largest_epoch_size, plan_split
from nanoset_core.sampling.presets import PRESETS
from nanoset_core.sampling.splits import SPLITS

SIZES = {"a": [20] * 10, "b": [9] * 10, "c": [5] * 9}
ONE = {"a": SIZES["a"]}


@pytest.fixture
def data(tmp_path):
    """Prefixes of three datasets, of 200, 90 and 45 tokens."""
    return [write(tmp_path / name, lengths) for name, lengths in SIZES.items()]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=3, max_size=25),
    asked=st.one_of(st.none(), st.integers(0, 60)),
    length=st.integers(1, 12),
    preset=st.sampled_from(sorted(PRESETS)),
    extra=st.booleans(),
    partial=st.booleans(),
)
def test_what_is_planned_is_what_is_built(
    tmp_path_factory, lengths, asked, length, preset, extra, partial
):
    prefix, rules = write(tmp_path_factory.mktemp("plan") / "d", lengths), PRESETS[preset]
    for split, share in (("train", "1,0,0"), ("valid", "0,1,0")):
        if split == "valid" and (rules.windows or (preset == "nanotron" and asked is not None)):
            continue
        config = NanosetConfig(
            prefix,
            sequence_length=length,
            preset=preset,
            split=share,
            add_extra_token=extra or preset.startswith("nanotron"),
            drop_last_partial_validation_sequence=not partial,
            **{f"{split}_split_samples": asked},
        )
        try:
            member = plan_split(config, split).members[0]
        except ConfigError:
            too_few = sum(lengths) < length + int(config.add_extra_token)
            none_at_all = (preset == "nanotron-000" or rules.windows) and (
                asked == 0 or (asked is None and too_few)
            )
            assert (
                sum(lengths) == 0
                or ((preset == "nanotron" or rules.windows) and too_few)
                or none_at_all
            )
            continue
        try:
            built = build_member_indices(member, config, np.array(lengths, dtype=np.int32))
        except ConfigError as refusal:
            if not (
                partial
                and config.add_extra_token
                and 0 in lengths
                and "empty sequence" in refusal.what
            ):
                raise
            continue
        assert len(built.document_index) == member.epochs * len(lengths)
        assert len(built.sample_index) == member.samples_built + 1
        assert len(built.shuffle_index) == member.samples_given
        if asked is not None and not rules.windows:
            assert member.samples_given >= asked
            fewer = (member.epochs - 1) * sum(lengths) - int(config.add_extra_token)
            assert member.epochs == 1 or fewer // length < asked


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_plan_survives_json(data, preset):
    config = NanosetConfig(
        dict(zip(data, (5, 3, 2), strict=True)),
        sequence_length=4,
        preset=preset,
        train_split_samples=30,
        split="8,1,1",
    )
    plan = plan_split(config, "train")
    again = through_json(plan)
    assert again == plan
    assert again.samples == plan.samples == len(build_blend_indices(again).dataset_index)
    assert through_json(config) == config


def test_plan_of_a_blend(data):
    config = NanosetConfig(
        dict(zip(data, (5, 3, 2), strict=True)),
        sequence_length=4,
        train_split_samples=100,
        split="1,0,0",
    )
    plan = plan_split(config, "train")
    assert [member.weight for member in plan.members] == [0.5, 0.3, 0.2]
    assert [member.samples_target for member in plan.members] == [50, 30, 20]
    assert [member.samples_requested for member in plan.members] == [51, 31, 21]
    assert [member.epochs for member in plan.members] == [2, 2, 2]
    assert [member.tokens for member in plan.members] == [200, 90, 45]
    assert plan.samples == 100
    assert not plan.blend.exhaustive
    assert plan_split(config, "valid") is None


def test_trainer_paths_are_what_is_described(data):
    config = NanosetConfig(data[0], sequence_length=4, trainer_paths={data[0]: "/lustre/a"})
    member = plan_split(config, "train").members[0]
    assert json.loads(member.description)["dataset_path"] == "/lustre/a"
    assert member.prefix == data[0]
    assert (
        member.hash
        != plan_split(NanosetConfig(data[0], sequence_length=4), "train").members[0].hash
    )


def test_splits_with_data_of_their_own(data):
    config = NanosetConfig(
        blend_per_split=[{data[0]: 2.0}, data[1:], None], sequence_length=4, train_split_samples=60
    )
    train, valid, test = (plan_split(config, split) for split in ("train", "valid", "test"))
    assert train.blend is None
    assert train.members[0].samples_requested == 60
    assert train.members[0].rows == (0, 10)
    assert valid.blend.exhaustive
    assert valid.blend.weights == (22, 11)
    assert test is None
    assert json.loads(train.members[0].description)["split"] is None


def test_blend_without_weights_is_capped(data):
    config = NanosetConfig(data, sequence_length=4, train_split_samples=1000, split="1")
    plan = plan_split(config, "train")
    assert plan.samples == 49 + 22 + 11
    assert not plan.blend.exhaustive
    assert sum(plan.blend.weights) == pytest.approx(1)


@pytest.mark.parametrize("preset", ["megatron", "megatron-0.10", "nemo", "nanotron"])
@pytest.mark.parametrize("shares", [(1, 1, 1), (7, 2, 1), (0.98, 0.01, 0.01)])
def test_largest_epoch_size(data, preset, shares):
    weights = dict(zip(data, shares, strict=True))
    config = NanosetConfig(weights, sequence_length=4, preset=preset, split="1,0,0")

    def one_epoch(size):
        sizes = [
            config.rules.member_sizes(size, share, 0.005)[1]
            for share in config.rules.normalized(shares)
        ]
        return all(size <= limit for size, limit in zip(sizes, (49, 22, 11), strict=True))

    size = largest_epoch_size(config)
    assert one_epoch(size)
    assert not one_epoch(size + 1)


def test_largest_epoch_size_of_too_little_data(data):
    config = NanosetConfig(dict.fromkeys(data, 1.0), sequence_length=100, split="1,0,0")
    assert largest_epoch_size(config) == 0
    with pytest.raises(ConfigError, match="weights is needed"):
        largest_epoch_size(NanosetConfig(data, sequence_length=4))


OWN_TEST = {f"{split}_split_samples": 5 for split in SPLITS} | {"preset": "nemo"}
NOTHING_OF_TEST = OWN_TEST | {"test_split_samples": 0}
SHORT, LONG = {"short": [5, 5, 5]}, {"long": [50, 50, 50]}


@pytest.mark.parametrize(
    ("sizes", "is_weighted", "options", "message"),
    [
        (SIZES, True, {}, "needs a number of samples"),
        (SIZES, True, {"preset": "nanotron-000"}, "needs a number of samples"),
        (SIZES, False, {"preset": "nemo"}, "needs weights"),
        (SIZES, False, {"preset": "nanotron"}, "needs weights"),
        (SIZES, False, {"sequence_length": 60}, "no samples in the split"),
        (ONE, False, {"split": "98,1,1", "test_split_samples": 1}, "never return"),
        (
            SIZES,
            True,
            {"split": "0,99,1", "valid_split_samples": 9, "test_split_samples": 1},
            "never return",
        ),
        (ONE, False, {"split": "98,1,1", "preset": "nanotron"}, "no sequences"),
        (
            ONE,
            False,
            {"split": "1,1,1", "test_split_samples": 5, "preset": "nanotron"},
            "always one epoch",
        ),
        (
            ONE,
            False,
            {"sequence_length": 2000, "preset": "nanotron", "train_split_samples": 1},
            "too few tokens",
        ),
        (
            {"a": [30] * 3},
            False,
            {"preset": "nemo", "split": "0,1,1", "valid_split_samples": 1},
            "outside of the data",
        ),
        (
            {"few": [30] * 4, "many": [30] * 400},
            True,
            {"split": "98,1,1"} | OWN_TEST,
            "no samples in the split",
        ),
        (
            SHORT | LONG,
            True,
            NOTHING_OF_TEST | {"sequence_length": 9, "split": "1,1,1"},
            "no samples in the split",
        ),
        (
            {"a": [3], "b": [3]},
            False,
            {"sequence_length": 64, "train_split_samples": 10},
            "no samples in the split",
        ),
        (
            SIZES,
            True,
            {"train_split_samples": 0, "split": "1,0,0", "preset": "nanotron"},
            "needs samples",
        ),
        (
            SIZES,
            True,
            {"train_split_samples": 0, "split": "1,0,0", "preset": "nanotron-000"},
            "needs samples",
        ),
        (
            {str(number): [9] for number in range(255)},
            True,
            {"preset": "nemo", "train_split_samples": 9},
            "too many",
        ),
    ],
)
def test_refusals(tmp_path, sizes, is_weighted, options, message):
    prefixes = [write(tmp_path / name, lengths) for name, lengths in sizes.items()]
    data = dict.fromkeys(prefixes, 1.0) if is_weighted else prefixes
    config = NanosetConfig(**{"sequence_length": 4, "data_path": data} | options)
    with pytest.raises(ConfigError, match=message) as caught:
        for split in SPLITS:
            plan_split(config, split)
    assert caught.value.where.startswith("split ")


def test_presets_without_blends_per_split(data):
    config = NanosetConfig(
        blend_per_split=[data[0], None, None], sequence_length=4, preset="nanotron"
    )
    with pytest.raises(ConfigError, match="separate blends"):
        plan_split(config, "train")


def test_nemo_skips_splits_without_sequences_or_samples(tmp_path):
    few, short = write(tmp_path / "few", [30] * 4), write(tmp_path / "short", [5, 5, 5])
    options = {"sequence_length": 9, "preset": "nemo"}
    assert plan_split(NanosetConfig(few, **options, split="98,1,1"), "test") is None
    assert (
        plan_split(NanosetConfig({few: 1.0}, **options | OWN_TEST, split="98,1,1"), "test") is None
    )
    assert (
        plan_split(
            NanosetConfig({short: 1.0}, **options, split="1,1,1", test_split_samples=0), "test"
        )
        is None
    )
    own = NanosetConfig(
        blend_per_split=[None, None, {short: 1.0, few: 1.0}], **options, test_split_samples=0
    )
    assert plan_split(own, "test").samples == 0


def test_nemo_datasets_of_one_name_cannot_share_a_cache_folder(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    blend = {write(tmp_path / "x" / "d", [30] * 4): 1.0, write(tmp_path / "y" / "d", [30] * 4): 1.0}
    options = {"sequence_length": 4, "preset": "nemo", "split": "1,0,0", "train_split_samples": 5}
    assert plan_split(NanosetConfig(blend, **options), "train") is not None
    with pytest.raises(ConfigError, match="share index files"):
        plan_split(NanosetConfig(blend, **options, path_to_cache=str(tmp_path)), "train")


def test_nemo_goes_by_rows_where_rounding_gives_a_sequence_to_a_split_without_a_share(tmp_path):
    prefix = write(tmp_path / "d", [23, 29, 2, 21, 35])
    options = {"sequence_length": 7, "split": "0,1,1", "train_split_samples": 4}
    plan = plan_split(NanosetConfig(prefix, **options, preset="nemo"), "train")
    assert plan.members[0].rows == (0, 1)
    for preset in ("megatron", "nanotron", "nanotron-000"):
        assert plan_split(NanosetConfig(prefix, **options, preset=preset), "train") is None


def test_nemo_cuts_as_the_python_that_it_runs_on_does(tmp_path):
    prefix = write(tmp_path / "d", [30] * 5)
    options = {"sequence_length": 4, "preset": "nemo", "split": "0.7,0.2,0.1"}
    before, since = (
        NanosetConfig(prefix, **options, compensated_sums=sums) for sums in (False, True)
    )
    assert [plan_split(before, split).members[0].rows for split in SPLITS] == [
        (0, 3),
        (3, 4),
        (4, 5),
    ]
    assert [plan_split(since, split) and plan_split(since, split).members[0].rows for split in SPLITS] == [
        (0, 4), (4, 5), None,
    ]  # fmt: skip
    assert "compensated_sums" not in before.to_json()
    assert NanosetConfig.from_json(before.to_json()) == before
    assert NanosetConfig.from_json(since.to_json()) == since
    for preset in set(PRESETS) - {"nemo"}:
        with pytest.raises(ConfigError, match="no such option"):
            NanosetConfig(prefix, **options | {"preset": preset}, compensated_sums=True)


@pytest.mark.parametrize(
    ("python", "compensates"), [("3.9", False), ("3.11.7", False), ("3.12", True), ("3.14", True)]
)
def test_versions_of_python(python, compensates):
    assert PRESETS["nemo"].compensates(python) is compensates
    assert PRESETS["nemo"].compensates(None) is False


def test_more_than_2_to_the_24_tokens_are_counted_exactly(tmp_path):
    with (tmp_path / "d.idx").open("wb") as file:
        write_idx(file, np.uint16, np.array([2**24 + 2]), np.array([0, 1]))
    options = {
        "sequence_length": 2**23,
        "drop_last_partial_validation_sequence": False,
        "split": "0,1,0",
    }
    plan = plan_split(NanosetConfig(tmp_path / "d", **options), "valid")
    assert plan.samples == 3  # in 32-bit floats, as the trainer has it, 2


def test_datasets_that_are_not_there_or_damaged(tmp_path, data):
    with pytest.raises(MissingError, match=r"none\.idx"):
        plan_split(NanosetConfig(str(tmp_path / "none"), sequence_length=4), "train")
    (tmp_path / "a.idx").write_bytes(b"{}")
    with pytest.raises(FormatError, match=r"a\.idx"):
        plan_split(NanosetConfig(data[0], sequence_length=4), "train")


IMPOSSIBLE = [
    *(("sequence_length", {"sequence_length": value}) for value in (0, 2.0, True)),
    *(("random_seed", {"random_seed": value}) for value in (-1, 2**32)),
    ("train_split_samples", {"train_split_samples": -1}),
    *(("surplus", {"surplus": value}) for value in (-0.1, float("nan"))),
    *(("split", value) for value in ({"split": "0,0,0"}, {"split": "1,1", "preset": "nemo"})),
    *(("data_path", {"data_path": value}) for value in (None, "", {}, [1], 3)),
    *(("data_path, a", {"data_path": {"a": value}}) for value in (-1.0, float("inf"), "1")),
    ("data_path, b", {"data_path": {"a": 1.0, "b": 0}}),
    ("data_path", {"blend_per_split": ["d", None, None]}),
    *(
        ("blend_per_split", {"data_path": None, "blend_per_split": value})
        for value in (["d"], [None] * 3)
    ),
    ("blend_per_split, train", {"data_path": None, "blend_per_split": [[""], None, "d"]}),
    ("blend_per_split, valid, d", {"data_path": None, "blend_per_split": [None, {"d": 0}, "d"]}),
    ("eod_token", {"eod_mask_loss": True}),
]


@pytest.mark.parametrize(("where", "options"), IMPOSSIBLE)
def test_configurations_that_cannot_be(options, where):
    with pytest.raises(ConfigError) as caught:
        NanosetConfig(**({"data_path": "d", "sequence_length": 8} | options))
    assert caught.value.where == where


def test_numbers_of_numpy_are_plain_ones():
    config = NanosetConfig("d", sequence_length=np.int64(8), train_split_samples=np.uint32(5))
    assert type(config.sequence_length) is int
    assert type(config.train_split_samples) is int
    weighted = NanosetConfig({"d": np.float32(0.5)}, sequence_length=8)
    assert weighted.blend("train") == (["d"], [0.5])


def test_other_numbers_of_samples():
    config = NanosetConfig("d", sequence_length=8, train_split_samples=5, valid_split_samples=6)
    assert config.with_samples({"valid": 7, "test": 8}) == replace(
        config, train_split_samples=None, valid_split_samples=7, test_split_samples=8
    )
    with pytest.raises(ConfigError, match="test_split_samples"):
        config.with_samples({"test": -1})


def test_configurations_do_not_change():
    blend = {Path("a"): 2, "b": 1}
    config = NanosetConfig(
        blend,
        sequence_length=8,
        trainer_paths={Path("a"): "/x/a"},
        tokenizer_identifiers={"k": [1]},
    )
    blend["c"] = 3
    assert config.blend("train") == (["a", "b"], [2.0, 1.0])
    assert config.trainer_path("a") == "/x/a"
    assert hash(config) == hash(NanosetConfig.from_json(config.to_json()))
    with pytest.raises(TypeError, match="cannot be changed"):
        config.data_path["d"] = 1
    assert NanosetConfig(Path("a"), sequence_length=8).data_path == "a"
    assert NanosetConfig([Path("a"), "b"], sequence_length=8).data_path == ("a", "b")


def test_a_blend_of_no_samples(data):
    config = NanosetConfig(
        dict.fromkeys(data, 1.0), sequence_length=4, train_split_samples=0, split="1,0,0"
    )
    plan = plan_split(config, "train")
    assert plan.samples == 0
    assert [member.epochs for member in plan.members] == [1, 1, 1]
    assert len(build_blend_indices(plan).dataset_index) == 0


def test_a_nanotron_dataset_without_samples_that_the_blend_does_not_take(tmp_path):
    # nanotron builds and reads this blend: its two samples of valid are those of the first two
    # datasets.
    lengths = {"first": [9, 9], "second": [9, 9], "third": [9, 5]}
    prefixes = [write(tmp_path / name, sizes) for name, sizes in lengths.items()]
    options = {
        "sequence_length": 6,
        "split": "5,5,0",
        "train_split_samples": 20,
        "preset": "nanotron",
    }
    config = NanosetConfig(dict(zip(prefixes, (0.5, 0.45, 0.05), strict=True)), **options)
    plan = plan_split(config, "valid")
    assert [member.samples_given for member in plan.members] == [1, 1, 0]
    assert json.loads(plan.blend.description)["dataset_sizes"] == [1, 1, 0]
    indices = build_blend_indices(plan)
    assert indices.dataset_index.tolist() == [0, 1]
    assert indices.dataset_sample_index.tolist() == [0, 0]
    _, valid, _ = NanosetBuilder(config).build()
    assert valid.batch([0, 1]).tolist() == [list(range(9, 16))] * 2
    taken = plan_split(
        NanosetConfig(dict(zip(prefixes, (0.5, 0.05, 0.45), strict=True)), **options), "valid"
    )
    with pytest.raises(SampleIndexError, match="third"):
        build_blend_indices(taken)
    write(tmp_path / "third", [9, 1])  # nanotron refuses to build indices of a single token
    with pytest.raises(ConfigError, match="no samples in the split"):
        plan_split(config, "valid")
