"""Damage files of every format, and read them in forks that may crash, hang or use too much memory.

A trial damages one file and reads it. Three results are allowed:

- *refused*: an error of nanoset, whose message names the file;
- *unharmed*: the content of the original file;
- *as written*: other content, if an independent reader finds the same in the damaged file, which
  may happen to be another valid file.
"""

from __future__ import annotations

import argparse
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from campaigns.mutations import mutate, mutate_json
from campaigns.runner import Kind, Trial, forked, seeded
from helpers.sample_project import tokenizer_json
from nanoset_core.errors import NanosetError

HEAD = ("format",)
"""First column of the table."""
COLUMNS = ("refused", "unharmed", "as written")
"""The allowed results; see above. Anything else is bad."""
TRIALS = 3000
"""Trials of each format."""
_MAX_MESSAGE_LENGTH = 20_000
"""A longer message would fill a terminal; it most likely contains the file."""


def _never(_value: Any) -> bool:
    """Return False: no value of this format says that something was refused."""
    return False


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files, with a reader of nanoset, and a judge of what it returns."""

    name: str
    """Its name in the table."""
    files: Mapping[str, bytes]
    """Relative path → content of the files that the reader needs, all of them valid."""
    victim: str
    """Relative path of the file that is damaged."""
    read: Callable[[Path], Any]
    """Reads the files in a folder, and returns values that can be compared by `==`."""
    judge: Callable[[Path, Any], bool] | None = None
    """Returns whether an independent reader finds a value in a folder. If it is None, only the
    content of the original files is right.
    """
    refuses: Callable[[Any], bool] = _never
    """Returns whether a value says that something was refused. Some readers do not raise an error
    for bad data, but return it separately.
    """
    is_json: bool = False
    """Whether half of the trials change values so that the file stays valid JSON."""
    share: float = 1.0
    """Number of trials, relative to other formats: small for a reader that takes long."""
    mend: Callable[[Path], None] | None = None
    """Corrects the checksums after a third of the damage, so that also the checks behind them are
    tested.
    """


class DamagedFormat:
    """Trials that damage and read the files of one format.

    Args:
        kind: The format.
        folder: Is emptied, and takes the files.
    """

    def __init__(self, kind: Format, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        # An earlier fork may have left files.
        shutil.rmtree(folder, ignore_errors=True)
        for name, data in kind.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self._original_value = kind.read(folder)

    def run(self, number: int) -> Trial:
        """Run the trial with a number: damage the file, read it, and judge the result."""
        self._damage(number)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                outcome = self._read_and_judge()
            # Any exception that is no error of nanoset, even a SystemExit, is a fault to report.
            except BaseException as error:  # noqa: BLE001
                outcome = f"{type(error).__name__}: {str(error)[:400]}"
        if outcome in COLUMNS:
            return Trial(Counter([outcome]))
        return Trial(wrong=[outcome])

    def _damage(self, number: int) -> None:
        """Write the damaged file of a trial, which depends only on the format and the number."""
        kind = self._kind
        rng = seeded(kind.name, number)
        original = kind.files[kind.victim]
        stays_json = kind.is_json and rng.random() < 0.5
        data = mutate_json(original, rng) if stays_json else mutate(original, rng)

        # Write a new file: an earlier trial may still have the old one mapped into memory.
        path = self._folder / kind.victim
        path.unlink(missing_ok=True)
        path.write_bytes(data)

        if kind.mend is None:
            return
        # The earlier trial may have corrected checksums in other files.
        for name, content in kind.files.items():
            if name != kind.victim and name.endswith(".json"):
                (self._folder / name).write_bytes(content)
        if rng.random() < 0.34:
            kind.mend(self._folder)

    def _read_and_judge(self) -> str:
        """Read the damaged file, and return one of COLUMNS or a message that says what is wrong."""
        kind = self._kind
        try:
            value = kind.read(self._folder)
        except NanosetError as error:
            message = str(error)
            if str(self._folder) not in message:
                return f"names no file: {message[:400]}"
            if len(message) >= _MAX_MESSAGE_LENGTH:
                return f"message of {len(message)} characters: {message[:400]}"
            return "refused"

        if value == self._original_value:
            return "unharmed"
        is_refusal = kind.refuses(value)
        is_right = is_refusal if kind.judge is None else kind.judge(self._folder, value)
        if not is_right:
            return f"not what is written: {str(value)[:300]}"
        return "refused" if is_refusal else "as written"


def all_formats(scratch: Path) -> list[Format]:
    """Return every format, with files that are made in an empty folder."""
    # Not at the top of this module, which both of them import.
    from campaigns import datasets, outputs

    tokenizer = tokenizer_json()
    return [
        *datasets.formats(scratch),
        *datasets.text_formats(),
        *outputs.formats(scratch, tokenizer),
        *outputs.settings_formats(tokenizer),
    ]


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """Yield a kind of trial for each format.

    Args:
        folder: Where the trials write.
        options: Options of the command line.
    """
    made_folder = folder / "made"
    made_folder.mkdir()
    for kind in all_formats(made_folder):
        # Each fork writes and reads the original files once, for all of its trials.
        @cache
        def damaged_format(kind: Format = kind) -> DamagedFormat:
            return DamagedFormat(kind, folder / "tried")

        def run_trial(
            number: int, damaged_format: Callable[[], DamagedFormat] = damaged_format
        ) -> Trial:
            return damaged_format().run(number)

        n_trials = round(options.trials * kind.share)
        yield forked((kind.name,), n_trials, run_trial, batch=500, extra_bytes=1 << 30, seconds=20)
