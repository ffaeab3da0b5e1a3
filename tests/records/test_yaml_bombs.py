"""YAML that would fill the memory, or that Python cannot print, is refused at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.command import invoke_nanoset
from helpers.sample_project import CONFIG
from nanoset_core import load_config
from nanoset_core.errors import ConfigError
from nanoset_core.records import yaml_text
from nanoset_core.records.yaml_text import MOST_BYTES, MOST_DEPTH, parse_yaml, read_yaml
from nanoset_core.stages.handoff.run import read_run
from nanoset_core.stages.webdataset.standalone.sampling import load_sampling

READERS = [load_config, read_run, load_sampling]
"""Everything that reads YAML from a file."""


def list_bomb(levels: int = 9, width: int = 9) -> str:
    """Return lists of aliases, each of which has `width` times as many values as the one before."""
    lines = ["a0: &a0 [" + "x, " * width + "]"]
    for level in range(1, levels):
        aliases = f"*a{level - 1}, " * width
        lines.append(f"a{level}: &a{level} [{aliases}]")
    return "\n".join(lines)


def merge_bomb(levels: int = 9, width: int = 9) -> str:
    """Return mappings, each of which merges `width` times the one before."""
    lines = ["a0: &a0 {k: x}"]
    for level in range(1, levels):
        aliases = f"*a{level - 1}, " * width
        lines.append(f"a{level}: &a{level} {{<<: [{aliases}]}}")
    return "\n".join(lines)


def key_bomb() -> str:
    """Return mappings, each of which has the one before as a key and as a value."""
    lines = ["a0: &a0 [x, x]"]
    for level in range(1, 40):
        lines.append(f"a{level}: &a{level} {{? *a{level - 1} : *a{level - 1}}}")
    return "\n".join(lines)


def many_aliases() -> str:
    """Return a long list, and a list with many aliases of it."""
    return "a: &a [" + "x, " * 2000 + "]\nb: [" + "*a, " * 2000 + "]"


BOMBS = {
    "lists": list_bomb(),
    "merge keys": merge_bomb(),
    "keys": key_bomb(),
    "wide": many_aliases(),
    "sequences": list_bomb(40, 2),
    "merges of two": merge_bomb(60, 2),
}


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_aliases_and_merge_keys_are_counted_as_the_values_that_they_name(
    tmp_path: Path, read, bomb
):
    file = tmp_path / "bomb.yaml"
    file.write_text(bomb)

    with pytest.raises(ConfigError, match="too many values") as caught:
        read(file)

    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[" * 5000, "a: " + "{a: " * 5000, "- " * 3000 + "x", "? " * 3000 + "x"]
)
def test_the_depth_of_nested_values_is_limited(text):
    with pytest.raises(ConfigError, match=r"nested too deeply|not YAML") as caught:
        parse_yaml(text, "file", remedy="correct it")

    assert "recursion" not in str(caught.value)


def test_values_of_the_greatest_allowed_depth_are_read():
    depth = MOST_DEPTH - 1
    text = "[" * depth + "]" * depth

    assert parse_yaml(text, "file", remedy="correct it") != []


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &a {<<: *a}", "&a [[*a]]"])
def test_a_value_that_contains_itself_is_refused(text):
    with pytest.raises(ConfigError, match=r"holds itself|undefined alias|not YAML"):
        parse_yaml(text, "file", remedy="correct it")


def test_a_list_of_too_many_values_is_refused_before_it_is_in_memory(monkeypatch):
    monkeypatch.setattr(yaml_text, "MOST_VALUES", 1000)
    text = "[" + "1," * 1001 + "]"

    with pytest.raises(ConfigError, match="too many values"):
        parse_yaml(text, "file", remedy="correct it")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path):
    file = tmp_path / "large.yaml"
    with file.open("wb") as opened:
        opened.truncate(MOST_BYTES * 1000)

    with pytest.raises(ConfigError, match="too large"):
        read_yaml(file, remedy="correct it")


@pytest.mark.parametrize(
    "number",
    ["9" * 5000, "0x" + "f" * 5000, "0b" + "1" * 20_000, "-" + "7" * 4301, "1:" * 2000 + "1"],
)
@pytest.mark.parametrize(
    "place", ["    samples: {train: %s}", "    seed: %s", "    sequence_length: [%s]", "    %s: 1"]
)
def test_numbers_that_python_cannot_print_are_mistakes(tmp_path: Path, number, place):
    file = tmp_path / "nanoset.yaml"
    file.write_text(CONFIG.replace("    seed: 7", place % number))

    with pytest.raises(ConfigError):
        load_config(file)


def test_an_error_shows_only_the_beginning_of_a_long_value(tmp_path: Path):
    file = tmp_path / "nanoset.yaml"
    long_list = "x, " * 3000
    file.write_text(CONFIG.replace("seed: 7", f"seed: [{long_list}]"))

    with pytest.raises(ConfigError) as caught:
        load_config(file)

    assert len(str(caught.value)) < 3000


def test_many_mistakes_are_listed_up_to_a_limit(tmp_path: Path):
    file = tmp_path / "nanoset.yaml"
    wrong_corpora = "".join(f"a{number}: {{x: 1}}, " for number in range(400))
    file.write_text(CONFIG + "corpora: {" + wrong_corpora + "}")

    with pytest.raises(ConfigError, match="more") as caught:
        load_config(file)

    assert len(str(caught.value)) < 40_000


@pytest.mark.parametrize("escape", ["\\0", "\\ud800"])
@pytest.mark.parametrize("line", ["raw: raw", "root: data"])
def test_a_path_with_a_character_that_paths_cannot_have_is_a_mistake(tmp_path: Path, line, escape):
    file = tmp_path / "nanoset.yaml"
    key = line.partition(":")[0]
    file.write_text(CONFIG.replace(line, f'{key}: "a{escape}b"', 1))

    with pytest.raises(ConfigError, match=key):
        load_config(file)


def test_an_error_of_the_syntax_is_reported_in_one_line_with_its_place():
    with pytest.raises(ConfigError, match=r"found: .*\(line 2, column 1\)") as caught:
        parse_yaml("a: 1\n\tb: 2", "file", remedy="correct it")

    assert len(str(caught.value).splitlines()) == 3


def test_the_same_limits_apply_to_yaml_in_an_option():
    arguments = ["map", "--data-path", "x", "--seq-length", "8", "--trainer", list_bomb()]

    outcome = invoke_nanoset(arguments)

    assert isinstance(outcome.exception, ConfigError)
    assert "too many values" in str(outcome.exception)
