"""Runs in phases with different blends: each dataset is read in one order over all phases."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.records import plain, through_json
from helpers.slow_indices import slow_document_index, slow_shuffle_index
from nanoset_core.errors import ConfigError, InputError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling.blending import build_blending_indices, samples_taken
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.coverage import coverage
from nanoset_core.sampling.epoch_policies import apply_epoch_limits
from nanoset_core.sampling.indices import build_blend_indices
from nanoset_core.sampling.orders import Read, orders_after, samples_per_dataset
from nanoset_core.sampling.plan import plan_split

LENGTH = 8
"""Tokens of a sample."""
SEED = 7
NAMES = "abcd"
"""Names of the datasets."""
N_TOKENS_MOST = 1_000_000
"""Dataset k has the tokens from k times this number on, each once."""


def write_unique_tokens(folder, name, lengths):
    """Write a dataset in which no token occurs twice, and return its prefix."""
    prefix = folder / name / "1" / name
    first_token = NAMES.index(name) * N_TOKENS_MOST
    tokens = np.arange(first_token, first_token + sum(lengths))
    with MMapIndexedDatasetBuilder(prefix, np.int32) as builder:
        builder.add_documents(tokens, lengths, [1] * len(lengths))
    return str(prefix)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The prefix of each dataset, by its name."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(3)
    prefixes = {}
    for name in NAMES:
        lengths = rng.integers(1, 30, 25).tolist()
        prefixes[name] = write_unique_tokens(folder, name, lengths)
    return prefixes


def config_of(data, weights, samples, **options):
    """Return the settings of a phase.

    Args:
        data: Prefix of each dataset, by its name.
        weights: Weight of each dataset of the phase, by its name; one dataset is no blend.
        samples: Samples of train.
        options: Further settings.
    """
    data_path = {data[name]: weight for name, weight in weights.items()}
    if len(data_path) == 1:
        (data_path,) = data_path
    return NanosetConfig(
        data_path,
        sequence_length=LENGTH,
        random_seed=SEED,
        split="1,0,0",
        train_split_samples=samples,
        **options,
    )


class Phase(NamedTuple):
    """A part of a run: its blend, and how many samples it consumes."""

    weights: dict[str, float]
    n_samples: int


class PhasedRun(NamedTuple):
    """What a run in phases was, and read."""

    configs: list[NanosetConfig]
    """Settings of each phase."""
    samples: np.ndarray
    """Tokens of all samples in the order of reading, shape (n_samples, LENGTH + 1)."""

    def samples_of(self, name):
        """Return the samples of a dataset, in the order of reading."""
        is_of_dataset = self.samples[:, 0] // N_TOKENS_MOST == NAMES.index(name)
        return self.samples[is_of_dataset]


def run_phases(data, phases, folder, *, is_one_run=False, preset="megatron"):
    """Build and read the phases of a run.

    Args:
        data: Prefix of each dataset, by its name.
        phases: The phases.
        folder: The folder of all index files.
        is_one_run: Whether each phase's trainer requests the samples of the whole run, and skips
            those that were consumed. Otherwise it requests those of the phase.
        preset: The trainer.
    """
    configs = []
    samples = []
    n_consumed = 0
    read = None  # what the phases before have read
    for number, phase in enumerate(phases):
        n_requested = phase.n_samples
        start = 0
        if is_one_run:
            n_requested = sum(each_phase.n_samples for each_phase in phases)
            start = n_consumed
        stop = start + phase.n_samples
        cache = str(folder / str(number))
        config = config_of(data, phase.weights, n_requested, preset=preset, path_to_cache=cache)
        if read is not None:
            config = replace(config, orders=orders_after(read), consumed_samples=start)

        train = NanosetBuilder(config).build()[0]
        for index in range(start, stop):
            samples.append(train.tokens(index))

        configs.append(config)
        read = Read(plan_split(config, "train"), config, stop)
        n_consumed += phase.n_samples
    return PhasedRun(configs, np.array(samples))


# The order of each dataset


def slow_order(prefix, n_epochs, has_separate_last_epoch, n_needed):
    """Return the first samples of a dataset in the one order of all phases.

    Args:
        prefix: The dataset.
        n_epochs: Epochs that the first phase shuffles.
        has_separate_last_epoch: Whether it shuffles the last of them by itself.
        n_needed: How many samples are needed.

    Returns:
        The tokens of the samples, shape (n_needed, LENGTH + 1).
    """
    dataset = MMapIndexedDataset(prefix)
    documents = range(len(dataset))
    tokens_of_epoch = int(dataset.sequence_lengths.sum())

    def n_samples_of(n_epochs):
        return (n_epochs * tokens_of_epoch - 1) // LENGTH

    # The first epochs are those of the trainer itself.
    state = np.random.RandomState(SEED)
    n_samples = n_samples_of(n_epochs)
    n_together = n_samples_of(n_epochs - 1) if has_separate_last_epoch else n_samples
    document_parts = [slow_document_index(documents, n_epochs, state, has_separate_last_epoch)]
    sample_parts = [slow_shuffle_index(n_together, n_samples, state)]

    # Each later epoch is shuffled by itself, with a seed of its own.
    epoch = n_epochs
    while n_samples_of(epoch) < n_needed:
        state = np.random.RandomState([SEED, epoch])
        document_parts.append(slow_document_index(documents, 1, state, False))
        new_samples = np.arange(n_samples_of(epoch), n_samples_of(epoch + 1))
        state.shuffle(new_samples)
        sample_parts.append(new_samples)
        epoch += 1

    # Cut the concatenated documents into samples; each has the first token of the next one, too.
    tokens = np.concatenate([dataset[document] for document in np.concatenate(document_parts)])
    samples = []
    for sample in np.concatenate(sample_parts)[:n_needed].tolist():
        start = sample * LENGTH
        samples.append(tokens[start : start + LENGTH + 1])
    return np.array(samples, tokens.dtype).reshape(n_needed, LENGTH + 1)


drawn_weights = st.dictionaries(st.sampled_from(NAMES), st.floats(0.05, 1), min_size=1, max_size=4)
drawn_phases = st.builds(Phase, drawn_weights, st.integers(1, 100))


@given(
    phases=st.lists(drawn_phases, min_size=1, max_size=3),
    is_one_run=st.booleans(),
    preset=st.sampled_from(["megatron", "megatron-0.10", "nemo"]),
)
def test_each_dataset_is_read_in_one_order_over_all_phases(
    data, tmp_path_factory, phases, is_one_run, preset
):
    if preset == "nemo":
        phases = [Phase(phase.weights | {"a": 0.5, "b": 0.25}, phase.n_samples) for phase in phases]

    run = run_phases(
        data, phases, tmp_path_factory.mktemp("run"), is_one_run=is_one_run, preset=preset
    )

    # The first phase with a dataset decides its order.
    first_member_by_prefix = {}
    for config in run.configs:
        for member in plan_split(config, "train").members:
            first_member_by_prefix.setdefault(member.prefix, member)
    for name, prefix in data.items():
        samples = run.samples_of(name)
        if prefix not in first_member_by_prefix:
            assert len(samples) == 0
            continue
        member = first_member_by_prefix[prefix]
        first_phase = member.order or member
        expected = slow_order(
            prefix, first_phase.epochs, first_phase.separate_last_epoch, n_needed=len(samples)
        )
        np.testing.assert_array_equal(samples, expected)


def test_no_token_is_read_again_before_all_are_read(data, tmp_path):
    """If the first phase needs one epoch, each epoch is read completely before the next starts."""
    phases = [
        Phase({"a": 0.5, "b": 0.5}, 40),
        Phase({"a": 1.0}, 60),
        Phase({"a": 0.9, "c": 0.1}, 80),
    ]

    run = run_phases(data, phases, tmp_path)

    tokens = run.samples_of("a")[:, :LENGTH].reshape(-1)
    times_read = np.bincount(tokens)  # (n_tokens,)
    # The sample between two epochs has tokens of both, so the numbers differ by up to two.
    assert times_read.max() - times_read.min() <= 2


def test_a_first_phase_is_what_the_trainer_itself_builds(data):
    config = config_of(data, {"a": 0.3, "b": 0.7}, 90)

    plan = plan_split(config, "train")

    assert all(member.order is None for member in plan.members)


def test_an_equal_second_phase_has_the_blend_and_the_hashes_of_the_first(data):
    config = config_of(data, {"a": 0.3, "b": 0.7}, 90)
    plan = plan_split(config, "train")

    second_config = replace(config, orders=orders_after(Read(plan, config, 90)))
    second_plan = plan_split(second_config, "train")

    assert second_plan.blend == plan.blend
    hashes = [member.hash for member in plan.members]
    assert [member.hash for member in second_plan.members] == hashes


# How much a phase has read of each dataset


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.floats(0.01, 1), min_size=2, max_size=9),
    bounds=st.lists(st.integers(0, 5000), min_size=2, max_size=2),
)
def test_the_samples_of_a_blend_are_counted_as_they_are_drawn(weights, bounds):
    start, stop = sorted(bounds)
    shares = tuple(weight / sum(weights) for weight in weights)
    dataset_index, _ = build_blending_indices(shares, stop)
    expected = np.bincount(dataset_index[start:], minlength=len(shares))

    exact = samples_taken(shares, start, stop)
    estimate = samples_taken(shares, start, stop, exact=False)

    assert exact == tuple(expected)
    assert np.abs(np.array(estimate) - expected).max() <= 4


@pytest.fixture(scope="module")
def plan_of_list(data):
    """The plan of a blend that takes all samples of three datasets."""
    config = config_of(data, {"a": 1.0}, None)
    config = replace(config, data_path=[data["a"], data["b"], data["c"]])
    return plan_split(config, "train")


@pytest.mark.parametrize(
    ("start", "n_left_out"),
    [
        pytest.param(0, 0, id="all samples"),
        pytest.param(17, 1, id="without the first and the last ones"),
        pytest.param(3, None, id="samples 3 to 39"),
    ],
)
def test_a_blend_of_all_samples_is_counted_as_it_is_built(plan_of_list, start, n_left_out):
    stop = 40 if n_left_out is None else plan_of_list.samples - n_left_out
    dataset_index = build_blend_indices(plan_of_list).dataset_index

    counts = samples_per_dataset(plan_of_list, start, stop, exact=True)

    assert list(counts) == np.bincount(dataset_index[start:stop], minlength=3).tolist()


# Limits of epochs, which count over all phases


class RunWithLimit(NamedTuple):
    """A run whose first phase has read half an epoch of dataset a."""

    first: NanosetConfig
    second: NanosetConfig
    """The same blend, and as many samples."""
    longer_second: NanosetConfig
    """A second phase of twice as many samples, in which all of an epoch of a is read."""
    prefix: str
    """Prefix of dataset a."""
    samples_of_epoch: int


@pytest.fixture
def limited_run(data):
    """A run with two phases that read a and b in equal parts."""
    tokens_of_epoch = plan_split(config_of(data, {"a": 1.0}, 1), "train").members[0].tokens
    samples_of_epoch = (tokens_of_epoch - 1) // LENGTH
    first = config_of(data, {"a": 0.5, "b": 0.5}, samples_of_epoch)
    orders = orders_after(Read(plan_split(first, "train"), first, samples_of_epoch))
    second = replace(first, orders=orders)
    longer_second = replace(second, train_split_samples=samples_of_epoch * 2)
    return RunWithLimit(first, second, longer_second, data["a"], samples_of_epoch)


def test_a_limit_that_is_kept_changes_nothing(limited_run):
    limited = apply_epoch_limits(limited_run.first, {limited_run.prefix: 1.2}, "raise")

    assert not limited.exceeded


def test_a_limit_that_is_kept_over_two_phases_changes_nothing(limited_run):
    limited = apply_epoch_limits(limited_run.second, {limited_run.prefix: 2}, "raise")

    assert limited.config == limited_run.second


def test_the_epochs_of_both_phases_exceed_a_limit(limited_run):
    limited = apply_epoch_limits(limited_run.longer_second, {limited_run.prefix: 1.2}, "repeat")

    (exceeded,) = limited.exceeded
    assert exceeded.prefix == limited_run.prefix
    assert exceeded.epochs > 1.4


def test_stop_ends_a_later_phase_at_the_limit(limited_run):
    limited = apply_epoch_limits(limited_run.longer_second, {limited_run.prefix: 1.2}, "stop")

    first_member = coverage(plan_split(limited.config, "train"), limited.config)[0]
    assert first_member.epochs <= 1.2
    assert limited.config.train_split_samples > limited_run.samples_of_epoch


def test_redistribute_keeps_the_limit_in_a_later_phase(limited_run):
    limited = apply_epoch_limits(
        limited_run.longer_second, {limited_run.prefix: 1.2}, "redistribute"
    )

    first_member = coverage(plan_split(limited.config, "train"), limited.config)[0]
    assert first_member.epochs <= 1.2


def test_a_dataset_that_earlier_phases_have_used_up_is_refused(limited_run):
    order = limited_run.second.orders[limited_run.prefix]
    used_up = replace(order, taken=3 * limited_run.samples_of_epoch)
    config = replace(limited_run.second, orders={limited_run.prefix: used_up})

    with pytest.raises(InputError, match="as often as max_epochs allows"):
        apply_epoch_limits(config, {limited_run.prefix: 1.2}, "redistribute")


# Runs that cannot continue, and settings that are stored


@pytest.fixture
def config(data):
    """Settings of a phase of 50 samples."""
    return config_of(data, {"a": 0.5, "b": 0.5}, 50)


def test_a_run_cannot_stop_after_more_samples_than_its_phase_has(config):
    plan = plan_split(config, "train")

    with pytest.raises(ConfigError, match="cannot have stopped"):
        orders_after(Read(plan, config, 101))


def test_a_run_cannot_continue_with_other_sequences_of_a_dataset(config):
    orders = orders_after(Read(plan_split(config, "train"), config, 50))
    other_orders = {prefix: replace(order, rows=(0, 3)) for prefix, order in orders.items()}

    with pytest.raises(ConfigError, match="other sequences"):
        plan_split(replace(config, orders=other_orders), "train")


@pytest.fixture
def later_config(config):
    """Settings of a phase that continues after 20 samples."""
    read = Read(plan_split(config, "train"), config, 20)
    return replace(config, orders=orders_after(read), consumed_samples=20)


def test_the_settings_of_a_later_phase_survive_json(later_config):
    assert through_json(later_config) == later_config


def test_the_plan_of_a_later_phase_survives_json(later_config):
    plan = plan_split(later_config, "train")

    assert through_json(plan) == plan
    assert plan.members[1].begin == 10


def test_a_first_phase_is_stored_without_orders(config):
    """So its digest is that of earlier versions, which knew no phases."""
    member = plan_split(config, "train").members[0]

    assert "orders" not in config.to_json()
    assert "order" not in plain(member)
