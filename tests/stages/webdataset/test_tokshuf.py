"""The preset tokshuf: it writes the contexts of tokshuf-rust, from files and their sampling.

A model of tokshuf-rust's source made the golden contexts, from its own kinds of files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from helpers.command import invoke_nanoset
from nanoset_core import iterate_shards
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.stages.webdataset.standalone.sampling import load_sampling
from nanoset_core.stages.webdataset.tokshuf import TokshufTokens, tokshuf_tokens

PAD = 50256
"""The padding token of GPT-NeoX's tokenizer, which is a word as well."""


class ShuffledFiles(NamedTuple):
    """Contexts that `nanoset shuffle --preset tokshuf` wrote."""

    contexts: list[np.ndarray]
    plan: dict[str, Any]
    """Facts of their plan."""

    @property
    def digest(self) -> str:
        """The sha256 of all contexts in any order."""
        rows = [np.asarray(context).astype("<i8").tobytes() for context in self.contexts]
        digests = sorted(hashlib.sha256(row).hexdigest() for row in rows)
        return hashlib.sha256("".join(digests).encode()).hexdigest()


def shuffle_files(
    folder: Path, golden_tars: Path, raw: Path, length: int, member: str, *options: str
) -> ShuffledFiles:
    """Run `nanoset shuffle` on a file or folder of raw text."""
    words = ["shuffle", "--input", str(raw), "--output", str(folder), "--preset", "tokshuf"]
    words += ["--workers", "1", "--tokenizer", str(golden_tars / "tokenizer")]
    words += ["--wds-chunk-size", "24", "--seqlen", str(length), "--member", member, *options]
    outcome = invoke_nanoset(words, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    manifest = json.loads((folder / "manifest.json").read_bytes())
    return ShuffledFiles(list(iterate_shards(folder)), manifest["facts"]["plan"])


# Contexts


@pytest.mark.parametrize("length", [65, 2049])
@pytest.mark.parametrize("member", ["npy", "json.gz"])
def test_all_files_give_the_golden_set_of_contexts(tmp_path, golden_tars, length, member):
    expected = json.loads((golden_tars / f"expected.seqlen{length}.json").read_bytes())

    shuffled = shuffle_files(tmp_path / "out", golden_tars, golden_tars / "input", length, member)

    # The contexts are the golden ones.
    contexts = shuffled.contexts
    assert len(contexts) == expected["contexts"]
    assert sum(len(context) for context in contexts) == expected["tokens"]
    assert sum(int(context.sum()) for context in contexts) == expected["token_sum"]
    assert shuffled.digest == expected["sha256_of_sorted"]

    # The plan counts their tokens. Not each PAD is padding, since it is a word as well.
    plan = shuffled.plan
    n_pads = sum(int((np.asarray(context) == PAD).sum()) for context in contexts)
    assert plan["pad_tokens"] <= n_pads
    assert plan["tokens"] + plan["pad_tokens"] == expected["tokens"]
    assert plan["preset"] == "tokshuf"
    assert plan["pad_id"] == PAD
    assert plan["eod"] == 0


@pytest.mark.parametrize("length", [65, 2049])
def test_each_file_gives_its_golden_contexts(tmp_path, golden_tars, length):
    all_expected = json.loads((golden_tars / f"expected.seqlen{length}.json").read_bytes())

    for expected in all_expected["files"]:
        name = expected["file"]
        shuffled = shuffle_files(
            tmp_path / name,
            golden_tars,
            golden_tars / "input" / name,
            length,
            "npy",
            "--max-rejected-fraction=1",
        )
        n_only_padding = sum((np.asarray(context) == PAD).all() for context in shuffled.contexts)

        assert len(shuffled.contexts) == expected["contexts"], name
        assert shuffled.digest == expected["sha256_of_sorted"], name
        assert n_only_padding == expected["all_pad"], name


def test_an_empty_file_gives_a_context_of_padding(tmp_path, golden_tars):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "empty.jsonl").write_bytes(b"")
    (tmp_path / "in" / "one.jsonl").write_bytes(b'{"text": ""}\n')

    shuffled = shuffle_files(tmp_path / "out", golden_tars, tmp_path / "in", 4, "npy")

    contexts = sorted(context.tolist() for context in shuffled.contexts)
    assert contexts == [[0, PAD, PAD, PAD], [PAD, PAD, PAD, PAD]]


