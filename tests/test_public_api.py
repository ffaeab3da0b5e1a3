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


def loaded_modules(statement: str) -> set[str]:
    """Return the names of the modules that a new Python has loaded after an import statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


@pytest.fixture(scope="module")
def modules_of_a_reader():
    return loaded_modules("from nanoset_core import load_nanoset")


@pytest.mark.parametrize(
    "heavy",
    [
        "pyarrow",
        "tokenizers",
        "torch",
        "dagster",
        "yaml",
        "orjson",
        "nanoset_core.formats.pbin",
        "nanoset_core.outputs.deliver",
        "nanoset_core.storage.stores.filesystems",
        "nanoset_core.storage.stores.s3.store",
    ],
)
def test_a_reader_imports_what_it_needs_only(heavy, modules_of_a_reader):
    assert heavy not in modules_of_a_reader


@pytest.mark.parametrize("command", ["pbin", "shuffle", "status"])
def test_a_command_imports_no_engine_before_it_tokenizes(command):
    loaded = loaded_modules(f"import nanoset_core.cli.commands.{command}")

    assert "nanoset_core.tokenizers.engines.numpy_engine" not in loaded
