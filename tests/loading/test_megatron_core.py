"""megatron-core itself takes our pairs and our index files, and returns our samples."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.loaded_samples import assert_sample_of_trainer
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
N_DOCUMENTS = {"a": 300, "b": 200, "c": 90}
"""Documents of each dataset, by its name."""


class Tokenizer:
    """As much of a tokenizer as megatron-core's dataset asks for."""

    unique_identifiers = IDENTIFIERS
    vocab_size = 50000
    eod = 0
    pad = 49999


class MegatronCore(NamedTuple):
    """What the tests use of megatron-core."""

    builder: Any
    """The class of builders of datasets."""
    gpt_dataset: Any
    """The module of that name."""
    indexed_dataset: Any
    """The module of that name."""


@pytest.fixture(scope="module")
def megatron() -> MegatronCore:
    """The installed megatron-core."""
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
    return MegatronCore(
        blended_megatron_dataset_builder.BlendedMegatronDatasetBuilder,
        gpt_dataset,
        indexed_dataset,
    )


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Ignore warnings, of which megatron-core gives many."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def prefixes(tmp_path: Path) -> list[str]:
    """The prefixes of three datasets."""
    random = np.random.RandomState(3)
    for name, n_documents in N_DOCUMENTS.items():
        with MMapIndexedDatasetBuilder(tmp_path / name, np.uint16) as builder:
            for length in random.randint(1, 150, n_documents):
                builder.add_document(np.append(random.randint(1, 49999, length), 0))
    return [str(tmp_path / name) for name in N_DOCUMENTS]


# The settings that are compared, on both sides


class Case(NamedTuple):
    """Settings of a nanoset of the three datasets."""

    data: str
    """Which datasets are read: "a" alone, "list", "weights" or another blend "per split"."""
    samples: tuple[int | None, int | None, int | None]
    """Samples of train, valid and test; None for one epoch."""
    split: str | None = None
    """Shares of the splits, unless each split has its own blend."""
    add_extra_token: bool = True
    drop_last_partial_validation_sequence: bool = True


