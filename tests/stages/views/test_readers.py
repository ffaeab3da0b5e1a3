"""The trainers' own readers on views, where they are installed: an epoch holds what the rules say,
and nothing else.

nanotron is that of March 2024 (896473d or 31ff34c, the one that can be imported), NeMo its Megatron
collection.
"""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.view_rules import ROWS, choose_slowly, documents_table, random_rule, shards_of
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.layout import read_idx
from nanoset_core.stages.views.make import link
from nanoset_core.stages.views.selection import select
from nanoset_core.stages.views.writing import write_view_idx

S = 256
RULES = 200
EOD = 2 * ROWS + 1


def megatron_core(folder, _):
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    masks = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    tokenizer = SimpleNamespace(
        unique_identifiers={"class": "Stub"}, eod=EOD, pad=0, vocab_size=EOD + 1
    )
    settings = {"tokenizer": tokenizer, "path_to_cache": str(folder), **dict.fromkeys(masks, False)}

    def samples(prefix):
        config = GPTDatasetConfig(
            random_seed=1,
            sequence_length=S,
            # of validation the last, short sample is kept
            blend_per_split=[None, ([prefix], None), None],
            add_extra_token_to_sequence=False,
            drop_last_partial_validation_sequence=False,
            **settings,
        )
        dataset = BlendedMegatronDatasetBuilder(
            GPTDataset, [None] * 3, lambda: True, config
        ).build()[1]
        read = np.concatenate([dataset[number]["tokens"].numpy() for number in range(len(dataset))])
        return read[read != 0]

    return samples


def nemo(folder, patch):
    import torch
    from megatron.core import parallel_state
    from nemo.collections.nlp.data.language_modeling.megatron import gpt_dataset
    from omegaconf import OmegaConf

    parallel_state.initialize_model_parallel()
    patch.setattr(torch.cuda, "LongTensor", torch.LongTensor)  # it counts its ranks on a GPU
    config = OmegaConf.create({"data": {"index_mapping_dir": str(folder)}})

    def samples(prefix):
        data = gpt_dataset.get_indexed_dataset_(prefix, "mmap", skip_warmup=True)
        documents = np.arange(len(data.sizes), dtype=np.int32)
        tokenizer = SimpleNamespace(eos_id=EOD)
        dataset = gpt_dataset.GPTDataset(
            config, None, tokenizer, "train", prefix, documents, data, 1, S, seed=1
        )
        return np.concatenate([dataset[number]["tokens"].numpy() for number in range(len(dataset))])

    return samples


def nanotron(folder, _):
    from nanotron.data import dataset_builder, utils
    from nanotron.data.nanoset_configs import NanosetConfig

    getattr(utils, "compile_helpers", lambda: None)()  # as the older one's run does
    asked = (
        {"train_split_samples": 0}
        if "train_split_samples" in NanosetConfig.__annotations__
        else None
    )

    def samples(prefix):
        settings = asked or {"split_num_samples": [1, 1, 1]}
        config = NanosetConfig(
            1, S, data_path=prefix, split="1,0,0", path_to_cache=str(folder), **settings
        )
        dataset = dataset_builder.NanosetBuilder(config).build()[0]
        return np.concatenate(
            [next(iter(dataset[number].values()))[:S] for number in range(len(dataset))]
        )

    return samples


READERS = {
    "megatron-core": (megatron_core, "megatron.core.datasets.gpt_dataset"),
    "NeMo": (nemo, "nemo.collections.nlp.data.language_modeling.megatron.gpt_dataset"),
    "nanotron": (nanotron, "nanotron.data.dataset_builder"),
}


@pytest.fixture
def process():
    """A run of one process, which all but megatron-core need."""
    dist = pytest.importorskip("torch.distributed", reason="torch is not installed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_an_epoch_holds_each_document_as_often_as_the_rules_say_and_no_other(
    name, tmp_path, monkeypatch, process
):
    make, module = READERS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(module, reason=f"{name} is not installed", exc_type=ImportError)
    (tmp_path / "cache").mkdir()
    samples, table, read = make(tmp_path / "cache", monkeypatch), documents_table(), 0
    lengths = np.array(table.column("tokens").to_pylist())
    with MMapIndexedDatasetBuilder(tmp_path / "corpus", np.uint16) as builder:
        # its first token, and all others, tell which it is
        for number, length in enumerate(lengths.tolist()):
            builder.add_document(
                np.repeat([number + 1, ROWS + number + 1], [min(length, 1), max(length - 1, 0)])
            )
    base, rules = read_idx(tmp_path / "corpus.idx"), [random_rule(seed) for seed in range(RULES)]
    (tmp_path / "scratch").mkdir()
    selections = select(shards_of(table, 64), rules, tmp_path / "scratch")
    for number, (rule, found) in enumerate(zip(rules, selections, strict=True)):
        prefix = tmp_path / f"view-{number}"
        write_view_idx(prefix.with_suffix(".idx"), base, found.chunks)
        link(tmp_path / "corpus.bin", prefix.with_suffix(".bin"), tmp_path)
        times = np.bincount(np.array(choose_slowly(table, rule), np.int64), minlength=ROWS)
        expected = np.concatenate([times * (lengths > 0), times * np.maximum(lengths - 1, 0)])
        if (total := expected.sum()) > S:  # of fewer tokens some readers make no sample
            lacking = expected - np.bincount(samples(str(prefix)) - 1, minlength=2 * ROWS)
            # the others leave out what is over
            last = 0 if name == "megatron-core" else total - (total - 1) // S * S
            assert (lacking.min() >= 0, lacking.sum()) == (True, last), rule
            read += 1
    assert read > RULES / 2
