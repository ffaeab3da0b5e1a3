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
        """Return whether a file belongs to this source, unless it belongs to an earlier one.

        Args:
            path: The file. Its whole path or address is searched for a marker.
        """
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
        """Return the name of the source that a file belongs to.

        Args:
            path: The file, on this machine or in a bucket.

        Returns:
            The first source with a marker that is part of the path; None if there is none, or if
            its frequency is 0 or missing.
        """
        for source in self.sources:
            if source.has(path):
                is_sampled = bool(self.sampling_frequencies.get(source.source))
                return source.source if is_sampled else None
        return None

    def frequency_of(self, path: Location) -> float:
        """Return how often each context of a file occurs.

        Args:
            path: The file, on this machine or in a bucket.

        Returns:
            The frequency of its source, such as 0.5; 0 if the file is left out.
        """
        source = self.source_of(path)
        if source is None:
            return 0.0
        return self.sampling_frequencies[source]


EVERYTHING = Sampling((SamplingSource("input", ("",)),), {"input": 1.0})
"""The rule if there is no such file: all files are one source."""


def load_sampling(path: Path) -> Sampling:
    """Read DCLM's YAML file, which says how often the text of each source is used.

    `sources` lists the sources, and how to recognise their files. `sampling_frequencies` says how
    often each source is used; one that it leaves out is not used.

    Args:
        path: The file.

    Raises:
        MissingError: The file does not exist.
        ConfigError: It is not YAML of this form; or `sources` lists a source twice, or not at all
            although it has a frequency.
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

    _check_sources(sampling, path)
    return sampling


def _check_sources(sampling: Sampling, path: Path) -> None:
    """Check that all sources can be told apart, and that those with a frequency exist.

    Args:
        sampling: The contents of the file.
        path: The file, for messages.

    Raises:
        ConfigError: A source is listed twice, or not at all although it has a frequency; or its
            name cannot be used in names of files.
    """
    names = [source.source for source in sampling.sources]
    for name in names:
        check_corpus_name(name, f"{path}: sources")

    unlisted = [name for name in sampling.sampling_frequencies if name not in names]
    if unlisted:
        raise _sources_error(path, f"frequency of {', '.join(unlisted)}")
    if len(set(names)) < len(names):
        raise _sources_error(path, f"sources {', '.join(names)}")


def _sources_error(path: Path, found: str) -> ConfigError:
    """Return the error for a file whose sources do not fit its frequencies.

    Args:
        path: The file.
        found: What is wrong with it.
    """
    return ConfigError(
        "sources and frequencies do not go together",
        where=path,
        found=found,
        remedy="name each source once, and give these frequencies",
    )
