"""Samples are read one by one and in batches, of single datasets and of blends."""

from __future__ import annotations

import copy
import operator
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.loaded_samples import assert_identical_samples
from helpers.sample_pairs import write_pair
from nanoset_core.errors import ConfigError, SampleIndexError, StaleError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.loading import nanoset as nanoset_module
from nanoset_core.loading.blended_nanoset import BlendedNanoset, open_split
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.samplers import PretrainingSampler
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import build_blend_indices, build_member_indices
from nanoset_core.sampling.orders import Read, orders_after
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.presets import PRESETS


def write_blend(folder):
    """Write two datasets, and return the weight of each prefix."""
    first = write_pair(folder / "a", [7, 0, 30, 1, 12] * 20)
    second = write_pair(folder / "b", [50] * 20, start=5000)
    return {first: 2.0, second: 1.0}


# Single datasets against a walk over the sequences


def slow_tokens(nanoset, index):
    """Return the tokens of a sample, sequence by sequence.

    Megatron-LM does the same in `GPTDataset._query_document_sample_shuffle_indices`.
    """
    config = nanoset.config
    n_extra = int(config.add_extra_token)

    # Where the sample starts, and where the next one starts.
    sample = nanoset.shuffle_index[index]
    first_entry, first_token = nanoset.sample_index[sample].tolist()
    last_entry, last_token = nanoset.sample_index[sample + 1].tolist()

    tokens = []
    for entry in range(first_entry, last_entry + 1):
        sequence = nanoset.dataset[nanoset.document_index[entry]].tolist()
        start = 0
        stop = len(sequence)
        if entry == first_entry:
            start = first_token
        if entry == last_entry:
            stop = last_token + n_extra
        tokens += sequence[start:stop]

    pad = -1 if config.masked_pad_token is None else config.masked_pad_token
    n_missing = config.sample_tokens - len(tokens)
    return tokens + [pad] * n_missing


def assert_batches(nanoset, expected, order):
    """Check what batches return: all samples, and some in any order.

    Args:
        nanoset: The dataset.
        expected: Tokens of all samples, shape (n_samples, sample_tokens).
        order: Indices of the second batch.
    """
    np.testing.assert_array_equal(nanoset.batch(np.arange(len(nanoset))), expected)
    np.testing.assert_array_equal(nanoset.batch(order), expected[order])


def assert_single_samples(nanoset, expected):
    """Check what reading single samples returns: their tokens, and where these come from."""
    for index, expected_tokens in enumerate(expected):
        tokens = nanoset.tokens(index)
        np.testing.assert_array_equal(tokens, expected_tokens)
        assert tokens.dtype == np.int64

        # The array belongs to the caller: a change of it is not seen by others.
        tokens[:] = 0
        np.testing.assert_array_equal(nanoset.tokens(index), expected_tokens)

        # Padding has no source.
        source_tokens = tokens_of_sources(nanoset, nanoset.sources(index))
        np.testing.assert_array_equal(source_tokens, expected_tokens[: len(source_tokens)])


def tokens_of_sources(nanoset, sources):
    """Return the tokens to which the sources of a sample point."""
    pieces = []
    for sequence, start, stop in sources.tolist():
        pieces.append(nanoset.dataset.get(sequence, start, stop - start))
    return np.concatenate(pieces)


