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
        """Return which source of text a file belongs to, by parts of its path (markers).

        For example, with these sources, of which NEWS has the frequency 0:

            source     markers      in/stack/a.jsonl     in/news/b.jsonl     in/c.jsonl
            CODE       "stack"      CODE
            NEWS       "news"                            None
            result                  CODE                 None                None

        If several sources match, the first one counts.

        Args:
            path: The file, on this machine or in a bucket.

        Returns:
            Name of the source. None if no source matches, or if the source is not used, since its
            frequency is 0 or missing.
        """
        for source in self.sources:
            if source.has(path):
                is_used = bool(self.sampling_frequencies.get(source.source))
                return source.source if is_used else None
        return None

    def frequency_of(self, path: Location) -> float:
        """Return how often a file is to be read, such as 0.5: only half of its training samples.

        That depends on the source of text to which the file belongs, such as CODE.

        Args:
            path: The file, on this machine or in a bucket.

        Returns:
            The frequency; 0 if the file is left out.
        """
        source = self.source_of(path)
        if source is None:
            return 0.0
        return self.sampling_frequencies[source]


EVERYTHING = Sampling((SamplingSource("input", ("",)),), {"input": 1.0})
"""The rule if there is no such file: all files are one source."""


def load_sampling(path: Path) -> Sampling:
    """Read a YAML file that says how often the text of each source is used.

    This is the format of DCLM, a project that publishes training data. For example:

        sources:
        - source: CODE
          markers: ["stack"]      # a file belongs to CODE if its path has this text
        sampling_frequencies:
          CODE: 0.5               # half of its training samples are used

    A source without a frequency is not used.

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
    """Check the names of sources of text in the user's file, which also has their frequencies.

        sources      frequencies
        A, B         A: 1, B: 0.5      correct
        A, A         A: 1              an error: A is listed twice
        A            A: 1, B: 0.5      an error: B is not listed

    A name must also be fit for the names of files.

    Args:
        sampling: The contents of the file.
        path: The file, for the error.

    Raises:
        ConfigError: A name is wrong.
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
    """Return the error for a file of rules whose sources and frequencies have different names.

    The rules divide text files into groups, the sources, and say how often each of them is read:
    its frequency.

    Args:
        path: The file of rules.
        found: What is wrong with it, such as "frequency of code".
    """
    return ConfigError(
        "sources and frequencies do not go together",
        where=path,
        found=found,
        remedy="name each source once, and give these frequencies",
    )
