"""The readers of trainers, where they are installed, read one pack a sample.

They do so over several epochs, shuffled, and in blends.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.nemo import nemo_builder
from helpers.packs import write_packs
from nanoset_core import MMapIndexedDatasetBuilder
from nanoset_core.sampling.packing.plan import PieceRule
from nanoset_core.stages.packs.writing import PackingRules

LENGTH = 128
"""Tokens of a sample, and of a pack."""
EPOCHS = 3
PAD = 1
EOD = 2
WEIGHTS = (0.6, 0.4)
"""Of two corpora in a blend."""
Samples = Iterator[np.ndarray]


def read_with_megatron_core(prefixes: list[str], n_samples: int, folder: Path) -> Samples:
    """Yield the tokens of samples as megatron-core reads them, with token 0 where it masks PAD."""
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    weights = None if len(prefixes) == 1 else [*WEIGHTS]
    tokenizer = SimpleNamespace(
        unique_identifiers={"class": "Stub"}, eod=EOD, pad=PAD, vocab_size=1 << 20
    )
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=LENGTH,
        blend=(prefixes, weights),
        split="100,0,0",
        path_to_cache=str(folder),
        tokenizer=tokenizer,
        eod_mask_loss=True,
        reset_position_ids=False,
        reset_attention_mask=False,
        create_attention_mask=False,
    )
    builder = BlendedMegatronDatasetBuilder(GPTDataset, [n_samples, 0, 0], lambda: True, config)
    dataset = builder.build()[0]

    for number in range(n_samples):
        sample = dataset[number]
        # It makes padding token 0, which no document has here.
        is_masked = (sample["labels"] == 0) | (sample["tokens"] == EOD)
        assert ((sample["loss_mask"] == 0) == is_masked).all()
        yield np.where(sample["tokens"] == 0, PAD, sample["tokens"])


def read_with_nanotron(prefixes: list[str], n_samples: int, folder: Path) -> Samples:
    """Return the tokens of samples as nanotron reads them."""
    from nanotron.data import dataset_builder, utils
    from nanotron.data.nanoset_configs import NanosetConfig

    # Older versions compile their helpers at the start of a run.
    compile_helpers = getattr(utils, "compile_helpers", None)
    if compile_helpers is not None:
        compile_helpers()
    samples_setting: dict[str, Any] = {"split_num_samples": [n_samples, 1, 1]}
    if "train_split_samples" in NanosetConfig.__annotations__:
        samples_setting = {"train_split_samples": n_samples}

    paths: Any = prefixes[0]
    if len(prefixes) > 1:
        paths = dict(zip(prefixes, WEIGHTS, strict=True))
    config = NanosetConfig(
        1, LENGTH, data_path=paths, split="1,0,0", path_to_cache=str(folder), **samples_setting
    )
    dataset = dataset_builder.NanosetBuilder(config).build()[0]
    # The first array of a sample has its tokens, and one more for the labels.
    return (next(iter(dataset[number].values()))[:LENGTH] for number in range(n_samples))


def read_with_nemo(prefixes: list[str], n_samples: int, folder: Path) -> Samples:
    """Yield the tokens of samples as NeMo reads them."""
    data = prefixes
    if len(prefixes) > 1:
        data = [str(WEIGHTS[0]), prefixes[0], str(WEIGHTS[1]), prefixes[1]]
    with pytest.MonkeyPatch.context() as patch:
        build = nemo_builder(patch, may_build=True)
        dataset = build(data, "1,0,0", [n_samples, 0, 0], folder, length=LENGTH)[0]
        for number in range(n_samples):
            yield dataset[number]["tokens"].numpy()


class Reader(NamedTuple):
    """A trainer's reader of datasets."""

    read: Callable[[list[str], int, Path], Samples]
    """Reads a number of samples from datasets, with a folder for index files."""
    module: str
    """It is installed if this can be imported."""


READERS = {
    "megatron-core": Reader(read_with_megatron_core, "megatron.core.datasets.gpt_dataset"),
    "nemo": Reader(read_with_nemo, "megatron.core.datasets.helpers_cpp"),
    "nanotron": Reader(read_with_nanotron, "nanotron.data.dataset_builder"),
}


@pytest.fixture
def process() -> Iterator[None]:
    """A distributed run of one process, which nanotron needs."""
    dist = pytest.importorskip("torch.distributed", reason="torch is not installed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> Reader:
    """The reader of a trainer that is installed."""
    reader = READERS[request.param]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reason = f"{request.param} is not installed"
        pytest.importorskip(reader.module, reason=reason, exc_type=ImportError)
    return reader


@pytest.fixture(params=["pad", "carry"])
def packed_corpora(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, list[bytes]]:
    """Two packed corpora: the tokens of each pack, by the prefix of the packs.

    No two tokens are the same, except the ends of documents.
    """
    generator = np.random.default_rng(4)
    next_token = EOD + 1
    rules = PackingRules(PieceRule(LENGTH), request.param, PAD, 7)
    packs_by_prefix = {}
    for corpus, n_documents in {"web": 700, "code": 300}.items():
        with MMapIndexedDatasetBuilder(tmp_path / corpus, np.int32) as builder:
            for length in generator.integers(0, 200, n_documents).tolist():
                tokens = np.arange(next_token, next_token + length)
                builder.add_document(np.append(tokens, EOD))
                next_token += length

        prefix = tmp_path / f"{corpus}-packs"
        dataset, _, _ = write_packs(tmp_path / corpus, prefix, rules)
        packs_by_prefix[str(prefix)] = [as_bytes(pack) for pack in dataset[:]]
    return packs_by_prefix


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """An empty folder for index files."""
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


def as_bytes(tokens: np.ndarray) -> bytes:
    """Return tokens as bytes that do not depend on their type."""
    return tokens.astype(np.int64).tobytes()


def count_reads(
    reader: Reader, packs_by_prefix: dict[str, list[bytes]], n_samples: int, folder: Path
) -> list[list[int]]:
    """Read samples and return how often each pack was one, sorted, by corpus.

    Raises:
        KeyError: A sample is not a pack.
    """
    corpus_of_pack = {}
    reads_by_corpus: dict[str, dict[bytes, int]] = {}
    for prefix, packs in packs_by_prefix.items():
        reads_by_corpus[prefix] = dict.fromkeys(packs, 0)
        corpus_of_pack.update(dict.fromkeys(packs, prefix))

    for tokens in reader.read([*packs_by_prefix], n_samples, folder):
        pack = as_bytes(tokens)
        reads_by_corpus[corpus_of_pack[pack]][pack] += 1
    return [sorted(reads.values()) for reads in reads_by_corpus.values()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("process")
def test_every_sample_is_one_pack(reader, packed_corpora, cache):
    prefix, packs = next(iter(packed_corpora.items()))

    [n_reads] = count_reads(reader, {prefix: packs}, EPOCHS * len(packs) - 1, cache)

    assert n_reads[-1] <= EPOCHS + 1
    # nanotron draws from a few samples more than are requested.
    if reader != READERS["nanotron"]:
        # The last epoch lacks a sample.
        assert n_reads[:2] == [EPOCHS - 1, EPOCHS]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("process")
def test_every_sample_of_a_blend_is_one_pack(reader, packed_corpora, cache):
    n_packs_of_first = len(next(iter(packed_corpora.values())))

    reads_by_corpus = count_reads(reader, packed_corpora, EPOCHS * n_packs_of_first - 1, cache)

    assert len(reads_by_corpus) == 2
    for n_reads in reads_by_corpus:
        # A blend draws from a few samples more than are requested.
        assert n_reads[-1] <= EPOCHS + 1
