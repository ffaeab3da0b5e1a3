"""The readers of trainers, where they are installed, read what the rules of a view choose.

An epoch has each document as often as the rules say, and no other. nanotron is that of March 2024
(896473d or 31ff34c, the one that can be imported), NeMo its Megatron collection.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.view_rules import ROWS, choose_slowly, documents_table, random_rule, shards_of
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.layout import read_idx
from nanoset_core.stages.views.make import link
from nanoset_core.stages.views.rules import Rule
from nanoset_core.stages.views.selection import select
from nanoset_core.stages.views.writing import write_view_idx

LENGTH = 256
"""Tokens of a sample."""
N_RULES = 200
EOD = 2 * ROWS + 1
"""End token of the readers, which no document has."""
PAD = 0
"""Token after the end of a short sample, which no document has."""
ReadEpoch = Callable[[str], np.ndarray]
"""Returns the tokens of all samples of one epoch, concatenated, of the dataset with a prefix."""


def open_megatron_core(cache: Path, _patch: pytest.MonkeyPatch) -> ReadEpoch:
    """Return a function that reads an epoch with megatron-core."""
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    tokenizer = SimpleNamespace(
        unique_identifiers={"class": "Stub"}, eod=EOD, pad=PAD, vocab_size=EOD + 1
    )

    def read_epoch(prefix: str) -> np.ndarray:
        config = GPTDatasetConfig(
            random_seed=1,
            sequence_length=LENGTH,
            # Of validation data, the last, short sample is kept.
            blend_per_split=[None, ([prefix], None), None],
            add_extra_token_to_sequence=False,
            drop_last_partial_validation_sequence=False,
            path_to_cache=str(cache),
            tokenizer=tokenizer,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        builder = BlendedMegatronDatasetBuilder(GPTDataset, [None] * 3, lambda: True, config)
        dataset = builder.build()[1]
        tokens = [dataset[number]["tokens"].numpy() for number in range(len(dataset))]
        all_tokens = np.concatenate(tokens)
        return all_tokens[all_tokens != PAD]

    return read_epoch


def open_nemo(cache: Path, patch: pytest.MonkeyPatch) -> ReadEpoch:
    """Return a function that reads an epoch with NeMo."""
    import torch
    from megatron.core import parallel_state
    from nemo.collections.nlp.data.language_modeling.megatron import gpt_dataset
    from omegaconf import OmegaConf

    parallel_state.initialize_model_parallel()
    # It counts its ranks on a GPU.
    patch.setattr(torch.cuda, "LongTensor", torch.LongTensor)
    config = OmegaConf.create({"data": {"index_mapping_dir": str(cache)}})
    tokenizer = SimpleNamespace(eos_id=EOD)

    def read_epoch(prefix: str) -> np.ndarray:
        data = gpt_dataset.get_indexed_dataset_(prefix, "mmap", skip_warmup=True)
        documents = np.arange(len(data.sizes), dtype=np.int32)
        dataset = gpt_dataset.GPTDataset(
            config, None, tokenizer, "train", prefix, documents, data, 1, LENGTH, seed=1
        )
        tokens = [dataset[number]["tokens"].numpy() for number in range(len(dataset))]
        return np.concatenate(tokens)

    return read_epoch


def open_nanotron(cache: Path, _patch: pytest.MonkeyPatch) -> ReadEpoch:
    """Return a function that reads an epoch with nanotron."""
    from nanotron.data import dataset_builder, utils
    from nanotron.data.nanoset_configs import NanosetConfig

    # Older versions compile their helpers at the start of a run.
    compile_helpers = getattr(utils, "compile_helpers", None)
    if compile_helpers is not None:
        compile_helpers()
    samples_setting: dict[str, Any] = {"split_num_samples": [1, 1, 1]}
    if "train_split_samples" in NanosetConfig.__annotations__:
        samples_setting = {"train_split_samples": 0}

    def read_epoch(prefix: str) -> np.ndarray:
        config = NanosetConfig(
            1, LENGTH, data_path=prefix, split="1,0,0", path_to_cache=str(cache), **samples_setting
        )
        dataset = dataset_builder.NanosetBuilder(config).build()[0]
        # The first array of a sample has its tokens, and one more for the labels.
        tokens = [next(iter(dataset[number].values()))[:LENGTH] for number in range(len(dataset))]
        return np.concatenate(tokens)

    return read_epoch


class Reader(NamedTuple):
    """A trainer's reader of datasets."""

    open: Callable[[Path, pytest.MonkeyPatch], ReadEpoch]
    """Returns a function that reads an epoch, with a folder for index files."""
    module: str
    """It is installed if this can be imported."""
    reads_short_samples: bool
    """Whether it also reads the tokens after the last complete sample."""


