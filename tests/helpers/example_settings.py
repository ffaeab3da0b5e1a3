"""Settings with a field of every kind that nanoset.yaml can have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from nanoset_core.records.frozen import FrozenDict
from nanoset_core.records.settings import Range


@dataclass(frozen=True, slots=True)
class ExamplePart:
    """A section whose docstring of a field has two lines."""

    share: Annotated[float, Range(0, 1)] | None = None
    """Share of it,
    from 0 to 1."""


@dataclass(frozen=True, slots=True)
class SeedSettings:
    """A section from which another one inherits a field."""

    seed: Annotated[int, Range(0, 9)] = 1234
    """Of every shuffle."""


@dataclass(frozen=True, slots=True)
class RunSettings(SeedSettings):
    """A section whose fields all have a default, and most of them a range."""

    kind: Literal["a", "b"] = "a"
    workers: Annotated[int, Range(1)] = 1
    parts: tuple[ExamplePart, ...] = ()
    """In order."""
    named: Mapping[str, ExamplePart] = field(default_factory=FrozenDict)
    limits: Mapping[Literal["train", "valid"], Annotated[int, Range(1, 5)]] = field(
        default_factory=FrozenDict
    )
    limit: Annotated[float, Range(1, 3)] | Mapping[str, Annotated[float, Range(1, 3)]] | None = None
    part: ExamplePart = field(default_factory=ExamplePart)


@dataclass(frozen=True, slots=True)
class ExampleSource:
    """A section with a field that has no default."""

    count: int
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class ExampleSettings:
    """All settings."""

    name: str
    inner: ExampleSource | None = None
    kind: Literal["a", "b"] = "a"
    flag: bool = False
    names: tuple[str, ...] = ()
    table: Mapping[str, ExampleSource] = field(default_factory=FrozenDict)
    blend: str | tuple[str, ...] | Mapping[str, float] = ""
    anything: Any = None
    run: RunSettings | None = None
    hidden: int = field(default=0, init=False)
    """Not a key of the settings."""
