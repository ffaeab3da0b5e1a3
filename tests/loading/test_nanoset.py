"""Reading samples one by one and in batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, SampleIndexError, StaleError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.loading import nanoset as reading
from nanoset_core.loading.blended_nanoset import BlendedNanoset, open_split
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import build_blend_indices, build_member_indices
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.presets import PRESETS


def write(prefix, lengths, dtype=np.uint16, first=0):
    with MMapIndexedDatasetBuilder(prefix, dtype) as builder:
        builder.add_documents(np.arange(first, first + sum(lengths)), lengths, [1] * len(lengths))
    return str(prefix)


@pytest.fixture(params=["files", "memory"])
def splits(request, tmp_path):
    """Train, valid and test of a blend, with index files or without."""
    blend = {
        write(tmp_path / "a", [7, 0, 30, 1, 12] * 20): 2.0,
        write(tmp_path / "b", [50] * 20, first=5000): 1.0,
    }
    if request.param == "memory":
        (tmp_path / "a.txt").write_text("")
        for name in ("a", "b"):  # files where the folders beside the data would be
            (tmp_path / name).write_text("")
    sizes = {f"{split}_split_samples": 40 for split in ("train", "valid", "test")}
    cache = None if request.param == "memory" else str(tmp_path / "cache")
    return NanosetBuilder(
        NanosetConfig(blend, sequence_length=9, split="6,2,2", path_to_cache=cache, **sizes)
    ).build()


def slow_tokens(nanoset, index):
    """As Megatron-LM's `_query_document_sample_shuffle_indices`."""
    extra, dataset = int(nanoset.config.add_extra_token), nanoset.dataset
    sample = nanoset.shuffle_index[index]
    first, begin = nanoset.sample_index[sample]
    last, end = nanoset.sample_index[sample + 1]
    if first == last:
        parts = [dataset.get(nanoset.document_index[first], int(begin), int(end - begin + extra))]
    else:
        parts = []
        for at in range(first, last + 1):
            offset = 0 if at > first else int(begin)
            length = None if at < last else int(end + extra)
            parts.append(dataset.get(nanoset.document_index[at], offset, length))
    missing = nanoset.config.sample_tokens - sum(map(len, parts))
    pad = -1 if nanoset.config.masked_pad_token is None else nanoset.config.masked_pad_token
    return np.concatenate([np.array(part, np.int64) for part in parts] + [np.full(missing, pad)])


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 2), st.integers(0, 200)), min_size=1, max_size=20),
    length=st.integers(1, 40),
    extra=st.booleans(),
    partial=st.booleans(),
    piece=st.sampled_from([0, 48, 1000]),
    many=st.sampled_from([0, 3, 1000]),
    dtype=st.sampled_from(["uint8", "uint16", "int32", "int64"]),
    seed=st.integers(0, 5),
    preset=st.sampled_from(["megatron", "nemo"]),
)
def test_tokens_and_batches_are_the_slow_ones(
    tmp_path_factory, lengths, length, extra, partial, piece, many, dtype, seed, preset
):
    prefix = tmp_path_factory.mktemp("read") / "d"
    with MMapIndexedDatasetBuilder(prefix, dtype) as builder:
        builder.add_documents(np.arange(sum(lengths)) % 250, lengths, [1] * len(lengths))
    config = NanosetConfig(
        str(prefix),
        sequence_length=length,
        split="0,1,0",
        random_seed=seed,
        add_extra_token=extra,
        drop_last_partial_validation_sequence=not partial,
        pad_token=251,
        preset=preset,
        path_to_cache=str(prefix.with_name("cache")),
    )
    try:
        _, valid, _ = NanosetBuilder(config).build()
    except ConfigError as refusal:
        if not (
            partial
            and extra
            and 0 in lengths
            and "empty sequence" in refusal.what
            and preset == "megatron"
        ):
            raise
        return
    expected = np.array([slow_tokens(valid, index) for index in range(len(valid))], np.int64)
    expected = expected.reshape(len(valid), config.sample_tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_PIECE_TOKENS", piece)
        np.testing.assert_array_equal(valid.batch(np.arange(len(valid))), expected)
        order = np.random.RandomState(seed).randint(0, max(len(valid), 1), 7 * bool(len(valid)))
        np.testing.assert_array_equal(valid.batch(order), expected[order])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_MANY_PIECES", many)
        for index in range(len(valid)):
            tokens = valid.tokens(index)
            np.testing.assert_array_equal(tokens, expected[index])
            assert tokens.dtype == np.int64
            tokens[:] = 0  # the caller's own
            np.testing.assert_array_equal(valid.tokens(index), expected[index])
            parts = [
                valid.dataset.get(one, begin, end - begin)
                for one, begin, end in valid.sources(index).tolist()
            ]
            text = np.concatenate(parts)
            np.testing.assert_array_equal(text, expected[index][: len(text)])


@pytest.mark.parametrize("after", [[], [10, 11, 12]], ids=["end of the data", "more text"])
def test_a_sample_that_ends_in_an_empty_sequence_is_nemos(tmp_path, after):
    # NeMo's own end of it: (2, -1), an offset below zero. What it read there: 5, 6, 9, then
    # padding.
    texts = [[1, 2, 3, 4, 5, 6], [], [9], *([after] if after else [])]
    with MMapIndexedDatasetBuilder(tmp_path / "d", np.uint16) as builder:
        for text in texts:
            builder.add_document(text)
    config = NanosetConfig(
        str(tmp_path / "d"),
        sequence_length=4,
        random_seed=1,
        preset="nemo",
        split="0,3,1" if after else "0,1,0",
        drop_last_partial_validation_sequence=False,
        path_to_cache=str(tmp_path / "cache"),
    )
    _, valid, _ = NanosetBuilder(config).build()
    assert valid.document_index.tolist() == [0, 2, 1]
    assert valid.sample_index.tolist() == [[0, 0], [0, 4], [2, -1]]
    assert [valid.tokens(k).tolist() for k in range(2)] == valid.batch([0, 1]).tolist()
    assert valid.tokens(0).tolist() == [5, 6, 9, -1, -1]
    assert valid.sources(0).tolist() == [[0, 4, 6], [2, 0, 1], [1, 0, 0]]
    sample = valid[0]
    assert sample["tokens"].tolist() == [5, 6, 9, 0]
    assert sample["labels"].tolist() == [6, 9, 0, 0]
    assert sample["loss_mask"].tolist() == [1, 1, 0, 0]


def test_blend_reads_its_datasets(splits):
    for split in splits:
        assert isinstance(split, BlendedNanoset)
        assert len(split) == 41  # 27 + 14
        batch = split.batch(range(len(split)))
        for index in range(len(split)):
            number, sample = split.dataset_index[index], split.dataset_sample_index[index]
            expected = slow_tokens(split.datasets[number], sample)
            np.testing.assert_array_equal(split.tokens(index), expected)
            np.testing.assert_array_equal(batch[index], expected)
            source, pieces = split.sources(index)
            parts = [
                split.datasets[source].dataset.get(one, begin, end - begin)
                for one, begin, end in pieces.tolist()
            ]
            assert (source, np.concatenate(parts).tolist()) == (number, expected.tolist())
            item = split[index]
            assert item["dataset_id"] == number
            np.testing.assert_array_equal(item["tokens"], expected[:-1])


def test_negative_indices_count_from_the_end(splits):
    for split in (splits[0], splits[0].datasets[0]):
        np.testing.assert_array_equal(split.tokens(-1), split.tokens(len(split) - 1))
        np.testing.assert_array_equal(
            split.batch([-1, 0, -len(split)]), split.batch([len(split) - 1, 0, 0])
        )
        np.testing.assert_array_equal(split[-2]["labels"], split[len(split) - 2]["labels"])


@pytest.mark.parametrize("beyond", [0, 10**12])
def test_indices_outside(splits, beyond):
    for split in (splits[0], splits[0].datasets[0]):
        for index in (len(split) + beyond, -len(split) - 1 - beyond):
            for read in (
                split.tokens,
                split.__getitem__,
                lambda k, split=split: split.batch([0, k]),
            ):
                with pytest.raises(SampleIndexError, match="train"):
                    read(index)


@pytest.mark.parametrize("indices", [[0.5], [[0, 1]], ["a"], 3])
def test_indices_that_are_not_a_list_of_integers(splits, indices):
    for split in (splits[0], splits[0].datasets[0]):
        with pytest.raises(SampleIndexError, match="flat list"):
            split.batch(indices)


def test_empty_split(tmp_path):
    prefix = write(tmp_path / "d", [30] * 5)
    _, valid, test = NanosetBuilder(
        NanosetConfig(prefix, sequence_length=7, split="98,1,1")
    ).build()
    for split in (valid, test):
        assert len(split) == 0
        assert split.batch([]).shape == (0, 8)
        with pytest.raises(SampleIndexError, match="empty"):
            split[0]


def test_nemo_starts_a_short_dataset_again(tmp_path):
    blend = {
        write(tmp_path / "a", [20] * 30): 1.0,
        write(tmp_path / "b", [20] * 30, first=5000): 1.0,
    }
    config = NanosetConfig(
        blend, sequence_length=9, split="1,0,0", train_split_samples=60, preset="nemo"
    )
    train, _, _ = NanosetBuilder(config).build()
    short = train.datasets[1]
    short.shuffle_index, short._count = short.shuffle_index[:5], 5
    at = int(np.flatnonzero((train.dataset_index == 1) & (train.dataset_sample_index == 7))[0])
    np.testing.assert_array_equal(train.tokens(at), short.tokens(2))
    np.testing.assert_array_equal(train.batch([at])[0], short.tokens(2))


@pytest.mark.parametrize("split", ["1,0,0", "0,1,0"])
def test_data_that_was_changed_under_an_open_plan_is_noticed(tmp_path, split):
    prefix = write(tmp_path / "d", [30] * 40)
    partial = {
        "drop_last_partial_validation_sequence": False,
        "path_to_cache": str(tmp_path / "cache"),
    }
    config = NanosetConfig(prefix, sequence_length=11, split=split, **partial)
    name = "train" if split == "1,0,0" else "valid"
    plan = plan_split(config, name)
    NanosetBuilder(config).build()
    for lengths in ([3] * 40, [29] * 40, [35] * 40):
        write(tmp_path / "d", lengths)
        stale = open_split(plan, config, config.path_to_cache)
        with pytest.raises(StaleError, match="don't fit"):
            stale.batch(range(len(stale)))
        with pytest.raises(StaleError, match="don't fit"):
            for index in range(len(stale)):
                stale.tokens(index)


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("blended", [True, False])
def test_many_items_are_the_single_ones(tmp_path, preset, blended):
    blend = {
        write(tmp_path / "a", [7, 0, 30, 1, 12] * 20): 2.0,
        write(tmp_path / "b", [50] * 20, first=5000): 1.0,
    }
    masks = {"reset_position_ids": True, "eod_mask_loss": True, "create_attention_mask": True}
    config = NanosetConfig(
        blend if blended else next(iter(blend)),
        sequence_length=9,
        split="8,1,1",
        preset=preset,
        train_split_samples=60,
        eod_token=29,
        pad_token=31,
        **({} if preset.startswith("nanotron") else masks),
    )
    train = load(config)
    count = len(train)
    paddings = [None, None] if preset.startswith("megatron") else []
    for indices in (
        [],
        [3],
        [5, 0, 5, -1, count - 1, -count, *paddings],
        list(np.arange(count)),
        range(7),
    ):
        found, expected = train.__getitems__(indices), [train[index] for index in indices]
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert list(one) == list(other)
            for key, value in other.items():
                assert type(one[key]) is type(value)
                assert (one[key].dtype, one[key].shape) == (value.dtype, value.shape)
                np.testing.assert_array_equal(one[key], value)
    first, again = train.__getitems__([4, 4])
    again[next(reversed(again))][...] = 0  # the caller's own
    assert first[next(reversed(first))].any()
    for wrong in ([0, count], [-count - 1], [2**70]):
        with pytest.raises(SampleIndexError, match="no such sample"):
            train.__getitems__(wrong)
    with pytest.raises(TypeError):
        train.__getitems__([0.5])


def load(config):
    plan = plan_split(config, "train")
    lengths = [MMapIndexedDataset(member.prefix).sequence_lengths for member in plan.members]
    arrays = [
        build_member_indices(*part)
        for part in zip(plan.members, [config] * 2, lengths, strict=False)
    ]
    nanosets = [
        Nanoset(MMapIndexedDataset(member.prefix), member, config, indices)
        for member, indices in zip(plan.members, arrays, strict=True)
    ]
    return (
        nanosets[0]
        if plan.blend is None
        else BlendedNanoset(nanosets, plan, config, build_blend_indices(plan))
    )


def test_is_a_dataset_for_torch(splits):
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    train = splits[0]
    for workers in (0, 2):
        loader = data.DataLoader(
            train, batch_size=8, num_workers=workers, multiprocessing_context=None
        )
        tokens = np.concatenate([batch["tokens"].numpy() for batch in loader])
        np.testing.assert_array_equal(tokens, train.batch(range(len(train)))[:, :-1])
