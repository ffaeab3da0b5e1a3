"""Commands read tokenizers of every kind of file, with Megatron-LM's options and their own."""

from __future__ import annotations

import base64
import gzip
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from helpers.command import invoke_nanoset, output_of, run_nanoset
from helpers.locations import GOLDEN_FILES
from nanoset_core import MMapIndexedDataset
from nanoset_core.errors import ConfigError
from nanoset_core.formats.pbin.dataset import PackedDataset

FILES = GOLDEN_FILES / "tokenization" / "files"
EXPECTED = json.loads((FILES / "expected.json").read_bytes())
"""Token ids of each text, by the name of a tokenizer."""
TEXTS = json.loads((FILES / "texts.json").read_bytes())


@dataclass(frozen=True)
class NamedTokenizer:
    """A tokenizer as a command line names it."""

    name: str
    """Its name in `EXPECTED`."""
    options: Sequence[object]
    eod_id: int
    """Id of the token that ends documents."""
    eod: str = ""
    """The token that ends documents."""

    @property
    def documents(self) -> list[list[int]]:
        """The token ids of the texts that are not empty, each with the token that ends it."""
        return [[*ids, self.eod_id] for ids in EXPECTED[self.name] if ids]


TOKENIZERS = [
    NamedTokenizer(
        "ranks.tiktoken o200k",
        [
            *("--tokenizer", FILES / "ranks.tiktoken", "--tiktoken-pattern", "o200k"),
            *("--tokenizer-special-tokens", "<|endoftext|>", "<|im_end|>"),
        ],
        eod_id=420,
        eod="<|endoftext|>",
    ),
    NamedTokenizer(
        "megatron.json v1",
        [
            *("--tokenizer-type", "TikTokenizer", "--tokenizer-model", FILES / "megatron.json"),
            *("--tiktoken-pattern", "v1", "--tiktoken-num-special-tokens", 20, "--vocab-size", 430),
        ],
        eod_id=2,
        eod="</s>",
    ),
    NamedTokenizer(
        "vocab.json",
        [
            *("--tokenizer-type", "GPT2BPETokenizer"),
            *("--vocab-file", FILES / "vocab.json", "--merge-file", FILES / "merges.txt"),
        ],
        eod_id=420,
        eod="<|endoftext|>",
    ),
]
"""Tokenizers that need several options."""
TOKENIZERS_OF_ONE_FILE = [
    NamedTokenizer("tekken.json", ["--tokenizer", FILES / "tekken.json"], eod_id=2),
    NamedTokenizer(
        "bpe.model",
        ["--tokenizer-type", "Llama2Tokenizer", "--tokenizer-model", FILES / "bpe.model"],
        eod_id=2,
    ),
    NamedTokenizer(
        "unigram.model legacy",
        [
            *("--tokenizer-model", FILES / "unigram.model", "--tokenizer-sentencepiece-legacy"),
            *("--tokenizer-special-tokens", "<s>", "<mask>", "<unk>"),
        ],
        eod_id=2,
    ),
]
TEKKEN = ["--tokenizer", FILES / "tekken.json"]


def name_of(tokenizer: NamedTokenizer) -> str:
    """Return the name of a tokenizer."""
    return tokenizer.name


with_each_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=name_of)


@pytest.fixture
def texts(tmp_path) -> Path:
    """A file of raw text."""
    file = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": text}) + "\n" for text in TEXTS]
    file.write_text("".join(lines))
    return file


@pytest.fixture
def pair(texts) -> Path:
    """The prefix of the pair that `tokenize` writes."""
    return texts.parent / "out_text_document"


def tokenize_command(texts: Path, *options: object) -> list[object]:
    """Return the words of a command that tokenizes texts."""
    return ["tokenize", "--input", texts, "--output-prefix", texts.parent / "out", *options]


def tokenize(texts: Path, *options: object) -> list[list[int]]:
    """Tokenize texts, and return the token ids of each document."""
    run_nanoset(
        *tokenize_command(texts, "--append-eod", "--engine", "tokenizers", "--workers", 1),
        *options,
    )
    dataset = MMapIndexedDataset(texts.parent / "out_text_document")
    return [dataset.get(number).tolist() for number in range(len(dataset))]


