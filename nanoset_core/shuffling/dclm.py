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

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.serialization.parsing import FrozenDict, parse
from nanoset_core.serialization.yaml_text import read_yaml
from nanoset_core.shuffling.sampling import check_frequency


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
    sampling_frequencies: Mapping[str, float] = field(default_factory=FrozenDict)
    """Source → how often each of its contexts occurs."""

    def source_of(self, path: str) -> str | None:
        """Return the source of a file; None where it has none, or one of frequency 0."""
        for source in self.sources:
            if any(marker in path for marker in source.markers):
                return source.source if self.sampling_frequencies.get(source.source, 0.0) > 0 else None
        return None

    def group(self, paths: Sequence[str]) -> dict[str, list[int]]:
        """Return source → numbers of its paths; sources in the file's order, those without paths left out."""
        found: dict[str, list[int]] = {source.source: [] for source in self.sources}
        for number, path in enumerate(paths):
            if (source := self.source_of(path)) is not None:
                found[source].append(number)
        return {source: numbers for source, numbers in found.items() if numbers}


def load_sampling(path: Path) -> Sampling:
    """Read such a file.

    Raises:
        MissingError: there is no such file.
        ConfigError: a key or a value that it cannot hold.
    """
    try:
        content = read_yaml(path, remedy="write YAML as in the example of DCLM's --default_dataset_yaml")
        sampling = parse(Sampling, content.value, "", path)
    except OSError as error:
        remedy = "correct the path of --sampling"
        raise MissingError("no such file of sources", where=path, found=error.strerror, remedy=remedy) from error
    names = [source.source for source in sampling.sources]
    for name in names:
        check_corpus_name(name, f"{path}: sources")
    for name, frequency in sampling.sampling_frequencies.items():
        check_frequency(name, frequency, f"{path}: sampling_frequencies")
    unknown = [name for name in sampling.sampling_frequencies if name not in names]
    if unknown or len(set(names)) != len(names):
        found = f"frequency of {', '.join(unknown)}" if unknown else f"sources {', '.join(names)}"
        expected = "each source once, and frequencies of these only"
        what = "sources and frequencies do not go together"
        remedy = "name each source once, and give frequencies to these names only"
        raise ConfigError(what, where=path, found=found, expected=expected, remedy=remedy)
    return sampling
