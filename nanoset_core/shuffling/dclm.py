"""Read DCLM's data-set file: which source a file belongs to, by markers in its path, and how often it is sampled.

::

    sources:
    - {source: CC, markers: [commoncrawl, cc-main]}
    - {source: CODE, markers: [stack]}
    sampling_frequencies: {CC: 0.5, CODE: 2.0}

A file belongs to the first source of which a marker is part of its path; files of no source, and sources without a
frequency, are left out. The rule of OpenLM's `tokenize_shuffle.py` (`--default_dataset_yaml`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.serialization.parsing import FrozenDict, parse, read_yaml
from nanoset_core.serialization.settings import Range


@dataclass(frozen=True, slots=True)
class Source:
    """One source of the file."""

    source: str
    """Its name."""
    markers: tuple[str, ...]
    """A file whose path holds one of them belongs to the source."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """All of the file."""

    sources: tuple[Source, ...]
    """In order: a file belongs to the first that fits."""
    sampling_frequencies: Mapping[str, Annotated[float, Range(0, 1e6)]] = field(default_factory=FrozenDict)
    """Source → how often each of its contexts occurs."""

    def source_of(self, path: str) -> str | None:
        """Return the first source of which a marker is in the path; None where it has none, or one of frequency 0."""
        for source in self.sources:
            if any(marker in path for marker in source.markers):
                return source.source if self.sampling_frequencies.get(source.source) else None
        return None

    def frequency_of(self, path: str) -> float:
        """Return how often each context of a file occurs; 0 where it is left out."""
        source = self.source_of(path)
        return 0.0 if source is None else self.sampling_frequencies[source]

    def group(self, paths: Sequence[str]) -> dict[str, list[int]]:
        """Return source → numbers of its paths; sources in the file's order, those without paths left out."""
        owners = [self.source_of(path) for path in paths]
        return {
            source.source: [number for number, owner in enumerate(owners) if owner == source.source]
            for source in self.sources
            if source.source in owners
        }


def load_sampling(path: Path) -> Sampling:
    """Read such a file.

    Raises:
        MissingError: there is no such file.
        ConfigError: a key or a value that it cannot hold.
    """
    try:
        content = read_yaml(path, remedy="write YAML as in the example of DCLM's --default_dataset_yaml")
        sampling: Sampling = parse(Sampling, content.value, "", path)
    except OSError as error:
        remedy = "correct the path of --sampling"
        raise MissingError("no such file of sources", where=path, found=error.strerror, remedy=remedy) from error
    names = [source.source for source in sampling.sources]
    for name in names:
        check_corpus_name(name, f"{path}: sources")
    unknown = [name for name in sampling.sampling_frequencies if name not in names]
    if unknown or len(set(names)) != len(names):
        raise ConfigError(
            "sources and frequencies do not go together",
            where=path,
            found=f"frequency of {', '.join(unknown)}" if unknown else f"sources {', '.join(names)}",
            expected="each source once, and frequencies of these only",
            remedy="name each source once, and give frequencies to these names only",
        )
    return sampling
