"""Outputs of commands that need no project: folders here or in a bucket, and records of what files
were made from.

By its record the same call finds its work done, and no call replaces what another one, or another
program, made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, MissingError, StorageError
from nanoset_core.outputs.current import setting_differences
from nanoset_core.storage.atomic import (
    alone_in,
    claim_scratch,
    fsync_folder,
    sha256_file,
    sweep_abandoned,
)
from nanoset_core.storage.location import (
    Location,
    RemoteFolder,
    is_remote,
    remote_location,
    store_of,
)
from nanoset_core.storage.os_errors import explained, writing_to
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Store, in_parallel
from nanoset_core.storage.working_copies import any_remote, scratch_root, temporary_folder

_SHOWN = 5
_REMEDY = "name another output, or replace this one with --overwrite"
_EXPECTED = "no such file, or one that the same call made"


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """A folder that files of one command go to; each is there whole or not at all."""

    folder: Location

    @property
    def store(self) -> Store:
        """The folder, which keeps its files by their names."""
        return store_of(self.folder)

    def has(self, name: str, size: int | None = None) -> bool:
        """Return whether a file is there, of so many bytes where they are given."""
        found = self.store.stat(name)
        return found is not None and size in (None, found.size)

    def take(self, path: Path, name: str, *, sha256: str | None) -> Mapping[str, Any]:
        """Move a finished file here; return what `change` compares later.

        Args:
            path: of the file, in a draft.
            name: under which it is to be there.
            sha256: hex, of its bytes, where that is known.
        """
        size, facts = path.stat().st_size, {} if sha256 is None else {"sha256": sha256}
        if isinstance(self.folder, Path):
            os.replace(path, self.folder / name)
            fsync_folder(self.folder)
        else:
            self.store.put_file(name, path, sha256=sha256)
            path.unlink()
        stored = self.store.stat(name)
        if stored is None or stored.size != size:
            what, remedy = (
                "another call wrote this output meanwhile",
                "run again once the other has ended",
            )
            raise StorageError(what, where=self.folder / name, remedy=remedy)
        if isinstance(self.folder, RemoteFolder):
            return {"bytes": size, **facts, "etag": stored.mark}
        return {"bytes": size, **(facts or {"mtime_ns": stored.written_ns})}

    def change(self, name: str, noted: Mapping[str, Any]) -> str | None:
        """Return how a file differs from the one that `take` noted; None where it does not."""
        found = self.store.stat(name)
        if found is None:
            return f"{name} is not there"
        if found.size != noted["bytes"]:
            return f"{name} has {found.size:,} bytes, and had {noted['bytes']:,}"
        if "sha256" in noted:  # the ETag of a copy is another where it was sent in other parts
            is_same = found.mark == noted.get("etag") or self.store.sha256(name) == noted["sha256"]
            return None if is_same else f"{name} has other bytes than those that were written"
        now = {"etag": found.mark, "mtime_ns": found.written_ns}
        return (
            f"{name} was written again"
            if any(noted.get(key, now[key]) != now[key] for key in now)
            else None
        )

    @contextmanager
    def writing(self, *, expected: str | None = None) -> Iterator[None]:
        """Check that the place can be written to before any work is done, and explain what fails in
        the block.

        Raises:
            StorageError: it cannot be written to.
        """
        if isinstance(self.folder, Path):
            with writing_to(self.folder, expected=expected):
                yield
            return
        self.store.check_writable(".probe")
        with explained(scratch_root(), expected=expected):
            yield

    @contextmanager
    def draft(self, *names: str) -> Iterator[Path]:
        """Yield a folder of this machine to write files of these names into; it is removed
        afterwards.
        """
        if isinstance(self.folder, Path):
            for name in names:
                sweep_abandoned(self.folder, name)
            drafts = claim_scratch(self.folder / names[0])
        else:
            drafts = temporary_folder(names[0])
        with drafts as scratch:
            yield scratch


def record_path(output: Location) -> Location:
    """Return the path of the record of a file, or of a prefix's pair; it is hidden, since it is no
    data.
    """
    return output.with_name(f".{output.name}.made.json")


def read_record(path: Location) -> dict[str, Any] | None:
    """Return a record, or None where there is none that can be read."""
    try:
        value = json.loads(store_of(path.parent).read(path.name) or b"")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and "nanoset" in value else None


def record_of(
    command: str, output: Location, sources: Iterable[Location], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a call makes its output from: settings, and the place, size and time of change of
    each input.

    Places are relative to the output's folder, so that both may be moved together; from or to a
    bucket they are not. Objects are known by their ETags.

    Raises:
        MissingError: a source is not there.
    """
    listed = list(sources)
    rows = in_parallel(
        lambda path: _row(path, output), listed, CONNECTIONS if any_remote(listed) else 1
    )
    plain: dict[str, Any] = json.loads(json.dumps({"options": dict(options), "sources": rows}))
    return {"nanoset": 1, "command": command, **plain}


