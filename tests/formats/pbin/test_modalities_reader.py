"""Modalities' own readers and tools agree with ours on `.pbin` files, indexes and samplers.

The tests are skipped if the package `modalities` is not installed.
"""

from __future__ import annotations

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

pytestmark = pytest.mark.filterwarnings("ignore")  # of what Modalities imports
GOLDEN = GOLDEN_FILES / "modalities"
TOKEN_BYTES = 2


@pytest.fixture(scope="module")
def modalities_dataset():
    """The module `modalities.dataloader.dataset`; skips the test if it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            "modalities.dataloader.dataset",
            reason="the peer `modalities` is not installed",
            exc_type=ImportError,
        )


@pytest.fixture
def documents():
    """2500 random documents."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 90, 2500)
    return [rng.integers(0, 50257, length).tolist() for length in lengths]


@pytest.fixture
def pbin_file(tmp_path, documents):
    """A file of `documents`."""
    write_pbin(tmp_path / "x.pbin", documents, token_bytes=TOKEN_BYTES)
    return tmp_path / "x.pbin"


def read_by_modalities(module, path):
    """Return the documents that Modalities reads from a file."""
    dataset = module.PackedMemMapDatasetBase(path, sample_key="x", load_index=True)
    return [dataset[number]["x"].tolist() for number in range(len(dataset))]


# Reading


def test_modalities_reads_the_documents_of_a_converted_dataset(
    modalities_dataset, tmp_path, documents
):
    with MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16) as builder:
        for document in documents:
            builder.add_document(document)

    write_dataset_as_pbin(tmp_path / "x", tmp_path / "x.pbin", vocab_size=50257)

    assert read_by_modalities(modalities_dataset, tmp_path / "x.pbin") == documents


@pytest.mark.parametrize("block_size", [2, 17, 1025])
@pytest.mark.parametrize("reuse_last_target", [True, False])
def test_continuous_samples_are_those_of_modalities(
    modalities_dataset, pbin_file, block_size, reuse_last_target
):
    theirs = modalities_dataset.PackedMemMapDatasetContinuous(
        pbin_file, "x", block_size, reuse_last_target
    )

    ours = PackedDataset(pbin_file).continuous(block_size, reuse_last_target)

    assert len(ours) == len(theirs)
    n_compared = min(50, len(ours))
    for index in random.Random(1).sample(range(len(ours)), n_compared):
        their_sample = theirs[index]["x"]
        assert ours[index].tolist() == their_sample.tolist()
        assert ours[index].dtype == their_sample.dtype


# Merging


def test_modalities_reads_a_file_that_we_merged(modalities_dataset, tmp_path, documents):
    write_pbin(tmp_path / "a.pbin", documents[:1200], token_bytes=TOKEN_BYTES)
    write_pbin(tmp_path / "b.pbin", documents[1200:], token_bytes=TOKEN_BYTES)

    merge_pbin([tmp_path / "a.pbin", tmp_path / "b.pbin"], tmp_path / "merged.pbin")

    assert read_by_modalities(modalities_dataset, tmp_path / "merged.pbin") == documents


def test_modalities_reads_its_own_merge_after_we_repaired_it(modalities_dataset, tmp_path):
    parts = [*PackedDataset(GOLDEN / "docs.pbin"), *PackedDataset(GOLDEN / "edge.pbin")]
    expected = [document.tolist() for document in parts]

    merge_pbin([GOLDEN / "merge-buggy-index.pbin"], tmp_path / "repaired.pbin")

    assert read_by_modalities(modalities_dataset, tmp_path / "repaired.pbin") == expected


def test_we_read_a_merge_of_modalities_as_it_was_meant(modalities_dataset, tmp_path, documents):
    from modalities.dataloader.create_packed_data import (
        EmbeddedStreamData,
        join_embedded_stream_data,
    )

    n_parts = 4
    expected = []
    parts = []
    for number in range(n_parts):
        path = tmp_path / f"{number}.pbin"
        write_pbin(path, documents[number::n_parts], token_bytes=TOKEN_BYTES)
        expected += documents[number::n_parts]
        parts.append(EmbeddedStreamData(path))
    merged_file = tmp_path / "merged.pbin"

    join_embedded_stream_data(parts, merged_file)

    # We correct the wrong offsets, one for each border between parts.
    merged = PackedDataset(merged_file)
    assert merged.index_facts.merge_faults == n_parts - 1
    assert [document.tolist() for document in merged] == expected

    # After we rewrote the file, Modalities reads it correctly, too.
    merge_pbin([merged_file], merged_file)
    assert read_by_modalities(modalities_dataset, merged_file) == expected