@given(
    lengths=st.lists(st.one_of(st.integers(0, 2), st.integers(0, 200)), min_size=1, max_size=20),
    sequence_length=st.integers(1, 40),
    add_extra_token=st.booleans(),
    keeps_partial=st.booleans(),
    piece_tokens=st.sampled_from([0, 48, 1000]),
    many_pieces=st.sampled_from([0, 3, 1000]),
    dtype=st.sampled_from(["uint8", "uint16", "int32", "int64"]),
    seed=st.integers(0, 5),
    preset=st.sampled_from(["megatron", "nemo"]),
)
def test_tokens_are_those_of_a_walk_over_the_sequences(
    tmp_path_factory,
    lengths,
    sequence_length,
    add_extra_token,
    keeps_partial,
    piece_tokens,
    many_pieces,
    dtype,
    seed,
    preset,
):
    prefix = tmp_path_factory.mktemp("read") / "d"
    with MMapIndexedDatasetBuilder(prefix, dtype) as builder:
        builder.add_documents(np.arange(sum(lengths)) % 250, lengths, [1] * len(lengths))
    config = NanosetConfig(
        str(prefix),
        sequence_length=sequence_length,
        split="0,1,0",
        random_seed=seed,
        add_extra_token=add_extra_token,
        drop_last_partial_validation_sequence=not keeps_partial,
        pad_token=251,
        preset=preset,
        path_to_cache=str(prefix.with_name("cache")),
    )
    # Megatron-LM cannot read a sample that ends in an empty sequence.
    may_be_refused = preset == "megatron" and keeps_partial and add_extra_token and 0 in lengths
    try:
        _, valid, _ = NanosetBuilder(config).build()
    except ConfigError as refusal:
        if not may_be_refused or "empty sequence" not in refusal.what:
            raise
        return
    n_samples = len(valid)
    expected = np.array([slow_tokens(valid, index) for index in range(n_samples)], np.int64)
    expected = expected.reshape(n_samples, config.sample_tokens)  # also if there are no samples

    n_random = 7 if n_samples > 0 else 0
    order = np.random.RandomState(seed).randint(0, max(n_samples, 1), n_random)
    with pytest.MonkeyPatch.context() as patch:
        # Longer pieces are copied, shorter ones are gathered token by token.
        patch.setattr(nanoset_module, "_PIECE_TOKENS", piece_tokens)
        assert_batches(valid, expected, order)

    with pytest.MonkeyPatch.context() as patch:
        # Samples of that many pieces or more are read by numpy, others by a loop.
        patch.setattr(nanoset_module, "_MANY_PIECES", many_pieces)
        assert_single_samples(valid, expected)


@pytest.mark.parametrize(
    ("following_texts", "split"),
    [
        pytest.param([], "0,1,0", id="end of the data"),
        pytest.param([[10, 11, 12]], "0,3,1", id="more text"),
    ],
)
def test_a_sample_that_ends_in_an_empty_sequence_is_read_as_nemo_does(
    tmp_path, following_texts, split
):
    texts = [[1, 2, 3, 4, 5, 6], [], [9], *following_texts]
    with MMapIndexedDatasetBuilder(tmp_path / "d", np.uint16) as builder:
        for text in texts:
            builder.add_document(text)
    config = NanosetConfig(
        str(tmp_path / "d"),
        sequence_length=4,
        random_seed=1,
        preset="nemo",
        split=split,
        drop_last_partial_validation_sequence=False,
        path_to_cache=str(tmp_path / "cache"),
    )

    _, valid, _ = NanosetBuilder(config).build()

    # NeMo itself writes the end (2, -1): an offset below zero in the empty sequence. It read there
    # 5, 6, 9, and then padding.
    assert valid.document_index.tolist() == [0, 2, 1]
    assert valid.sample_index.tolist() == [[0, 0], [0, 4], [2, -1]]
    assert valid.tokens(0).tolist() == [5, 6, 9, -1, -1]
    assert valid.sources(0).tolist() == [[0, 4, 6], [2, 0, 1], [1, 0, 0]]
    sample = valid[0]
    assert sample["tokens"].tolist() == [5, 6, 9, 0]
    assert sample["labels"].tolist() == [6, 9, 0, 0]
    assert sample["loss_mask"].tolist() == [1, 1, 0, 0]

    singles = [valid.tokens(index).tolist() for index in range(2)]
    assert valid.batch([0, 1]).tolist() == singles


def test_the_sources_of_a_sample_are_sequences_that_lead_to_documents(tmp_path):
    prefix = str(tmp_path / "d")
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        # Document 0 has two sequences, document 1 has none, and document 2 has one.
        builder.add_documents([1, 2, 3, 4, 5], [1, 2, 2], [2, 0, 1])
    config = NanosetConfig(
        prefix, sequence_length=4, split="1,0,0", path_to_cache=str(tmp_path / "cache")
    )
    train = NanosetBuilder(config).build()[0]

    sources = train.sources(0)
    borders = train.dataset.document_indices
    documents = np.searchsorted(borders, sources[:, 0], side="right") - 1

    document_by_sequence = dict(zip(sources[:, 0].tolist(), documents.tolist(), strict=True))
    assert document_by_sequence == {0: 0, 1: 0, 2: 2}


