"""`nanoset tokenize`, `status`, `init` and `inspect` with tokenizers of every kind of file."""

import base64
import gzip
import json
import tarfile
from itertools import chain

import pytest
from click.testing import CliRunner

from helpers.locations import GOLDEN_FILES
from nanoset_core import MMapIndexedDataset
from nanoset_core.cli import nanoset
from nanoset_core.errors import ConfigError
from nanoset_core.formats.pbin.dataset import PackedDataset

FILES = GOLDEN_FILES / "tokenization" / "files"
EXPECTED = json.loads((FILES / "expected.json").read_bytes())
TEXTS = json.loads((FILES / "texts.json").read_bytes())
SIZE = "430"


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return file


def run(*arguments):
    return CliRunner().invoke(nanoset, [str(argument) for argument in arguments])


def tokenize(texts, *arguments):
    return run("tokenize", "--input", texts, "--output-prefix", texts.parent / "out", *arguments)


def tokenized(texts, *arguments):
    result = tokenize(texts, "--append-eod", "--engine", "tokenizers", "--workers", 1, *arguments)
    assert result.exit_code == 0, result.output
    dataset = MMapIndexedDataset(texts.parent / "out_text_document")
    return [dataset.get(number).tolist() for number in range(len(dataset))]


RANKS = ("--tokenizer", FILES / "ranks.tiktoken", "--tiktoken-pattern", "o200k",
         "--tokenizer-special-tokens", "<|endoftext|>", "<|im_end|>")  # fmt: skip
MEGATRON = ("--tokenizer-type", "TikTokenizer", "--tokenizer-model", FILES / "megatron.json",
            "--tiktoken-pattern", "v1", "--tiktoken-num-special-tokens", 20, "--vocab-size", SIZE)  # fmt: skip
VOCABULARY = ("--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", FILES / "vocab.json",
              "--merge-file", FILES / "merges.txt")  # fmt: skip
TAKEN = {"ranks.tiktoken o200k": RANKS, "megatron.json v1": MEGATRON, "vocab.json": VOCABULARY}
MODELS = {
    "tekken.json": ("--tokenizer", FILES / "tekken.json"),
    "bpe.model": ("--tokenizer-type", "Llama2Tokenizer", "--tokenizer-model", FILES / "bpe.model"),
    "unigram.model legacy": ("--tokenizer-model", FILES / "unigram.model", "--tokenizer-sentencepiece-legacy",
                             "--tokenizer-special-tokens", "<s>", "<mask>", "<unk>"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*TAKEN, *MODELS])
def test_megatrons_flags(texts, name):
    if ".model" in name:
        pytest.importorskip("sentencepiece")
    end = 420 if name.startswith(("vocab", "ranks")) else 2
    assert tokenized(texts, *(TAKEN | MODELS)[name]) == [
        [*ids, end] for ids in EXPECTED[name] if ids
    ]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--tokenizer-type", "TikTokenizer", "--tokenizer", FILES / "tekken.json"], "not of this type"),
        (["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer", FILES / "bpe.model"], "not of this type"),
        (["--tokenizer", FILES / "tekken.json", "--vocab-file", FILES / "vocab.json"], "two tokenizers are named"),
        (["--tokenizer", FILES / "ranks.tiktoken"], "--tiktoken-pattern"),
        (["--vocab-file", FILES.parent / "tokenizer.json"], "tokenizer.json: tokenizer.json"),
        (
            ["--tokenizer", FILES / "tekken.json", "--special-tokens", "add",
             "--tokenizer-hf-no-include-special-tokens"],
            "contradict each other",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_together(texts, arguments, what):
    result = tokenize(texts, *arguments)
    assert isinstance(result.exception, ConfigError)
    assert what in str(result.exception)
    assert result.exception.remedy


@pytest.mark.parametrize(
    "words", [["tokenize", "--input", "x", "--output-prefix", "y"], ["inspect", "x"]]
)
def test_what_names_no_tokenizer_is_a_wrong_use(words):
    result = run(*words, "--tiktoken-pattern", "gpt2")
    assert (result.exit_code, "--tokenizer" in result.output) == (2, True)


def test_tokens_are_shown_as_text(texts):
    tokenized(texts, "--tokenizer", FILES / "tekken.json")
    result = run(
        "inspect", texts.parent / "out_text_document", "--tokenizer", FILES / "tekken.json"
    )
    assert "two  spaces and" in result.output


def test_what_is_not_known_of_a_tokenizer_is_told_where_its_tokens_are_shown(texts, tmp_path):
    entries = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
        for rank, word in enumerate([bytes([byte]) for byte in range(256)])
    ]
    entries += [
        {"rank": 256 + n, "token_bytes": base64.b64encode(b"%07d" % n).decode(), "token_str": None}
        for n in range((1 << 17) - 1256)
    ]
    file = tmp_path / "vocab.json"
    file.write_text(json.dumps(entries))
    tokenized(texts, "--tokenizer", FILES / "tekken.json")
    shown = run("inspect", texts.parent / "out_text_document", "--tokenizer", file).output
    assert "--tiktoken-num-special-tokens" in shown


