"""Results show ids and file names in full, even if they look like an address with a password."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from helpers.building import build_all
from helpers.command import invoke_nanoset, report_of
from helpers.sample_project import FEWER, jsonl, sentences, write_project

FILE = "page?code=12.jsonl"
FIRST_ID = "https://shop.example.org/item?code=0"


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The nanoset.yaml of a built project, whose ids are addresses; not to be written to."""
    file = write_project(tmp_path_factory.mktemp("shown") / "project", tokenizer_file, FEWER)
    web = file.parent / "raw" / "web"
    shutil.rmtree(web)
    web.mkdir()
    documents = sentences("web", 200)
    for number, document in enumerate(documents):
        document["id"] = f"https://shop.example.org/item?code={number}"
    (web / FILE).write_bytes(jsonl(documents))
    build_all(file)
    return file


def run(file: Path, *words: str) -> str:
    """Return what a command prints about a project, in lines that are not wrapped."""
    result = invoke_nanoset([*words, "--config", str(file)], env={"COLUMNS": "300"})
    assert result.exit_code == 0
    return result.stdout


def test_the_ids_of_a_sample_can_be_copied_to_other_commands(config_file):
    report = report_of(config_file, "explain pretrain train 0 --json")
    assert "…" not in json.dumps(report, ensure_ascii=False)

    output = run(config_file, "explain", "pretrain", "train", "--document", FIRST_ID)

    assert FIRST_ID in output
    assert FILE in output


def test_the_list_of_what_a_purge_would_erase_names_each_document(config_file):
    ids = [FIRST_ID, "https://shop.example.org/item?code=1"]

    output = run(config_file, "purge", *ids)

    assert all(identity in output for identity in ids)
