"""megatron-core itself on our files: it reads our pairs, takes our index files, and gives our
samples.
"""

import itertools
import logging
import warnings
from dataclasses import replace

import numpy as np
import pytest

from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import write_idx
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.loading.samplers import PretrainingSampler
from nanoset_core.sampling.config import DOCUMENTS, NanosetConfig
from nanoset_core.sampling.orders import Read, orders_after
from nanoset_core.sampling.plan import plan_split

IDENTIFIERS = {"class": "Stub", "tokenizer_path": ["stub"], "vocab_size": "50000"}
SPLITS = ("train", "valid", "test")


class Tokenizer:
    """As much of a tokenizer as the peer's dataset asks for."""

    unique_identifiers = IDENTIFIERS
    vocab_size = 50000
    eod = 0
    pad = 49999


@pytest.fixture(scope="module")
def peer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(
            "megatron.core.datasets.gpt_dataset", reason="megatron-core is not installed"
        )
        from megatron.core.datasets import (
            blended_megatron_dataset_builder,
            gpt_dataset,
            indexed_dataset,
        )
    return (
        blended_megatron_dataset_builder.BlendedMegatronDatasetBuilder,
        gpt_dataset,
        indexed_dataset,
    )


@pytest.fixture(autouse=True)
def peers_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def prefixes(tmp_path):
    random = np.random.RandomState(3)
    for name, count in (("a", 300), ("b", 200), ("c", 90)):
        with MMapIndexedDatasetBuilder(tmp_path / name, np.uint16) as builder:
            for length in random.randint(1, 150, count):
                builder.add_document(np.append(random.randint(1, 49999, length), 0))
    return [str(tmp_path / name) for name in ("a", "b", "c")]


CONFIGS = [
    {"data_path": 0, "split": "969,30,1", "samples": (None, None, None)},
    {"data_path": 0, "split": "90,8,2", "samples": (3000, 40, 5)},
    {"data_path": 0, "split": "90,8,2", "samples": (700, 40, 5), "add_extra_token": False},
    {
        "data_path": 0,
        "split": "9,1,0",
        "samples": (9, None, None),
        "drop_last_partial_validation_sequence": False,
    },
    {"data_path": "weights", "split": "90,8,2", "samples": (2000, 60, 7)},
    {"data_path": "list", "split": "80,15,5", "samples": (None, None, None)},
    {"data_path": "list", "split": "80,15,5", "samples": (300, 10, None)},
    {"data_path": "per split", "samples": (900, 33, None)},
]


def our_config(prefixes, case, folder):
    weights = dict(zip(prefixes, (5.5, 3.0, 1.3), strict=True))
    data = {0: prefixes[0], "weights": weights, "list": prefixes, "per split": None}[
        case["data_path"]
    ]
    options = {key: value for key, value in case.items() if key not in ("data_path", "samples")}
    if case["data_path"] == "per split":
        options["blend_per_split"] = [weights, prefixes[1:], prefixes[0]]
    samples = {
        f"{split}_split_samples": size for split, size in zip(SPLITS, case["samples"], strict=True)
    }
    return NanosetConfig(
        data,
        sequence_length=64,
        random_seed=99,
        path_to_cache=str(folder),
        tokenizer_identifiers=IDENTIFIERS,
        eod_token=0,
        pad_token=49999,
        reset_position_ids=True,
        eod_mask_loss=True,
        create_attention_mask=True,
        **options,
        **samples,
    )


def peers_splits(peer, config, samples, **loading):
    def blend(given):
        if given is None:
            return None
        if isinstance(given, str):
            return [given], None
        return (
            (list(given), list(given.values())) if isinstance(given, dict) else (list(given), None)
        )

    own = config.blend_per_split
    theirs = peer[1].GPTDatasetConfig(
        random_seed=config.random_seed,
        sequence_length=config.sequence_length,
        blend=None if own else blend(config.data_path),
        blend_per_split=[blend(each) for each in own] if own else None,
        split=None if own else config.split,
        path_to_cache=config.path_to_cache,
        tokenizer=Tokenizer(),
        reset_position_ids=True,
        reset_attention_mask=False,
        eod_mask_loss=True,
        create_attention_mask=True,
        add_extra_token_to_sequence=config.add_extra_token,
        drop_last_partial_validation_sequence=config.drop_last_partial_validation_sequence,
        **loading,
    )
    return peer[0](peer[1].GPTDataset, list(samples), lambda: True, theirs).build()


