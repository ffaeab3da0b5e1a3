"""docs/json.md names every key of the JSON that commands print for scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from helpers.building import build_all
from helpers.command import invoke_nanoset
from helpers.sample_project import jsonl, sentences

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
CONFIG = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
documents: {columns: [lang, score]}
views:
  good: {of: web, where: "score >= 3", exclude: unwanted.txt}
  best: {of: web, top: {by: score, documents: 20}}
  small: {of: web, tokens: 90}
nanosets:
  pretrain:
    blend: {web: 0.6, code: 0.4}
    sequence_length: 32
    split: "90,5,5"
"""
MORE_NANOSETS = """\
  mixed:
    mix: {texts: {share: 3, mix: {web: {share: 1}, good: {share: 1}}}, code: {epochs: 0.5}}
    sequence_length: 32
    samples: {train: 200}
    split: "1,0,0"
  fitted:
    blend: code
    packing: {kind: best_fit, long: fragment, tail: pad}
    sequence_length: 32
    split: "1,0,0"
"""
"""Nanosets that are planned, but not built."""
COMMANDS = {
    "nanoset status": [["status"]],
    "nanoset build --dry-run": [["build", "--dry-run"]],
    "nanoset verify": [["verify"]],
    "nanoset gc": [["gc"]],
    "nanoset diff": [["diff", "web"], ["diff", "good"]],
    "nanoset view": [["view", "good"], ["view", "best"], ["view", "small"]],
    "nanoset columns": [["columns", "web"]],
    "nanoset map --plan": [["map", "--plan"]],
    "nanoset explain": [["explain", "pretrain", "train", "0"]],
}
"""Section of the page → commands whose JSON it describes."""


def write_corpus(file: Path, count: int) -> None:
    """Write documents with a language and a score."""
    documents = []
    for number, document in enumerate(sentences(file.parent.name, count)):
        documents.append({**document, "lang": "en", "score": number % 7})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(jsonl(documents))


@pytest.fixture(scope="module")
def config_file(tmp_path_factory, tokenizer_file) -> Path:
    """The nanoset.yaml of a project with old versions, a damaged file, and new text."""
    folder = tmp_path_factory.mktemp("json")
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (folder / "nanoset.yaml").write_text(CONFIG)
    (folder / "unwanted.txt").write_text("nothing-such\n")
    write_corpus(folder / "raw/code/a.jsonl", 100)
    write_corpus(folder / "raw/web/a.jsonl", 200)
    (folder / "raw/web/notes.pdf").write_bytes(b"%PDF")
    build_all(folder / "nanoset.yaml")
    write_corpus(folder / "raw/web/b.jsonl", 50)
    build_all(folder / "nanoset.yaml")

    with (folder / "nanoset.yaml").open("a") as settings:
        settings.write(MORE_NANOSETS)
    (folder / "unwanted.txt").write_text("web-1\n")
    (damaged_file,) = (folder / "data/views/best/current").glob("*.idx")
    damaged_file.write_bytes(damaged_file.read_bytes()[:-1] + b"x")
    return folder / "nanoset.yaml"


def keys_in(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all keys in a JSON value, as the page writes them."""
    if isinstance(value, dict):
        for key, inner_value in value.items():
            inner_path = f"{path}.{key}" if path else key
            yield inner_path
            yield from keys_in(inner_value, inner_path)
    elif isinstance(value, list):
        for inner_value in value:
            yield from keys_in(inner_value, f"{path}[]")


def documented_keys(section: str) -> set[str]:
    """Return the keys in the tables of a section of docs/json.md."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    keys: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE):
        keys.update(re.findall(r"`(.+?)`", row))
    return keys


@pytest.mark.parametrize("section", COMMANDS)
def test_the_page_names_all_keys(config_file, section):
    documented = documented_keys(section)
    # A pattern for names also covers what is in their values. `[` has a meaning in patterns.
    patterns = [key.replace("[]", "()").replace("<name>", "*") for key in documented]
    parents = {key.partition(".<name>")[0] for key in documented}

    for arguments in COMMANDS[section]:
        result = invoke_nanoset([*arguments, "--json", "--config", config_file])
        keys = set(keys_in(json.loads(result.stdout)))
        assert keys
        for key in keys:
            is_parent = any(parent.startswith((f"{key}.", f"{key}[")) for parent in documented)
            is_named = any(fnmatchcase(key.replace("[]", "()"), pattern) for pattern in patterns)
            assert key in parents or is_parent or is_named, key


def test_the_page_has_a_section_for_each_command():
    assert re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE) == list(COMMANDS)
