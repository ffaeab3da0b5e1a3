"""The names that others script against."""

import subprocess
import sys

import pytest

import nanoset_core


@pytest.mark.parametrize("name", nanoset_core.__all__)
def test_every_public_name_is_there(name):
    assert getattr(nanoset_core, name).__name__ == name
    assert name in dir(nanoset_core)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = nanoset_core.Nothing


def test_a_reader_imports_what_it_needs_only():
    code = "import sys; from nanoset_core import load_nanoset; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    for heavy in (
        "pyarrow",
        "tokenizers",
        "torch",
        "dagster",
        "yaml",
        "orjson",
        "nanoset_core.formats.pbin",
    ):
        assert heavy not in loaded