@pytest.mark.parametrize("case", CONFIGS, ids=str)
def test_takes_our_index_files_and_gives_our_samples(peer, prefixes, case, tmp_path, caplog):
    folder = tmp_path / "cache"
    config = our_config(prefixes, case, folder)
    ours = NanosetBuilder(config).build()
    before = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()}
    with caplog.at_level(logging.INFO):
        theirs = peers_splits(peer, config, case["samples"])
    messages = " ".join(record.getMessage() for record in caplog.records)
    assert "Load the" in messages
    assert "Build and save" not in messages
    assert {
        path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()
    } == before
    for mine, peers in zip(ours, theirs, strict=True):
        assert (mine is None) == (peers is None)
        if mine is None:
            continue
        assert len(mine) == len(peers)
        assert mine.unique_description == peers.unique_description
        for index in range(len(mine)):
            sample, expected = mine[index], peers[index]
            assert list(sample) == list(expected)
            for key, value in expected.items():
                np.testing.assert_array_equal(sample[key], np.asarray(value), err_msg=key)


@pytest.mark.parametrize(
    "loading",
    [
        {"fast_cache_load": True},
        {"defer_npy_index_mmap": True},
        {"fast_cache_load": True, "defer_npy_index_mmap": True, "sequences_per_dataset": True},
    ],
    ids=lambda loading: " ".join(loading),
)
def test_loads_our_index_files_unseen(peer, prefixes, loading, tmp_path):
    case = CONFIGS[-1]
    config = our_config(prefixes, case, tmp_path / "cache")
    ours = NanosetBuilder(config).build()
    if "sequences_per_dataset" in loading:
        counts = {prefix: MMapIndexedDataset(prefix) for prefix in prefixes}
        counts = {
            prefix: (len(dataset), len(dataset.document_indices))
            for prefix, dataset in counts.items()
        }
        loading = loading | {"sequences_per_dataset": counts}
    theirs = peers_splits(peer, config, case["samples"], **loading)
    for mine, peers in zip(ours, theirs, strict=True):
        assert len(mine) == len(peers)
        for index in range(0, len(mine), 7):
            np.testing.assert_array_equal(mine[index]["tokens"], peers[index]["tokens"].numpy())


def test_takes_the_exact_count_of_samples_where_its_own_is_rounded(peer, tmp_path):
    tokens = 2**24 + 2
    with (tmp_path / "d.idx").open("wb") as file:
        write_idx(file, np.uint16, np.array([tokens]), np.array([0, 1]))
    with open(tmp_path / "d.bin", "wb") as file:
        file.truncate(tokens * 2)
    config = NanosetConfig(
        blend_per_split=[None, tmp_path / "d", None],
        sequence_length=2**23,
        drop_last_partial_validation_sequence=False,
        path_to_cache=str(tmp_path / "cache"),
        tokenizer_identifiers=IDENTIFIERS,
    )
    alone = NanosetConfig.from_json(config.to_json() | {"path_to_cache": str(tmp_path / "theirs")})
    assert len(peers_splits(peer, alone, (None, None, None))[1]) == 2
    assert len(peers_splits(peer, alone, (None, None, None), defer_npy_index_mmap=True)[1]) == 3
    assert len(NanosetBuilder(config).build()[1]) == 3
    valid = peers_splits(peer, config, (None, None, None))[1]
    assert len(valid) == 3
    short = [
        np.count_nonzero(valid._query_document_sample_shuffle_indices(k)[0] == Tokenizer.pad)
        for k in range(3)
    ]
    assert sorted(short) == [0, 0, 2**23 - 1]


