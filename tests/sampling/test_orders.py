"""Runs that go on with another blend: no sample of an epoch twice, none left out, each corpus in
one order.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.records import plain, through_json
from nanoset_core.errors import ConfigError, InputError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling.blending import build_blending_indices, samples_taken
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.coverage import coverage
from nanoset_core.sampling.epoch_policies import apply_epoch_limits
from nanoset_core.sampling.indices import build_blend_indices
from nanoset_core.sampling.orders import Read, orders_after, samples_per_dataset
from nanoset_core.sampling.plan import plan_split

LENGTH = 8
NAMES = "abcd"


def write(folder, name, lengths):
    """Write a dataset in which no token stands twice."""
    start = NAMES.index(name) * 1_000_000
    with MMapIndexedDatasetBuilder(folder / name / "1" / name, np.int32) as builder:
        builder.add_documents(start + np.arange(sum(lengths)), lengths, [1] * len(lengths))
    return str(folder / name / "1" / name)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(3)
    return {name: write(folder, name, rng.integers(1, 30, 25).tolist()) for name in NAMES}


def configured(blend, samples, **more):
    weighted = blend if len(blend) > 1 else next(iter(blend))
    return NanosetConfig(
        weighted,
        sequence_length=LENGTH,
        random_seed=7,
        split="1,0,0",
        train_split_samples=samples,
        **more,
    )


def run_of(data, phases, *, whole, folder, preset="megatron", resumed=None):
    """Return the configurations of a run in phases of (blend, samples consumed in it), and the
    tokens that it reads.

    whole: each phase's trainer asks for the samples of the whole run, and reads on from those that
        were consumed.
    """
    configs, seen, read, done = [], [], None, 0
    total = sum(samples for _, samples in phases)
    for number, (blend, samples) in enumerate(phases):
        config = configured(
            {data[name]: weight for name, weight in blend.items()}, total if whole else samples
        )
        config = replace(config, preset=preset, path_to_cache=str(folder / str(number)))
        if read is not None:
            config = replace(
                config, orders=orders_after(read), consumed_samples=done if whole else 0
            )
        train = NanosetBuilder(config).build()[0]
        begin = done if whole else 0
        seen += [train.tokens(k) for k in range(begin, begin + samples)]
        configs.append(config)
        read = Read(plan_split(config, "train"), config, begin + samples)
        done += samples
    return configs, np.array(seen)


def peer_order(prefix, epochs, apart, more):
    """Return the samples of a dataset in the trainer's own order of some epochs, and more that are
    shuffled alone.
    """
    from nanoset_core.formats.indexed.dataset import MMapIndexedDataset

    documents = MMapIndexedDataset(prefix)
    tokens = int(documents.sequence_lengths.sum())
    state, order, drawn = np.random.RandomState(7), list(range(len(documents))) * epochs, []
    for part in (
        (order[: (epochs - 1) * len(documents)], order[(epochs - 1) * len(documents) :])
        if apart
        else (order,)
    ):
        part = np.array(part)
        state.shuffle(part)
        drawn += part.tolist()
    cuts = [(epochs - 1) * tokens, epochs * tokens] if apart else [epochs * tokens]
    numbers, first = [], 0
    for cut in cuts:
        part = np.arange(first, (cut - 1) // LENGTH)
        state.shuffle(part)
        numbers, first = numbers + part.tolist(), (cut - 1) // LENGTH
    for epoch in range(epochs, epochs + more):
        state = np.random.RandomState([7, epoch])
        part = np.arange(len(documents))
        state.shuffle(part)
        drawn += part.tolist()
        last = ((epoch + 1) * tokens - 1) // LENGTH
        part = np.arange(first, last)
        state.shuffle(part)
        numbers, first = numbers + part.tolist(), last
    line = np.concatenate([documents[document] for document in drawn])
    return np.array([line[k * LENGTH : (k + 1) * LENGTH + 1] for k in numbers])


blends = st.dictionaries(st.sampled_from(NAMES), st.floats(0.05, 1), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    phases=st.lists(st.tuples(blends, st.integers(1, 160)), min_size=1, max_size=4),
    whole=st.booleans(),
    preset=st.sampled_from(["megatron", "megatron-0.10", "nemo"]),
)
def test_each_corpus_is_read_in_one_order_over_all_phases(
    data, tmp_path_factory, phases, whole, preset
):
    if preset == "nemo":
        phases = [({**blend, "a": 0.5, "b": 0.25}, samples) for blend, samples in phases]
    configs, seen = run_of(
        data, phases, whole=whole, folder=tmp_path_factory.mktemp("run"), preset=preset
    )
    for number, name in enumerate(NAMES):
        mine = seen[seen[:, 0] // 1_000_000 == number]
        plans = [plan_split(config, "train") for config in configs]
        members = [
            member for plan in plans for member in plan.members if member.prefix == data[name]
        ]
        if not members:
            assert not len(mine)
            continue
        first = members[0].order or members[0]
        expected = peer_order(data[name], first.epochs, first.separate_last_epoch, 8)
        np.testing.assert_array_equal(mine, expected[: len(mine)])


def test_no_token_comes_again_before_all_have_come(data, tmp_path):
    """Where phases need one epoch at first, each epoch is read whole before the next begins."""
    phases = [({"a": 0.5, "b": 0.5}, 40), ({"a": 1.0}, 60), ({"a": 0.9, "c": 0.1}, 80)]
    _, seen = run_of(data, phases, whole=False, folder=tmp_path)
    mine = seen[seen[:, 0] < 1_000_000][:, :LENGTH].reshape(-1)
    counts = np.bincount(np.bincount(mine))
    # at the seam of two epochs a sample holds tokens of both
    assert len(counts) - np.flatnonzero(counts)[0] <= 3


def test_what_a_phase_before_reads_is_what_the_trainer_itself_would_build(data, tmp_path):
    one = configured({data["a"]: 0.3, data["b"]: 0.7}, 90)
    plan = plan_split(one, "train")
    later = replace(one, orders=orders_after(Read(plan, one, 90)))
    again = plan_split(later, "train")
    assert [member.hash for member in plan.members] == [member.hash for member in again.members]
    assert plan.blend == again.blend
    assert all(member.order is None for member in plan.members)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.01, 1), min_size=2, max_size=9), st.integers(0, 5000), st.integers(0, 5000)
)
def test_samples_of_a_blend_are_counted_as_they_are_drawn(weights, one, other):
    begin, end = sorted((one, other))
    shares = tuple(weight / sum(weights) for weight in weights)
    drawn = np.bincount(build_blending_indices(shares, end)[0][begin:], minlength=len(shares))
    assert samples_taken(shares, begin, end) == tuple(drawn)
    rough = samples_taken(shares, begin, end, exact=False)
    assert np.abs(np.array(rough) - drawn).max() <= 4


def test_a_blend_of_all_samples_is_counted_as_it_is_built(data):
    config = replace(
        configured({data["a"]: 1.0}, None), data_path=[data["a"], data["b"], data["c"]]
    )
    plan = plan_split(config, "train")
    drawn = build_blend_indices(plan).dataset_index
    for begin, end in ((0, plan.samples), (3, 40), (17, plan.samples - 1)):
        assert (
            list(samples_per_dataset(plan, begin, end, exact=True))
            == np.bincount(drawn[begin:end], minlength=3).tolist()
        )


def test_limits_on_epochs_count_over_all_phases(data):
    tokens = plan_split(configured({data["a"]: 1.0}, 1), "train").members[0].tokens
    once = (tokens - 1) // LENGTH
    first = configured({data["a"]: 0.5, data["b"]: 0.5}, once)
    after = orders_after(Read(plan_split(first, "train"), first, once))
    second = replace(first, orders=after)
    limits = {data["a"]: 1.2}
    assert not apply_epoch_limits(first, limits, "raise").exceeded
    assert apply_epoch_limits(second, {data["a"]: 2}, "raise").config == second
    _config, exceeded = apply_epoch_limits(
        replace(second, train_split_samples=once * 2), limits, "repeat"
    )
    assert [one.prefix for one in exceeded] == [data["a"]]
    assert exceeded[0].epochs > 1.4
    limited = apply_epoch_limits(
        replace(second, train_split_samples=once * 2), limits, "stop"
    ).config
    rows = coverage(plan_split(limited, "train"), limited)
    assert rows[0].epochs <= 1.2
    assert limited.train_split_samples > once
    moved = apply_epoch_limits(
        replace(second, train_split_samples=once * 2), limits, "redistribute"
    ).config
    assert coverage(plan_split(moved, "train"), moved)[0].epochs <= 1.2
    used_up = replace(second, orders={data["a"]: replace(after[data["a"]], taken=3 * once)})
    with pytest.raises(InputError, match="as often as max_epochs allows"):
        apply_epoch_limits(used_up, limits, "redistribute")


def test_a_run_that_cannot_go_on_is_refused(data):
    config = configured({data["a"]: 0.5, data["b"]: 0.5}, 50)
    plan = plan_split(config, "train")
    with pytest.raises(ConfigError, match="cannot have consumed"):
        orders_after(Read(plan, config, 51 + 50))
    orders = {
        prefix: replace(order, rows=(0, 3))
        for prefix, order in orders_after(Read(plan, config, 50)).items()
    }
    with pytest.raises(ConfigError, match="other sequences"):
        plan_split(replace(config, orders=orders), "train")


def test_settings_and_plans_of_a_run_that_goes_on_survive_json(data):
    config = configured({data["a"]: 0.5, data["b"]: 0.5}, 50)
    later = replace(
        config,
        orders=orders_after(Read(plan_split(config, "train"), config, 20)),
        consumed_samples=20,
    )
    plan = plan_split(later, "train")
    assert through_json(later) == later
    assert through_json(plan) == plan
    assert plan.members[1].begin == 10
    assert "orders" not in config.to_json()
    assert "order" not in plain(plan_split(config, "train").members[0])