# A blend of two datasets


@pytest.fixture(scope="module", params=["files", "memory"])
def splits(request, tmp_path_factory):
    """Train, valid and test of a blend, with index files or with arrays in memory."""
    folder = tmp_path_factory.mktemp("blend")
    blend = write_blend(folder)
    cache = str(folder / "cache")
    if request.param == "memory":
        cache = None
        # These files are in the place of the folders that would get the index files.
        (folder / "a").touch()
        (folder / "b").touch()
    config = NanosetConfig(
        blend,
        sequence_length=9,
        split="6,2,2",
        path_to_cache=cache,
        train_split_samples=40,
        valid_split_samples=40,
        test_split_samples=40,
    )
    return NanosetBuilder(config).build()


@pytest.fixture(params=["blend", "dataset of the blend"])
def samples(request, splits):
    """Samples of a blend, or of one of its datasets."""
    train = splits[0]
    return train if request.param == "blend" else train.datasets[0]


def test_a_blend_has_enough_samples_of_each_dataset(splits):
    for split in splits:
        assert isinstance(split, BlendedNanoset)
        assert len(split) == 27 + 14  # 40 samples 2:1, each rounded up


def test_a_blend_reads_the_samples_of_its_datasets(splits):
    for split in splits:
        batch = split.batch(range(len(split)))
        for index in range(len(split)):
            dataset_number = split.dataset_index[index]
            dataset = split.datasets[dataset_number]
            expected = slow_tokens(dataset, split.dataset_sample_index[index])

            assert split.tokens(index).tolist() == expected
            assert batch[index].tolist() == expected
            item = split[index]
            assert item["dataset_id"] == dataset_number
            assert item["tokens"].tolist() == expected[:-1]


def test_a_damaged_entry_of_a_blend_does_not_end_a_loop(splits):
    train = copy.copy(splits[0])
    train.dataset_sample_index = train.dataset_sample_index.copy()
    train.dataset_sample_index[1] = 10**6

    with pytest.raises(SampleIndexError):
        list(train)


def test_a_blend_says_where_its_tokens_come_from(splits):
    for split in splits:
        for index in range(len(split)):
            dataset_number, sources = split.sources(index)

            assert dataset_number == split.dataset_index[index]
            source_tokens = tokens_of_sources(split.datasets[dataset_number], sources)
            assert source_tokens.tolist() == split.tokens(index).tolist()


def test_torch_loads_a_blend(splits):
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    train = splits[0]
    expected = train.batch(range(len(train)))[:, :-1]

    for n_workers in (0, 2):
        loader = data.DataLoader(
            train, batch_size=8, num_workers=n_workers, multiprocessing_context=None
        )
        tokens = np.concatenate([batch["tokens"].numpy() for batch in loader])
        np.testing.assert_array_equal(tokens, expected)


def test_nemo_starts_a_short_dataset_again(tmp_path):
    first = write_pair(tmp_path / "a", [20] * 30)
    second = write_pair(tmp_path / "b", [20] * 30, start=5000)
    config = NanosetConfig(
        {first: 1.0, second: 1.0},
        sequence_length=9,
        split="1,0,0",
        train_split_samples=60,
        preset="nemo",
    )
    train, _, _ = NanosetBuilder(config).build()

    # Leave five samples in the second dataset: sample 7 of it is then sample 2.
    short = train.datasets[1]
    short.shuffle_index = short.shuffle_index[:5]
    short._count = 5
    is_sample_7 = (train.dataset_index == 1) & (train.dataset_sample_index == 7)
    index = int(np.flatnonzero(is_sample_7)[0])

    np.testing.assert_array_equal(train.tokens(index), short.tokens(2))
    np.testing.assert_array_equal(train.batch([index])[0], short.tokens(2))


# Indices


def test_negative_indices_count_from_the_end(samples):
    last = len(samples) - 1

    np.testing.assert_array_equal(samples.tokens(-1), samples.tokens(last))
    np.testing.assert_array_equal(
        samples.batch([-1, 0, -len(samples)]), samples.batch([last, 0, 0])
    )
    np.testing.assert_array_equal(samples[-2]["labels"], samples[last - 1]["labels"])


