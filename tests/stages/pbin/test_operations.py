"""Operations on .pbin files are done once, and their receipts say what an output was made from."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from helpers.pbin_files import GOLDEN, read_documents
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core.errors import ConfigError, FormatError, InputError, MissingError
from nanoset_core.formats.pbin.writing import PbinCounts
from nanoset_core.stages.pbin.description import describe_pbin
from nanoset_core.stages.pbin.operations import (
    filter_pbin_once,
    make_raw_index_once,
    merge_pbin_once,
    notices_of_repeated_files,
    repair_pbin_in_place,
    repair_pbin_once,
    shuffle_pbin_chunk_once,
    shuffle_pbin_once,
)
from nanoset_core.stages.pbin.selection import DocumentFilter
from nanoset_core.stages.pbin.standalone import PbinOptions, make_pbin_once

DOCS = GOLDEN / "docs.pbin"
EDGE = GOLDEN / "edge.pbin"
FAULTY = GOLDEN / "merge-buggy-index.pbin"
"""The files docs.pbin and edge.pbin, merged by Modalities, with its fault in the index."""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The path of a file to write."""
    return tmp_path / "x.pbin"


def golden_bytes(name: str) -> bytes:
    """Return the content of a file that Modalities wrote."""
    return (GOLDEN / name).read_bytes()


# Once


def test_a_repeated_operation_returns_the_counts_of_the_first_one(target):
    first = merge_pbin_once([DOCS, EDGE], target)
    change_time = target.stat().st_mtime_ns

    second = merge_pbin_once([DOCS, EDGE], target)

    assert first.is_made_now
    assert not second.is_made_now
    assert first.counts == second.counts
    assert first.counts.documents == 86
    assert target.stat().st_mtime_ns == change_time


def test_an_output_of_other_files_is_replaced_only_if_that_is_allowed(target):
    merge_pbin_once([DOCS, EDGE], target)

    with pytest.raises(ConfigError):
        merge_pbin_once([EDGE, DOCS], target)
    result = merge_pbin_once([EDGE, DOCS], target, overwrite=True)

    assert result.is_made_now
    assert read_documents(target) == read_documents(EDGE) + read_documents(DOCS)


def test_the_receipt_has_the_former_name_of_the_command(target):
    shuffle_pbin_once(DOCS, target, seed=11)

    receipt = json.loads((target.parent / ".x.pbin.made.json").read_text())

    assert receipt["command"] == "pack shuffle"
    assert receipt["options"] == {"seed": 11, "chunk": None, "chunks": None}


def test_counts_of_older_versions_are_understood(target):
    """Receipts of older versions have facts that this version does not know."""
    merge_pbin_once([DOCS], target)
    receipt = target.parent / ".x.pbin.made.json"
    content = json.loads(receipt.read_text())
    del content["facts"]["left_out"]
    content["facts"]["former"] = 1
    receipt.write_text(json.dumps(content))

    result = merge_pbin_once([DOCS], target)

    n_tokens = sum(len(document) for document in read_documents(DOCS))
    assert result.counts == PbinCounts(documents=60, tokens=n_tokens, token_bytes=2)


# Joined files


@pytest.fixture
def files_of_two_tokenizers(tmp_path: Path, tokenizer_file: Path) -> list[Path]:
    """Two files whose receipts name different tokenizers."""
    text = tmp_path / "web.jsonl"
    text.write_bytes(jsonl(sentences("web", 3)))
    files = [tmp_path / "a.pbin", tmp_path / "b.pbin"]
    for file, tokenizer in zip(files, [GOLDEN / "tokenizer", tokenizer_file], strict=True):
        options = PbinOptions(tokenizer=tokenizer, eod=EOD, workers=1)
        if tokenizer != tokenizer_file:
            options = PbinOptions(tokenizer=tokenizer, workers=1)
        make_pbin_once([text], file, options)
    return files


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(merge_pbin_once, id="merge"),
        pytest.param(partial(shuffle_pbin_chunk_once, seed=1, chunk=0, chunks=2), id="shuffle"),
    ],
)
def test_files_of_different_tokenizers_are_not_joined(files_of_two_tokenizers, target, operation):
    message = "tokens of different tokenizers cannot be joined"
    with pytest.raises(FormatError, match=message) as caught:
        operation(files_of_two_tokenizers, target)

    assert ".b.pbin.made.json" in str(caught.value)
    assert not target.exists()


def test_a_file_and_a_link_to_it_are_not_joined(tmp_path, target):
    link = tmp_path / "link.pbin"
    link.symlink_to(DOCS)

    with pytest.raises(InputError, match="a file is named twice"):
        merge_pbin_once([DOCS, link], target)


