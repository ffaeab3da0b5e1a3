import json
import os
from pathlib import Path

import numpy as np
import pytest
from sample_project import EOD

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.indexed import MMapIndexedDatasetBuilder
from nanoset_core.packed import PackedDataset, PackedFacts, standalone
from nanoset_core.packed.packing import packing_vocab_size
from nanoset_core.packed.standalone import PackOptions, PackResult, pack_once

GOLDEN = Path(__file__).parents[1] / "golden" / "modalities"
TOKENIZER = GOLDEN / "tokenizer"
END = "<|endoftext|>"


def options(**given):
    return PackOptions(**{"tokenizer": TOKENIZER, "workers": 1, **given})


def make_packed(inputs, output, options):
    return pack_once(inputs, output, options, overwrite=True)[0]


def lists(path):
    return [document.tolist() for document in PackedDataset(path)]


def encode(file, text):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(file)).encode(text).ids


def byte_tokenizer(folder, added=(END,), template=None):
    """256 bytes as tokens, and what is added to them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(added))
    if template:
        ids = [(token, tokenizer.token_to_id(token)) for token in added]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("name", ["docs", "edge"])
def test_text_gives_the_bytes_of_modalities(tmp_path, name):
    made = make_packed([GOLDEN / f"{name}.jsonl"], tmp_path / "x.pbin", options())
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / f"{name}.pbin").read_bytes()
    tokens = len(PackedDataset(GOLDEN / f"{name}.pbin").tokens)
    assert made == PackResult(PackedFacts(len(PackedDataset(GOLDEN / f"{name}.pbin")), tokens, 2))
    assert not (tmp_path / "x_rejects.jsonl").exists()


def test_a_line_that_is_no_json_costs_only_itself(tmp_path):
    target = tmp_path / "x.pbin"
    made = make_packed([GOLDEN / "bad-json.jsonl"], target, options(max_rejected_fraction=0.5))
    assert target.read_bytes() == (GOLDEN / "bad-json.drop-faulty.pbin").read_bytes()
    assert (made.rejected, made.rejects) == (1, tmp_path / "x_rejects.jsonl")
    (reject,) = map(json.loads, made.rejects.read_text().splitlines())
    assert reject["line"] == 2
    make_packed([GOLDEN / "edge.jsonl"], target, options())
    assert not (tmp_path / "x_rejects.jsonl").exists(), "the rejects of the call before are gone"


@pytest.mark.parametrize(("name", "left_out", "rejected"), [("drops-empty", 1, 0), ("drops-missing", 0, 1)])
def test_a_document_that_modalities_cannot_pack_costs_only_itself(tmp_path, name, left_out, rejected):
    made = make_packed([GOLDEN / f"{name}.jsonl"], tmp_path / "x.pbin", options(max_rejected_fraction=0.5))
    rows = [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]
    texts = [row["text"] for row in rows if row.get("text")]
    assert len(texts) == 6
    assert lists(tmp_path / "x.pbin") == [[*encode(TOKENIZER / "tokenizer.json", text), 0] for text in texts]
    assert (made.facts.left_out, made.rejected) == (left_out, rejected)


def test_too_many_rejects_leave_no_file(tmp_path):
    with pytest.raises(InputError, match="line was rejected: invalid_json"):
        make_packed([GOLDEN / "bad-json.jsonl"], tmp_path / "x.pbin", options(on_reject="fail"))
    assert not (tmp_path / "x.pbin").exists()


def test_special_tokens_of_the_tokenizer_and_added_tokens_that_need_more_bytes(tmp_path):
    file = byte_tokenizer(tmp_path, added=("<s>", END), template="<s> $A")
    assert packing_vocab_size(file) == 256, "Modalities would take one byte a token, and lose every document"
    (tmp_path / "a.jsonl").write_text('{"body": "ab"}\n{"body": ""}\n{"body": "c<|endoftext|>"}\n')
    made = make_packed([tmp_path / "a.jsonl"], tmp_path / "x.pbin", options(tokenizer=file, eod=END, key="body"))
    a, b, c = (encode(file, letter)[1] for letter in "abc")
    assert lists(tmp_path / "x.pbin") == [[256, a, b, 257], [256, 257], [256, c, 257]]
    assert made.facts == PackedFacts(3, 9, 2)


def test_a_killed_call_goes_on_where_it_was(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"

    def killed(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(standalone, "pack_indexed_dataset", killed)
        make_packed([GOLDEN / "docs.jsonl"], tmp_path / "x.pbin", options(scratch=scratch))
    (left,) = scratch.glob(".x.pbin-*.packing/*.bin")
    before = os.stat(left).st_mtime_ns
    seen = []
    real = standalone.pack_indexed_dataset

    def noted(prefix, *args, **rest):
        seen.append(os.stat(f"{prefix}.bin").st_mtime_ns)
        return real(prefix, *args, **rest)

    monkeypatch.setattr(standalone, "pack_indexed_dataset", noted)
    make_packed([GOLDEN / "docs.jsonl"], tmp_path / "x.pbin", options(scratch=scratch))
    assert seen == [before], "tokens that were there are not made again"
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / "docs.pbin").read_bytes()
    assert list(scratch.iterdir()) == []


@pytest.fixture
def pair(tmp_path):
    with MMapIndexedDatasetBuilder(tmp_path / "pair", np.int32) as builder:
        for document in ([5, 6], [7, 0], [8]):
            builder.add_document(document, [len(document)])
    return tmp_path / "pair"


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_a_pair(tmp_path, pair, ending):
    make_packed([f"{pair}{ending}"], tmp_path / "x.pbin", PackOptions())
    assert (lists(tmp_path / "x.pbin"), PackedDataset(tmp_path / "x.pbin").token_bytes) == ([[5, 6], [7, 0], [8]], 4)
    make_packed([f"{pair}{ending}"], tmp_path / "x.pbin", options(append_eod=True))
    found = PackedDataset(tmp_path / "x.pbin")
    assert (lists(tmp_path / "x.pbin"), found.token_bytes) == ([[5, 6, 0], [7, 0], [8, 0]], 2)
    make_packed([f"{pair}{ending}"], tmp_path / "x.pbin", PackOptions(vocab_size=256))
    assert PackedDataset(tmp_path / "x.pbin").token_bytes == 1


def test_what_is_missing_is_named(tmp_path, pair):
    target = tmp_path / "x.pbin"
    with pytest.raises(ConfigError, match=r"--tokenizer: no tokenizer is named"):
        make_packed([GOLDEN / "docs.jsonl"], target, PackOptions())
    with pytest.raises(ConfigError, match=r"--tokenizer: no tokenizer is named"):
        make_packed([pair], target, PackOptions(append_eod=True))
    with pytest.raises(ConfigError, match="one dataset is packed at a time"):
        make_packed([pair, GOLDEN / "docs.jsonl"], target, options())
    with pytest.raises(ConfigError, match=r"u1\.pbin: this is packed already"):
        make_packed([GOLDEN / "u1.pbin"], target, options())
    with pytest.raises(MissingError, match="no such file"):
        make_packed([tmp_path / "none"], target, options())
    with pytest.raises(ConfigError, match="--eod"):
        make_packed([GOLDEN / "docs.jsonl"], target, options(eod="<|none|>"))


def test_the_folder_that_one_is_in_is_a_folder_of_text(tmp_path, monkeypatch, tokenizer_file):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    monkeypatch.chdir(tmp_path)
    made = make_packed(["."], Path("x.pbin"), PackOptions(tokenizer=tokenizer_file, eod=EOD, workers=1))
    assert made.facts.documents == 1
