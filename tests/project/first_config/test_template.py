"""The first nanoset.yaml of a project suits its text, and explains its settings in comments."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from helpers.command import output_of
from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError
from nanoset_core.project.first_config import lengths as first_lengths
from nanoset_core.project.first_config.template import CommentedOut, config_text
from nanoset_core.project.first_config.write import write_config
from nanoset_core.project.settings import load_config
from nanoset_core.stages.mappings.resolved import ResolvedNanoset


def write_empty_corpus(folder: Path, name: str) -> None:
    """Write a corpus of one document without text into a project."""
    (folder / "raw" / name).mkdir(parents=True)
    (folder / "raw" / name / "a.jsonl").write_bytes(b"{}\n")


def write_corpus(folder: Path, name: str, n_documents: int, document_bytes: int) -> None:
    """Write a corpus of equal documents into a project."""
    path = folder / "raw" / name / "a.jsonl"
    path.parent.mkdir(parents=True)
    text = "word " * (document_bytes // 5)
    path.write_text(f'{{"text": "{text}"}}\n' * n_documents)


def first_nanoset(folder: Path) -> ResolvedNanoset:
    """Write the first nanoset.yaml of a project, and return the settings of its nanoset."""
    return load_config(write_config(folder).path).nanosets["pretrain"]


# The file


def test_the_file_that_is_written_can_be_read(tmp_path):
    write_empty_corpus(tmp_path, "web")

    config = load_config(write_config(tmp_path).path)

    assert config.nanosets["pretrain"].blend == "web"
    # Webdatasets are commented out.
    assert config.webdatasets == {}


def test_the_settings_of_the_trainer_are_valid_once_their_comment_signs_are_removed(tmp_path):
    write_empty_corpus(tmp_path, "web")
    path = write_config(tmp_path).path
    before, commented_out, after = re.split(
        r"(    # trainer:\n(?:    #   .*\n)+)", path.read_text()
    )

    path.write_text(before + commented_out.replace("    # ", "    ") + after)

    trainer = load_config(path).nanosets["pretrain"].trainer
    assert trainer is not None
    assert trainer.tokenizer_type == "HuggingFaceTokenizer"
    assert trainer.tokenizer_model == "/models/llama"


def test_every_key_is_explained_by_the_comment_above_it(tmp_path):
    write_empty_corpus(tmp_path, "web")

    lines = write_config(tmp_path).path.read_text().splitlines()

    line_below_comment = lines[lines.index("    # Seed of every shuffle.") + 1]
    assert line_below_comment == "    seed: 1234"
    assert "# pbin: [web]" in lines
    unexplained = [line.strip() for above, line in pairwise(lines) if "#" not in above + line]
    # The name of a nanoset is not a key.
    assert unexplained == ["pretrain:"]


def test_sections_in_sections_are_written_with_their_comments(tmp_path):
    schedule = {"iterations": 5, "global_batch_size": 2}
    settings = {
        "raw": "raw",
        "root": "data",
        "tokenizer": {"path": "t.json", "eod": "x: y", "pad": CommentedOut("p")},
        "nanosets": {"one": {"sequence_length": 8, "blend": "2024", "schedule": schedule}},
    }

    text = config_text(settings)

    (tmp_path / "nanoset.yaml").write_text(text)
    config = load_config(tmp_path / "nanoset.yaml")
    assert config.tokenizer.eod == "x: y"
    assert config.tokenizer.pad is None
    assert config.nanosets["one"].blend == "2024"
    assert config.nanosets["one"].samples["train"] == 10
    assert "      # Training steps (--train-iters).\n      iterations: 5\n" in text


# The schema, with which editors complete and check the file


@pytest.fixture
def schema_text(tmp_path) -> str:
    """The schema that is written next to the first nanoset.yaml, in `tmp_path`."""
    write_empty_corpus(tmp_path, "web")
    write_config(tmp_path)
    return (tmp_path / "nanoset.schema.json").read_text()


def test_the_file_names_the_schema_next_to_it(tmp_path, schema_text):
    text = (tmp_path / "nanoset.yaml").read_text()

    assert text.startswith("# yaml-language-server: $schema=nanoset.schema.json\n")


def test_the_command_prints_the_same_schema(schema_text):
    assert output_of("init", "--schema") == schema_text


def check_schema(schema_text: str, config_file: Path) -> None:
    """Check that a schema accepts a configuration, but not with an unknown key."""
    validator = Draft202012Validator(json.loads(schema_text))
    config = yaml.safe_load(config_file.read_text())
    assert not list(validator.iter_errors(config))
    assert list(validator.iter_errors(config | {"nanoset": {}}))


def test_the_schema_accepts_the_first_file(tmp_path, schema_text):
    check_schema(schema_text, tmp_path / "nanoset.yaml")


def test_the_schema_accepts_a_file_with_all_settings(schema_text):
    check_schema(schema_text, GOLDEN_FILES / "outputs/full.yaml")


# Corpora


@pytest.fixture
def without_text(tmp_path) -> Path:
    """The folder of a project whose raw folder has no files that can be read."""
    (tmp_path / "raw/c4").mkdir(parents=True)
    (tmp_path / "raw/c4/a.json.xz").touch()
    return tmp_path


def test_without_text_sections_with_corpora_are_commented_out(without_text):
    first_config = write_config(without_text)

    config = load_config(first_config.path)
    assert dict(config.nanosets) == {}
    assert dict(config.webdatasets) == {}
    assert list(first_config.text.unread_entries) == ["c4"]
    assert "#     blend: {CORPUS: 1.0}" in first_config.path.read_text().splitlines()


def test_sections_that_are_commented_out_are_valid_once_their_comment_signs_are_removed(
    without_text,
):
    path = write_config(without_text).path
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith(("# nanosets:", "# webdatasets:", "#  ")):
            lines[number] = line.removeprefix("# ")

    path.write_text("\n".join(lines))

    assert load_config(path).webdatasets["shuffled"].corpora == ("CORPUS",)


def test_a_single_corpus_is_the_whole_blend(tmp_path):
    # YAML would take this name for a number.
    write_empty_corpus(tmp_path, "2024")

    assert first_nanoset(tmp_path).blend == "2024"


def test_all_corpora_are_blended_with_equal_weights(tmp_path):
    # YAML would take some of these names for a number, a boolean or null.
    names = ["1e3", "2024", "code", "no", "null", "web.v2"]
    for name in names:
        write_empty_corpus(tmp_path, name)

    blend = first_nanoset(tmp_path).blend

    assert dict(blend) == dict.fromkeys(names, 1.0)


def test_a_folder_whose_name_no_corpus_can_have_is_an_error(tmp_path):
    write_empty_corpus(tmp_path, "my web")

    with pytest.raises(ConfigError, match="cannot name a corpus"):
        write_config(tmp_path)

    assert not (tmp_path / "nanoset.yaml").exists()


# Sequence length and split


@pytest.mark.parametrize(
    ("n_documents", "document_bytes", "sequence_length", "split"),
    [
        (3, 15, 4, "1,0,0"),
        (3, 5000, 512, "1,0,0"),
        (100, 5000, 1024, "80,20,0"),
        (500, 5000, 2048, "90,10,0"),
        (3000, 5000, 2048, "90,5,5"),
        (30_000, 5000, 2048, "98,1,1"),
    ],
)
def test_the_split_and_the_sequence_length_suit_the_amount_of_text(
    tmp_path, n_documents, document_bytes, sequence_length, split
):
    write_corpus(tmp_path, "web", n_documents, document_bytes)
    write_corpus(tmp_path, "code", 2 * n_documents, document_bytes)

    nanoset = first_nanoset(tmp_path)

    assert nanoset.sequence_length == sequence_length
    assert nanoset.split == split


def test_enough_text_has_the_usual_split_of_megatron(tmp_path, monkeypatch):
    # Otherwise, this would take gigabytes of text.
    monkeypatch.setattr(first_lengths, "_MIN_EXPECTED", 1)
    write_corpus(tmp_path, "web", 10_000, 5000)

    assert first_nanoset(tmp_path).split == "969,30,1"