@pytest.mark.parametrize("name", TAKEN)
def test_pairs_are_shown_and_verified_with_the_settings_that_made_them(texts, name):
    tokenized(texts, *TAKEN[name])
    prefix = texts.parent / "out_text_document"
    shown = run("inspect", prefix, *TAKEN[name])
    assert shown.exit_code == 0, shown.output
    assert "two  spaces and" in shown.output
    assert "taken with" not in shown.output
    end = "</s>" if name.startswith("megatron") else "<|endoftext|>"
    checked = run("verify", prefix, *TAKEN[name], "--eod", end)
    assert checked.exit_code == 0, checked.output
    assert run("verify", prefix, *TAKEN[name], "--eod", "two").exit_code == 1


@pytest.mark.parametrize("name", TAKEN)
def test_text_is_packed_and_shuffled_with_them(texts, name):
    end = 2 if name.startswith("megatron") else 420
    expected = [[*ids, end] for ids in EXPECTED[name] if ids]
    common = ("--workers", 1, *TAKEN[name])
    packed = texts.parent / "out.pbin"
    result = run("pack", texts, "--engine", "tokenizers", *common, "-o", packed)
    assert result.exit_code == 0, result.output
    assert [tokens.tolist() for tokens in PackedDataset(packed)] == expected
    tars = texts.parent / "tars"
    arguments = ("--tokenizer-engine", "tokenizers", "--seqlen", 16, *common)
    result = run("shuffle", "--input", texts, "--output", tars, *arguments)
    assert result.exit_code == 0, result.output
    whole = list(chain.from_iterable(expected))
    contexts = [whole[begin : begin + 16] for begin in range(0, len(whole) - 15, 16)]
    assert sorted(_contexts(tars)) == sorted(contexts)


def _contexts(tars):
    for path in tars.glob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                yield json.loads(gzip.decompress(tar.extractfile(member).read()))


# --------------------------------------------------------------------------- special tokens of the
# template


@pytest.fixture
def template(tmp_path):
    """A tokenizer.json that begins each text with <|padding|>, as Llama's do with a BOS."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer.from_file(str(FILES.parent / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(
        single="<|padding|> $A", special_tokens=[("<|padding|>", 1)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tokenizer


def test_special_tokens_are_added_by_either_flag_as_encode_adds_them(texts, template):
    whole = [
        [*encoding.ids, 0] for encoding in template.encode_batch(TEXTS, add_special_tokens=True)
    ]
    file = texts.parent / "tokenizer.json"
    common = ("--tokenizer", file, "--eod", "<|endoftext|>")
    assert tokenized(texts, *common, "--special-tokens", "add") == whole
    assert tokenized(texts, *common, "--tokenizer-hf-include-special-tokens") == whole
    plain = [ids[1:] for ids in whole if len(ids) > 2]
    assert (
        tokenized(texts, *common, "--tokenizer-hf-no-include-special-tokens", "--overwrite")
        == plain
    )
    assert tokenized(texts, *common) == plain  # the same pair: nothing is written again


def test_the_command_tells_what_trainers_add_until_somebody_chooses(texts, template):
    arguments = (texts, "--engine", "tokenizers", "--workers", 1, "--tokenizer")
    own = texts.parent / "tokenizer.json"
    assert "megatron-core up to 0.14 and from 0.17" in tokenize(*arguments, own).output
    assert "megatron-core" not in tokenize(*arguments, own, "--special-tokens", "none").output
    assert "megatron-core" not in tokenize(*arguments, FILES / "tekken.json", "--overwrite").output


def test_init_writes_the_choice_and_status_asks_for_it(tmp_path, template):
    corpus = tmp_path / "raw" / "web"
    corpus.mkdir(parents=True)
    (corpus / "a.jsonl").write_text('{"text": "one two"}\n')
    assert run("init", tmp_path).exit_code == 0
    config = tmp_path / "nanoset.yaml"
    text = config.read_text()
    assert "special_tokens: none" in text
    assert "megatron-core" not in run("status", "-c", config).output
    config.write_text(text.replace("special_tokens: none", ""))
    assert "megatron-core up to 0.14" in run("status", "-c", config).output
