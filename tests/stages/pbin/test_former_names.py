"""The former names `nanoset pack` and `packed:` still work, and print a warning."""

from __future__ import annotations

import subprocess
import sys

import pytest

from helpers.command import invoke_nanoset
from helpers.pbin_files import GOLDEN
from nanoset_core import load_config
from nanoset_core.errors import ConfigError, FormerNameWarning

WITH_FORMER_KEY = {"webdatasets:": "packed: [web]\nwebdatasets:"}


def test_the_former_command_does_the_same_and_warns_once_on_stderr():
    file = GOLDEN / "u2.pbin"

    former = invoke_nanoset(["pack", "describe", file])

    present = invoke_nanoset(["pbin", "describe", file])
    assert former.exit_code == 0
    assert former.stdout == present.stdout
    assert former.stderr == "warning: `nanoset pack` is the former name of `nanoset pbin`\n"
    assert present.stderr == ""


def test_the_former_command_is_not_in_the_list_of_commands():
    output = invoke_nanoset(["--help"]).stdout

    assert "pbin " in output
    assert "pack " not in output


def test_the_former_key_means_the_present_one_and_warns(make_project):
    file = make_project(replacements=WITH_FORMER_KEY)

    message = "`packed` is the former name of `pbin`: rename the key"
    with pytest.warns(FormerNameWarning, match=message):
        config = load_config(file)

    assert config.pbin == ("web",)


def test_a_config_with_both_keys_is_refused(make_project):
    file = make_project(replacements={"webdatasets:": "pbin: [web]\npacked: [web]\nwebdatasets:"})

    message = "packed: `packed` is the former name of `pbin`, which is set, too"
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_commands_print_the_warning_of_the_former_key_once_on_stderr(make_project):
    config = make_project(replacements=WITH_FORMER_KEY)
    command = [sys.executable, "-m", "nanoset_core.cli", "status", "-c", str(config)]

    process = subprocess.run(command, capture_output=True, text=True, check=False)

    assert process.stderr.count("the former name of `pbin`") == 1
    assert process.stderr.startswith(
        f"warning: {config}: `packed` is the former name of `pbin`: rename the key\n"
    )
    assert "FormerNameWarning" not in process.stderr