CASES = {
    "one dataset, one epoch": Case("a", (None, None, None), "969,30,1"),
    "one dataset, several epochs": Case("a", (3000, 40, 5), "90,8,2"),
    "one dataset, no extra token": Case("a", (700, 40, 5), "90,8,2", add_extra_token=False),
    "one dataset, last sequence partial": Case(
        "a", (9, None, None), "9,1,0", drop_last_partial_validation_sequence=False
    ),
    "weights": Case("weights", (2000, 60, 7), "90,8,2"),
    "list, one epoch": Case("list", (None, None, None), "80,15,5"),
    "list, sizes of two splits": Case("list", (300, 10, None), "80,15,5"),
    "a blend for each split": Case("per split", (900, 33, None)),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    """Settings of a nanoset."""
    chosen: Case = request.param
    return chosen


def our_config(prefixes: list[str], case: Case, cache: Path, **changes: Any) -> NanosetConfig:
    """Return our settings of a case.

    Args:
        prefixes: The datasets.
        case: The settings of the case.
        cache: Folder of the index files.
        changes: Further settings, or other values of those below.
    """
    weights = dict(zip(prefixes, (5.5, 3.0, 1.3), strict=True))
    data_by_name: dict[str, Any] = {"a": prefixes[0], "weights": weights, "list": prefixes}
    source: dict[str, Any] = {}
    if case.data == "per split":
        source["blend_per_split"] = [weights, prefixes[1:], prefixes[0]]
    else:
        source["data_path"] = data_by_name[case.data]
        source["split"] = case.split
    n_train, n_valid, n_test = case.samples
    settings = {
        "sequence_length": 64,
        "random_seed": 99,
        "path_to_cache": str(cache),
        "tokenizer_identifiers": IDENTIFIERS,
        "eod_token": 0,
        "pad_token": 49999,
        "reset_position_ids": True,
        "eod_mask_loss": True,
        "create_attention_mask": True,
        "add_extra_token": case.add_extra_token,
        "drop_last_partial_validation_sequence": case.drop_last_partial_validation_sequence,
        "train_split_samples": n_train,
        "valid_split_samples": n_valid,
        "test_split_samples": n_test,
    }
    return NanosetConfig(**source, **(settings | changes))


def with_settings(config: NanosetConfig, **changes: Any) -> NanosetConfig:
    """Return a configuration with some settings changed."""
    return NanosetConfig.from_json(config.to_json() | changes)


def megatron_blend(data: Any) -> Any:
    """Return datasets as megatron-core takes them: (prefixes, weights or None)."""
    if data is None:
        return None
    if isinstance(data, dict):
        return list(data), list(data.values())
    if isinstance(data, str):
        return [data], None
    return list(data), None


def megatron_splits(
    megatron: MegatronCore, config: NanosetConfig, samples: tuple[Any, Any, Any], **options: Any
) -> list[Any]:
    """Return megatron-core's datasets of train, valid and test.

    Args:
        megatron: The installed megatron-core.
        config: Our settings, which it gets.
        samples: Samples of train, valid and test.
        options: Further settings of its `GPTDatasetConfig`.
    """
    source: dict[str, Any] = {"blend": megatron_blend(config.data_path), "split": config.split}
    if config.blend_per_split:
        blends = [megatron_blend(data) for data in config.blend_per_split]
        source = {"blend": None, "blend_per_split": blends, "split": None}
    megatron_config = megatron.gpt_dataset.GPTDatasetConfig(
        **source,
        random_seed=config.random_seed,
        sequence_length=config.sequence_length,
        path_to_cache=config.path_to_cache,
        tokenizer=Tokenizer(),
        reset_position_ids=True,
        reset_attention_mask=False,
        eod_mask_loss=True,
        create_attention_mask=True,
        add_extra_token_to_sequence=config.add_extra_token,
        drop_last_partial_validation_sequence=config.drop_last_partial_validation_sequence,
        **options,
    )
    gpt_dataset_class = megatron.gpt_dataset.GPTDataset
    builder = megatron.builder(gpt_dataset_class, list(samples), lambda: True, megatron_config)
    splits: list[Any] = builder.build()
    return splits


# Index files and samples


class FileState(NamedTuple):
    """What shows whether a file was written again."""

    modified: int
    inode: int


def states_of_files(folder: Path) -> dict[str, FileState]:
    """Return the state of each file in a folder, by its name."""
    states = {}
    for path in folder.iterdir():
        stat = path.stat()
        states[path.name] = FileState(stat.st_mtime_ns, stat.st_ino)
    return states


def test_megatron_core_loads_our_index_files(megatron, prefixes, case, tmp_path, caplog):
    cache = tmp_path / "cache"
    config = our_config(prefixes, case, cache)
    NanosetBuilder(config).build()
    states_before = states_of_files(cache)

    with caplog.at_level(logging.INFO):
        megatron_splits(megatron, config, case.samples)

    messages = " ".join(record.getMessage() for record in caplog.records)
    assert "Load the" in messages
    assert "Build and save" not in messages
    assert states_of_files(cache) == states_before


def test_megatron_core_returns_our_samples(megatron, prefixes, case, tmp_path):
    config = our_config(prefixes, case, tmp_path / "cache")
    our_splits = NanosetBuilder(config).build()

    their_splits = megatron_splits(megatron, config, case.samples)

    for our_split, their_split in zip(our_splits, their_splits, strict=True):
        if their_split is None:
            assert our_split is None
            continue
        assert len(our_split) == len(their_split)
        assert our_split.unique_description == their_split.unique_description
        for index in range(len(our_split)):
            assert_sample_of_trainer(our_split[index], their_split[index])


def test_megatron_core_returns_our_boundaries_of_documents(megatron, prefixes, case, tmp_path):
    if not hasattr(megatron.gpt_dataset.GPTDatasetConfig, DOCUMENTS):
        pytest.skip("this megatron-core is older than 0.19")
    # A third of the documents is empty, and some have one token.
    with MMapIndexedDatasetBuilder(prefixes[0], np.uint16) as builder:
        for length in np.random.RandomState(5).randint(0, 40, 500).tolist():
            n_tokens = 0 if length % 3 == 0 else length
            builder.add_document(np.arange(1, n_tokens + 1, dtype=np.uint16), [n_tokens])
    masking = {DOCUMENTS: True}
    config = our_config(prefixes, case, tmp_path / "cache", **masking)
    our_splits = NanosetBuilder(config).build()

    their_splits = megatron_splits(megatron, config, case.samples, **masking)

    for our_split, their_split in zip(our_splits, their_splits, strict=True):
        if our_split is None:
            continue
        indices: list[int | None] = [*range(len(our_split))]
        if case.data == "a" and len(our_split) > 0:
            indices.append(None)  # a sample as padding, which blends do not have
        for index in indices:
            assert_sample_of_trainer(our_split[index], their_split[index], same_dtypes=True)


@pytest.mark.parametrize(
    "options",
    [
        {"fast_cache_load": True},
        {"defer_npy_index_mmap": True},
        {"fast_cache_load": True, "defer_npy_index_mmap": True, "sequences_per_dataset": True},
    ],
    ids=" ".join,
)
def test_megatron_core_loads_our_index_files_without_looking(megatron, prefixes, options, tmp_path):
    """With these options, megatron-core takes index files for granted, or opens them late."""
    case = CASES["a blend for each split"]
    config = our_config(prefixes, case, tmp_path / "cache")
    our_splits = NanosetBuilder(config).build()
    if "sequences_per_dataset" in options:
        counts = {}
        for prefix in prefixes:
            dataset = MMapIndexedDataset(prefix)
            counts[prefix] = (len(dataset), len(dataset.document_indices))
        options = options | {"sequences_per_dataset": counts}

    their_splits = megatron_splits(megatron, config, case.samples, **options)

    for our_split, their_split in zip(our_splits, their_splits, strict=True):
        assert len(our_split) == len(their_split)
        for index in range(0, len(our_split), 7):
            expected = their_split[index]["tokens"].numpy()
            np.testing.assert_array_equal(our_split[index]["tokens"], expected)


def test_megatron_core_builds_the_files_that_we_build(megatron, prefixes, tmp_path):
    case = CASES["one dataset, several epochs"]
    ours = tmp_path / "ours"
    theirs = tmp_path / "theirs"
    config = our_config(prefixes, case, ours)
    NanosetBuilder(config).build()

    megatron_splits(megatron, with_settings(config, path_to_cache=str(theirs)), case.samples)

    their_files = list(theirs.iterdir())
    assert len(their_files) == 12
    for file in their_files:
        assert (ours / file.name).read_bytes() == file.read_bytes()


def test_megatron_core_reads_our_pairs_and_writes_the_same_bytes(megatron, prefixes, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    dataset = megatron.indexed_dataset.IndexedDataset(prefixes[0])

    writer = megatron.indexed_dataset.IndexedDatasetBuilder(
        str(tmp_path / "theirs.bin"), dtype=np.uint16
    )
    for sequence in dataset[:]:
        writer.add_document(torch.from_numpy(sequence.astype(np.int64)), [len(sequence)])
    writer.finalize(str(tmp_path / "theirs.idx"))

    for suffix in (".bin", ".idx"):
        our_bytes = (tmp_path / f"a{suffix}").read_bytes()
        assert (tmp_path / f"theirs{suffix}").read_bytes() == our_bytes


def test_megatron_core_takes_our_exact_count_of_samples_where_its_own_is_rounded(
    megatron, tmp_path
):
    """The last of three samples has one token, which is lost in 32-bit floats."""
    sequence_length = 2**23
    n_tokens = 2 * sequence_length + 2
    with (tmp_path / "d.idx").open("wb") as file:
        write_idx(file, np.uint16, np.array([n_tokens]), np.array([0, 1]))
    with (tmp_path / "d.bin").open("wb") as file:
        file.truncate(n_tokens * 2)  # zeros, which take no space
    config = NanosetConfig(
        blend_per_split=[None, tmp_path / "d", None],
        sequence_length=sequence_length,
        drop_last_partial_validation_sequence=False,
        path_to_cache=str(tmp_path / "cache"),
        tokenizer_identifiers=IDENTIFIERS,
    )
    one_epoch = (None, None, None)

    # With index files of its own, the count depends on an option.
    alone = with_settings(config, path_to_cache=str(tmp_path / "theirs"))
    deferred = {"defer_npy_index_mmap": True}
    assert len(megatron_splits(megatron, alone, one_epoch)[1]) == 2
    assert len(megatron_splits(megatron, alone, one_epoch, **deferred)[1]) == 3

    assert len(NanosetBuilder(config).build()[1]) == 3
    valid = megatron_splits(megatron, config, one_epoch)[1]

    assert len(valid) == 3
    padding_counts = []
    for index in range(3):
        tokens = valid._query_document_sample_shuffle_indices(index)[0]
        padding_counts.append(np.count_nonzero(tokens == Tokenizer.pad))
    assert sorted(padding_counts) == [0, 0, sequence_length - 1]


@pytest.mark.parametrize("is_ambiguous", [False, True], ids=["refused", "allowed"])
def test_the_pad_token_may_be_the_end_token(
    megatron, prefixes, tmp_path, monkeypatch, is_ambiguous
):
    """`allow_ambiguous_pad_tokens` decides whether such tokens count in the loss."""
    monkeypatch.setattr(Tokenizer, "pad", 0)
    case = CASES["one dataset, one epoch"]
    option = {"allow_ambiguous_pad_tokens": is_ambiguous}
    config = our_config(prefixes, case, tmp_path / "cache", pad_token=0, **option)
    our_train = NanosetBuilder(config).build()[0]

    their_train = megatron_splits(megatron, config, case.samples, **option)[0]

    for index in range(20):
        assert_sample_of_trainer(our_train[index], their_train[index])


# A run in phases: corpora join and leave, the batch grows, and the number of ranks changes


class Phase(NamedTuple):
    """A part of a run: its blend, and how many samples it consumes."""

    weights: dict[str, float]
    n_samples: int


PHASES = [
    Phase({"a": 0.6, "b": 0.4}, 96),
    Phase({"a": 0.3, "b": 0.3, "c": 0.4}, 160),  # c joins
    Phase({"b": 0.5, "c": 0.5}, 144),  # a leaves
]
N_SAMPLES = sum(phase.n_samples for phase in PHASES)
MICRO_BATCH = 2
GLOBAL_BATCH = 16
LENGTH = 16
"""Tokens of a sample."""
N_TOKENS_MOST = 1_000_000
"""Dataset k has the tokens from k times this number on, each once."""
UNIQUE_DOCUMENTS = {"a": 120, "b": 50, "c": 90}


def write_unique_tokens(folder: Path) -> dict[str, str]:
    """Write three datasets in which no token occurs twice, and return their prefixes by name."""
    random = np.random.RandomState(5)
    prefixes = {}
    for number, (name, n_documents) in enumerate(UNIQUE_DOCUMENTS.items()):
        lengths = random.randint(1, 40, n_documents)
        first_token = number * N_TOKENS_MOST
        tokens = np.arange(first_token, first_token + lengths.sum())
        with MMapIndexedDatasetBuilder(folder / name, np.int32) as builder:
            builder.add_documents(tokens, lengths, [1] * n_documents)
        prefixes[name] = str(folder / name)
    return prefixes


def phase_config(
    data: str | dict[str, float], n_samples: int, cache: Path, **settings: Any
) -> NanosetConfig:
    """Return the settings of a run that only trains."""
    return NanosetConfig(
        data,
        sequence_length=LENGTH,
        random_seed=3,
        split="1,0,0",
        train_split_samples=n_samples,
        path_to_cache=str(cache),
        tokenizer_identifiers=IDENTIFIERS,
        eod_token=0,
        **settings,
    )


def consumed_tokens(
    train: Any, start: int, stop: int, n_ranks: Callable[[int], int], batch: Callable[[int], int]
) -> Iterator[np.ndarray]:
    """Yield the tokens of each sample that the ranks of a run consume.

    Args:
        train: megatron-core's dataset.
        start: Samples that are consumed before.
        stop: Samples that are consumed after.
        n_ranks: Consumed samples → number of ranks.
        batch: Consumed samples → samples of the next global batch.
    """
    n_consumed = start
    while n_consumed < stop:
        n_batch = batch(n_consumed)
        size = n_ranks(n_consumed)
        n_micro_batches = n_batch // (MICRO_BATCH * size)  # of each rank
        indices: list[int] = []
        for rank in range(size):
            sampler = PretrainingSampler(len(train), n_consumed, MICRO_BATCH, rank, size)
            for micro_batch in itertools.islice(sampler, n_micro_batches):
                indices += micro_batch

        # Together, the ranks get the next samples, each once.
        assert sorted(indices) == list(range(n_consumed, n_consumed + n_batch))
        for index in sorted(indices):
            yield train[index]["tokens"].numpy()
        n_consumed += n_batch


def changing_ranks(n_before: int, middle: int) -> Callable[[int], int]:
    """Return a function of the consumed samples: the number of ranks, 2 from the middle on."""

    def n_ranks(n_consumed: int) -> int:
        return n_before if n_consumed < middle else 2

    return n_ranks


def constant_batch(n_consumed: int) -> int:
    """Return the samples of a global batch of a run without ramp-up."""
    return GLOBAL_BATCH


def growing_batch(n_consumed: int) -> int:
    """Return the samples of a global batch of a run with ramp-up: 8 until 48 are consumed."""
    from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator

    calculator = RampupBatchsizeNumMicroBatchesCalculator(
        GLOBAL_BATCH, MICRO_BATCH, 2, False, 0, 8, 8, 48
    )
    calculator.update(n_consumed, True)
    size: int = calculator.get_current_running_global_batch_size()
    return size


@pytest.mark.parametrize("is_one_run", [False, True], ids=["phases", "one run, with ramp-up"])
def test_a_run_in_phases_reads_each_dataset_in_one_order(
    megatron, tmp_path, monkeypatch, is_one_run
):
    """No sample is repeated before all others of its dataset are read.

    A phase is a run of megatron-core by itself, or a part of one run that counts on its samples.
    """
    monkeypatch.setattr(Tokenizer, "pad", -2)
    prefixes = write_unique_tokens(tmp_path)
    batch = growing_batch if is_one_run else constant_batch
    requested_samples: dict[str, int] = {}
    """Samples that the first phase with a dataset requests of it, by its prefix."""
    samples: list[np.ndarray] = []
    """Tokens of all consumed samples."""

    n_consumed = 0
    read = None  # what the phases before have read
    for number, phase in enumerate(PHASES):
        n_requested = phase.n_samples
        start = 0
        if is_one_run:
            n_requested = N_SAMPLES
            start = n_consumed
        stop = start + phase.n_samples
        cache = tmp_path / f"cache {number}"
        weights = {prefixes[name]: weight for name, weight in phase.weights.items()}
        config = phase_config(weights, n_requested, cache)
        if read is not None:
            config = replace(config, orders=orders_after(read), consumed_samples=start)
        NanosetBuilder(config).build()
        files_before = sorted(cache.iterdir())
        train = megatron_splits(megatron, config, (n_requested, 0, 0))[0]
        assert sorted(cache.iterdir()) == files_before  # it builds nothing

        # All phases but the first are resumed with fewer ranks in the middle.
        middle = start + phase.n_samples // 2
        n_ranks_before = 2 if number == 0 else 4
        samples += consumed_tokens(
            train,
            start,
            stop,
            changing_ranks(n_ranks_before, middle),
            batch,
        )

        plan = plan_split(config, "train")
        for member in plan.members:
            requested_samples.setdefault(member.prefix, member.samples_requested - member.begin)
        read = Read(plan, config, stop)
        n_consumed += phase.n_samples

    tokens = np.array(samples)  # (N_SAMPLES, LENGTH)
    assert len(tokens) == N_SAMPLES
    for number, (name, prefix) in enumerate(prefixes.items()):
        is_of_dataset = tokens[:, 0] // N_TOKENS_MOST == number
        rows = tokens[is_of_dataset] - number * N_TOKENS_MOST
        alone = phase_config(prefix, requested_samples[prefix], tmp_path / name)
        assert_order_of_one_run(megatron, rows, alone, number)


def assert_order_of_one_run(
    megatron: MegatronCore, rows: np.ndarray, config: NanosetConfig, number: int
) -> None:
    """Check the order in which the phases of a run read a dataset.

    Args:
        megatron: The installed megatron-core.
        rows: Samples of the dataset in the order of reading, shape (n_samples, LENGTH). Each token
            is its position in the dataset.
        config: Settings of a run that reads the dataset alone.
        number: Of the dataset.
    """
    # Up to its number of samples, the order is that of one uninterrupted run.
    order = megatron_splits(megatron, config, (config.train_split_samples, 0, 0))[0]
    n_compared = min(len(order), len(rows))
    expected = [order[index]["tokens"].numpy() for index in range(n_compared)]
    np.testing.assert_array_equal(rows[:n_compared] + number * N_TOKENS_MOST, expected)

    # The first epochs are shuffled together: each token is read once in each of them.
    n_epochs = plan_split(config, "train").members[0].epochs
    n_tokens = int(MMapIndexedDataset(config.data_path).sequence_lengths.sum())
    n_first = (n_epochs * n_tokens - 1) // LENGTH
    first_rows = rows[:n_first]
    assert np.bincount(first_rows.reshape(-1)).max() <= n_epochs

    # Each later epoch is shuffled by itself. Only the tokens of one sample, which belongs to two
    # epochs, may be read twice.
    next_epoch = rows[len(first_rows) : len(first_rows) + n_tokens // LENGTH - 1]
    if len(next_epoch) > 0:
        times_read = np.sort(np.bincount(next_epoch.reshape(-1)))
        assert times_read[-LENGTH - 1] == 1