def test_a_file_that_is_named_twice_is_joined_twice(target):
    result = merge_pbin_once([EDGE, EDGE], target)

    assert result.counts.documents == 52


def test_a_notice_says_that_a_file_is_read_several_times():
    notices = notices_of_repeated_files([DOCS, EDGE, DOCS])

    assert notices == [f"{DOCS} is read 2 times, since it is named that many times"]


# Shuffled files


def test_a_file_is_shuffled_as_by_modalities(target):
    shuffle_pbin_once(DOCS, target, seed=11)

    assert target.read_bytes() == golden_bytes("docs.shuffle-s11.pbin")


@pytest.mark.parametrize("chunk", range(3))
def test_a_chunk_of_several_files_is_shuffled_as_by_modalities(target, chunk):
    shuffle_pbin_chunk_once([DOCS, EDGE], target, seed=11, chunk=chunk, chunks=3)

    assert target.read_bytes() == golden_bytes(f"chunk-s11-{chunk}-of-3.pbin")


# Filtered files


def test_the_number_of_kept_documents_is_said_before_they_are_written(target):
    texts: list[str] = []

    filter_pbin_once(DOCS, target, DocumentFilter(every=3), say=texts.append)

    assert texts == [f"{DOCS}: 20 of 60 documents are kept"]
    assert target.read_bytes() == golden_bytes("docs.filter-3.pbin")


def test_a_changed_list_of_documents_is_another_source(tmp_path, target):
    document_filter = DocumentFilter(drop=tmp_path / "bad.txt")
    (tmp_path / "bad.txt").write_text("0\n")
    filter_pbin_once(DOCS, target, document_filter)

    assert not filter_pbin_once(DOCS, target, document_filter).is_made_now
    (tmp_path / "bad.txt").write_text("0\n1\n")
    result = filter_pbin_once(DOCS, target, document_filter, overwrite=True)

    assert result.is_made_now
    assert read_documents(target) == read_documents(DOCS)[2:]


def test_a_filter_without_a_condition_is_refused(target):
    with pytest.raises(ConfigError, match="nothing says which documents to keep"):
        filter_pbin_once(DOCS, target, DocumentFilter())


# Repaired files


def test_a_repaired_copy_has_a_correct_index(tmp_path, target):
    texts: list[str] = []

    repair_pbin_once(FAULTY, target, say=texts.append)

    assert texts == [f"{FAULTY} had layout D, with 1 fault in its index"]
    merge_pbin_once([DOCS, EDGE], tmp_path / "expected.pbin")
    assert target.read_bytes() == (tmp_path / "expected.pbin").read_bytes()


def test_a_file_can_be_repaired_in_place(target):
    target.write_bytes(FAULTY.read_bytes())

    counts = repair_pbin_in_place(target)

    assert counts.documents == 86
    assert describe_pbin(target).index.merge_faults == 0


# The index of raw text


def test_an_existing_index_of_raw_text_is_kept(tmp_path):
    index = tmp_path / "x.idx"
    text = GOLDEN / "bad-json.jsonl"
    first = make_raw_index_once(text, index, drop_faulty=True)

    second = make_raw_index_once(text, index, drop_faulty=True)

    assert index.read_bytes() == golden_bytes("bad-json.drop-faulty.idx")
    assert (first.is_made_now, second.is_made_now) == (True, False)
    assert first.counts == second.counts
    assert (first.counts.n_dropped, first.counts.first_dropped) == (1, (2,))


def test_an_existing_index_of_raw_text_can_be_overwritten(tmp_path):
    index = tmp_path / "x.idx"
    make_raw_index_once(GOLDEN / "bad-json.jsonl", index, drop_faulty=True)

    make_raw_index_once(GOLDEN / "edge.jsonl", index, overwrite=True)

    assert index.read_bytes() == golden_bytes("edge.idx")


# Descriptions


def test_a_description_has_the_faults_of_the_index():
    description = describe_pbin(FAULTY)

    assert description.index.merge_faults == 1
    assert description.layout == "D"
    assert description.lengths.sum() == description.n_tokens


@pytest.mark.parametrize("name", ["u1", "legacy-a-header8-be"])
def test_a_description_has_the_counts_of_the_file(name):
    path = GOLDEN / f"{name}.pbin"

    description = describe_pbin(path)

    documents = read_documents(path)
    assert description.index.documents == len(documents)
    assert description.lengths.tolist() == [len(document) for document in documents]


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(MissingError, match="no such file"):
        describe_pbin(tmp_path / "none.pbin")