# Tokenizers


def test_the_tokens_of_gpt_neox_are_known(golden_tars):
    tokens = tokshuf_tokens(golden_tars / "tokenizer" / "tokenizer.json")

    assert tokens == TokshufTokens("<|endoftext|>", PAD)


def test_the_tokens_of_llama_3_are_known(tmp_path):
    # It is recognized by the ids of two tokens. Its token 0 is an exclamation mark.
    vocabulary = {"!": 0, "<|begin_of_text|>": 128000, "<|end_of_text|>": 128001}
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel(vocabulary, unk_token="!")).save(str(path))

    assert tokshuf_tokens(path) == TokshufTokens("!", 128258)


def test_a_tokenizer_that_tokshuf_does_not_know_is_refused(tokenizer_file):
    with pytest.raises(ConfigError, match="default preset"):
        tokshuf_tokens(tokenizer_file)


# Sampling of sources

SAMPLING = """\
sources:
- {source: CC, markers: [commoncrawl, cc-main]}
- {source: CODE, markers: [stack]}
- {source: UNSEEN, markers: [books]}
sampling_frequencies: {CC: 0.5, CODE: 2}
"""


@pytest.fixture
def write_sampling(tmp_path) -> Callable[[str], Path]:
    """A function that writes sources.yaml and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "sources.yaml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("path", "source", "frequency"),
    [
        pytest.param("/a/cc-main/1", "CC", 0.5, id="second marker"),
        pytest.param("/a/stack/commoncrawl", "CC", 0.5, id="markers of two sources"),
        pytest.param("/a/stack/2", "CODE", 2.0, id="second source"),
        pytest.param("/a/books/3", None, 0.0, id="source without frequency"),
        pytest.param("/a/other", None, 0.0, id="no marker"),
    ],
)
def test_a_file_is_of_the_first_source_with_a_marker_in_its_path(
    write_sampling, path, source, frequency
):
    sampling = load_sampling(write_sampling(SAMPLING))

    assert sampling.source_of(path) == source
    assert sampling.frequency_of(path) == frequency


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("sources: [", "not YAML", id="not YAML"),
        pytest.param("[]", "wrong type", id="a list"),
        pytest.param("sampling_frequencies: {}", "a key is missing", id="no sources"),
        pytest.param(SAMPLING + "other: 1\n", "not known", id="unknown key"),
        pytest.param(
            SAMPLING.replace("source: CODE", "source: CC"),
            "do not go together",
            id="two sources of one name",
        ),
        pytest.param(
            SAMPLING.replace("CODE: 2", "WEB: 2"), "frequency of WEB", id="unknown source"
        ),
        pytest.param(
            SAMPLING.replace("CODE: 2", "CODE: -2"), "out of range", id="negative frequency"
        ),
        pytest.param(
            SAMPLING.replace("CODE: 2", "CODE: many"), "wrong type", id="frequency is a word"
        ),
        pytest.param(SAMPLING.replace("CODE", "a/b"), "cannot name a corpus", id="name of a path"),
    ],
)
def test_wrong_sampling_is_refused_with_the_name_of_the_file(write_sampling, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_sampling(write_sampling(text))

    assert "sources.yaml" in str(caught.value)


def test_a_missing_file_of_sampling_is_reported(tmp_path):
    with pytest.raises(MissingError, match="no such file"):
        load_sampling(tmp_path / "sources.yaml")