READINGS = {
    "tokens": lambda samples, index: samples.tokens(index),
    "item": lambda samples, index: samples[index],
    "batch": lambda samples, index: samples.batch([0, index]),
}
"""Ways to read the sample of an index."""


@pytest.mark.parametrize("read", READINGS.values(), ids=READINGS.keys())
@pytest.mark.parametrize("distance", [0, 10**12])
def test_indices_beyond_the_samples_are_refused(samples, distance, read):
    with pytest.raises(SampleIndexError, match="train"):
        read(samples, len(samples) + distance)
    with pytest.raises(SampleIndexError, match="train"):
        read(samples, -len(samples) - 1 - distance)


@pytest.mark.parametrize("indices", [[0.5], [[0, 1]], ["a"], 3])
def test_a_batch_takes_only_a_flat_list_of_integers(samples, indices):
    with pytest.raises(SampleIndexError, match="flat list"):
        samples.batch(indices)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_split_may_be_empty(tmp_path, split):
    prefix = write_pair(tmp_path / "d", [30] * 5)
    config = NanosetConfig(prefix, sequence_length=7, split="98,1,1")
    _, valid, test = NanosetBuilder(config).build()
    samples = {"valid": valid, "test": test}[split]

    assert len(samples) == 0
    assert samples.batch([]).shape == (0, 8)
    with pytest.raises(SampleIndexError, match="empty"):
        samples[0]


# Files that change


@pytest.mark.parametrize(
    ("name", "split"),
    [pytest.param("train", "1,0,0", id="train"), pytest.param("valid", "0,1,0", id="valid")],
)
@pytest.mark.parametrize(
    "changed_lengths", [[3] * 40, [29] * 40, [35] * 40], ids=["much shorter", "shorter", "longer"]
)
def test_data_that_changed_after_the_plan_is_noticed(tmp_path, name, split, changed_lengths):
    prefix = write_pair(tmp_path / "d", [30] * 40)
    config = NanosetConfig(
        prefix,
        sequence_length=11,
        split=split,
        drop_last_partial_validation_sequence=False,
        path_to_cache=str(tmp_path / "cache"),
    )
    plan = plan_split(config, name)
    NanosetBuilder(config).build()
    write_pair(tmp_path / "d", changed_lengths)

    stale = open_split(plan, config, config.path_to_cache)

    with pytest.raises(StaleError, match="don't fit"):
        stale.batch(range(len(stale)))
    with pytest.raises(StaleError, match="don't fit"):
        for index in range(len(stale)):
            stale.tokens(index)


# Many samples at once: torch calls `__getitems__`


def load_train(config):
    """Return the train split of a nanoset whose index arrays are only in memory."""
    plan = plan_split(config, "train")
    nanosets = []
    for member in plan.members:
        dataset = MMapIndexedDataset(member.prefix)
        indices = build_member_indices(member, config, dataset.sequence_lengths)
        nanosets.append(Nanoset(dataset, member, config, indices))
    if plan.blend is None:
        return nanosets[0]
    return BlendedNanoset(nanosets, plan, config, build_blend_indices(plan))


@pytest.fixture(scope="module", params=sorted(PRESETS))
def preset(request):
    """The name of a trainer."""
    return request.param


@pytest.fixture(scope="module", params=["blend", "one dataset"])
def train(request, preset, tmp_path_factory):
    """The train split of a nanoset for each trainer, with all masks that the trainer has."""
    data_path = write_blend(tmp_path_factory.mktemp("items"))
    if request.param == "one dataset":
        data_path = next(iter(data_path))
    masks = {"reset_position_ids": True, "eod_mask_loss": True, "create_attention_mask": True}
    if preset.startswith("nanotron"):
        masks = {}
    config = NanosetConfig(
        data_path,
        sequence_length=9,
        split="8,1,1",
        preset=preset,
        train_split_samples=60,
        eod_token=29,
        pad_token=31,
        **masks,
    )
    return load_train(config)


