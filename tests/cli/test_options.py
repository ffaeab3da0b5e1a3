from dataclasses import dataclass
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner

from nanoset_core.cli.options import CONFIG_OPTION, option_for
from nanoset_core.project.written import WrittenConfig
from nanoset_core.records.settings import Range, settings


@dataclass(frozen=True)
class Spec:
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
def command(**values):
    click.echo(repr(values))


def run(*arguments):
    return CliRunner().invoke(command, arguments)


def test_an_option_has_the_type_and_default_of_its_field():
    given = {"needed": "w", "number": 4, "share": None, "kind": "a", "flag": False}
    assert run("--needed", "w").output == repr(given) + "\n"
    given |= {"number": 9, "share": 0.5, "kind": "b", "flag": True}
    words = ("w", "-s", 9, "--share", 0.5, "--kind", "b", "--flag")
    assert run("--needed", *map(str, words)).output == repr(given) + "\n"


@pytest.mark.parametrize(
    "words", [[], ["-s", "10"], ["-s", "-1"], ["--share", "2"], ["--kind", "c"]]
)
def test_what_the_field_does_not_allow_is_a_usage_error(words):
    assert run(*(["--needed", "w", *words] if words else [])).exit_code == 2


def test_help_is_the_fields():
    text = run("--help").output
    assert "A word." in text
    assert "Of every shuffle.  [default: 4; 0<=x<=9]" in text
    assert "Another." in text


def test_every_key_of_nanoset_yaml_explains_itself():
    found = list(settings(WrittenConfig))
    assert len(found) > 70
    for setting in found:
        assert setting.help[:1].isupper() or setting.help.startswith("tokshuf: "), setting.key
        assert setting.help.endswith((".", "…")), setting.key


def test_from_a_subfolder_the_nearest_configuration_above_is_taken_and_named(tmp_path, monkeypatch):
    @click.command()
    @CONFIG_OPTION
    def look(config):
        click.echo(f"read {config}")

    def said(*words):
        return CliRunner().invoke(look, words).output.splitlines()

    (tmp_path / "a/b/c").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    assert said() == ["read nanoset.yaml"], "there is none, which the command tells"
    (tmp_path / "nanoset.yaml").touch()
    (tmp_path / "a/nanoset.yaml").touch()
    for folder in ("a/b", "a/b/c"):
        monkeypatch.chdir(tmp_path / folder)
        assert said() == [f"project {tmp_path}/a/nanoset.yaml", f"read {tmp_path}/a/nanoset.yaml"]
    assert said("--config", "other.yaml") == ["read other.yaml"]
    monkeypatch.chdir(tmp_path / "a")
    assert said() == ["read nanoset.yaml"]
