"""Check that outputs of commands without a project do not overwrite their inputs.

For example, if `out.bin` is a symbolic link to `in.bin`, a command that reads `in.bin` and writes
`out.bin` would destroy its input. It ends with an error instead, before it writes anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from nanoset_core.errors import ConfigError
from nanoset_core.storage.location import Location
from nanoset_core.storage.places import real_path


def check_apart(
    outputs: Iterable[Location], inputs: Iterable[Location], *, remedy: str = "name another output"
) -> None:
    """Check that no output would overwrite an input, also not through a symbolic link.

    For example, `nanoset pbin write in.bin out.bin` would destroy its input if `out.bin` were a
    link to `in.bin`. The paths are compared after all links in them were followed.

    Args:
        outputs: Files that will be written.
        inputs: Files that are read.
        remedy: What the error says to do.

    Raises:
        ConfigError: An output is an input.
    """
    input_by_real_path = {real_path(path): path for path in inputs}
    for output in outputs:
        path = input_by_real_path.get(real_path(output))
        if path is not None:
            raise _overwritten(output, f"the output is the input {path}", remedy)


def check_outside(folder: Location, inputs: Iterable[Location]) -> None:
    """Check that no input is in a folder that will be written, also not through a symbolic link.

    For example, the input `data/web/a.tar` is in the folder `data/web`, but not in `data/we`.

    Args:
        folder: The folder that will be written.
        inputs: Files and folders that are read.

    Raises:
        ConfigError: The folder contains an input.
    """
    folder_prefix = f"{real_path(folder)}/"
    for path in inputs:
        if f"{real_path(path)}/".startswith(folder_prefix):
            found = f"the output contains the input {path}"
            raise _overwritten(folder, found, "name another output")


def _overwritten(output: Location, found: str, remedy: str) -> ConfigError:
    """Return the error for an output that would overwrite an input.

    Args:
        output: The output.
        found: What is wrong with it, which names the input.
        remedy: What the error says to do.
    """
    return ConfigError(
        "an input would be overwritten",
        where=output,
        found=found,
        expected="an output separate from all inputs",
        remedy=remedy,
    )
