"""What may be lost on the way to shards, and what is said of it."""

from __future__ import annotations

import gzip
import json

import pytest
import zstandard

from helpers.command import invoke_nanoset
from helpers.records import plain, through_json
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core.errors import InputError
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.inputs import resolve_inputs
from nanoset_core.stages.shards.losses import Listing, Losses
from nanoset_core.stages.shards.preprocess import preprocess
from nanoset_core.stages.shards.preprocess_options import PreprocessOptions
from nanoset_core.stages.shards.reject_policy import RejectPolicy, SettingNames
from nanoset_core.text.rejects import RejectOptions


@pytest.fixture
def cut(tmp_path):
    """A thousand whole documents, and a gz of 60 that was cut to a half."""
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(jsonl(sentences("a", 1000)))
    whole = gzip.compress(jsonl(sentences("b", 60)), mtime=0)
    (folder / "b.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    return folder


def options(tokenizer_file, **changes):
    return PreprocessOptions(tokenizer=tokenizer_file, workers=1, eod=EOD, **changes)


def test_a_cut_file_is_refused_whatever_the_share_of_lines(cut, tmp_path, tokenizer_file):
    with pytest.raises(InputError) as refused:
        preprocess(resolve_inputs([cut]), tmp_path / "out", options(tokenizer_file))
    error = refused.value
    assert error.what == "a file cannot be read to its end"
    assert error.where == str(cut / "b.jsonl.gz")
    assert "in the middle of a compressed member" in error.found
    assert error.expected == "whole files (--max-unreadable-fraction: 0)"
    enough = error.remedy.rpartition(" ")[2]
    assert not list(tmp_path.glob("out*"))
    (made,) = preprocess(
        resolve_inputs([cut]),
        tmp_path / "out",
        options(tokenizer_file, max_unreadable_fraction=float(enough)),
    )
    assert made.facts.faults == 1
    assert made.lost.startswith("1 file not readable to the end (")
    assert "b.jsonl.gz from line " in made.lost
    with pytest.raises(InputError, match="cannot be read to its end"):
        preprocess(resolve_inputs([cut]), tmp_path / "out", options(tokenizer_file))


def test_the_last_line_of_the_command_says_it(cut, tmp_path, tokenizer_file):
    arguments = [
        "tokenize",
        "--input",
        str(cut),
        "--output-prefix",
        str(tmp_path / "out"),
        "--workers",
        "1",
    ]
    arguments += ["--tokenizer", str(tokenizer_file)]
    outcome = invoke_nanoset(arguments)
    assert outcome.exit_code == 1
    for _ in range(2):  # the second call finds it made
        outcome = invoke_nanoset(
            [*arguments, "--max-unreadable-fraction", "0.5"], catch_exceptions=False
        )
        assert outcome.exit_code == 0
        assert "1 file not readable to the end (" in outcome.output.splitlines()[-1]
        assert "b.jsonl.gz from line " in outcome.output.splitlines()[-1]


def losses(tmp_path, rejects=(), sizes=None, **facts):
    path = tmp_path / "rejects.jsonl"
    names = ("file", "line", "offset", "reason", "detail", "excerpt")
    path.write_bytes(jsonl(dict(zip(names, reject, strict=True)) for reject in rejects))
    reasons = {}
    for reject in rejects:
        reasons[reject[3]] = reasons.get(reject[3], 0) + 1
    counts = ShardFacts(reasons=reasons, **facts)
    return Losses(counts, [Listing(plain(counts), lambda _: path)], sizes or {})


SOUND = ("blank_line", "not_an_object", "text_not_a_string")
FAULT = ("b.gz", 7, 700, "truncated_gzip", "the file ends", "")


@pytest.mark.parametrize(
    ("fraction", "size", "allowed"),
    [(0, 0, False), (0, 100, False), (0.1, 0, True), (0.1, 100, True), (0.1, 101, False)],
)
def test_the_share_is_of_stored_bytes(tmp_path, fraction, size, allowed):
    lost = losses(
        tmp_path, [FAULT], {"b.gz": size}, lines=2, documents=2, faults=1, stored_bytes=1000
    )
    limits = {"max_rejected_fraction": 0.0, "max_unreadable_fraction": fraction}
    for on_reject, expected in (("quarantine", allowed), ("fail", False)):
        policy = RejectPolicy(RejectOptions(on_reject=on_reject, **limits))
        assert (policy.refusal(lost, tmp_path) is None) is expected


def test_a_file_that_is_not_known_any_more_may_be_any(tmp_path):
    lost = losses(tmp_path, [], lines=9, documents=9, faults=1, stored_bytes=1000)
    assert lost.unreadable_share == 1
    assert "which ones is no longer known" in lost.unreadable_text()


def test_lines_that_hold_no_text_are_no_damage(tmp_path):
    rows = [("a", n, 0, reason, "…", "x") for n, reason in enumerate(SOUND)]
    assert losses(tmp_path, rows).texts() == []
    rows += [
        ("a", 4, 0, "invalid_json", "…", "x"),
        ("b", 5, 0, "invalid_utf8", "…", "\\x00"),
        FAULT,
    ]
    text = losses(tmp_path, rows, faults=1).damaged_text()
    assert text == "2 rejected lines that may be damaged (invalid_json 1, invalid_utf8 1): a 1, b 1"


def test_a_wrong_text_key_names_the_file_and_the_keys_that_are_there(tmp_path, tokenizer_file):
    rows = [{"id": n, "content": "some text", "meta": {}} for n in range(20)]
    (tmp_path / "a.jsonl").write_bytes(jsonl(rows))
    with pytest.raises(InputError) as refused:
        preprocess(
            resolve_inputs([tmp_path / "a.jsonl"]), tmp_path / "out", options(tokenizer_file)
        )
    error = refused.value
    assert error.where == str(tmp_path / "a.jsonl")
    assert (
        "20 of 20 lines rejected, 100.00% (missing_key 20); line 1 has the keys 'content', 'id', "
        "'meta'" in error.found
    )
    assert error.expected.startswith("the key 'text' (--json-key) in every line")
    assert error.remedy.startswith("name the key that holds the text")
    assert "{" not in str(error)


def test_plain_text_is_shown(tmp_path, tokenizer_file):
    (tmp_path / "a.jsonl").write_text("It was a dark and stormy night.\nThe rain fell.\n")
    with pytest.raises(InputError) as refused:
        preprocess(
            resolve_inputs([tmp_path / "a.jsonl"]), tmp_path / "out", options(tokenizer_file)
        )
    assert "line 1 is 'It was a dark and stormy night.' (invalid_json" in refused.value.found
    assert 'one JSON object in each line, as {"text": "Some text."}' in refused.value.expected


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_a_json_array_named_as_lines_is_refused_for_what_it_is(tmp_path, tokenizer_file, name):
    data = b'[{"text": "one"}, {"text": "two"}]'
    if name.endswith(".gz"):
        data = gzip.compress(data)
    elif name.endswith(".zst"):
        data = zstandard.compress(data)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as refused:
        preprocess(resolve_inputs([tmp_path / name]), tmp_path / "out", options(tokenizer_file))
    assert refused.value.found.startswith("the file is one JSON array, not JSON lines")
    assert refused.value.remedy.startswith("convert the file, or leave it out")


def test_a_json_array_among_many_lines_is_a_loss_to_report(tmp_path, tokenizer_file):
    (tmp_path / "a.jsonl").write_bytes(
        jsonl({"text": f"document {number}"} for number in range(200))
    )
    (tmp_path / "b.jsonl").write_text('[{"text": "one"}, {"text": "two"}]\n')
    (made,) = preprocess(
        resolve_inputs([tmp_path]), tmp_path / "out" / "x", options(tokenizer_file)
    )
    assert made.facts.reasons == {"array_of_objects": 1}
    assert "array_of_objects 1" in Losses(made.facts).damaged_text()


def test_a_spoilt_list_of_rejects_is_said(tmp_path):
    lost = losses(tmp_path, [FAULT], faults=1)
    (tmp_path / "rejects.jsonl").write_bytes(
        json.dumps({"file": "b.gz", "reason": "truncated_gzip"}).encode()
    )
    with pytest.raises(ValueError, match="not the list of"):
        lost.unreadable_text()


def test_zeroed_tables_are_told_and_kept_in_manifests(tmp_path):
    assert "zeroed" not in plain(ShardFacts())
    facts = ShardFacts(zeroed={"a.arrow": 1}) + ShardFacts(zeroed={"a.arrow": 2, "b.parquet": 1})
    assert through_json(facts) == facts
    assert Losses(facts).texts() == ["4 documents with runs of zero bytes: a.arrow 3, b.parquet 1"]


def test_ids_that_are_no_text_are_told_and_kept_in_manifests():
    assert not {"unkept_ids", "escaped_ids"} & plain(ShardFacts()).keys()
    facts = ShardFacts(unkept_ids={"a.parquet": 1}, escaped_ids={"b.parquet": 2}) + ShardFacts(
        unkept_ids={"c.jsonl": 1}
    )
    assert through_json(facts) == facts
    assert Losses(facts).texts() == [
        "2 documents with ids that cannot be kept, so that no list names them: a.parquet 1, "
        "c.jsonl 1; "
        r"2 documents with ids of bytes that are not UTF-8, which are kept as \xNN: b.parquet 2"
    ]


def test_a_file_that_holds_no_lines_is_to_be_left_out(tmp_path):
    foreign = ("b.json", 1, 0, "wrong_format", "the file is one JSON array, not JSON lines", "")
    policy = RejectPolicy(RejectOptions(), names=SettingNames(leave_out="exclude: {files}"))
    one = policy.refusal(losses(tmp_path, [foreign], faults=1), tmp_path)
    assert "the file is one JSON array" in one.found
    assert 'leave out files that are not text of the corpus: exclude: ["b.json"]' in one.remedy
    both = policy.refusal(losses(tmp_path, [FAULT, foreign], faults=2), tmp_path)
    assert "whole files" in both.expected
    assert both.remedy.endswith('; leave out files that are not text: exclude: ["b.json"]')


def test_zeros_at_the_end_of_a_gzip_file_are_told(tmp_path, tokenizer_file):
    members = [
        gzip.compress(jsonl({"text": f"document {number}"} for number in range(9)), mtime=0)
        for _ in range(2)
    ]
    (tmp_path / "a.jsonl.gz").write_bytes(members[0] + bytes(len(members[1])))
    (tmp_path / "b.jsonl.gz").write_bytes(members[0] + members[1])
    told = "1 gzip file with zero bytes at the end, as of a download that was cut short: "
    told += f"a.jsonl.gz {len(members[1])} bytes"
    arguments = [
        "tokenize",
        "--input",
        str(tmp_path),
        "--output-prefix",
        str(tmp_path / "out"),
        "--workers",
        "1",
    ]
    for _ in range(2):  # the second call finds it made
        outcome = invoke_nanoset(
            [*arguments, "--tokenizer", str(tokenizer_file)], catch_exceptions=False
        )
        assert outcome.exit_code == 0
        assert "27 documents" in outcome.output
        assert told in outcome.output
    assert "padding" not in plain(ShardFacts())
