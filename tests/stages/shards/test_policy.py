"""How much raw text may be lost on the way to shards, and how losses are reported."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from helpers.command import invoke_nanoset
from helpers.records import plain, through_json
from helpers.sample_project import jsonl, sentences
from helpers.tokenizing import make_options
from nanoset_core.errors import InputError
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.losses import Losses, RejectsOfCall
from nanoset_core.stages.shards.reject_policy import RejectPolicy, SettingNames
from nanoset_core.stages.shards.standalone.inputs import resolve_inputs
from nanoset_core.stages.shards.standalone.options import PreprocessOptions
from nanoset_core.stages.shards.standalone.preprocess import Preprocessed, preprocess
from nanoset_core.text.rejects import Reject, RejectOptions


def refusal_of(path: Path, out: Path, options: PreprocessOptions) -> InputError:
    """Tokenize a file or folder, and return the error by which it is refused."""
    with pytest.raises(InputError) as refused:
        preprocess(resolve_inputs([path]), out, options)
    return refused.value


def tokenize_arguments(folder: Path, prefix: Path, tokenizer_file: Path) -> list[object]:
    """Return the arguments of a call that tokenizes a folder in one process."""
    return [
        "tokenize",
        "--input",
        folder,
        "--output-prefix",
        prefix,
        "--workers",
        1,
        "--tokenizer",
        tokenizer_file,
    ]


# A file that was cut off


@pytest.fixture(scope="module")
def folder_with_cut_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a thousand intact documents, and a gzip file of 60 without its second half."""
    folder = tmp_path_factory.mktemp("raw")
    (folder / "a.jsonl").write_bytes(jsonl(sentences("a", 1000)))
    compressed = gzip.compress(jsonl(sentences("b", 60)), mtime=0)
    (folder / "b.jsonl.gz").write_bytes(compressed[: len(compressed) // 2])
    return folder


@pytest.fixture(scope="module")
def refused_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix of the pair that is refused because of the cut file."""
    return tmp_path_factory.mktemp("refused") / "out"


@pytest.fixture(scope="module")
def cut_file_refusal(
    folder_with_cut_file: Path, refused_prefix: Path, tokenizer_file: Path
) -> InputError:
    """The error by which the folder with the cut file is refused."""
    return refusal_of(folder_with_cut_file, refused_prefix, make_options(tokenizer_file))


@pytest.fixture(scope="module")
def accepted_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix of the pair that is written although a file was cut off."""
    return tmp_path_factory.mktemp("accepted") / "out"


@pytest.fixture(scope="module")
def accepted_pair(
    folder_with_cut_file: Path,
    accepted_prefix: Path,
    cut_file_refusal: InputError,
    tokenizer_file: Path,
) -> Preprocessed:
    """The pair that is written once the share which the refusal names is allowed."""
    share = float(cut_file_refusal.remedy.rpartition(" ")[2])
    options = make_options(tokenizer_file, max_unreadable_fraction=share)
    (pair,) = preprocess(resolve_inputs([folder_with_cut_file]), accepted_prefix, options)
    return pair


def test_a_cut_file_is_refused_however_few_lines_it_has(cut_file_refusal, folder_with_cut_file):
    assert cut_file_refusal.what == "a file cannot be read to its end"
    assert cut_file_refusal.where == str(folder_with_cut_file / "b.jsonl.gz")
    assert "in the middle of a compressed member" in cut_file_refusal.found
    assert cut_file_refusal.expected == "whole files (--max-unreadable-fraction: 0)"


@pytest.mark.usefixtures("cut_file_refusal")
def test_a_refused_call_leaves_no_files(refused_prefix):
    assert not list(refused_prefix.parent.glob("out*"))


def test_the_share_that_the_refusal_names_is_enough(accepted_pair):
    assert accepted_pair.facts.faults == 1


def test_an_accepted_pair_reports_the_file_that_was_cut_off(accepted_pair):
    assert accepted_pair.lost.startswith("1 file not readable to the end (")
    assert "b.jsonl.gz from line " in accepted_pair.lost


@pytest.mark.usefixtures("accepted_pair")
def test_an_existing_pair_is_refused_if_its_losses_are_not_allowed(
    folder_with_cut_file, accepted_prefix, tokenizer_file
):
    refusal = refusal_of(folder_with_cut_file, accepted_prefix, make_options(tokenizer_file))

    assert "cannot be read to its end" in str(refusal)


def test_a_file_with_two_columns_of_texts_has_a_remedy_that_helps(tmp_path, tokenizer_file):
    (tmp_path / "a.csv").write_text("text,text\none,two\n")

    refusal = refusal_of(tmp_path / "a.csv", tmp_path / "out", make_options(tokenizer_file))

    assert refusal.remedy.startswith("rename or remove all but one of these columns")
    assert "max-unreadable-fraction" not in refusal.remedy  # nothing of the file can be read


def test_the_command_fails_if_a_file_was_cut_off(folder_with_cut_file, tmp_path, tokenizer_file):
    arguments = tokenize_arguments(folder_with_cut_file, tmp_path / "out", tokenizer_file)

    outcome = invoke_nanoset(arguments)

    assert outcome.exit_code == 1


def test_the_last_line_of_the_command_reports_the_file_that_was_cut_off(
    folder_with_cut_file, tmp_path, tokenizer_file
):
    arguments = tokenize_arguments(folder_with_cut_file, tmp_path / "out", tokenizer_file)
    arguments += ["--max-unreadable-fraction", 0.5]

    # The second call finds the pair of the first one, and reports the loss again.
    for _ in range(2):
        outcome = invoke_nanoset(arguments, catch_exceptions=False)

        assert outcome.exit_code == 0
        last_line = outcome.output.splitlines()[-1]
        assert "1 file not readable to the end (" in last_line
        assert "b.jsonl.gz from line " in last_line


# Shares and limits

CUT_FILE = Reject("b.gz", 7, 700, "truncated_gzip", "the file ends", "")
JSON_ARRAY = Reject(
    "b.json", 1, 0, "wrong_format", "the file is one JSON array, not JSON lines", ""
)


def make_losses(
    folder: Path,
    rejects: Sequence[Reject] = (),
    sizes: dict[str, int] | None = None,
    **facts: Any,
) -> Losses:
    """Return the losses of a shard with these rejects, whose list is written to a folder.

    Args:
        folder: Where the list of rejects is written.
        rejects: The rejected lines and unreadable files.
        sizes: Stored bytes of each file.
        facts: Other facts of the shard.
    """
    path = folder / "rejects.jsonl"
    path.write_bytes(jsonl(plain(reject) for reject in rejects))
    reasons = dict(Counter(reject.reason for reject in rejects))
    shard_facts = ShardFacts(reasons=reasons, **facts)
    rejects_of_call = RejectsOfCall(plain(shard_facts), list_path=path, scratch=path.parent)
    return Losses(shard_facts, [rejects_of_call], sizes or {})


@pytest.mark.parametrize(
    ("max_fraction", "unreadable_bytes", "is_allowed"),
    [(0, 0, False), (0, 100, False), (0.1, 0, True), (0.1, 100, True), (0.1, 101, False)],
)
def test_the_unreadable_share_is_one_of_the_stored_bytes(
    tmp_path, max_fraction, unreadable_bytes, is_allowed
):
    losses = make_losses(
        tmp_path,
        [CUT_FILE],
        sizes={"b.gz": unreadable_bytes},
        lines=2,
        documents=2,
        faults=1,
        stored_bytes=1000,
    )
    options = RejectOptions(
        on_reject="quarantine", max_rejected_fraction=0.0, max_unreadable_fraction=max_fraction
    )

    refusal = RejectPolicy(options).refusal(losses, tmp_path)

    assert (refusal is None) == is_allowed


@pytest.mark.parametrize("unreadable_bytes", [0, 100, 101])
@pytest.mark.parametrize("max_fraction", [0, 0.1])
def test_on_reject_fail_allows_no_unreadable_file(tmp_path, max_fraction, unreadable_bytes):
    losses = make_losses(
        tmp_path,
        [CUT_FILE],
        sizes={"b.gz": unreadable_bytes},
        lines=2,
        documents=2,
        faults=1,
        stored_bytes=1000,
    )
    options = RejectOptions(
        on_reject="fail", max_rejected_fraction=0.0, max_unreadable_fraction=max_fraction
    )

    assert RejectPolicy(options).refusal(losses, tmp_path) is not None


def test_if_the_unreadable_file_is_not_known_all_bytes_count_as_unreadable(tmp_path):
    losses = make_losses(tmp_path, [], lines=9, documents=9, faults=1, stored_bytes=1000)

    assert losses.unreadable_share == 1
    assert "which ones is no longer known" in losses.unreadable_text()


# Lines that may be damaged

LINES_WITHOUT_TEXT = [
    Reject("a", 0, 0, "blank_line", "…", "x"),
    Reject("a", 1, 0, "not_an_object", "…", "x"),
    Reject("a", 2, 0, "text_not_a_string", "…", "x"),
]
DAMAGED_LINES = [
    Reject("a", 4, 0, "invalid_json", "…", "x"),
    Reject("b", 5, 0, "invalid_utf8", "…", "\\x00"),
]


def test_intact_lines_without_text_are_not_reported_as_losses(tmp_path):
    assert make_losses(tmp_path, LINES_WITHOUT_TEXT).texts() == []


def test_only_lines_that_may_be_damaged_are_reported_as_damaged(tmp_path):
    losses = make_losses(tmp_path, [*LINES_WITHOUT_TEXT, *DAMAGED_LINES, CUT_FILE], faults=1)

    assert losses.damaged_text() == (
        "2 rejected lines that may be damaged (invalid_json 1, invalid_utf8 1): 1 in a, 1 in b"
    )


def test_a_damaged_list_of_rejects_is_an_error(tmp_path):
    losses = make_losses(tmp_path, [CUT_FILE], faults=1)
    incomplete_reject = {"file": "b.gz", "reason": "truncated_gzip"}
    (tmp_path / "rejects.jsonl").write_text(json.dumps(incomplete_reject))

    with pytest.raises(ValueError, match="not the list of"):
        losses.unreadable_text()


# Files that are not JSON lines with the key of the text


def test_a_wrong_text_key_is_reported_with_the_keys_of_the_first_line(tmp_path, tokenizer_file):
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl({"id": n, "content": "some text", "meta": {}} for n in range(20)))

    refusal = refusal_of(path, tmp_path / "out", make_options(tokenizer_file))

    assert refusal.where == str(path)
    assert (
        "20 of 20 lines rejected, 100.00% (missing_key 20); "
        "line 1 has the keys 'content', 'id', 'meta'" in refusal.found
    )
    assert refusal.expected.startswith("the key 'text' (--json-key) in every line")
    assert refusal.remedy.startswith("name the key that holds the text")
    assert "{" not in str(refusal), "a placeholder was not filled in"


def test_a_line_of_plain_text_is_quoted_with_an_example_of_json_lines(tmp_path, tokenizer_file):
    path = tmp_path / "a.jsonl"
    path.write_text("It was a dark and stormy night.\nThe rain fell.\n")

    refusal = refusal_of(path, tmp_path / "out", make_options(tokenizer_file))

    assert "line 1 is 'It was a dark and stormy night.' (invalid_json" in refusal.found
    assert 'one JSON object in each line, as {"text": "Some text."}' in refusal.expected


TWO_DOCUMENTS_IN_AN_ARRAY = b'[{"text": "one"}, {"text": "two"}]'


@pytest.mark.parametrize(
    ("name", "data"),
    [
        pytest.param("a.jsonl", TWO_DOCUMENTS_IN_AN_ARRAY, id="plain"),
        pytest.param("a.jsonl.gz", gzip.compress(TWO_DOCUMENTS_IN_AN_ARRAY), id="gzip"),
        pytest.param("a.jsonl.zst", zstandard.compress(TWO_DOCUMENTS_IN_AN_ARRAY), id="zstd"),
    ],
)
def test_a_json_array_named_as_json_lines_is_recognized(tmp_path, tokenizer_file, name, data):
    path = tmp_path / name
    path.write_bytes(data)

    refusal = refusal_of(path, tmp_path / "out", make_options(tokenizer_file))

    assert refusal.found.startswith("the file is one JSON array, not JSON lines")
    assert refusal.remedy.startswith("convert the file, or leave it out")


def test_a_json_array_among_many_lines_is_reported_as_a_loss(tmp_path, tokenizer_file):
    documents = jsonl({"text": f"document {number}"} for number in range(200))
    (tmp_path / "a.jsonl").write_bytes(documents)
    (tmp_path / "b.jsonl").write_bytes(TWO_DOCUMENTS_IN_AN_ARRAY + b"\n")

    (pair,) = preprocess(
        resolve_inputs([tmp_path]), tmp_path / "out" / "x", make_options(tokenizer_file)
    )

    assert pair.facts.reasons == {"array_of_objects": 1}
    assert "array_of_objects 1" in Losses(pair.facts).damaged_text()


@pytest.fixture
def policy_of_project() -> RejectPolicy:
    """A policy whose messages name the setting of nanoset.yaml that leaves out files."""
    return RejectPolicy(RejectOptions(), names=SettingNames(leave_out="exclude: {files}"))


def test_the_remedy_for_a_file_in_another_format_is_to_leave_it_out(tmp_path, policy_of_project):
    losses = make_losses(tmp_path, [JSON_ARRAY], faults=1)

    refusal = policy_of_project.refusal(losses, tmp_path)

    assert "the file is one JSON array" in refusal.found
    assert 'leave out files that are not text of the corpus: exclude: ["b.json"]' in refusal.remedy


def test_the_remedy_for_a_cut_file_does_not_leave_it_out(tmp_path, policy_of_project):
    losses = make_losses(tmp_path, [CUT_FILE, JSON_ARRAY], faults=2)

    refusal = policy_of_project.refusal(losses, tmp_path)

    assert "whole files" in refusal.expected
    assert refusal.remedy.endswith('; leave out files that are not text: exclude: ["b.json"]')


# Losses within documents


@pytest.mark.parametrize(
    "fact", ["zeroed", "unkept_ids", "escaped_ids", "without_id", "padding", "empty_files"]
)
def test_a_manifest_does_not_mention_losses_that_did_not_occur(fact):
    assert fact not in plain(ShardFacts())


def test_tables_with_runs_of_zero_bytes_are_reported():
    first_shard = ShardFacts(zeroed={"a.arrow": 1})
    second_shard = ShardFacts(zeroed={"a.arrow": 2, "b.parquet": 1})

    facts = first_shard + second_shard

    assert through_json(facts) == facts
    assert Losses(facts).texts() == [
        "4 documents with runs of zero bytes: 3 in a.arrow, 1 in b.parquet"
    ]


def test_ids_that_are_not_text_are_reported():
    first_shard = ShardFacts(unkept_ids={"a.parquet": 1}, escaped_ids={"b.parquet": 2})
    second_shard = ShardFacts(unkept_ids={"c.jsonl": 1})

    facts = first_shard + second_shard

    assert through_json(facts) == facts
    assert Losses(facts).texts() == [
        "2 documents with ids that cannot be kept, so that no list names them: 1 in a.parquet, "
        "1 in c.jsonl; "
        r"2 documents with ids of bytes that are not UTF-8, which are kept as \xNN: 2 in b.parquet"
    ]


def test_zero_bytes_at_the_end_of_a_gzip_file_are_reported(tmp_path, tokenizer_file):
    member = gzip.compress(jsonl({"text": f"document {number}"} for number in range(9)), mtime=0)
    # As after a download that was interrupted: the second member was allocated, but not written.
    (tmp_path / "a.jsonl.gz").write_bytes(member + bytes(len(member)))
    (tmp_path / "b.jsonl.gz").write_bytes(member + member)
    arguments = tokenize_arguments(tmp_path, tmp_path / "out", tokenizer_file)

    # The second call finds the pair of the first one, and reports the zero bytes again.
    for _ in range(2):
        outcome = invoke_nanoset(arguments, catch_exceptions=False)

        assert outcome.exit_code == 0
        assert "27 documents" in outcome.output
        assert (
            "1 gzip file with zero bytes at the end, as of a download that was cut short: "
            f"{len(member)} bytes in a.jsonl.gz" in outcome.output
        )


def test_files_without_text_are_reported():
    first_shard = ShardFacts(empty_files={"a.jsonl.gz": 20})
    second_shard = ShardFacts(empty_files={"b.parquet": 500})

    facts = first_shard + second_shard

    assert through_json(facts) == facts
    assert Losses(facts).texts() == [
        "2 files without text (empty, but compressed; or without rows): a.jsonl.gz, b.parquet"
    ]
