"""Compare an output with the dataset that it was made from, such as a `.pbin` or an export.

The checks of these outputs open the version of the dataset that their manifests name, and compare
ranges of tokens, which several processes can share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.differences import include_differences
from nanoset_core.stages.dataset.token_check import AT_ONCE, StoredArray
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.datasets import Datasets
from nanoset_core.stages.report import (
    BUILD,
    DividedCheck,
    Report,
)

_READ_TOKENS = 1 << 20
"""Number of tokens that are compared at once."""


class Source(NamedTuple):
    """The dataset that an output was made from."""

    manifest: Manifest
    """Manifest of the dataset."""
    dataset: MMapIndexedDataset
    """The dataset, opened."""


def made_from(
    report: Report, project: Project, manifest: Manifest, *, is_sampled: bool = False
) -> Source | None:
    """Open the dataset that an output was made from, to compare the output with it.

    For example, the file web.pbin was made from the dataset of the corpus web, in the version
    3f9c…. That version may have been deleted since. Then only a warning is reported: the output may
    be fine.

    Args:
        report: Gets a warning if the dataset is missing or damaged.
        project: The project.
        manifest: Manifest of the output, which names the version of the dataset.
        is_sampled: Whether only few tokens will be read.

    Returns:
        The dataset, or None if it is missing or damaged.
    """
    try:
        dataset = Datasets(project.outputs).copied_by(manifest, project.config).manifest
        return Source(dataset, open_dataset(dataset, is_sampled=is_sampled))
    except NanosetError as error:
        # This is only a warning: the check of the dataset reports what is wrong with it.
        report.warn(
            "the dataset is missing or damaged: tokens were not compared with it",
            where=error.where,
            remedy=BUILD,
        )
        return None


class WrongToken(NamedTuple):
    """A token that differs from that of the dataset."""

    number: int
    """Number of the token in the order of the dataset."""
    token: int
    """Id in the file."""
    expected: int
    """Id in the dataset."""


class Compared(NamedTuple):
    """The result of comparing a range of tokens."""

    n_tokens: int
    """Number of tokens in the range."""
    wrong: WrongToken | None
    """The first token that differs, or None."""
    n_counted: int = 0
    """How many of the tokens are the one that is counted, if no token differs."""


@dataclass(frozen=True, slots=True)
class TokenComparison:
    """Compares the tokens of a file with those of the dataset that it was made from; it pickles."""

    copy: StoredArray
    """The tokens of the file."""
    dataset: StoredArray
    """The .bin of the dataset."""
    remedy: str
    """What to do about a wrong token, for messages."""
    stream: Stream | None = None
    """Where the tokens are in the .bin; None if it has exactly these tokens, in order."""
    counted_token: int | None = None
    """A token that is counted in the file meanwhile, such as the one that ends documents."""

    def of_ranges(
        self, ranges: Sequence[tuple[int, int]], dataset: Manifest, *, deep: bool
    ) -> DividedCheck:
        """Return a check that compares ranges of the file with the same ranges of the dataset.

        The ranges are parts of the check, which may be compared in several processes. At the end,
        `_conclude_check` puts the results together. If a token differs, it also looks whether the
        dataset is damaged, and not the file.

        Args:
            ranges: Ranges (start, stop) of tokens.
            dataset: Manifest of the dataset.
            deep: Whether all of a large dataset may be read to find out whether it is damaged.
        """
        return DividedCheck(
            parts=ranges,
            check_part=self.compare,
            add_outcomes=partial(self._conclude_check, dataset=dataset, deep=deep),
            at_once=AT_ONCE,
        )

    def _conclude_check(
        self, report: Report, outcomes: Sequence[Compared], *, dataset: Manifest, deep: bool
    ) -> None:
        """Report on all ranges, as `conclude` does, or that the dataset is damaged."""
        differences = Report(report.output)
        self.conclude(differences, outcomes)
        include_differences(report, differences, [dataset], deep=deep)

    def compare(self, part: tuple[int, int]) -> Compared:
        """Compare a range of the file's tokens with those of its dataset, until one differs.

        A check may divide a file among several processes, which call this for one range each.

        Args:
            part: The range: number of its first token, and of the token after its last one.

        Returns:
            How many tokens were compared, and the first one that differs, if there is one.
        """
        first_token, stop_token = part
        n_counted = 0
        for start in range(first_token, stop_token, _READ_TOKENS):
            stop = min(start + _READ_TOKENS, stop_token)
            tokens = self.copy.read(start, stop)
            wrong = self._first_wrong_token(tokens, start)
            if wrong is not None:
                return Compared(n_tokens=stop - first_token, wrong=wrong)
            if self.counted_token is not None:
                n_counted += int(np.count_nonzero(tokens == self.counted_token))
        return Compared(n_tokens=stop_token - first_token, wrong=None, n_counted=n_counted)

    def _first_wrong_token(self, tokens: NDArray[np.integer[Any]], start: int) -> WrongToken | None:
        """Return the first of some tokens that differs from that of the dataset, or None.

            token                       100    101    102
            id in the file                5      9      7
            id in the dataset             5      8      7      the result: token 101 is 9, and not 8

        Args:
            tokens: Successive tokens of the file, shape (n_tokens,).
            start: Number of the first one.
        """
        expected = self._expected(start, start + len(tokens))
        wrong_indices = np.flatnonzero(tokens != expected)
        if len(wrong_indices) == 0:
            return None
        index = int(wrong_indices[0])
        return WrongToken(start + index, int(tokens[index]), int(expected[index]))

    def conclude(self, report: Report, outcomes: Sequence[Compared]) -> None:
        """Report how many tokens were compared in all ranges, and the first one that differs.

            a token is not that of the dataset
            where: web.pbin, byte 210
            found: id 9
            expected: id 8

        Args:
            report: Report on the file.
            outcomes: Result of each range, in order.
        """
        report.figures["tokens_read"] = sum(outcome.n_tokens for outcome in outcomes)
        wrong_tokens = [outcome.wrong for outcome in outcomes if outcome.wrong is not None]
        if wrong_tokens:
            first_wrong = wrong_tokens[0]
            report.error(
                "a token is not that of the dataset",
                where=f"{self.copy.url}, byte {self.copy.byte(first_wrong.number)}",
                found=f"id {first_wrong.token}",
                expected=f"id {first_wrong.expected}",
                remedy=self.remedy,
            )

    def _expected(self, start: int, stop: int) -> NDArray[np.integer[Any]]:
        """Return the tokens that the file should have at some positions: those of the dataset.

        Usually they are at the same positions of the dataset's .bin. But a dataset may also be a
        selection of the documents in a .bin. For example, its tokens 0 to 10 are

            the tokens 500 to 504 of the .bin, and then 7,000 to 7,006

        Args:
            start: Number of the first token in the order of the dataset.
            stop: Number of the token after the last one.
        """
        if self.stream is None:
            return self.dataset.read(start, stop)

        # Find these ranges of the .bin, and read them one by one.
        starts, lengths = self.stream.ranges(np.array([start]), np.array([stop - start]))
        tokens = []
        for range_start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            tokens.append(self.dataset.read(range_start, range_start + length))
        return np.concatenate(tokens)