def _row(path: Location, output: Location) -> dict[str, Any]:
    """Return what the record says of a source."""
    if isinstance(path, RemoteFolder):
        stored = path.store.stat(path.path)
        if stored is None:
            raise MissingError("no such object", where=path, remedy="name an object that is there")
        return {"path": str(path), "bytes": stored.size, "etag": stored.mark}
    try:
        stat, own = path.stat(), path.resolve()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError(
            "no such file", where=path, remedy="name a file that is there"
        ) from error
    place = os.path.relpath(own, output.parent.resolve()) if isinstance(output, Path) else str(own)
    return {"path": place, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def noted_path(source: Mapping[str, Any], output: Location) -> Location:
    """Return where a source lies by the record of an output."""
    path = str(source["path"])
    if is_remote(path):
        return remote_location(path, where=str(output), only_read=True)
    return output.parent / path if isinstance(output, Path) else Path(path)


def check_apart(
    outputs: Iterable[Location], inputs: Iterable[Location], *, remedy: str = "name another output"
) -> None:
    """Raise ConfigError where an output is an input, by whatever path or symbolic link."""
    read = {real_path(path): path for path in inputs}
    for output in outputs:
        if (path := read.get(real_path(output))) is not None:
            raise _overwritten(output, f"the output is the input {path}", remedy)


def check_outside(folder: Location, inputs: Iterable[Location]) -> None:
    """Raise ConfigError where an input lies in a folder that is to be written, by whatever path or
    link.
    """
    for path in inputs:
        if f"{real_path(path)}/".startswith(f"{real_path(folder)}/"):
            raise _overwritten(folder, f"the output holds the input {path}", "name another output")


def _overwritten(output: Location, found: str, remedy: str) -> ConfigError:
    what, expected = "an input would be overwritten", "an output apart from all inputs"
    return ConfigError(what, where=output, found=found, expected=expected, remedy=remedy)


def real_path(path: Location) -> str:
    """Return what identifies a place, by whatever symbolic links it is named."""
    return os.path.realpath(path) if isinstance(path, Path) else str(path)


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
    """Name of a file → makes it in its final place; returns what the record says of it, as
    `OutputPlace.take`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOutput:
    """The files that one call makes in one folder, and their record."""

    record: Location
    """Beside the files."""
    made_from: Mapping[str, Any]
    """All that decides the bytes, as plain values."""
    files: tuple[Location, ...]
    """Always made, and put in place in this order: the output is complete with the last one."""
    others: tuple[Location, ...] = ()
    """Made where needed, such as a list of rejected lines; otherwise there is none afterwards."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Setting → flag of the command, where that is not its name."""
    hashed: bool = False
    """Whether the record holds the files' sha256, and not the times at which they were written."""

    @classmethod
    def single(
        cls, target: Location, made_from: Mapping[str, Any], *others: Location
    ) -> RecordedOutput:
        """Return the output that is one file."""
        return cls(record=record_path(target), made_from=made_from, files=(target,), others=others)

    @property
    def place(self) -> OutputPlace:
        """The folder of them all."""
        return OutputPlace(self.record.parent)

    def find(self, *, overwrite: bool = False) -> dict[str, Any] | None:
        """Return the record, where this very output is there and whole; None where it is to be
        made.

        Raises:
            ConfigError: something else is there, and `overwrite` is not set.
        """
        place, all_files = self.place, (*self.files, *self.others)
        for path in (*all_files, self.record):
            if isinstance(path, Path) and path.is_dir():  # an object may have the name of a folder
                raise ConfigError(
                    "a folder of this name is there", where=path, remedy="name another output"
                )
        there = [path for path in all_files if place.has(path.name)]
        record = read_record(self.record)
        if record is None or any(record.get(key) != value for key, value in self.made_from.items()):
            if there and not overwrite:
                raise self._refusal(there[0], record)
            return None
        if "files" not in record:
            return None  # the call was killed while it put them in place
        noted = record["files"]
        found = {
            path: place.change(path.name, noted[path.name])
            if path.name in noted
            else f"{path.name} was not there when the others were made"
            for path in there
        }
        changes = {path: text for path, text in found.items() if text is not None}
        # Records of older versions may lack a list that lies beside whole files: nothing is written
        # then.
        if there[: len(self.files)] == [*self.files] and not any(
            path.name in noted for path in changes
        ):
            return record
        if changes and not overwrite:
            where, change = next(iter(changes.items()))
            raise ConfigError(
                "the output was changed since it was made",
                where=where,
                found=change,
                remedy=_REMEDY,
            )
        return None

    @contextmanager
    def making(self, *, overwrite: bool = False) -> Iterator[Draft]:
        """Yield a draft to write the files into; they and the record are put in place when the
        block ends well.

        A call that is killed leaves the earlier files or the new ones, never some of each: a single
        file is renamed, and of several the last one is removed before the first is replaced. The
        same call then makes the rest.

        Raises:
            ConfigError: something else is there, or was put there meanwhile, and `overwrite` is not
                set.
            StorageError: the folder cannot be written to, or is full.
        """
        place = self.place
        with place.writing():
            self.find(overwrite=overwrite)
            with place.draft(self.files[-1].name, self.record.name) as scratch:
                draft = Draft(scratch)
                yield draft
                required = {path.name for path in self.files}
                made = required | {
                    path.name for path in self.others if (scratch / path.name).exists()
                }
                sums = {name: sha256_file(scratch / name) if self.hashed else None for name in made}
                # Other processes of this machine wait, where the place has locks.
                with alone_in(place.folder) if isinstance(place.folder, Path) else nullcontext():
                    self.find(overwrite=overwrite)
                    notes = self._put_in_place(draft, sums)
                    facts = {
                        path.name: notes[path.name]
                        for path in (*self.files, *self.others)
                        if path.name in made
                    }
                    self._write(
                        {**self.made_from, "facts": draft.facts, "files": facts, **draft.more}
                    )

    def _put_in_place(
        self, draft: Draft, sums: Mapping[str, str | None]
    ) -> dict[str, Mapping[str, Any]]:
        """Move files to their places; sums: name → sha256 of each; return what the record says of
        them.
        """
        place, notes = self.place, {}
        self._write(self.made_from)
        if len(self.files) > 1:
            place.store.delete(self.files[-1].name)
        for name in (path.name for path in (*self.others, *self.files)):
            if name in draft.elsewhere:
                notes[name] = draft.elsewhere[name]()
            elif name in sums:
                notes[name] = place.take(draft.folder / name, name, sha256=sums[name])
            else:
                place.store.delete(name)
        return notes

    def _write(self, record: Mapping[str, Any]) -> None:
        self.place.store.put(self.record.name, json.dumps(record, indent=1).encode() + b"\n")

    def _refusal(self, path: Location, record: Mapping[str, Any] | None) -> ConfigError:
        what = "something is there already, and nothing says what it was made from"
        found = f"no {self.record.name} beside it"
        if record is not None:
            what = "an output of other input or settings is there already"
            found = "; ".join(_differences(record, self.made_from, self.flags))
        return ConfigError(what, where=path, found=found, expected=_EXPECTED, remedy=_REMEDY)


def make_once(
    command: str,
    target: Location,
    sources: Iterable[Location],
    options: Mapping[str, Any],
    make: Callable[[Path], Mapping[str, Any]],
    *,
    overwrite: bool = False,
) -> tuple[Mapping[str, Any], bool]:
    """Make a file unless this very one is there; return (its facts, whether it was made).

    Args:
        command: the call's name, such as `pack merge`.
        target: the file.
        sources: the files that it is made from, in order.
        options: the settings that reach its bytes.
        make: writes the file at a path that it is given; returns facts, as plain values.
        overwrite: whether something else may be replaced.

    Raises:
        ConfigError: the target is one of the sources, or something else is there and may not be
            replaced.
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


def _differences(
    record: Mapping[str, Any], made_from: Mapping[str, Any], flags: Mapping[str, str]
) -> list[str]:
    if record.get("command") != made_from.get("command"):
        return [f"it was made by `nanoset {record.get('command') or 'tokenize'}`"]
    before, now = _by_path(record.get("sources")), _by_path(made_from["sources"])
    told = {False: "was not among the files", True: "was another file, or written again since"}
    files = [
        f"{path} {told[path in before] if path in now else 'was one of the files'}"
        for path in {**now, **before}
        if before.get(path) != now.get(path)
    ]
    if not files and list(before) != list(now):
        files = ["the files came in another order"]
    if len(files) > _SHOWN:
        files[_SHOWN:] = [f"{len(files) - _SHOWN:,} more files differ"]
    options = record.get("options")
    settings = flag_differences(
        options if isinstance(options, Mapping) else {}, made_from["options"], flags
    )
    return [*files, *settings] or ["another version"]


def flag_differences(
    before: Mapping[str, Any], now: Mapping[str, Any], flags: Mapping[str, str]
) -> list[str]:
    """Return settings that differ, as `--flag: before → now`; flags: setting → flag, where that is
    not its name.
    """
    found = (text.split(": ", 1) for text in setting_differences(before, now, {}))
    return [f"{flags.get(name, '--' + name.replace('_', '-'))}: {rest}" for name, rest in found]


def _by_path(sources: object) -> dict[str, list[Any]]:
    """Return path → all that is noted of the file, in pieces."""
    found: dict[str, list[Any]] = {}
    for source in sources if isinstance(sources, Sequence) else ():
        if isinstance(source, Mapping):
            found.setdefault(str(source.get("path")), []).append(dict(source))
    return found
