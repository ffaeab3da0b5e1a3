"""What a command that needs no project makes: published whole, with a record beside it of what it was made from.

By the record the same call finds its work done, and no call replaces what another one made, or something else did.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.outputs.current import setting_differences
from nanoset_core.outputs.places import OutputPlace, place_of
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.location import is_remote
from nanoset_core.storage.remote_folder import Location, RemoteFolder, remote_location
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import in_parallel
from nanoset_core.storage.working_copies import any_remote

_SHOWN = 5
_REMEDY = "name another output, or replace this one with --overwrite"


def record_path(output: Location) -> Location:
    """Where the record of a file, or of a prefix's pair, lies: hidden, so that nobody takes it for data."""
    return output.with_name(f".{output.name}.made.json")


def read_record(path: Location) -> dict[str, Any] | None:
    """A record, or None where there is none that can be read."""
    try:
        value = json.loads(place_of(path.parent).read(path.name) or b"")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and "nanoset" in value else None


def record_of(
    command: str, output: Location, sources: Iterable[Location], options: Mapping[str, Any]
) -> dict[str, Any]:
    """What a call makes its output from: the settings, and of each input file its place, size and time of change.

    Places are relative to the output's folder, so that both may be moved together; from or to a bucket they are not.
    Objects are known by their ETags.

    Raises:
        MissingError: a source is not there.
    """
    listed = list(sources)
    rows = in_parallel(lambda path: _row(path, output), listed, CONNECTIONS if any_remote(listed) else 1)
    plain: dict[str, Any] = json.loads(json.dumps({"options": dict(options), "sources": rows}))
    return {"nanoset": 1, "command": command, **plain}