def test_a_pad_token_that_is_the_end_token_too(peer, prefixes, tmp_path, monkeypatch):
    monkeypatch.setattr(Tokenizer, "pad", 0)
    case = CONFIGS[0]
    values = our_config(prefixes, case, tmp_path / "cache").to_json() | {"pad_token": 0}
    for ambiguous in (False, True):
        config = NanosetConfig.from_json(values | {"allow_ambiguous_pad_tokens": ambiguous})
        train = NanosetBuilder(config).build()[0]
        peers = peers_splits(peer, config, case["samples"], allow_ambiguous_pad_tokens=ambiguous)[0]
        for index in range(20):
            for key, value in peers[index].items():
                np.testing.assert_array_equal(train[index][key], np.asarray(value), err_msg=key)


def test_builds_the_files_that_we_build(peer, prefixes, tmp_path):
    case = CONFIGS[1]
    config = our_config(prefixes, case, tmp_path / "ours")
    NanosetBuilder(config).build()
    theirs = NanosetConfig.from_json(config.to_json() | {"path_to_cache": str(tmp_path / "theirs")})
    peers_splits(peer, theirs, case["samples"])
    for path in (tmp_path / "theirs").iterdir():
        assert (tmp_path / "ours" / path.name).read_bytes() == path.read_bytes()
    assert len(list((tmp_path / "theirs").iterdir())) == 12


@pytest.mark.parametrize("case", CONFIGS, ids=str)
def test_the_same_boundaries_of_documents(peer, prefixes, case, tmp_path):
    if not hasattr(peer[1].GPTDatasetConfig, DOCUMENTS):
        pytest.skip("this megatron-core is older than 0.19")
    # with empty documents, and of one token
    with MMapIndexedDatasetBuilder(prefixes[0], np.uint16) as builder:
        for length in np.random.RandomState(5).randint(0, 40, 500):
            builder.add_document(
                np.arange(1, length + 1) if length % 3 else np.empty(0, np.uint16),
                [length * bool(length % 3)],
            )
    config = NanosetConfig.from_json(
        our_config(prefixes, case, tmp_path / "cache").to_json() | {DOCUMENTS: True}
    )
    theirs = peers_splits(peer, config, case["samples"], **{DOCUMENTS: True})
    for mine, peers in zip(NanosetBuilder(config).build(), theirs, strict=True):
        for index in [*range(len(mine or ())), *([] if case["data_path"] or not mine else [None])]:
            sample, expected = mine[index], peers[index]
            assert list(sample) == list(expected)
            for key, value in expected.items():
                assert sample[key].dtype == np.asarray(value).dtype
                np.testing.assert_array_equal(sample[key], np.asarray(value), err_msg=key)


