import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from nanoset_core.errors import ConfigError
from nanoset_core.tokenization import cache, framing, tokenizer
from nanoset_core.tokenization.bpe import answers

GOLDEN = Path(__file__).parents[2] / "golden" / "tokenization" / "tokenizer.json"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "nanoset" / "tokenizers"


@pytest.fixture
def file(tmp_path, folder):
    """Adds <|endoftext|> in front of a text."""
    made = Tokenizer.from_file(str(GOLDEN))
    made.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def asked(file):
    """All that a new process would ask for."""
    tokenizer._facts.cache_clear()
    tokenizer._find_token.cache_clear()
    facts = tokenizer.tokenizer_facts(file)
    ident = tokenizer.token_id(file, "<|endoftext|>", "eod")
    return facts, ident, tokenizer.special_tokens(file), framing.added_tokens(file)


@pytest.fixture
def loads(monkeypatch):
    """How often the library loaded a tokenizer."""
    counted, load = [], answers.shared_tokenizer
    monkeypatch.setattr(answers, "shared_tokenizer", lambda file: counted.append(file) or load(file))
    return counted


def test_the_library_is_asked_once(file, loads):
    first = asked(file)
    assert loads
    assert first[0].template == ("<|endoftext|>",)
    assert first[1:] == (0, ("<|endoftext|>", "<|padding|>"), ((0,), ()))
    loads.clear()
    assert asked(file) == first
    assert not loads


def test_a_token_that_is_not_special_is_asked_for(file):
    asked(file)
    assert tokenizer.token_id(file, "a", "eod") == Tokenizer.from_file(str(file)).token_to_id("a")
    with pytest.raises(ConfigError, match="no such token"):
        tokenizer.token_id(file, "</s>", "eod")


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content.replace(b"0", b"1"),
        lambda content: b"[]",
        lambda content: b'{"value": null}',
        lambda content: b"\xff",
    ],
)
def test_damage_costs_time_only(file, folder, loads, damage):
    first = asked(file)
    for kept in folder.glob("*.json"):
        kept.write_bytes(damage(kept.read_bytes()))
    loads.clear()
    assert asked(file) == first
    assert loads
    loads.clear()
    assert asked(file) == first
    assert not loads


def test_the_answers_of_another_tokenizer_are_not_taken(file, folder, tmp_path, loads):
    asked(file)
    before = set(folder.iterdir())
    value = json.loads(file.read_bytes())
    value["added_tokens"][0]["content"] = "<|other|>"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(value))
    assert "<|other|>" in tokenizer.special_tokens(other)
    (made,) = set(folder.iterdir()) - before
    theirs = next(path for path in before if path.name[32:] == made.name[32:])
    shutil.copyfile(theirs, made)
    tokenizer._find_token.cache_clear()
    assert "<|other|>" in tokenizer.special_tokens(other)


@pytest.mark.parametrize("what", ["version", "code_digest"])
def test_another_library_or_other_code_is_asked_again(file, loads, monkeypatch, what):
    first = asked(file)
    loads.clear()
    monkeypatch.setattr(answers, what, lambda *_: "another")
    assert asked(file) == first
    assert loads


def test_without_a_folder_that_can_be_written(file, folder, loads, monkeypatch):
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    first = asked(file)
    loads.clear()
    assert asked(file) == first
    assert loads
    monkeypatch.setattr(answers, "cache_folder", lambda: None)
    assert asked(file) == first


def test_what_is_kept_is_of_its_key(tmp_path):
    cache.write_checked(tmp_path / "kept", "key", {"a": [1, None]})
    assert cache.read_checked(tmp_path / "kept", "key") == {"a": [1, None]}
    assert cache.read_checked(tmp_path / "kept", "other") is None
    assert cache.read_checked(tmp_path / "nothing", "key") is None
