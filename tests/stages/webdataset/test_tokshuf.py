"""The preset tokshuf against a model of tokshuf-rust's source, on its own kinds of files."""

import hashlib
import json

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from nanoset_core import iterate_shards
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.stages.webdataset.standalone.sampling import load_sampling
from nanoset_core.stages.webdataset.tokshuf import TokshufTokens, tokshuf_tokens

PAD = 50256


def row_digests(rows):
    return sorted(
        hashlib.sha256(np.asarray(row).astype("<i8").tobytes()).hexdigest() for row in rows
    )


def digest_of_any_order(rows):
    return hashlib.sha256("".join(row_digests(rows)).encode()).hexdigest()


def shuffled(folder, golden_tars, inputs, *arguments):
    call = [
        "shuffle",
        "--input",
        *map(str, inputs),
        "--output",
        str(folder),
        "--preset",
        "tokshuf",
        "--workers",
        "1",
    ]
    call += ["--tokenizer", str(golden_tars / "tokenizer"), "--wds-chunk-size", "24", *arguments]
    outcome = invoke_nanoset(call, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return list(iterate_shards(folder)), json.loads((folder / "manifest.json").read_bytes())[
        "facts"
    ]["plan"]


@pytest.mark.parametrize("length", [65, 2049])
@pytest.mark.parametrize("member", ["npy", "json.gz"])
def test_all_files_give_the_golden_set_of_contexts(tmp_path, golden_tars, length, member):
    expected = json.loads((golden_tars / f"expected.seqlen{length}.json").read_bytes())
    rows, plan = shuffled(
        tmp_path / "out",
        golden_tars,
        [golden_tars / "input"],
        "--seqlen",
        str(length),
        "--member",
        member,
    )
    assert len(rows) == expected["contexts"]
    assert sum(map(len, rows)) == expected["tokens"]
    assert sum(int(row.sum()) for row in rows) == expected["token_sum"]
    assert digest_of_any_order(rows) == expected["sha256_of_sorted"]
    padded = sum(int((np.asarray(row) == PAD).sum()) for row in rows)
    assert plan["pad_tokens"] <= padded  # its pad token is a real one too
    assert plan["tokens"] + plan["pad_tokens"] == expected["tokens"]
    assert (plan["preset"], plan["pad_id"], plan["eod"]) == ("tokshuf", PAD, 0)


@pytest.mark.parametrize("length", [65, 2049])
def test_each_file_gives_its_golden_contexts(tmp_path, golden_tars, length):
    for number, file in enumerate(
        json.loads((golden_tars / f"expected.seqlen{length}.json").read_bytes())["files"]
    ):
        arguments = ("--seqlen", str(length), "--member", "npy", "--max-rejected-fraction", "1")
        rows, _ = shuffled(
            tmp_path / str(number), golden_tars, [golden_tars / "input" / file["file"]], *arguments
        )
        assert (len(rows), digest_of_any_order(rows)) == (
            file["contexts"],
            file["sha256_of_sorted"],
        ), file["file"]
        assert sum((np.asarray(row) == PAD).all() for row in rows) == file["all_pad"]


def test_an_empty_file_gives_a_context_of_padding(tmp_path, golden_tars):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "empty.jsonl").write_bytes(b"")
    (tmp_path / "in" / "one.jsonl").write_bytes(b'{"text": ""}\n')
    rows, _ = shuffled(
        tmp_path / "out", golden_tars, [tmp_path / "in"], "--seqlen", "4", "--member", "npy"
    )
    assert sorted(row.tolist() for row in rows) == [[0, PAD, PAD, PAD], [PAD] * 4]


def test_tokenizers_that_it_knows(golden_tars, tmp_path, tokenizer_file):
    from tokenizers import Tokenizer, models

    assert tokshuf_tokens(golden_tars / "tokenizer" / "tokenizer.json") == TokshufTokens(
        "<|endoftext|>", PAD
    )
    with pytest.raises(ConfigError, match="default preset"):
        tokshuf_tokens(tokenizer_file)
    # the ids that tell Llama-3's apart, at their places; its token 0 is an exclamation mark
    vocabulary = {"!": 0, "<|begin_of_text|>": 128000, "<|end_of_text|>": 128001}
    Tokenizer(models.WordLevel(vocabulary, unk_token="!")).save(str(tmp_path / "tokenizer.json"))
    assert tokshuf_tokens(tmp_path / "tokenizer.json") == TokshufTokens("!", 128258)


GOOD = """\
sources:
- {source: CC, markers: [commoncrawl, cc-main]}
- {source: CODE, markers: [stack]}
- {source: UNSEEN, markers: [books]}
sampling_frequencies: {CC: 0.5, CODE: 2}
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "sources.yaml"
        path.write_text(text)
        return path

    return write


def test_the_first_source_with_a_marker_in_the_path_counts(write):
    sampling = load_sampling(write(GOOD))
    paths = ["/a/cc-main/1", "/a/stack/commoncrawl", "/a/stack/2", "/a/books/3", "/a/other"]
    assert [sampling.source_of(path) for path in paths] == ["CC", "CC", "CODE", None, None]
    assert [sampling.frequency_of(path) for path in paths] == [0.5, 0.5, 2.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources: [", "not YAML"),
        ("[]", "wrong type"),
        ("sampling_frequencies: {}", "a key is missing"),
        (GOOD + "other: 1\n", "not known"),
        (GOOD.replace("source: CODE", "source: CC"), "do not go together"),
        (GOOD.replace("CODE: 2", "WEB: 2"), "frequency of WEB"),
        (GOOD.replace("CODE: 2", "CODE: -2"), "out of range"),
        (GOOD.replace("CODE: 2", "CODE: many"), "wrong type"),
        (GOOD.replace("CODE", "a/b"), "cannot name a corpus"),
    ],
)
def test_what_it_cannot_hold(write, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_sampling(write(text))
    assert "sources.yaml" in str(caught.value)


def test_it_must_be_there(tmp_path):
    with pytest.raises(MissingError, match="no such file"):
        load_sampling(tmp_path / "sources.yaml")
