"""Options that are declared by settings have the type, default, range and help of their fields."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner, Result

from nanoset_core.cli.options import (
    CONFIG_OPTION,
    ManyValued,
    many_valued_option,
    option,
    option_for,
)
from nanoset_core.project.written import WrittenConfig
from nanoset_core.records.settings import Range, settings


@dataclass(frozen=True)
class Spec:
    """Settings with a field of each type."""

    needed: str
    """A word."""
    seed: Annotated[int, Range(0, 9)] = 4
    """Of every shuffle."""
    share: Annotated[float, Range(0, 1)] | None = None
    kind: Literal["a", "b"] = "a"
    flag: bool = False


@click.command()
@option_for(Spec, "needed")
@option_for(Spec, "seed", "--SEED", "-s", param="number")
@option_for(Spec, "share")
@option_for(Spec, "kind", help="Another.")
@option_for(Spec, "flag")
def print_values(**values: object) -> None:
    """Print the values of the options."""
    click.echo(repr(values))


def run(*arguments: str) -> Result:
    """Run the command that prints the values of its options."""
    return CliRunner().invoke(print_values, arguments)


def test_an_option_has_the_default_of_its_field():
    output = run("--needed", "w").output

    values = {"needed": "w", "number": 4, "share": None, "kind": "a", "flag": False}
    assert output == repr(values) + "\n"


def test_an_option_has_the_type_of_its_field():
    output = run("--needed", "w", "-s", "9", "--share", "0.5", "--kind", "b", "--flag").output

    values = {"needed": "w", "number": 9, "share": 0.5, "kind": "b", "flag": True}
    assert output == repr(values) + "\n"


def test_an_option_of_a_field_without_default_is_required():
    assert run().exit_code == 2


@pytest.mark.parametrize(
    "option", [["-s", "10"], ["-s", "-1"], ["--share", "2"], ["--kind", "c"]], ids=" ".join
)
def test_a_value_that_the_field_does_not_allow_is_a_usage_error(option: Sequence[str]):
    assert run("--needed", "w", *option).exit_code == 2


def test_the_help_of_an_option_is_the_docstring_of_its_field():
    text = run("--help").output

    assert "A word." in text
    assert "Of every shuffle.  [default: 4; 0<=x<=9]" in text


def test_an_option_may_have_its_own_help():
    assert "Another." in run("--help").output


def test_every_key_of_nanoset_yaml_has_a_sentence_as_help():
    all_settings = list(settings(WrittenConfig))

    assert len(all_settings) > 70
    for setting in all_settings:
        assert setting.help[:1].isupper() or setting.help.startswith("tokshuf: "), setting.key
        assert setting.help.endswith((".", "…")), setting.key


# --config


@click.command()
@CONFIG_OPTION
def print_config(config: Path) -> None:
    """Print the path of the configuration."""
    click.echo(f"read {config}")


def lines_printed(*arguments: str) -> list[str]:
    """Run the command that prints the path of the configuration, and return its output."""
    return CliRunner().invoke(print_config, arguments).output.splitlines()


@pytest.fixture
def nested_projects(tmp_path) -> Path:
    """A folder with a nanoset.yaml, with one in its subfolder `a`, and folders `a/b/c` in that."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "nanoset.yaml").touch()
    (tmp_path / "a/nanoset.yaml").touch()
    return tmp_path


def test_without_a_configuration_the_one_of_the_current_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    # The command that reads it will report that it is missing.
    assert lines_printed() == ["read nanoset.yaml"]


def test_in_the_folder_of_a_project_its_configuration_is_used(nested_projects, monkeypatch):
    monkeypatch.chdir(nested_projects / "a")

    assert lines_printed() == ["read nanoset.yaml"]


@pytest.mark.parametrize("subfolder", ["a/b", "a/b/c"])
def test_in_a_subfolder_the_nearest_configuration_above_is_used_and_named(
    nested_projects, monkeypatch, subfolder
):
    monkeypatch.chdir(nested_projects / subfolder)

    path = nested_projects / "a/nanoset.yaml"
    assert lines_printed() == [f"project {path}", f"read {path}"]


def test_a_configuration_that_is_named_is_used_in_a_subfolder_too(nested_projects, monkeypatch):
    monkeypatch.chdir(nested_projects / "a/b/c")

    assert lines_printed("--config", "other.yaml") == ["read other.yaml"]


@click.command("print-words", cls=ManyValued)
@click.argument("words", nargs=-1, required=True)
@many_valued_option("--keys", "Keys.")
@option("--key", "One key.")
@option("--name", "A name.", multiple=True)
def print_words(**values: object) -> None:
    """Print the values of the options and of the argument."""
    click.echo(repr(values))


def values_printed(*arguments: str) -> dict[str, object]:
    """Return the values that `print_words` gets."""
    outcome = CliRunner().invoke(print_words, arguments)
    assert outcome.exit_code == 0, outcome.output
    values: dict[str, object] = ast.literal_eval(outcome.output)
    return values


def test_all_words_after_the_flag_of_a_many_valued_option_are_its_values():
    values = values_printed("a", "--keys", "b", "-1", "--key", "c")

    assert values == {"words": ("a",), "keys": ("b", "-1"), "key": "c", "name": ()}


def test_only_one_word_after_any_other_flag_is_its_value():
    values = values_printed("--key", "a", "b", "--name", "c", "d")

    assert values == {"words": ("b", "d"), "keys": (), "key": "a", "name": ("c",)}


def test_words_after_two_dashes_are_no_values_of_a_many_valued_option():
    values = values_printed("--keys", "a", "--", "b", "--keys", "c")

    assert values == {"words": ("b", "--keys", "c"), "keys": ("a",), "key": None, "name": ()}


def test_if_a_many_valued_option_took_all_words_the_error_says_where_to_write_the_argument():
    outcome = CliRunner().invoke(print_words, ["--keys", "a", "b"])

    assert outcome.exit_code == 2
    assert "Missing argument 'WORDS...': all words that follow --keys" in outcome.output
    assert "after the word `--`" in outcome.output


def test_an_argument_that_is_missing_for_another_reason_is_only_named():
    outcome = CliRunner().invoke(print_words, ["--key", "a"])

    assert "Missing argument 'WORDS...'.\n" in outcome.output