READERS = {
    "megatron-core": Reader(
        open_megatron_core, "megatron.core.datasets.gpt_dataset", reads_short_samples=True
    ),
    "NeMo": Reader(
        open_nemo,
        "nemo.collections.nlp.data.language_modeling.megatron.gpt_dataset",
        reads_short_samples=False,
    ),
    "nanotron": Reader(open_nanotron, "nanotron.data.dataset_builder", reads_short_samples=False),
}


@pytest.fixture
def process() -> Iterator[None]:
    """A distributed run of one process, which all readers but that of megatron-core need."""
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


class View(NamedTuple):
    """A view of the corpus, with the tokens that its rule chooses."""

    rule: Rule
    prefix: str
    expected_counts: np.ndarray
    """How often an epoch has each token, from token 1 on; shape (2 * ROWS,)."""


def write_corpus_of_numbers(prefix: Path, lengths: list[int]) -> None:
    """Write documents whose tokens tell their number n.

    The first token of a document is n + 1, and all others are ROWS + n + 1.
    """
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        for number, length in enumerate(lengths):
            n_first = min(length, 1)
            first_tokens = [number + 1] * n_first
            other_tokens = [ROWS + number + 1] * (length - n_first)
            builder.add_document([*first_tokens, *other_tokens])


def write_views(folder: Path) -> Iterator[View]:
    """Write a corpus and views of it by random rules, and yield the views."""
    table = documents_table()
    lengths = np.array(table.column("tokens").to_pylist())  # (ROWS,)
    write_corpus_of_numbers(folder / "corpus", lengths.tolist())
    corpus_index = read_idx(folder / "corpus.idx")
    rules = [random_rule(seed) for seed in range(N_RULES)]
    scratch = folder / "scratch"
    scratch.mkdir()

    selections = select(shards_of(table, 64), rules, scratch)
    for number, (rule, selection) in enumerate(zip(rules, selections, strict=True)):
        prefix = folder / f"view-{number}"
        write_view_idx(prefix.with_suffix(".idx"), corpus_index, selection.chunks)
        link(folder / "corpus.bin", prefix.with_suffix(".bin"), folder)

        chosen = np.array(choose_slowly(table, rule), np.int64)
        copies = np.bincount(chosen, minlength=ROWS)  # (ROWS,)
        first_counts = copies * (lengths > 0)
        other_counts = copies * np.maximum(lengths - 1, 0)
        yield View(rule, str(prefix), np.concatenate([first_counts, other_counts]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("process")
def test_an_epoch_has_each_document_as_often_as_the_rules_say_and_no_other(
    reader, tmp_path, monkeypatch
):
    cache = tmp_path / "cache"
    cache.mkdir()
    read_epoch = reader.open(cache, monkeypatch)
    n_read_views = 0

    for view in write_views(tmp_path):
        n_tokens = int(view.expected_counts.sum())
        # Some readers make no sample of fewer tokens.
        if n_tokens <= LENGTH:
            continue
        n_read_views += 1

        counts = np.bincount(read_epoch(view.prefix) - 1, minlength=2 * ROWS)

        missing_counts = view.expected_counts - counts
        n_missing = 0
        if not reader.reads_short_samples:
            # A complete sample needs one token more, for the labels.
            n_samples = (n_tokens - 1) // LENGTH
            n_missing = n_tokens - n_samples * LENGTH
        assert missing_counts.min() >= 0, view.rule
        assert missing_counts.sum() == n_missing, view.rule

    assert n_read_views > N_RULES / 2
