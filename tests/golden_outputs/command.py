"""A command as a shell would run it, in this process, by the entry point that installed copies
have.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout

from nanoset_core.cli import main


def run(arguments: Sequence[str], *, code: int = 0) -> str:
    """What `nanoset` with these arguments prints to standard output; AssertionError for another
    exit code.
    """
    out, err = io.StringIO(), io.StringIO()
    found = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as end:
            found = end.code or 0
    if found != code:
        raise AssertionError(
            f"nanoset {' '.join(arguments)}: exit code {found}\n{out.getvalue()}\n{err.getvalue()}"
        )
    return out.getvalue()
