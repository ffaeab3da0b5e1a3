"""NeMo's own datasets take our index files, and return our samples: of corpora, of packs, and of
runs whose blend changes.

NeMo's datasets are read from its source files, wherever they are installed. Nothing else of NeMo
needs to be importable, not even its compiled helpers: the sample index also exists in Python, and
the blending is Megatron-LM's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.loaded_samples import assert_sample_of_trainer
from helpers.nemo import SEED, SEQUENCE_LENGTH, Splits, nemo_builder
from helpers.packs import write_packs
from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder, NanosetConfig
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling.orders import Read, orders_after
from nanoset_core.sampling.packing.plan import PieceRule
from nanoset_core.sampling.plan import plan_split
from nanoset_core.stages.packs.writing import PackingRules

DOCUMENTS = {"a": 300, "b": 200, "c": 90}
"""Datasets of documents, and how many documents they have."""
TAILS = {"a": "pad", "b": "carry"}
"""Datasets of which there are packs, too, and what becomes of the room in their last packs."""


@pytest.fixture
def nemo(monkeypatch) -> Splits:
    """A function that builds datasets as NeMo does; it fails if index files are missing."""
    return nemo_builder(monkeypatch, may_build=False)


@pytest.fixture(autouse=True)
def process():
    """A run of one process."""
    dist = pytest.importorskip("torch.distributed", reason="torch is not installed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def prefixes(tmp_path) -> dict[str, str]:
    """The prefix of each dataset, by its name: a, b, c, a-packs and b-packs."""
    random = np.random.RandomState(3)
    for name, n_documents in DOCUMENTS.items():
        with MMapIndexedDatasetBuilder(tmp_path / name, np.uint16) as builder:
            for length in random.randint(1, 150, n_documents):
                builder.add_document(np.append(random.randint(2, 49999, length), 0))

    for name, tail in TAILS.items():
        rules = PackingRules(PieceRule(SEQUENCE_LENGTH), tail, 1, 7)
        write_packs(tmp_path / name, tmp_path / f"{name}-packs", rules)

    names = [*DOCUMENTS, *(f"{name}-packs" for name in TAILS)]
    return {name: str(tmp_path / name) for name in names}


class RequestedNanoset(NamedTuple):
    """What is requested of both sides: of NeMo, and of us."""

    weights: Mapping[str, float]
    """Weight of each dataset, by its name."""
    samples: Sequence[int]
    """Samples of train, valid and test."""
    split: str | None = None
    """Shares of the splits; None gives each split its own blend."""
    options: Mapping[str, Any] = {}
    """Options that have the same name on both sides."""


def our_config(
    requested: RequestedNanoset, prefixes: Mapping[str, str], cache: Path
) -> NanosetConfig:
    """Return our settings of a nanoset."""
    data: Any = {prefixes[name]: weight for name, weight in requested.weights.items()}
    if len(data) == 1:
        (data,) = data  # a dataset alone is no blend
    source: dict[str, Any] = {"data_path": data, "split": requested.split}
    if requested.split is None:
        source = {"blend_per_split": [data, data, data]}
    n_train, n_valid, n_test = requested.samples
    return NanosetConfig(
        **source,
        sequence_length=SEQUENCE_LENGTH,
        random_seed=SEED,
        preset="nemo",
        path_to_cache=str(cache),
        eod_token=0,
        train_split_samples=n_train,
        valid_split_samples=n_valid,
        test_split_samples=n_test,
        **requested.options,
    )


def nemo_splits(
    nemo: Splits, requested: RequestedNanoset, prefixes: Mapping[str, str], cache: Path
) -> list[Any]:
    """Return NeMo's datasets of train, valid and test."""
    data: Any = []
    for name, weight in requested.weights.items():
        if len(requested.weights) > 1:
            data.append(str(weight))
        data.append(prefixes[name])
    if requested.split is None:
        data = {"train": data, "validation": data, "test": data}
    return nemo(data, requested.split, list(requested.samples), cache, **requested.options)