# Shuffling and filtering


def test_a_shuffled_file_has_the_bytes_of_modalities(modalities_dataset, tmp_path, pbin_file):
    from modalities.preprocessing.shuffle_data import DataShuffler

    DataShuffler.shuffle_tokenized_data(pbin_file, tmp_path / "theirs.pbin", batch_size=99, seed=5)

    shuffle_pbin(pbin_file, tmp_path / "ours.pbin", seed=5)

    assert (tmp_path / "ours.pbin").read_bytes() == (tmp_path / "theirs.pbin").read_bytes()


def test_a_filtered_file_has_the_bytes_of_modalities(modalities_dataset, tmp_path, pbin_file):
    from modalities.dataloader.filter_packed_data import filter_dataset

    def is_long(item):
        _, document = item
        return len(document["input_ids"]) > 40

    filter_dataset(pbin_file, tmp_path / "theirs.pbin", is_long)

    mask = PackedDataset(pbin_file).document_lengths > 40
    filter_pbin(pbin_file, tmp_path / "ours.pbin", mask)

    assert (tmp_path / "ours.pbin").read_bytes() == (tmp_path / "theirs.pbin").read_bytes()


def test_modalities_reads_a_shuffled_chunk(modalities_dataset, tmp_path, pbin_file):
    chunk_file = tmp_path / "chunk.pbin"

    shuffle_pbin_chunk([pbin_file, GOLDEN / "docs.pbin"], chunk_file, chunk=1, chunks=4, seed=5)

    # A quarter of the documents of each file.
    assert len(read_by_modalities(modalities_dataset, chunk_file)) == 625 + 15


# Text


def test_the_index_of_a_jsonl_file_has_the_bytes_of_modalities(modalities_dataset, tmp_path):
    from modalities.dataloader.create_index import IndexGenerator

    lines = []
    for number in range(2001):
        carriage_returns = b"\r" * (number % 3)
        lines.append(b'{"text": "%d"}' % number + carriage_returns)
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    IndexGenerator(tmp_path / "x.jsonl").create_index(tmp_path / "theirs.idx")

    create_raw_index(tmp_path / "x.jsonl", tmp_path / "ours.idx")

    theirs = (tmp_path / "theirs.idx").read_bytes()
    assert (tmp_path / "ours.idx").read_bytes() == theirs
    assert len(pickle.loads(theirs)) == len(lines)


def test_modalities_reads_the_tokens_of_its_tokenizer(modalities_dataset, tmp_path):
    from transformers import AutoTokenizer

    files = [GOLDEN / "edge.jsonl", GOLDEN / "docs.jsonl"]
    tokenizer = AutoTokenizer.from_pretrained(str(GOLDEN / "tokenizer"))
    end_token = tokenizer.eos_token_id
    expected = []
    for file in files:
        for line in file.read_text().splitlines():
            tokens = tokenizer(json.loads(line)["text"])["input_ids"]
            if tokens[-1] != end_token:
                tokens = [*tokens, end_token]
            expected.append(tokens)

    options = PbinOptions(tokenizer=GOLDEN / "tokenizer", workers=1)
    make_pbin_once(files, tmp_path / "x.pbin", options)

    assert read_by_modalities(modalities_dataset, tmp_path / "x.pbin") == expected


# Samplers


def test_a_sampler_deals_the_samples_of_modalities(modalities_dataset):
    from modalities.dataloader.samplers import ResumableDistributedSampler

    rng = random.Random(7)
    for _ in range(200):
        n_samples = rng.randint(1, 300)
        n_ranks = rng.randint(1, 9)
        epoch = rng.randint(0, 3)
        rank = rng.randrange(n_ranks)
        n_skipped = rng.randint(0, n_samples)
        seed = rng.randint(0, 99)
        shuffle = rng.random() < 0.5
        drop_last = rng.random() < 0.5

        theirs = ResumableDistributedSampler(
            range(n_samples), rank, n_ranks, epoch, shuffle, seed, drop_last, n_skipped
        )
        ours = ResumableSampler(
            n_samples,
            n_skipped,
            rank,
            n_ranks,
            epoch=epoch,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )

        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)
