"""The work of making one output."""

from __future__ import annotations

from dataclasses import dataclass

from nanoset_core.records.digests import digest_of
from nanoset_core.stages.stage import Node


@dataclass(frozen=True, slots=True)
class Step:
    """The work of making one output from the project's present inputs."""

    node: Node
    """The output."""
    digest: str
    """Digest of the output that should be current."""
    reasons: tuple[str, ...]
    """Why the current version is not that output; empty if it is, and whole."""
    needs: tuple[Node, ...]
    """The outputs that it is made directly from."""
    deciding: tuple[Node, ...] = ()
    """The searches among them that may forbid to make it."""

    @property
    def attempt_digest(self) -> str:
        """Digest of what decides whether the output can be made, and not only of its bytes.

        By default, it is the digest of the output. If the settings let searches forbid the output,
        as `policy: block` does, it is another one: without them, it may be made.
        """
        if not self.deciding:
            return self.digest
        labels = [node.row.label for node in self.deciding]  # such as "contamination evals web"
        return digest_of([self.digest, labels])

    @property
    def is_up_to_date(self) -> bool:
        """Whether the output is complete and current."""
        return not self.reasons