CASES = {
    "one dataset": RequestedNanoset(
        weights={"a": 1.0},
        split="90,8,2",
        samples=[1500, 40, 5],
    ),
    "blend": RequestedNanoset(
        weights={"a": 5.5, "b": 3.0, "c": 1.3},
        split="80,15,5",
        samples=[2000, 60, 7],
        options={"eod_mask_loss": True},
    ),
    "blend for each split": RequestedNanoset(
        weights={"a": 0.7, "b": 0.3},
        samples=[1500, 40, 5],
    ),
    "packs": RequestedNanoset(
        weights={"a-packs": 1.0},
        split="90,8,2",
        samples=[1500, 40, 5],
        options={"eod_mask_loss": True},
    ),
    "blend of packs": RequestedNanoset(
        weights={"a-packs": 0.7, "b-packs": 0.3},
        split="90,10,0",
        samples=[1500, 60, 0],
    ),
    "packs and a corpus": RequestedNanoset(
        weights={"b-packs": 0.7, "c": 0.3},
        split="100,0,0",
        samples=[1500, 0, 0],
        options={"shuffle_documents": False},
    ),
}


@pytest.mark.parametrize("requested", CASES.values(), ids=CASES.keys())
def test_nemo_finds_our_index_files_and_returns_our_samples(nemo, prefixes, requested, tmp_path):
    cache = tmp_path / "cache"

    our_splits = NanosetBuilder(our_config(requested, prefixes, cache)).build()
    their_splits = nemo_splits(nemo, requested, prefixes, cache)

    for our_split, their_split in zip(our_splits, their_splits, strict=True):
        if their_split is None:
            assert our_split is None
            continue
        assert len(our_split) == len(their_split)
        for index in range(len(our_split)):
            assert_sample_of_trainer(our_split[index], their_split[index])


# A run in phases: its blend changes, and it continues where the phase before stopped


class Phase(NamedTuple):
    """A part of a run: its blend, and how many samples it consumes."""

    weights: Mapping[str, float]
    n_samples: int


PHASES = [
    Phase({"a": 0.6, "b-packs": 0.4}, 200),
    Phase({"a": 0.3, "b-packs": 0.3, "c": 0.4}, 900),  # c joins
    Phase({"b-packs": 1.0}, 700),  # a and c leave
]
N_SAMPLES = sum(phase.n_samples for phase in PHASES)


@pytest.mark.parametrize("is_one_run", [False, True], ids=["phases", "one run"])
def test_nemo_continues_where_the_phase_before_stopped(nemo, prefixes, is_one_run, tmp_path):
    """A phase is a run of NeMo by itself, or a part of one run that counts on its samples."""
    packs = MMapIndexedDataset(prefixes["b-packs"])
    times_read = {pack.astype(np.int64).tobytes(): 0 for pack in packs[:]}

    n_consumed = 0
    read = None  # what the phases before have read
    for number, phase in enumerate(PHASES):
        n_requested = phase.n_samples
        start = 0
        if is_one_run:
            n_requested = N_SAMPLES
            start = n_consumed
        stop = start + phase.n_samples
        requested = RequestedNanoset(phase.weights, [n_requested, 0, 0], split="1,0,0")
        cache = tmp_path / f"cache {number}"

        orders = orders_after(read) if read is not None else {}
        config = our_config(requested, prefixes, cache)
        config = replace(config, orders=orders, consumed_samples=start)
        our_train = NanosetBuilder(config).build()[0]
        their_train = nemo_splits(nemo, requested, prefixes, cache)[0]

        for index in range(start, stop):
            their_sample = their_train[index]
            assert_sample_of_trainer(our_train[index], their_sample)
            pack = their_sample["tokens"].numpy().tobytes()
            if pack in times_read:
                times_read[pack] += 1

        # No pack is read again before all others are. In one run, NeMo shuffles the two epochs of
        # the whole run together.
        most_ahead = 2 if is_one_run else 1
        assert max(times_read.values()) - min(times_read.values()) <= most_ahead
        n_consumed += phase.n_samples
        read = Read(plan_split(config, "train"), config, stop)
