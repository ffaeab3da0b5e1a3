"""What was found current a moment ago, so that steps that follow one another need not ask a store again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanoset_core.outputs.manifest import Manifest

SEEN_SECONDS = 10.0
"""How long a version is taken to be current still: what other machines make meanwhile is seen so much later."""


class Seen:
    """The versions that were current, by the folders of their outputs, each for a few seconds.

    Whoever changes an output lets it be forgotten. It pickles empty: other processes see for themselves.
    """

    def __init__(self) -> None:
        self._found: dict[Path, tuple[float, Manifest]] = {}

    def __reduce__(self) -> tuple[type[Seen], tuple[()]]:
        return Seen, ()

    def find(self, output: Path) -> Manifest | None:
        """The version of the output in a folder that was current a moment ago; None where nobody looked."""
        if output not in self._found:
            return None
        noted, manifest = self._found[output]
        return manifest if time.monotonic() - noted < SEEN_SECONDS else None

    def note(self, manifest: Manifest) -> None:
        """Take a version for the current one from now on."""
        self._found[manifest.folder.parent] = time.monotonic(), manifest

    def forget(self, output: Path) -> None:
        """Let the output in a folder be looked at anew."""
        self._found.pop(output, None)
