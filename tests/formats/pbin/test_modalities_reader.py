"""The real reader and tools of Modalities on our files; skipped where the package is not installed."""

import json
import pickle
import random
import warnings

import numpy as np
import pytest

from helpers.locations import GOLDEN_FILES
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.raw_index import create_raw_index
from nanoset_core.formats.pbin.writing import write_pbin
from nanoset_core.loading.samplers import ResumableSampler
from nanoset_core.stages.pbin.conversion import write_dataset_as_pbin
from nanoset_core.stages.pbin.selection import (
    filter_pbin,
    merge_pbin,
    shuffle_pbin,
    shuffle_pbin_chunk,
)
from nanoset_core.stages.pbin.standalone import PbinOptions, make_pbin_once

pytestmark = pytest.mark.filterwarnings("ignore")  # of the peer's own imports
GOLDEN = GOLDEN_FILES / "modalities"


@pytest.fixture(scope="module")
def dataset_module():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            "modalities.dataloader.dataset",
            reason="the peer `modalities` is not installed",
            exc_type=ImportError,
        )


@pytest.fixture
def documents():
    rng = np.random.default_rng(3)
    return [rng.integers(0, 50257, n).tolist() for n in rng.integers(1, 90, 2500)]


def their_documents(module, path):
    dataset = module.PackedMemMapDatasetBase(path, sample_key="x", load_index=True)
    return [dataset[i]["x"].tolist() for i in range(len(dataset))]


def test_documents_and_samples(dataset_module, tmp_path, documents):
    with MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16) as builder:
        for document in documents:
            builder.add_document(document)
    write_dataset_as_pbin(tmp_path / "x", tmp_path / "x.pbin", vocab_size=50257)
    assert their_documents(dataset_module, tmp_path / "x.pbin") == documents
    ours = PackedDataset(tmp_path / "x.pbin")
    for block_size in (2, 17, 1025):
        for reuse in (True, False):
            theirs = dataset_module.PackedMemMapDatasetContinuous(
                tmp_path / "x.pbin", "x", block_size, reuse
            )
            samples = ours.continuous(block_size, reuse)
            assert len(theirs) == len(samples)
            for i in random.Random(1).sample(range(len(samples)), min(50, len(samples))):
                assert (theirs[i]["x"] == samples[i]).all()
                assert theirs[i]["x"].dtype == samples[i].dtype


def test_merged_and_repaired_files(dataset_module, tmp_path, documents):
    write_pbin(tmp_path / "a.pbin", documents[:1200], token_bytes=2)
    write_pbin(tmp_path / "b.pbin", documents[1200:], token_bytes=2)
    merge_pbin([tmp_path / "a.pbin", tmp_path / "b.pbin"], tmp_path / "m.pbin")
    assert their_documents(dataset_module, tmp_path / "m.pbin") == documents
    merge_pbin([GOLDEN / "merge-buggy-index.pbin"], tmp_path / "r.pbin")
    expected = [*PackedDataset(GOLDEN / "docs.pbin"), *PackedDataset(GOLDEN / "edge.pbin")]
    assert their_documents(dataset_module, tmp_path / "r.pbin") == [
        document.tolist() for document in expected
    ]


def test_their_merge_is_read_as_it_was_meant(dataset_module, tmp_path, documents):
    from modalities.dataloader.create_packed_data import (
        EmbeddedStreamData,
        join_embedded_stream_data,
    )

    for i in range(4):
        write_pbin(tmp_path / f"{i}.pbin", documents[i::4], token_bytes=2)
    join_embedded_stream_data(
        [EmbeddedStreamData(tmp_path / f"{i}.pbin") for i in range(4)], tmp_path / "m.pbin"
    )
    meant = [document for i in range(4) for document in documents[i::4]]
    assert PackedDataset(tmp_path / "m.pbin").index_facts.merge_faults == 3
    assert [document.tolist() for document in PackedDataset(tmp_path / "m.pbin")] == meant
    merge_pbin([tmp_path / "m.pbin"], tmp_path / "m.pbin")
    assert their_documents(dataset_module, tmp_path / "m.pbin") == meant


def test_shuffles_and_filter(dataset_module, tmp_path, documents):
    from modalities.dataloader.filter_packed_data import filter_dataset
    from modalities.preprocessing.shuffle_data import DataShuffler

    write_pbin(tmp_path / "x.pbin", documents, token_bytes=2)
    DataShuffler.shuffle_tokenized_data(
        tmp_path / "x.pbin", tmp_path / "theirs.pbin", batch_size=99, seed=5
    )
    shuffle_pbin(tmp_path / "x.pbin", tmp_path / "ours.pbin", seed=5)
    assert (tmp_path / "ours.pbin").read_bytes() == (tmp_path / "theirs.pbin").read_bytes()
    filter_dataset(
        tmp_path / "x.pbin", tmp_path / "theirs.pbin", lambda item: len(item[1]["input_ids"]) > 40
    )
    filter_pbin(
        tmp_path / "x.pbin",
        tmp_path / "ours.pbin",
        PackedDataset(tmp_path / "x.pbin").document_lengths > 40,
    )
    assert (tmp_path / "ours.pbin").read_bytes() == (tmp_path / "theirs.pbin").read_bytes()
    shuffle_pbin_chunk(
        [tmp_path / "x.pbin", GOLDEN / "docs.pbin"], tmp_path / "c.pbin", chunk=1, chunks=4, seed=5
    )
    assert len(their_documents(dataset_module, tmp_path / "c.pbin")) == 625 + 15


def test_raw_index(dataset_module, tmp_path):
    from modalities.dataloader.create_index import IndexGenerator

    lines = [b'{"text": "%d"}' % i + b"\r" * (i % 3) for i in range(2001)]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    IndexGenerator(tmp_path / "x.jsonl").create_index(tmp_path / "theirs.idx")
    create_raw_index(tmp_path / "x.jsonl", tmp_path / "ours.idx")
    theirs = (tmp_path / "theirs.idx").read_bytes()
    assert (tmp_path / "ours.idx").read_bytes() == theirs
    assert len(pickle.loads(theirs)) == 2001


def test_text(dataset_module, tmp_path):
    from transformers import AutoTokenizer

    options = PbinOptions(tokenizer=GOLDEN / "tokenizer", workers=1)
    make_pbin_once([GOLDEN / "edge.jsonl", GOLDEN / "docs.jsonl"], tmp_path / "x.pbin", options)
    tokenizer = AutoTokenizer.from_pretrained(str(GOLDEN / "tokenizer"))
    lines = (GOLDEN / "edge.jsonl").read_text().splitlines() + (
        GOLDEN / "docs.jsonl"
    ).read_text().splitlines()
    expected = [tokenizer(json.loads(line)["text"])["input_ids"] for line in lines]
    end = tokenizer.eos_token_id
    ended = [tokens if tokens[-1] == end else [*tokens, end] for tokens in expected]
    assert their_documents(dataset_module, tmp_path / "x.pbin") == ended


def test_samplers(dataset_module):
    from modalities.dataloader.samplers import ResumableDistributedSampler

    chosen = random.Random(7)
    for _ in range(200):
        total, size, epoch = chosen.randint(1, 300), chosen.randint(1, 9), chosen.randint(0, 3)
        rank, skip, seed = chosen.randrange(size), chosen.randint(0, total), chosen.randint(0, 99)
        shuffle, drop_last = chosen.random() < 0.5, chosen.random() < 0.5
        theirs = ResumableDistributedSampler(
            range(total), rank, size, epoch, shuffle, seed, drop_last, skip
        )
        ours = ResumableSampler(
            total, skip, rank, size, epoch=epoch, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)
