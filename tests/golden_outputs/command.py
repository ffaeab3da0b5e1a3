"""Run a command in this process, by the entry point that installed copies have."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout

from nanoset_core.cli import main


def run(arguments: Sequence[str], *, code: int = 0) -> str:
    """Run `nanoset` with these arguments, and return what it prints to standard output.

    Raises:
        AssertionError: The command ended with another exit code than `code`.
    """
    stdout = io.StringIO()
    stderr = io.StringIO()
    exit_code: object = 0
    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            main(list(arguments))
        except SystemExit as exit_request:
            exit_code = exit_request.code or 0
    if exit_code != code:
        command = " ".join(["nanoset", *arguments])
        output = f"{stdout.getvalue()}\n{stderr.getvalue()}"
        raise AssertionError(f"{command}: exit code {exit_code}\n{output}")
    return stdout.getvalue()