def test_reads_our_pairs_and_writes_the_same_bytes(peer, prefixes, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    dataset = peer[2].IndexedDataset(prefixes[0])
    writer = peer[2].IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    for sequence in dataset[:]:
        writer.add_document(torch.from_numpy(sequence.astype(np.int64)), [len(sequence)])
    writer.finalize(str(tmp_path / "theirs.idx"))
    for end in (".bin", ".idx"):
        assert (tmp_path / f"theirs{end}").read_bytes() == (tmp_path / f"a{end}").read_bytes()


PHASES = [
    ({"a": 0.6, "b": 0.4}, 96),
    ({"a": 0.3, "b": 0.3, "c": 0.4}, 160),
    ({"b": 0.5, "c": 0.5}, 144),
]
"""Blends of a run, and the samples that it consumes of each: c joins, a leaves."""
LONG = 16


def unique_tokens(folder):
    """Write three datasets in which no token stands twice; return name → prefix."""
    random = np.random.RandomState(5)
    for number, (name, count) in enumerate((("a", 120), ("b", 50), ("c", 90))):
        lengths = random.randint(1, 40, count)
        with MMapIndexedDatasetBuilder(folder / name, np.int32) as builder:
            builder.add_documents(
                number * 1_000_000 + np.arange(lengths.sum()), lengths, [1] * count
            )
    return {name: str(folder / name) for name in "abc"}


def dealt(dataset, consumed, until, micro, sizes, batch):
    """Yield (first sample of a step, tokens that all ranks are given for it, in the order of their
    samples).
    """
    while consumed < until:
        ranks, batch_size = sizes(consumed), batch(consumed)
        each = batch_size // (micro * ranks)
        samplers = [
            PretrainingSampler(len(dataset), consumed, micro, rank, ranks) for rank in range(ranks)
        ]
        lists = [list(itertools.islice(sampler, each)) for sampler in samplers]
        numbers = np.sort(np.array(lists).reshape(-1))
        assert (numbers == np.arange(consumed, consumed + batch_size)).all()
        for number in numbers.tolist():
            yield dataset[number]["tokens"].numpy()
        consumed += batch_size


@pytest.mark.parametrize("whole", [False, True], ids=["phases", "one run, with ramp-up"])
def test_a_run_in_phases_repeats_nothing(peer, tmp_path, monkeypatch, whole):
    """A corpus joins, one leaves, the batch grows, and the run is resumed on another number of
    ranks.
    """
    from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator

    monkeypatch.setattr(Tokenizer, "pad", -2)
    prefixes, total = unique_tokens(tmp_path), sum(samples for _, samples in PHASES)
    seen, asked, read, done = [], {}, None, 0

    def batch(consumed):
        if not whole:
            return 16
        calculator = RampupBatchsizeNumMicroBatchesCalculator(16, 2, 2, False, 0, 8, 8, 48)
        calculator.update(consumed, True)
        return calculator.get_current_running_global_batch_size()

    for number, (blend, samples) in enumerate(PHASES):
        config = NanosetConfig(
            {prefixes[name]: weight for name, weight in blend.items()},
            sequence_length=LONG,
            random_seed=3,
            split="1,0,0",
            train_split_samples=total if whole else samples,
            path_to_cache=str(tmp_path / f"cache {number}"),
            tokenizer_identifiers=IDENTIFIERS,
            eod_token=0,
        )
        if read is not None:
            config = replace(
                config, orders=orders_after(read), consumed_samples=done if whole else 0
            )
        NanosetBuilder(config).build()
        files = sorted((tmp_path / f"cache {number}").iterdir())
        train = peers_splits(peer, config, (config.train_split_samples, 0, 0))[0]
        assert sorted((tmp_path / f"cache {number}").iterdir()) == files
        begin = done if whole else 0
        sizes = (
            (lambda _: 2)
            if number == 0
            else (lambda consumed, at=begin + samples // 2: 4 if consumed < at else 2)
        )
        seen += [*dealt(train, begin, begin + samples, 2, sizes, batch)]
        plan = plan_split(config, "train")
        for member in plan.members:
            asked.setdefault(member.prefix, member.samples_requested - member.begin)
        read, done = Read(plan, config, begin + samples), done + samples
    seen = np.array(seen)
    assert len(seen) == total
    for number, (name, prefix) in enumerate(prefixes.items()):
        mine = seen[seen[:, 0] // 1_000_000 == number]
        alone = NanosetConfig(
            prefix,
            sequence_length=LONG,
            random_seed=3,
            split="1,0,0",
            train_split_samples=asked[prefix],
            path_to_cache=str(tmp_path / name),
            tokenizer_identifiers=IDENTIFIERS,
            eod_token=0,
        )
        # the peer's own, uninterrupted
        order = peers_splits(peer, alone, (alone.train_split_samples, 0, 0))[0]
        once = min(len(order), len(mine))
        np.testing.assert_array_equal(
            mine[:once], [order[k]["tokens"].numpy() for k in range(once)]
        )
        epochs = plan_split(alone, "train").members[0].epochs
        tokens = int(MMapIndexedDataset(prefix).sequence_lengths.sum())
        read_first = mine[: (epochs * tokens - 1) // LONG]
        assert np.bincount(read_first.reshape(-1) - number * 1_000_000).max() <= epochs
        later = (
            mine[len(read_first) : len(read_first) + tokens // LONG - 1].reshape(-1)
            - number * 1_000_000
        )
        # one sample lies over two epochs
        assert not len(later) or np.sort(np.bincount(later))[-LONG - 1] == 1
