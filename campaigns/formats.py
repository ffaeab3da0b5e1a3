"""Damaged files of every format, read in forks that may crash, hang or run out of memory."""

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

HEAD, COLUMNS = ("format",), ("refused", "unharmed", "as written")
"""An error of ours that names the file; what the sound file gives; what an independent reader finds
in the damaged file (which may be another sound one). Anything else is bad."""
TRIALS = 3000


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file, with a reader of ours and a judge of what it returns."""

    name: str
    """in the table"""
    files: Mapping[str, bytes]
    """relative path → content, all sound"""
    victim: str
    """the one that is damaged"""
    read: Callable[[Path], Any]
    """takes the folder; gives plain values, to be compared by =="""
    judge: Callable[[Path, Any], bool] | None = None
    """takes folder and value: whether an independent reader finds the same; None: only the sound
    value is right
    """
    refuses: Callable[[Any], bool] = lambda _value: False
    """whether a value says that something was refused, for readers that keep what is bad aside
    instead of raising
    """
    is_json: bool = False
    """half of the damage keeps it JSON"""
    share: float = 1.0
    """of the trials of other formats, for one that takes long"""
    mend: Callable[[Path], None] | None = None
    """puts checksums right again in a third of the trials, so that what lies behind them is reached
    """


class Bench:
    """A folder in which a format's files lie, for one trial after the other."""

    def __init__(self, kind: Format, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier fork
        for name, data in kind.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.sound = kind.read(folder)

    def damage(self, number: int) -> None:
        """Put the damaged file of trial `number` into place; the bytes depend on format and number
        alone.
        """
        kind, rng = self.kind, seeded(self.kind.name, number)
        sound = kind.files[kind.victim]
        data = (
            mutate_json(sound, rng) if kind.is_json and rng.random() < 0.5 else mutate(sound, rng)
        )
        path = self.folder / kind.victim
        path.unlink(missing_ok=True)  # an earlier trial may still have it mapped
        path.write_bytes(data)
        if kind.mend is not None:
            for name in kind.files:
                if name != kind.victim and name.endswith(".json"):
                    (self.folder / name).write_bytes(kind.files[name])
            if rng.random() < 0.34:
                kind.mend(self.folder)

    def run(self, number: int) -> Trial:
        """Run a trial."""
        self.damage(number)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                outcome = self._outcome()
            except BaseException as error:  # noqa: BLE001 - whatever it is, that is the finding
                outcome = f"{type(error).__name__}: {str(error)[:400]}"
        return Trial(Counter([outcome])) if outcome in COLUMNS else Trial(wrong=[outcome])

    def _outcome(self) -> str:
        try:
            value = self.kind.read(self.folder)
        except NanosetError as error:
            is_told = str(self.folder) in str(error) and len(str(error)) < 20_000
            return "refused" if is_told else f"names no file, or too long: {str(error)[:400]}"
        if value == self.sound:
            return "unharmed"
        is_refused = self.kind.refuses(value)
        if not (is_refused if self.kind.judge is None else self.kind.judge(self.folder, value)):
            return f"not what is written: {str(value)[:300]}"
        return "refused" if is_refused else "as written"


def all_formats(scratch: Path) -> list[Format]:
    """Every kind of file, made in an empty folder."""
    from campaigns import datasets, outputs

    tokenizer = tokenizer_json()
    made = [*datasets.formats(scratch), *datasets.text_formats()]
    return [*made, *outputs.formats(scratch, tokenizer), *outputs.settings_formats(tokenizer)]


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """A kind for each format."""
    (folder / "made").mkdir()
    for kind in all_formats(folder / "made"):
        bench = cache(lambda kind=kind: Bench(kind, folder / "tried"))
        count = max(1, round(options.trials * kind.share))
        limits = {"batch": 500, "extra_bytes": 1 << 30, "seconds": 20}
        yield forked((kind.name,), count, lambda number, bench=bench: bench().run(number), **limits)
