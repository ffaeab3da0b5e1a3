"""One trial: a sound set of files, one of them damaged, and what a reader of ours makes of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from faults.mutations import mutate, mutate_json
from faults.runner import seeded

from nanoset_core.errors import NanosetError

Outcome = Literal["refused", "unharmed", "as written", "bad"]
OUTCOMES: tuple[Outcome, ...] = ("refused", "unharmed", "as written", "bad")
"""An error of ours that names the file; what the sound file gives; what an independent reader finds in the damaged file
(which may be another sound one); anything else."""


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

    def damage(self, number: int) -> bytes:
        """Put the damaged file of trial `number` into place; the bytes depend on format and number alone."""
        rng = seeded(self.kind.name, number)
        sound = self.kind.files[self.kind.victim]
        data = mutate_json(sound, rng) if self.kind.is_json and rng.random() < 0.5 else mutate(sound, rng)
        path = self.folder / self.kind.victim
        path.unlink(missing_ok=True)  # an earlier trial may still have it mapped
        path.write_bytes(data)
        if self.kind.mend is not None:
            for name in self._others():
                (self.folder / name).write_bytes(self.kind.files[name])
            if rng.random() < 0.34:
                self.kind.mend(self.folder)
        return data

    def _others(self) -> list[str]:
        return [name for name in self.kind.files if name != self.kind.victim and name.endswith(".json")]

    def run(self, number: int) -> tuple[Outcome, str]:
        """(outcome, what was wrong or the error's text) of trial `number`."""
        self.damage(number)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                value = self.kind.read(self.folder)
            except NanosetError as error:
                named = str(self.folder) in str(error) and len(str(error)) < 20_000
                return ("refused", str(error)) if named else ("bad", f"names no file, or too long: {str(error)[:400]}")
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
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
