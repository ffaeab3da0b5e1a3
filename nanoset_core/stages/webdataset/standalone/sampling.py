"""Read DCLM's YAML file of sources, which assigns files to sources with sampling frequencies.

It is the file that OpenLM's `tokenize_shuffle.py` takes as `--default_dataset_yaml`::

    sources:
    - {source: CC, markers: [commoncrawl, cc-main]}
    - {source: CODE, markers: [stack]}
    sampling_frequencies: {CC: 0.5, CODE: 2.0}

A file belongs to the first source that has a marker which is part of the file's path. Here
`raw/cc-main/1.jsonl` belongs to CC. Files of no source, and sources without a frequency, are left
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.records.parsing import parse
from nanoset_core.records.settings import Range
from nanoset_core.records.yaml_text import read_yaml
from nanoset_core.storage.location import Location


@dataclass(frozen=True, slots=True)
class SamplingSource:
    """One source of DCLM's file."""

    source: str
    markers: tuple[str, ...]
    """Texts; a file whose path contains one of them belongs to the source."""

    def has(self, path: Location) -> bool:
        """Return whether a marker is part of a path."""
        text = str(path)
        return any(marker in text for marker in self.markers)


@dataclass(frozen=True, slots=True)
class Sampling:
    """The contents of DCLM's file."""

    sources: tuple[SamplingSource, ...]
    """Sources in order of precedence: a file belongs to the first one with a matching marker."""
    sampling_frequencies: Mapping[str, Annotated[float, Range(0, 1e6)]] = field(
        default_factory=FrozenDict
    )
    """Source → how often each of its contexts occurs."""

    def source_of(self, path: Location) -> str | None:
        """Return the name of the source that a file belongs to, or None if the file is left out."""
        for source in self.sources:
            if source.has(path):
                is_sampled = bool(self.sampling_frequencies.get(source.source))
                return source.source if is_sampled else None
        return None

    def frequency_of(self, path: Location) -> float:
        """Return how often each context of a file occurs; 0 if it is left out."""
        source = self.source_of(path)
        if source is None:
            return 0.0
        return self.sampling_frequencies[source]


EVERYTHING = Sampling((SamplingSource("input", ("",)),), {"input": 1.0})
"""The rule if there is no such file: all files are one source."""


def load_sampling(path: Path) -> Sampling:
    """Read DCLM's YAML file of sources, which says how often the text of each source is used.

    Args:
        path: The file.

    Raises:
        MissingError: The file does not exist.
        ConfigError: It is not YAML of this form, or names a source twice or without its markers.
    """
    try:
        value, _ = read_yaml(
            path, remedy="write YAML as in the example of DCLM's --default_dataset_yaml"
        )
        sampling: Sampling = parse(Sampling, value, "", path)
    except OSError as error:
        raise MissingError(
            "no such file of sources",
            where=path,
            found=error.strerror,
            remedy="correct the path of --sampling",
        ) from error

    # Each name must be usable as a name of files, unique, and declared if it has a frequency.
    names = [source.source for source in sampling.sources]
    for name in names:
        check_corpus_name(name, f"{path}: sources")
    unknown = [name for name in sampling.sampling_frequencies if name not in names]
    if unknown or len(set(names)) != len(names):
        found = f"sources {', '.join(names)}"
        if unknown:
            found = f"frequency of {', '.join(unknown)}"
        raise ConfigError(
            "sources and frequencies do not go together",
            where=path,
            found=found,
            remedy="name each source once, and give these frequencies",
        )
    return sampling
