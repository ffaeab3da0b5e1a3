"""Misspelt names of corpora, nanosets, views and commands: errors name what was probably meant."""

import pytest

from helpers.command import invoke_nanoset
from nanoset_core.errors import closest_name, remedy_for_name

VIEWS = (
    "views:\n  web-clean: {of: web, where: 'tokens > 3'}\n  web-hard: {of: web, split: {keep: [0, "
    "0.1]}}\nnanosets:\n"
)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("wbe", "web"),
        ("WEB", "web"),
        ("Boks", "books"),
        ("web", None),
        ("entirely different", None),
        ("", None),
    ],
)
def test_the_closest_name_is_found_whatever_its_case(name, meant):
    assert closest_name(name, ["books", "web", "code"]) == meant


def test_a_remedy_for_a_name_without_a_close_one_is_left_as_it_is():
    assert remedy_for_name("zzz", ["web"], "name one of these") == "name one of these"
    assert (
        remedy_for_name("wbe", ["web"], "name one of these")
        == "did you mean 'web'? Otherwise name one of these"
    )


@pytest.fixture
def run(make_project):
    """Run a command in a project that was not built; return what it printed."""
    config = make_project(replacements={"nanosets:\n": VIEWS})

    def run(*words, edit=("", "")):
        config.write_text(config.read_text().replace(*edit))
        result = invoke_nanoset([*words, "--config", str(config)])
        return f"{result.output}{result.exception}"

    return run


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("build", "--corpus", "wbe"), "web"),
        (("build", "--select", "pretrian"), "pretrain"),
        (("build", "--select", "pretrain/tran"), "pretrain/train"),
        (("verify", "--select", "pretrian"), "pretrain"),
        (("verify", "--select", "shufled"), "shuffled"),
        (("map", "plian", "--plan"), "plain"),
        (("view", "web-claen"), "web-clean"),
    ],
)
def test_commands_name_what_was_probably_meant(run, words, meant):
    assert f"did you mean '{meant}'?" in run(*words)


@pytest.mark.parametrize(
    ("edit", "meant"),
    [
        (("blend: books", "blend: boks"), "books"),
        (("corpora: [web,", "corpora: [web-claen,"), "web-clean"),
        (("of: web, where", "of: wbe, where"), "web"),
    ],
)
def test_a_build_names_what_was_probably_meant_in_nanoset_yaml(run, edit, meant):
    assert f"did you mean '{meant}'?" in run("build", edit=edit)


@pytest.mark.parametrize(
    ("word", "meant"), [("buidl", "build"), ("STATUS", "status"), ("take-down", "takedown")]
)
def test_a_misspelt_command_is_named(word, meant):
    result = invoke_nanoset([word])

    assert result.exit_code == 2
    assert f"Did you mean '{meant}'?" in result.output


def test_a_word_that_is_like_no_command_gets_no_suggestion():
    assert "Did you mean" not in invoke_nanoset(["zzzzzz"]).output
