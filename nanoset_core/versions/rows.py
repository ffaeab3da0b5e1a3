"""One line of `nanoset status`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.versions.live import Live

State = Literal["up to date", "stale", "missing", "failing"]


@dataclass(frozen=True, slots=True)
class Row:
    """The state of one corpus, split, handoff, webdataset or packed corpus."""

    kind: Literal["corpus", "nanoset", "webdataset", "packed"]
    name: str
    part: str | None
    """of a nanoset: a split, or handoff"""
    state: State
    why: tuple[str, ...]
    """what has to change, or did; empty when up to date"""
    figures: Mapping[str, int]
    """of the current version: files, documents, tokens, rejected, samples, shards, bytes… as far as they apply"""
    made_at: float | None
    """when the current version was made, seconds since 1970"""
    busy: bool = False
    """whether a build works on it at this moment"""
    rejects: tuple[str, ...] = field(default=())
    """files that hold rejected lines"""

    @property
    def label(self) -> str:
        """Kind and name, as one."""
        return f"{self.kind} {self.name}" + (f" {self.part}" if self.part else "")

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "kind": self.kind,
            "name": self.name,
            "part": self.part,
            "state": self.state,
            "why": list(self.why),
            **self.figures,
            "made_at": self.made_at,
            "building": self.busy,
            "rejects": list(self.rejects),
        }


def state_of(live: Live, why: list[str]) -> State:
    """The state that follows from the current version, and from why it is not the wanted one."""
    if not why:
        return "up to date"
    return "stale" if live.exists else "missing"


def stored_bytes(manifest: Manifest) -> int:
    """Bytes of an output's own files."""
    return sum(fact.size for fact in manifest.files.values())