# Options


@pytest.mark.parametrize("tokenizer", [*TOKENIZERS, *TOKENIZERS_OF_ONE_FILE], ids=name_of)
def test_a_tokenizer_is_named_with_the_options_of_megatron(texts, tokenizer):
    if ".model" in tokenizer.name:
        pytest.importorskip("sentencepiece")

    assert tokenize(texts, *tokenizer.options) == tokenizer.documents


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            ["--tokenizer-type", "TikTokenizer", *TEKKEN], "not of this type", id="other type"
        ),
        pytest.param(
            ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer", FILES / "bpe.model"],
            "not of this type",
            id="other type of a SentencePiece model",
        ),
        pytest.param(
            [*TEKKEN, "--vocab-file", FILES / "vocab.json"],
            "two tokenizers are named",
            id="two tokenizers",
        ),
        pytest.param(
            ["--tokenizer", FILES / "ranks.tiktoken"], "--tiktoken-pattern", id="no pattern"
        ),
        pytest.param(
            ["--vocab-file", FILES.parent / "tokenizer.json"],
            "tokenizer.json: tokenizer.json",
            id="no vocabulary",
        ),
        pytest.param(
            [*TEKKEN, "--special-tokens", "add", "--tokenizer-hf-no-include-special-tokens"],
            "contradict each other",
            id="contradiction",
        ),
    ],
)
def test_options_that_do_not_fit_together_are_errors(texts, options, message):
    result = invoke_nanoset(tokenize_command(texts, *options))

    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert result.exception.remedy


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["tokenize", "--input", "x", "--output-prefix", "y"], id="tokenize"),
        pytest.param(["inspect", "x"], id="inspect"),
    ],
)
def test_options_of_a_tokenizer_that_is_not_named_are_a_wrong_use(command):
    result = invoke_nanoset([*command, "--tiktoken-pattern", "gpt2"])

    assert result.exit_code == 2
    assert "--tokenizer" in result.output


# Other commands


def test_inspect_shows_tokens_as_text(texts, pair):
    tokenize(texts, *TEKKEN)

    assert "two  spaces and" in output_of("inspect", pair, *TEKKEN)


def test_inspect_asks_for_what_it_does_not_know_of_a_tokenizer(texts, pair, tmp_path):
    # Megatron-LM adds 1,000 special tokens by default, up to 131,072 tokens. This file has just as
    # many entries as leave room for them, so that it is not known whether they were left out.
    n_tokens = (1 << 17) - 1000
    words = [bytes([byte]) for byte in range(256)]
    words += [b"%07d" % number for number in range(n_tokens - 256)]
    entries = []
    for rank, word in enumerate(words):
        token_bytes = base64.b64encode(word).decode()
        entries.append({"rank": rank, "token_bytes": token_bytes, "token_str": None})
    file = tmp_path / "vocab.json"
    file.write_text(json.dumps(entries))
    tokenize(texts, *TEKKEN)

    result = invoke_nanoset(["inspect", pair, "--tokenizer", file])

    assert "--tiktoken-num-special-tokens" in result.output


@with_each_tokenizer
def test_inspect_reads_a_pair_with_the_options_that_made_it(texts, pair, tokenizer):
    tokenize(texts, *tokenizer.options)

    output = output_of("inspect", pair, *tokenizer.options)

    assert "two  spaces and" in output
    assert "taken with" not in output


@with_each_tokenizer
def test_verify_checks_a_pair_with_the_options_that_made_it(texts, pair, tokenizer):
    tokenize(texts, *tokenizer.options)

    run_nanoset("verify", pair, *tokenizer.options, "--eod", tokenizer.eod)

    # Documents do not end with this token.
    assert invoke_nanoset(["verify", pair, *tokenizer.options, "--eod", "two"]).exit_code == 1


@with_each_tokenizer
def test_pack_tokenizes_text_with_the_options(texts, tokenizer):
    packed = texts.parent / "out.pbin"

    run_nanoset(
        *("pack", texts, "--engine", "tokenizers", "--workers", 1),
        *(*tokenizer.options, "-o", packed),
    )

    documents = [tokens.tolist() for tokens in PackedDataset(packed)]
    assert documents == tokenizer.documents


