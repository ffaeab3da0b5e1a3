"""Warnings about former names of commands and of keys of nanoset.yaml, which still work.

When a name is replaced by another, the old one keeps working, and the user is told the new one:
`warning: …` on standard error. Other code reports a former name by `warnings.warn`, so that it need
not know how commands print.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nanoset_core.cli.echo import echo
from nanoset_core.errors import FormerNameWarning


def warn_of_former_name(text: str) -> None:
    """Print a warning about a name that was replaced by another, to standard error.

    Args:
        text: A sentence with both names.
    """
    echo(f"warning: {text}", fg="yellow", err=True)


@contextmanager
def printing_former_names() -> Iterator[None]:
    """Print warnings on renamed commands and settings in a form for users, in a `with` block.

    A renamed setting still works, but the user should learn the new name. The code that reads it
    calls Python's `warnings.warn`. Python would print

        /…/site-packages/nanoset_core/records/parsing.py:97: FormerNameWarning: `a` is now called
        `b`

    but the place in the code means nothing to users. So it is left out:

        warning: `a` is now called `b`

    All other warnings are printed as Python does it.
    """
    with warnings.catch_warnings():  # restores `showwarning`
        show_as_python_does = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            """Print one warning; `warnings` calls this in place of its own `showwarning`."""
            is_for_users = issubclass(category, FormerNameWarning)
            if is_for_users:
                warn_of_former_name(str(message))
            else:
                show_as_python_does(message, category, *place, **more)

        warnings.showwarning = show
        yield
