"""NeMo's own datasets on our files: they find our index files, and give our samples; over packs,
and as a run goes on.

They are read from NeMo's source, wherever it is on the path; nothing else of it needs to be
importable. Nor do its compiled helpers: the sample index is there in Python too, and the blending
is Megatron-LM's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.nemo import SEED, S, Splits, nemo_builder
from helpers.packs import write_packs
from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder, NanosetConfig
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling.orders import Read, orders_after
from nanoset_core.sampling.packing.plan import PieceRule
from nanoset_core.sampling.plan import plan_split
from nanoset_core.stages.packs.make import PackingRules


@pytest.fixture
def nemo(monkeypatch) -> Splits:
    """What builds the splits of a configuration as NeMo's model does; it fails where it would build
    index files.
    """
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
    """Three datasets, and packs of two of them."""
    random, found = np.random.RandomState(3), {}
    for name, count in (("a", 300), ("b", 200), ("c", 90)):
        with MMapIndexedDatasetBuilder(tmp_path / name, np.uint16) as builder:
            for length in random.randint(1, 150, count):
                builder.add_document(np.append(random.randint(2, 49999, length), 0))
        found[name] = str(tmp_path / name)
    for name, tail in (("a", "pad"), ("b", "carry")):
        write_packs(
            Path(found[name]), tmp_path / f"{name}-packs", PackingRules(PieceRule(S), tail, 1, 7)
        )
        found[f"{name}-packs"] = str(tmp_path / f"{name}-packs")
    return found


def configured(data, split, samples, folder, **options):
    """Return our configuration, and the prefixes and weights that NeMo takes."""
    asked = zip(("train", "valid", "test"), samples, strict=True)
    mine = data if len(data) > 1 else next(iter(data))
    theirs = (
        [*data]
        if len(data) == 1
        else [one for pair in data.items() for one in (str(pair[1]), pair[0])]
    )
    config = NanosetConfig(
        mine if split else None, sequence_length=S, random_seed=SEED, preset="nemo", path_to_cache=str(folder),
        blend_per_split=None if split else [mine] * 3, **{"split": split} if split else {}, eod_token=0,
        **{f"{name}_split_samples": size for name, size in asked}, **options,
    )  # fmt: skip
    return config, theirs if split else dict.fromkeys(("train", "validation", "test"), theirs)


def compare(mine, theirs, begin=0, end=None) -> None:
    assert end is not None or len(mine) == len(theirs)
    for index in range(begin, len(mine) if end is None else end):
        sample, expected = mine[index], theirs[index]
        assert list(sample) == list(expected)
        for key, value in expected.items():
            np.testing.assert_array_equal(sample[key], value.numpy(), err_msg=key)


CASES = {
    "alone": ({"a": 1.0}, "90,8,2", [1500, 40, 5], {}),
    "blend": ({"a": 5.5, "b": 3.0, "c": 1.3}, "80,15,5", [2000, 60, 7], {"eod_mask_loss": True}),
    "by split": ({"a": 0.7, "b": 0.3}, None, [1500, 40, 5], {}),
    "packs": ({"a-packs": 1.0}, "90,8,2", [1500, 40, 5], {"eod_mask_loss": True}),
    "blend of packs": ({"a-packs": 0.7, "b-packs": 0.3}, "90,10,0", [1500, 60, 0], {}),
    "packs and a corpus": (
        {"b-packs": 0.7, "c": 0.3},
        "100,0,0",
        [1500, 0, 0],
        {"shuffle_documents": False},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_finds_our_index_files_and_gives_our_samples(nemo, prefixes, case, tmp_path):
    shares, split, samples, options = CASES[case]
    data = {prefixes[name]: share for name, share in shares.items()}
    config, theirs = configured(data, split, samples, tmp_path / "cache", **options)
    ours = NanosetBuilder(config).build()
    for mine, peers in zip(
        ours, nemo(theirs, split, samples, tmp_path / "cache", **options), strict=True
    ):
        assert (mine is None) == (peers is None)
        if mine is not None:
            compare(mine, peers)


PHASES = [
    ({"a": 0.6, "b-packs": 0.4}, 200),
    ({"a": 0.3, "b-packs": 0.3, "c": 0.4}, 900),
    ({"b-packs": 1.0}, 700),
]
"""Blends of a run, and the samples that it consumes of each: c joins, a and c leave."""


@pytest.mark.parametrize("whole", [False, True], ids=["phases", "one run"])
def test_goes_on_where_the_phase_before_stopped(nemo, prefixes, whole, tmp_path):
    packs = {
        pack.astype(np.int64).tobytes(): 0 for pack in MMapIndexedDataset(prefixes["b-packs"])[:]
    }
    read, done, total = None, 0, sum(samples for _, samples in PHASES)
    for number, (blend, samples) in enumerate(PHASES):
        data, asked = (
            {prefixes[name]: share for name, share in blend.items()},
            total if whole else samples,
        )
        folder, begin = tmp_path / f"cache {number}", done if whole else 0
        config, theirs = configured(data, "1,0,0", [asked, 0, 0], folder)
        config = replace(config, orders=orders_after(read) if read else {}, consumed_samples=begin)
        mine, peers = (
            NanosetBuilder(config).build()[0],
            nemo(theirs, "1,0,0", [asked, 0, 0], folder)[0],
        )
        compare(mine, peers, begin, begin + samples)
        for index in range(begin, begin + samples):
            if (pack := peers[index]["tokens"].numpy().tobytes()) in packs:
                packs[pack] += 1
        # together, the trainer shuffles two epochs of the whole run
        assert max(packs.values()) - min(packs.values()) <= 1 + whole
        read, done = Read(plan_split(config, "train"), config, begin + samples), done + samples