def test_many_samples_are_the_same_as_single_ones(train, preset):
    count = len(train)
    mixed = [5, 0, 5, -1, count - 1, -count]
    if preset.startswith("megatron"):
        mixed += [None, None]  # samples as padding

    for indices in ([], [3], mixed, list(np.arange(count)), range(7)):
        samples = train.__getitems__(indices)
        assert len(samples) == len(indices)
        for sample, index in zip(samples, indices, strict=True):
            assert_identical_samples(sample, train[index])


def test_each_of_many_samples_has_arrays_of_its_own(train):
    first, second = train.__getitems__([4, 4])
    last_key = list(first)[-1]

    second[last_key][...] = 0

    assert first[last_key].any()


def test_one_index_beyond_the_samples_refuses_all(train):
    for indices in ([0, len(train)], [-len(train) - 1], [2**70]):
        with pytest.raises(SampleIndexError, match="no such sample"):
            train.__getitems__(indices)


def test_many_samples_are_not_read_by_fractions(train):
    with pytest.raises(TypeError):
        train.__getitems__([0.5])


# A run that continues: it has consumed the first samples before


N_CONSUMED = 20
"""Samples that the run had consumed."""


@pytest.fixture(params=["blend", "one dataset"])
def continued_config(request, tmp_path):
    """Settings of a nanoset that continues a run of the same data."""
    data_path = write_blend(tmp_path)
    if request.param == "one dataset":
        data_path = next(iter(data_path))
    config = NanosetConfig(
        data_path,
        sequence_length=9,
        split="8,2,0",
        train_split_samples=60,
        valid_split_samples=5,
        path_to_cache=str(tmp_path / "cache"),
    )
    orders = orders_after(Read(plan_split(config, "train"), config, end=N_CONSUMED))
    return replace(config, orders=orders, consumed_samples=N_CONSUMED)


@pytest.fixture
def continued_train(continued_config):
    """The train split of a nanoset that continues a run."""
    return NanosetBuilder(continued_config).build()[0]


def read_batch(nanoset, index):
    """Read a sample in a batch, in which the other one exists."""
    return nanoset.batch([len(nanoset) - 1, index])


def read_items(nanoset, index):
    """Read a sample as the DataLoader of torch does."""
    return nanoset.__getitems__([len(nanoset) - 1, index])


def read_boundaries(nanoset, index):
    """Read where the documents of a sample begin."""
    return nanoset.cu_seqlens([len(nanoset) - 1, index])


READERS = {
    "item": operator.getitem,
    "items": read_items,
    "batch": read_batch,
    "tokens": lambda nanoset, index: nanoset.tokens(index),
    "sources": lambda nanoset, index: nanoset.sources(index),
    "boundaries": read_boundaries,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_samples_that_a_run_had_consumed_before_it_continued_are_refused(continued_train, read):
    read(continued_train, N_CONSUMED)
    for index in (0, N_CONSUMED - 1, N_CONSUMED - 1 - len(continued_train)):
        with pytest.raises(SampleIndexError, match="had consumed this sample") as caught:
            read(continued_train, index)
        assert caught.value.found == str(index)
        assert caught.value.expected == f"20 to {len(continued_train) - 1}"
        assert "read from sample 20 on" in caught.value.remedy


def test_a_loop_over_all_samples_of_a_continued_run_is_refused(continued_train):
    with pytest.raises(SampleIndexError, match="read from sample 20 on"):
        next(iter(continued_train))


def test_a_sampler_that_starts_after_the_consumed_samples_reads_all_others(continued_train):
    count = len(continued_train)
    sampler = PretrainingSampler(count, N_CONSUMED, 1, 0, 1)

    samples = [continued_train.__getitems__(indices)[0] for indices in sampler]

    assert len(samples) == count - N_CONSUMED


def test_a_continued_run_has_padding(continued_train):
    for sample in (continued_train[None], continued_train.__getitems__([None])[0]):
        assert not sample["loss_mask"].any()


def test_a_copy_of_a_continued_run_refuses_the_same_samples(continued_train):
    restored = pickle.loads(pickle.dumps(continued_train))

    restored[N_CONSUMED]
    with pytest.raises(SampleIndexError):
        restored[N_CONSUMED - 1]


def test_valid_of_a_continued_run_is_read_from_its_start(continued_config):
    valid = NanosetBuilder(continued_config).build()[1]

    assert len(valid.batch(range(len(valid)))) == len(valid) > 0