def _row(path: Location, output: Location) -> dict[str, Any]:
    """What the record says of a source."""
    if isinstance(path, RemoteFolder):
        stored = path.store.stat(path.path)
        if stored is None:
            raise MissingError("no such object", where=path, remedy="name an object that is there")
        return {"path": str(path), "bytes": stored.size, "etag": stored.mark}
    stat, own = _stat(path), path.resolve()
    place = os.path.relpath(own, output.parent.resolve()) if isinstance(output, Path) else str(own)
    return {"path": place, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def noted_path(source: Mapping[str, Any], output: Location) -> Location:
    """Where a source lies by the record of an output: as `record_of` notes it."""
    path = str(source["path"])
    if is_remote(path):
        return remote_location(path, where=str(output))
    return output.parent / path if isinstance(output, Path) else Path(path)


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError("no such file", where=path, remedy="name a file that is there") from error


def sizes_hold(record: Mapping[str, Any], folder: Location) -> bool:
    """Whether the files of a finished record are there with the sizes they had; copies have other times."""
    found = {name: folder / name for name in record["files"]}
    return all(path.is_file() and path.stat().st_size == record["files"][name]["bytes"] for name, path in found.items())


def check_apart(
    outputs: Iterable[Location], inputs: Iterable[Location], *, remedy: str = "name another output"
) -> None:
    """Make sure that no output is an input, by whatever path or link.

    Args:
        outputs: what is to be written.
        inputs: what is read.
        remedy: what to do about it.

    Raises:
        ConfigError: one is.
    """
    read = {key: path for path in inputs for key in _identities(path)}
    for output in outputs:
        taken = next((read[key] for key in _identities(output) if key in read), None)
        if taken is not None:
            raise ConfigError(
                "an input would be overwritten",
                where=output,
                found=f"the output is the input {taken}",
                expected="an output apart from all inputs",
                remedy=remedy,
            )


def check_outside(folder: Location, inputs: Iterable[Location]) -> None:
    """Make sure that no input lies in a folder that is to be written, by whatever path or link.

    Raises:
        ConfigError: one does.
    """
    own = real_path(folder)
    for path in inputs:
        if isinstance(path, Path) is isinstance(folder, Path) and os.path.commonpath([own, real_path(path)]) == own:
            raise ConfigError(
                "an input would be overwritten",
                where=folder,
                found=f"the output holds the input {path}",
                expected="an output apart from all inputs",
                remedy="name another output",
            )


def real_path(path: Location) -> str:
    """What tells two places apart, by whatever links they are named."""
    return os.path.realpath(path) if isinstance(path, Path) else f"/{path.place.bucket}/{path.path}"


def _identities(path: Location) -> list[object]:
    if isinstance(path, RemoteFolder):
        return [path]
    try:
        stat = path.stat()
    except OSError:
        return [os.path.realpath(path)]
    return [os.path.realpath(path), (stat.st_dev, stat.st_ino)]


@dataclass(slots=True)
class Draft:
    """An output while it is being made."""

    folder: Path
    """Where its files are written, under their own names."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Counts for the record."""
    more: dict[str, Any] = field(default_factory=dict)
    """Further entries of the record."""
    elsewhere: dict[str, Callable[[], Mapping[str, Any]]] = field(default_factory=dict)
    """Name of a file → makes it where it goes, and tells what the record says of it, as `OutputPlace.take`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOutput:
    """The files that one call makes in one folder, and their record."""

    record: Location
    """Beside the files."""
    made_from: Mapping[str, Any]
    """All that decides the bytes, as plain values."""
    files: tuple[Location, ...]
    """Always made, and put in place in this order: without the last one nobody takes the others for an output."""
    others: tuple[Location, ...] = ()
    """Made where there is cause, such as a list of rejected lines; else there is none afterwards."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Setting → flag of the command, where that is not its name."""
    hashed: bool = False
    """Whether the record holds the files' sha256, and not the times at which they were written."""

    @classmethod
    def single(cls, target: Location, made_from: Mapping[str, Any], *others: Location) -> RecordedOutput:
        """The output that is one file."""
        return cls(record=record_path(target), made_from=made_from, files=(target,), others=others)

    @property
    def place(self) -> OutputPlace:
        """Where they all are."""
        return place_of(self.record.parent)

    def find(self, *, overwrite: bool = False) -> dict[str, Any] | None:
        """The record, where this very output is there and whole; None where it is to be made.

        overwrite: whether something else may be replaced.

        Raises:
            ConfigError: it may not, and something else is there.
        """
        self._check_no_folder()
        place = self.place
        there = [path for path in (*self.files, *self.others) if place.has(path.name)]
        record = read_record(self.record)
        if record is None or any(record.get(key) != value for key, value in self.made_from.items()):
            if there and not overwrite:
                raise self._refusal(there[0], record)
            return None
        if "files" not in record:
            return None  # a call that was killed while it put them in place
        files = record["files"]
        changes = {path: text for path in there if (text := self._change(path, files.get(path.name))) is not None}
        # Beside whole files a list that the record lacks may be of a version that noted none: nothing is written then.
        if all(path in there for path in self.files) and not any(path.name in files for path in changes):
            return record
        if changes and not overwrite:
            where, found = next(iter(changes.items()))
            raise ConfigError("the output was changed since it was made", where=where, found=found, remedy=_REMEDY)
        return None

    def _change(self, path: Location, noted: Mapping[str, Any] | None) -> str | None:
        """How a file that is there is not the one that a finished record notes; None where it is."""
        if noted is None:
            return f"{path.name} was not there when the others were made"
        return self.place.change(path.name, noted)

    @contextmanager
    def making(self, *, overwrite: bool = False) -> Iterator[Draft]:
        """A draft to write the files into; they and the record are put in place when the block ends well.

        Whoever is killed leaves the earlier files or the new ones, never some of each: of a single file because it is
        renamed, of several because the last one goes before the first is replaced. The same call then makes the rest.

        Raises:
            ConfigError: something else is there, or was put there meanwhile, and `overwrite` is not set.
            StorageError: the folder cannot be written to, or is full.
        """
        place = self.place
        with place.writing():
            self.find(overwrite=overwrite)
            with place.draft(self.files[-1].name, self.record.name) as scratch:
                draft = Draft(scratch)
                yield draft
                made = {
                    path.name for path in (*self.files, *self.others) if path in self.files or _is_in(scratch, path)
                }
                sums = {name: sha256_file(scratch / name) if self.hashed else None for name in made}
                with place.alone():
                    self.find(overwrite=overwrite)
                    notes = self._put_in_place(draft, sums)
                    facts = {path.name: notes[path.name] for path in (*self.files, *self.others) if path.name in made}
                    self._write({**self.made_from, "facts": draft.facts, "files": facts, **draft.more})

    def _put_in_place(self, draft: Draft, sums: Mapping[str, str | None]) -> dict[str, Mapping[str, Any]]:
        """Let files be where they go; sums: name → sha256 of each; → what the record says of them."""
        place, notes = self.place, {}
        self._write(self.made_from)
        if len(self.files) > 1:
            place.remove(self.files[-1].name)
        for name in (path.name for path in (*self.others, *self.files)):
            if name in draft.elsewhere:
                notes[name] = draft.elsewhere[name]()
            elif name in sums:
                notes[name] = place.take(draft.folder / name, name, sha256=sums[name])
            else:
                place.remove(name)
        place.settle()
        return notes

    def _write(self, record: Mapping[str, Any]) -> None:
        self.place.write(self.record.name, json.dumps(record, indent=1).encode() + b"\n")

    def _check_no_folder(self) -> None:
        for path in (*self.files, *self.others, self.record):
            if self.place.is_folder(path.name):
                raise ConfigError("a folder of this name is there", where=path, remedy="name another output")

    def _refusal(self, path: Location, record: Mapping[str, Any] | None) -> ConfigError:
        if record is None:
            return ConfigError(
                "something is there already, and nothing says what it was made from",
                where=path,
                found=f"no {self.record.name} beside it",
                expected="no such file, or one that the same call made",
                remedy=_REMEDY,
            )
        return ConfigError(
            "an output of other input or settings is there already",
            where=path,
            found="; ".join(_differences(record, self.made_from, self.flags)),
            expected="no such file, or one that the same call made",
            remedy=_REMEDY,
        )


def make_once(
    command: str,
    target: Location,
    sources: Iterable[Location],
    options: Mapping[str, Any],
    make: Callable[[Path], Mapping[str, Any]],
    *,
    overwrite: bool = False,
) -> tuple[Mapping[str, Any], bool]:
    """A file that one call makes, unless it is there; → (its facts, whether it was made).

    Args:
        command: the call's name, such as `pack merge`.
        target: the file.
        sources: the files that it is made from, in order.
        options: the settings that reach its bytes.
        make: writes the file at a path that it is given; returns facts, as plain values.
        overwrite: whether something else may be replaced.

    Raises:
        ConfigError: the target is one of the sources, or something else is there and may not be replaced.
        StorageError: the target cannot be written.
    """
    files = list(sources)
    check_apart([target], files)
    output = RecordedOutput.single(target, record_of(command, target, files, options))
    record = output.find(overwrite=overwrite)
    if record is not None:
        return record["facts"], False
    with output.making(overwrite=overwrite) as draft:
        draft.facts = make(draft.folder / target.name)
    return draft.facts, True


def _is_in(scratch: Path, path: Location) -> bool:
    return (scratch / path.name).exists()


def _differences(record: Mapping[str, Any], made_from: Mapping[str, Any], flags: Mapping[str, str]) -> list[str]:
    if record.get("command") != made_from.get("command"):
        return [f"it was made by `nanoset {record.get('command') or 'tokenize'}`"]
    before, now = _by_path(record.get("sources")), _by_path(made_from["sources"])
    files = [
        *(f"{path} was not among the files" for path in now if path not in before),
        *(f"{path} was one of the files" for path in before if path not in now),
        *(
            f"{path} was another file, or written again since"
            for path in now
            if before.get(path, now[path]) != now[path]
        ),
    ]
    if not files and list(before) != list(now):
        files = ["the files came in another order"]
    more = len(files) - _SHOWN
    options = record.get("options")
    settings = flag_differences(options if isinstance(options, Mapping) else {}, made_from["options"], flags)
    return [*files[:_SHOWN], *([f"{more:,} more files differ"] if more > 0 else []), *settings] or ["another version"]


def flag_differences(before: Mapping[str, Any], now: Mapping[str, Any], flags: Mapping[str, str]) -> list[str]:
    """Settings that differ, as `--flag: before → now`; `flags` has the flags that are not the settings' names."""
    found = (text.split(": ", 1) for text in setting_differences(before, now))
    return [f"{flags.get(name, '--' + name.replace('_', '-'))}: {rest}" for name, rest in found]


def _by_path(sources: object) -> dict[str, list[Any]]:
    """Path → all that is noted of the file, in pieces."""
    found: dict[str, list[Any]] = {}
    for source in sources if isinstance(sources, Sequence) else ():
        if isinstance(source, Mapping):
            found.setdefault(str(source.get("path")), []).append(dict(source))
    return found