def contexts_in(folder: Path) -> Iterator[Any]:
    """Yield the token ids of each context in the tars of a folder."""
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                yield json.loads(gzip.decompress(file.read()))


@with_each_tokenizer
def test_shuffle_tokenizes_text_with_the_options(texts, tokenizer):
    tars = texts.parent / "tars"

    run_nanoset(
        *("shuffle", "--input", texts, "--output", tars, "--tokenizer-engine", "tokenizers"),
        *("--seqlen", 16, "--workers", 1, *tokenizer.options),
    )

    # All documents are concatenated, and cut into contexts; an incomplete last one is dropped.
    tokens = list(chain.from_iterable(tokenizer.documents))
    expected = [tokens[start : start + 16] for start in range(0, len(tokens) - 15, 16)]
    assert sorted(contexts_in(tars)) == sorted(expected)


# Special tokens of the tokenizer's template


@pytest.fixture
def template(tmp_path) -> Any:
    """A tokenizer.json that begins each text with <|padding|>, as Llama's do with a BOS."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer.from_file(str(FILES.parent / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(
        single="<|padding|> $A", special_tokens=[("<|padding|>", 1)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tokenizer


EOD_ID = 0
"""Id of `<|endoftext|>` in the tokenizer with a template."""


@pytest.fixture
def template_options(tmp_path, template) -> list[object]:
    """Options that name the tokenizer with a template."""
    return ["--tokenizer", tmp_path / "tokenizer.json", "--eod", "<|endoftext|>"]


def test_special_tokens_are_added_on_request_as_encode_adds_them(texts, template, template_options):
    encodings = template.encode_batch(TEXTS, add_special_tokens=True)
    expected = [[*encoding.ids, EOD_ID] for encoding in encodings]

    assert tokenize(texts, *template_options, "--special-tokens", "add") == expected

    # Megatron-LM's option means the same: the pair is not written again, which would be refused.
    option = "--tokenizer-hf-include-special-tokens"
    assert tokenize(texts, *template_options, option) == expected


def test_special_tokens_are_not_added_by_default(texts, template, template_options):
    encodings = template.encode_batch(TEXTS, add_special_tokens=False)
    # A text without tokens is no document.
    expected = [[*encoding.ids, EOD_ID] for encoding in encodings if encoding.ids]

    option = "--tokenizer-hf-no-include-special-tokens"
    assert tokenize(texts, *template_options, option) == expected

    # Without the option, the pair is the same: it is not written again, which would be refused.
    assert tokenize(texts, *template_options) == expected


TRAINERS_THAT_ADD_TOKENS = "megatron-core up to 0.14 and from 0.17"


def test_tokenize_names_the_trainers_that_add_special_tokens(texts, template_options):
    command = tokenize_command(texts, "--engine", "tokenizers", "--workers", 1)

    output = invoke_nanoset([*command, *template_options[:2]]).output

    assert TRAINERS_THAT_ADD_TOKENS in output


def test_tokenize_does_not_name_trainers_if_the_special_tokens_were_chosen(texts, template_options):
    command = tokenize_command(texts, "--engine", "tokenizers", "--workers", 1)

    output = output_of(*command, *template_options[:2], "--special-tokens", "none")

    assert "megatron-core" not in output


def test_tokenize_does_not_name_trainers_if_the_tokenizer_has_no_template(texts):
    command = tokenize_command(texts, "--engine", "tokenizers", "--workers", 1)

    output = output_of(*command, *TEKKEN)

    assert "megatron-core" not in output


def test_init_writes_the_choice_of_special_tokens_and_status_asks_for_it(tmp_path, template):
    corpus = tmp_path / "raw" / "web"
    corpus.mkdir(parents=True)
    (corpus / "a.jsonl").write_text('{"text": "one two"}\n')
    config = tmp_path / "nanoset.yaml"

    run_nanoset("init", tmp_path)
    text = config.read_text()
    assert "special_tokens: none" in text
    assert "megatron-core" not in invoke_nanoset(["status", "-c", config]).output

    config.write_text(text.replace("special_tokens: none", ""))
    assert "megatron-core up to 0.14" in invoke_nanoset(["status", "-c", config]).output
