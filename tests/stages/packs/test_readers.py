"""The trainers' own readers on packs, where they are installed: one pack a sample, over epochs,
shuffles and blends.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.nemo import nemo_builder
from helpers.packs import write_packs
from nanoset_core import MMapIndexedDatasetBuilder
from nanoset_core.sampling.packing.plan import PieceRule
from nanoset_core.stages.packs.make import PackingRules

S, EPOCHS = 128, 3
PAD, EOD = 1, 2
Samples = Iterator[np.ndarray]


def megatron_core(prefixes: list[str], wanted: int, folder: Path) -> Samples:
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    masks = ("reset_position_ids", "reset_attention_mask", "create_attention_mask")
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=S,
        blend=(prefixes, None if len(prefixes) == 1 else [0.6, 0.4]),
        split="100,0,0",
        path_to_cache=str(folder),
        tokenizer=SimpleNamespace(
            unique_identifiers={"class": "Stub"}, eod=EOD, pad=PAD, vocab_size=1 << 20
        ),
        eod_mask_loss=True,
        **dict.fromkeys(masks, False),
    )
    dataset = BlendedMegatronDatasetBuilder(
        GPTDataset, [wanted, 0, 0], lambda: True, config
    ).build()[0]
    for number in range(wanted):
        sample = dataset[number]
        # its padding becomes token 0, which no document has here
        assert (
            (sample["loss_mask"] == 0) == ((sample["labels"] == 0) | (sample["tokens"] == EOD))
        ).all()
        yield np.where(sample["tokens"] == 0, PAD, sample["tokens"])


def nanotron(prefixes: list[str], wanted: int, folder: Path) -> Samples:
    from nanotron.data import dataset_builder, utils
    from nanotron.data.nanoset_configs import NanosetConfig

    getattr(utils, "compile_helpers", lambda: None)()  # as the older one's run does
    is_older = "train_split_samples" in NanosetConfig.__annotations__
    asked = {"train_split_samples": wanted} if is_older else {"split_num_samples": [wanted, 1, 1]}
    paths = prefixes[0] if len(prefixes) == 1 else dict(zip(prefixes, (0.6, 0.4), strict=True))
    config = NanosetConfig(1, S, data_path=paths, split="1,0,0", path_to_cache=str(folder), **asked)
    dataset = dataset_builder.NanosetBuilder(config).build()[0]
    return (next(iter(dataset[number].values()))[:S] for number in range(wanted))


def nemo(prefixes: list[str], wanted: int, folder: Path) -> Samples:
    data = prefixes if len(prefixes) == 1 else ["0.6", prefixes[0], "0.4", prefixes[1]]
    with pytest.MonkeyPatch.context() as patch:
        dataset = nemo_builder(patch, may_build=True)(
            data, "1,0,0", [wanted, 0, 0], folder, length=S
        )[0]
        yield from (dataset[number]["tokens"].numpy() for number in range(wanted))


READERS: dict[str, tuple[Callable[[list[str], int, Path], Samples], str]] = {
    "megatron-core": (megatron_core, "megatron.core.datasets.gpt_dataset"),
    "nemo": (nemo, "megatron.core.datasets.helpers_cpp"),
    "nanotron": (nanotron, "nanotron.data.dataset_builder"),
}


@pytest.fixture
def process() -> Iterator[None]:
    """A run of one process, which nanotron needs."""
    dist = pytest.importorskip("torch.distributed", reason="torch is not installed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("tail", ["pad", "carry"])
@pytest.mark.parametrize("name", READERS)
def test_every_sample_is_one_pack(name, tail, tmp_path):
    read, module = READERS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(module, reason=f"{name} is not installed", exc_type=ImportError)
    generator, prefixes, packs, first = (
        np.random.default_rng(4),
        list[str](),
        list[list[bytes]](),
        EOD + 1,
    )
    for corpus, count in (("web", 700), ("code", 300)):
        with MMapIndexedDatasetBuilder(tmp_path / corpus, np.int32) as builder:
            # no two tokens are the same, but ends
            for length in generator.integers(0, 200, count).tolist():
                builder.add_document(np.append(np.arange(first, first + length), EOD))
                first += length
        rules = PackingRules(PieceRule(S), tail, PAD, 7)
        dataset, _, _ = write_packs(tmp_path / corpus, tmp_path / f"{corpus}-packs", rules)
        prefixes.append(str(tmp_path / f"{corpus}-packs"))
        packs.append([pack.astype(np.int64).tobytes() for pack in dataset[:]])
    for number in (1, 2):
        (tmp_path / f"cache-{number}").mkdir()
        known = [{pack: 0 for pack in own} for own in packs[:number]]
        wanted = EPOCHS * len(packs[0]) - 1
        for tokens in read(prefixes[:number], wanted, tmp_path / f"cache-{number}"):
            own = next(one for one in known if tokens.astype(np.int64).tobytes() in one)
            own[tokens.astype(np.int64).tobytes()] += 1
        for one in known:
            times = np.array([*one.values()])
            assert times.max() <= EPOCHS + 1
            # nanotron, and blends, draw from a few samples more than are asked for
            assert number > 1 or name == "nanotron" or sorted(times)[:2] == [EPOCHS - 1, EPOCHS]
