"""Damaged files of every format, read in forks that may crash, hang or run out of memory."""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from faults.mutations import mutate, mutate_json
from faults.runner import Kind, Trial, give, in_fork, seeded

from nanoset_core.errors import NanosetError

Outcome = Literal["refused", "unharmed", "as written", "bad"]
HEAD, COLUMNS = ("format",), ("refused", "unharmed", "as written")
"""An error of ours that names the file; what the sound file gives; what an independent reader finds in the damaged file
(which may be another sound one). Anything else is bad."""
TRIALS = 3000
_BATCH = 500


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
    """takes folder and value: whether an independent reader finds the same; None: only the sound value is right"""
    refuses: Callable[[Any], bool] = lambda _value: False
    """whether a value says that something was refused, for readers that keep what is bad aside instead of raising"""
    is_json: bool = False
    """half of the damage keeps it JSON"""
    share: float = 1.0
    """of the trials of other formats, for one that takes long"""
    mend: Callable[[Path], None] | None = None
    """puts checksums right again in a third of the trials, so that what lies behind them is reached"""


class Bench:
    """A folder in which a format's files lie, for one trial after the other."""

    def __init__(self, kind: Format, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        for name, data in kind.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.sound = kind.read(folder)

    def damage(self, number: int) -> None:
        """Put the damaged file of trial `number` into place; the bytes depend on format and number alone."""
        kind, rng = self.kind, seeded(self.kind.name, number)
        sound = kind.files[kind.victim]
        data = mutate_json(sound, rng) if kind.is_json and rng.random() < 0.5 else mutate(sound, rng)
        path = self.folder / kind.victim
        path.unlink(missing_ok=True)  # an earlier trial may still have it mapped
        path.write_bytes(data)
        if kind.mend is not None:
            for name in kind.files:
                if name != kind.victim and name.endswith(".json"):
                    (self.folder / name).write_bytes(kind.files[name])
            if rng.random() < 0.34:
                kind.mend(self.folder)

    def run(self, number: int) -> tuple[Outcome, str]:
        """Run a trial; → outcome, and what was wrong or the error's text."""
        self.damage(number)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                value = self.kind.read(self.folder)
            except NanosetError as error:
                named = str(self.folder) in str(error) and len(str(error)) < 20_000
                return ("refused", str(error)) if named else ("bad", f"names no file, or too long: {str(error)[:400]}")
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - whatever it is, that is the finding
                return "bad", f"{type(error).__name__}: {str(error)[:400]}"
        return self._weigh(value)

    def _weigh(self, value: Any) -> tuple[Outcome, str]:
        if value == self.sound:
            return "unharmed", ""
        if self.kind.judge is None:
            return ("refused", "") if self.kind.refuses(value) else ("bad", f"another answer: {str(value)[:300]}")
        try:
            right = self.kind.judge(self.folder, value)
        except Exception as error:  # noqa: BLE001 - the judge read what a reader of ours took: that is a finding
            right, value = False, f"the judge cannot read it ({type(error).__name__}: {error}), the reader did: {value}"
        if not right:
            return "bad", f"not what is written: {str(value)[:300]}"
        return ("refused" if self.kind.refuses(value) else "as written"), ""


def all_formats(scratch: Path) -> list[Format]:
    """Every kind of file, made in an empty folder."""
    from faults import datasets, outputs, settings, texts

    tokenizer = settings.tokenizer_json()
    made = [*datasets.formats(scratch), *texts.formats()]
    return [*made, *outputs.formats(scratch, tokenizer), *settings.formats(tokenizer)]


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """A kind for each format."""
    (folder / "made").mkdir()
    for kind in all_formats(folder / "made"):
        yield Kind((kind.name,), max(1, round(options.trials * kind.share)), partial(_trials, kind, folder))


def _trials(kind: Format, scratch: Path, numbers: range) -> Iterator[Trial]:
    """In batches of forks."""
    at = numbers.start
    while at < numbers.stop:
        batch = range(at, min(at + _BATCH, numbers.stop))
        with tempfile.TemporaryDirectory(dir=scratch) as place:
            work = partial(_batch, kind, batch, Path(place))
            done, ending = in_fork(work, extra_bytes=1 << 30, seconds=20.0)
        for outcome, detail in done:
            yield Trial(wrong=[detail]) if outcome == "bad" else Trial(Counter([outcome]))
        if len(done) < len(batch):
            yield Trial(wrong=[f"{ending.end}, {ending.code}: {ending.said[-400:]}"])
        at += min(len(done) + 1, len(batch))


def _batch(kind: Format, numbers: range, folder: Path) -> None:
    bench = Bench(kind, folder)
    for number in numbers:
        outcome, detail = bench.run(number)
        give([outcome, detail if outcome == "bad" else ""])
