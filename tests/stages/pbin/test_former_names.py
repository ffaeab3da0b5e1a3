"""The former names `nanoset pack` and `packed:` still work, and print a warning."""

import subprocess
import sys

import pytest

from helpers.command import invoke_nanoset
from helpers.locations import GOLDEN_FILES
from nanoset_core import load_config
from nanoset_core.errors import ConfigError, FormerNameWarning

GOLDEN = GOLDEN_FILES / "modalities"
WITH_FORMER_KEY = {"webdatasets:": "packed: [web]\nwebdatasets:"}


def test_the_former_command_does_the_same_and_warns_once_on_stderr():
    file = str(GOLDEN / "u2.pbin")
    former = invoke_nanoset(["pack", "describe", file])
    present = invoke_nanoset(["pbin", "describe", file])
    assert former.exit_code == 0
    assert former.stdout == present.stdout
    assert former.stderr == "warning: `nanoset pack` is the former name of `nanoset pbin`\n"
    assert present.stderr == ""


def test_the_former_command_is_not_in_the_list_of_commands():
    listed = invoke_nanoset(["--help"]).stdout
    assert "pbin " in listed
    assert "pack " not in listed


def test_the_former_key_means_the_present_one_and_warns(make_project):
    with pytest.warns(
        FormerNameWarning, match="`packed` is the former name of `pbin`: rename the key"
    ):
        config = load_config(make_project(replacements=WITH_FORMER_KEY))
    assert config.pbin == ("web",)


def test_both_keys_at_once_are_a_mistake(make_project):
    both = {"webdatasets:": "pbin: [web]\npacked: [web]\nwebdatasets:"}
    with pytest.raises(
        ConfigError, match="packed: `packed` is the former name of `pbin`, which is set, too"
    ):
        load_config(make_project(replacements=both))


def test_commands_print_the_warning_of_the_former_key_once_on_stderr(make_project):
    config = make_project(replacements=WITH_FORMER_KEY)
    command = [sys.executable, "-m", "nanoset_core.cli", "status", "-c", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr.count("the former name of `pbin`") == 1
    assert ended.stderr.startswith(
        f"warning: {config}: `packed` is the former name of `pbin`: rename the key\n"
    )
    assert "FormerNameWarning" not in ended.stderr
