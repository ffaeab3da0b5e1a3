import json
import re
from itertools import pairwise

import pytest
import yaml
from jsonschema import Draft202012Validator

from helpers.command import invoke_nanoset
from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError
from nanoset_core.project import first_lengths
from nanoset_core.project.first_config import write_config
from nanoset_core.project.settings import load_config
from nanoset_core.project.template import CommentedOut, config_text


def corpus(folder, name):
    (folder / "raw" / name).mkdir(parents=True)
    (folder / "raw" / name / "a.jsonl").write_bytes(b"{}\n")


def test_what_is_written_can_be_read(tmp_path):
    corpus(tmp_path, "web")
    config = load_config(write_config(tmp_path).path)
    assert config.nanosets["pretrain"].blend == "web"
    assert config.webdatasets == {}, "they are written as a comment"
    before, comment, after = re.split(
        r"(    # trainer:\n(?:    #   .*\n)+)", config.file.read_text()
    )
    config.file.write_text(before + comment.replace("    # ", "    ") + after)
    named = load_config(config.file).nanosets["pretrain"].trainer
    assert (named.tokenizer_type, named.tokenizer_model) == (
        "HuggingFaceTokenizer",
        "/models/llama",
    )


def test_an_editor_finds_the_schema(tmp_path):
    path = write_config(tmp_path).path
    assert path.read_text().startswith("# yaml-language-server: $schema=nanoset.schema.json\n")
    written = (tmp_path / "nanoset.schema.json").read_text()
    assert invoke_nanoset(["init", "--schema"]).output == written
    validator = Draft202012Validator(json.loads(written))
    full = yaml.safe_load((GOLDEN_FILES / "outputs/full.yaml").read_text())
    for value in (yaml.safe_load(path.read_text()), full):
        assert not list(validator.iter_errors(value))
        assert list(validator.iter_errors(value | {"nanoset": {}}))


def test_without_text_no_name_is_invented(tmp_path):
    (tmp_path / "raw/c4").mkdir(parents=True)
    (tmp_path / "raw/c4/a.json.bz2").touch()
    start = write_config(tmp_path)
    config = load_config(start.path)
    assert (dict(config.nanosets), dict(config.webdatasets), list(start.text.unread_entries)) == (
        {},
        {},
        ["c4"],
    )
    lines = start.path.read_text().splitlines()
    assert "#     blend: {CORPUS: 1.0}" in lines
    # What is commented out is right once it is not.
    uncommented = [
        line[2:] if line.startswith(("# nanosets:", "# webdatasets:", "#  ")) else line
        for line in lines
    ]
    (tmp_path / "nanoset.yaml").write_text("\n".join(uncommented))
    assert load_config(tmp_path / "nanoset.yaml").webdatasets["shuffled"].corpora == ("CORPUS",)


def documents(folder, name, count, size):
    path = folder / "raw" / name / "a.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"text": "{"word " * (size // 5)}"}}\n' * count)


@pytest.mark.parametrize(("count", "size", "length", "split"), [
    (3, 15, 4, "1,0,0"),
    (3, 5000, 512, "1,0,0"),
    (100, 5000, 1024, "80,20,0"),
    (500, 5000, 2048, "90,10,0"),
    (3000, 5000, 2048, "90,5,5"),
    (30_000, 5000, 2048, "98,1,1"),
])  # fmt: skip
def test_the_split_and_the_length_suit_the_text(tmp_path, count, size, length, split):
    documents(tmp_path, "web", count, size)
    documents(tmp_path, "code", 2 * count, size)
    nanoset = load_config(write_config(tmp_path).path).nanosets["pretrain"]
    assert (nanoset.sequence_length, nanoset.split) == (length, split)


def test_enough_text_has_the_usual_split(tmp_path, monkeypatch):
    monkeypatch.setattr(first_lengths, "_MIN_EXPECTED", 1)
    documents(tmp_path, "web", 10_000, 5000)
    assert load_config(write_config(tmp_path).path).nanosets["pretrain"].split == "969,30,1"


def test_names_the_corpora_that_are_there(tmp_path):
    # Names that YAML would take for a number, a truth value or nothing.
    names = ["2024", "1e3", "code", "no", "null", "web.v2"]
    corpus(tmp_path, names[0])
    path = write_config(tmp_path).path
    assert load_config(path).nanosets["pretrain"].blend == "2024", "one corpus is a plain dataset"
    path.unlink()
    for name in names[1:]:
        corpus(tmp_path, name)
    config = load_config(write_config(tmp_path).path)
    assert dict(config.nanosets["pretrain"].blend) == dict.fromkeys(sorted(names), 1.0)


def test_folder_that_can_be_no_corpus_is_said(tmp_path):
    corpus(tmp_path, "my web")
    with pytest.raises(ConfigError, match="cannot name a corpus"):
        write_config(tmp_path)
    assert not (tmp_path / "nanoset.yaml").exists()


def test_every_key_is_explained_by_its_field(tmp_path):
    corpus(tmp_path, "web")
    lines = write_config(tmp_path).path.read_text().splitlines()
    below = lines[lines.index("    # Seed of every shuffle.") + 1]
    assert below == "    seed: 1234"
    assert "# pbin: [web]" in lines
    unexplained = [line.strip() for above, line in pairwise(lines) if "#" not in above + line]
    assert unexplained == ["pretrain:"], "names of nanosets are not keys"


def test_sections_within_sections(tmp_path):
    schedule = {"iterations": 5, "global_batch_size": 2}
    tokenizer = {"path": "t.json", "eod": "x: y", "pad": CommentedOut("p")}
    nanosets = {"one": {"sequence_length": 8, "blend": "2024", "schedule": schedule}}
    text = config_text({"raw": "raw", "root": "data", "tokenizer": tokenizer, "nanosets": nanosets})
    (tmp_path / "nanoset.yaml").write_text(text)
    config = load_config(tmp_path / "nanoset.yaml")
    assert (config.tokenizer.eod, config.tokenizer.pad) == ("x: y", None)
    assert config.nanosets["one"].blend == "2024"
    assert config.nanosets["one"].samples["train"] == 10
    assert "      # Training steps (--train-iters).\n      iterations: 5\n" in text
