"""Outputs of commands that need no project, with a record of what each was made from.

Commands such as `nanoset pack` write one or several files to a folder, which may be in a bucket.
Next to them they write a hidden record, a JSON file with the settings and the inputs of the call,
and the size and checksum of each file that it wrote. The record serves two purposes:

- A call that is repeated finds its output complete, and does nothing.
- No call replaces files that another call, or another program, has made, unless
  `--overwrite` is set.
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

RECORD_VERSION = 1
"""Version of the format of records, which each record has under the key "nanoset"."""
_MAX_NAMED_FILES = 5
"""An error names at most this many input files that differ; it counts the others."""
_REMEDY = "name another output, or replace this one with --overwrite"
_EXPECTED = "no such file, or one that the same call made"


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """A folder, on this machine or in a bucket, to which a command moves files once complete."""

    folder: Location

    @property
    def store(self) -> Store:
        """The folder as a store, in which files are addressed by their names."""
        return store_of(self.folder)

    def has(self, name: str, size: int | None = None) -> bool:
        """Return whether a file exists, and has the size that is passed, if one is."""
        stored = self.store.stat(name)
        if stored is None:
            return False
        return size is None or stored.size == size

    def take(self, path: Path, name: str, *, sha256: str | None) -> Mapping[str, Any]:
        """Move a finished file into this folder, and return its entry of the record.

        Args:
            path: The file in a draft.
            name: Its name in this folder.
            sha256: Of its bytes, as hex digits, or None if they were not hashed.

        Returns:
            `bytes`, and some of `sha256`, `etag` and `mtime_ns`. `change` compares them later.

        Raises:
            StorageError: Another call has replaced the file in the meantime.
        """
        size = path.stat().st_size
        if isinstance(self.folder, Path):
            os.replace(path, self.folder / name)
            fsync_folder(self.folder)
        else:
            self.store.put_file(name, path, sha256=sha256)
            path.unlink()

        stored = self.store.stat(name)
        if stored is None or stored.size != size:
            raise StorageError(
                "another call wrote this output meanwhile",
                where=self.folder / name,
                remedy="run again once the other has ended",
            )

        entry: dict[str, Any] = {"bytes": size}
        if sha256 is not None:
            entry["sha256"] = sha256
        if isinstance(self.folder, RemoteFolder):
            entry["etag"] = stored.mark
        elif sha256 is None:
            # Without a checksum, the time of change is the only sign of other bytes of this size.
            entry["mtime_ns"] = stored.written_ns
        return entry

    def change(self, name: str, noted: Mapping[str, Any]) -> str | None:
        """Return how a file differs from its entry of the record, or None if it does not.

        Args:
            name: The file's name.
            noted: What `take` returned for it.
        """
        stored = self.store.stat(name)
        if stored is None:
            return f"{name} is missing"
        if stored.size != noted["bytes"]:
            return f"{name} has {stored.size:,} bytes, and had {noted['bytes']:,}"

        if "sha256" in noted:
            # A copy of an object may have another ETag: it depends on the parts of the upload. So
            # the bytes are hashed if the ETag differs.
            if stored.mark == noted.get("etag") or self.store.sha256(name) == noted["sha256"]:
                return None
            return f"{name} has other bytes than those that were written"

        has_same_mark = noted.get("etag", stored.mark) == stored.mark
        has_same_time = noted.get("mtime_ns", stored.written_ns) == stored.written_ns
        if has_same_mark and has_same_time:
            return None
        return f"{name} was written again"

    @contextmanager
    def writing(self, *, expected: str | None = None) -> Iterator[None]:
        """Check that the folder can be written to, and explain errors of the system in the block.

        Args:
            expected: What the errors say was expected.

        Raises:
            StorageError: It cannot be written to, or is full.
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
        """Yield a local folder for unfinished files, which is removed when the block ends.

        Args:
            names: Names of the files. What killed processes left of them is removed first.
        """
        if isinstance(self.folder, Path):
            for name in names:
                sweep_abandoned(self.folder, name)
            # On the same file system as the output, so that finished files can be renamed.
            context = claim_scratch(self.folder / names[0])
        else:
            context = temporary_folder(names[0])
        with context as scratch:
            yield scratch


def record_path(output: Location) -> Location:
    """Return the path of the record of a file, or of a .bin/.idx pair by its prefix.

    The record of `web.pbin` is `.web.pbin.made.json`, which is hidden because it is not data.
    """
    return output.with_name(f".{output.name}.made.json")


def read_record(path: Location) -> dict[str, Any] | None:
    """Return the content of a record, or None if it does not exist or cannot be parsed."""
    try:
        value = json.loads(store_of(path.parent).read(path.name) or b"")
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict) and "nanoset" in value:
        return value
    return None


def record_of(
    command: str, output: Location, sources: Iterable[Location], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the part of a record that says what a call makes its output from.

    Local sources are known by their size and time of change, objects of a bucket by their ETag.
    If output and source are both local, the path of the source is relative to the folder of the
    output, so that both can be moved together.

    Args:
        command: The call's name, such as `pack merge`.
        output: The file, or the folder or prefix of the files, that the call makes.
        sources: The files that it reads, in order.
        options: The settings that decide the bytes.

    Raises:
        MissingError: A source does not exist.
    """
    source_paths = list(sources)
    max_parallel = CONNECTIONS if any_remote(source_paths) else 1
    rows = in_parallel(lambda path: _source_row(path, output), source_paths, max_parallel)

    # As plain JSON values, so that it compares equal to a record that was read from a file.
    content: dict[str, Any] = json.loads(json.dumps({"options": dict(options), "sources": rows}))
    return {"nanoset": RECORD_VERSION, "command": command, **content}


def _source_row(path: Location, output: Location) -> dict[str, Any]:
    """Return a source's path, size, and ETag or time of change, for the record of an output."""
    if isinstance(path, RemoteFolder):
        stored = path.store.stat(path.path)
        if stored is None:
            raise MissingError("no such object", where=path, remedy="name an object that exists")
        return {"path": str(path), "bytes": stored.size, "etag": stored.mark}

    try:
        stat = path.stat()
        resolved = path.resolve()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError("no such file", where=path, remedy="name a file that exists") from error
    noted = str(resolved)
    if isinstance(output, Path):
        noted = os.path.relpath(resolved, output.parent.resolve())
    return {"path": noted, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def noted_path(source: Mapping[str, Any], output: Location) -> Location:
    """Return the location of a source that the record of an output lists.

    Args:
        source: One of the record's `sources`.
        output: The output whose record it is.
    """
    path = str(source["path"])
    if is_remote(path):
        return remote_location(path, where=str(output), only_read=True)
    if isinstance(output, Path):
        return output.parent / path
    return Path(path)


def check_apart(
    outputs: Iterable[Location], inputs: Iterable[Location], *, remedy: str = "name another output"
) -> None:
    """Check that no output would overwrite an input, also not through a symbolic link.

    Args:
        outputs: Files that will be written.
        inputs: Files that are read.
        remedy: What the error says to do.

    Raises:
        ConfigError: An output is an input.
    """
    input_by_real_path = {real_path(path): path for path in inputs}
    for output in outputs:
        path = input_by_real_path.get(real_path(output))
        if path is not None:
            raise _overwritten(output, f"the output is the input {path}", remedy)


def check_outside(folder: Location, inputs: Iterable[Location]) -> None:
    """Check that no input is in a folder that will be written, also not through a symbolic link.

    Raises:
        ConfigError: The folder contains an input.
    """
    folder_prefix = f"{real_path(folder)}/"
    for path in inputs:
        if f"{real_path(path)}/".startswith(folder_prefix):
            found = f"the output contains the input {path}"
            raise _overwritten(folder, found, "name another output")


def _overwritten(output: Location, found: str, remedy: str) -> ConfigError:
    """Return the error for an output that would overwrite an input."""
    return ConfigError(
        "an input would be overwritten",
        where=output,
        found=found,
        expected="an output separate from all inputs",
        remedy=remedy,
    )


def real_path(path: Location) -> str:
    """Return a location as text with symbolic links resolved, so that it can be compared."""
    return os.path.realpath(path) if isinstance(path, Path) else str(path)


@dataclass(slots=True)
class Draft:
    """The unfinished files of an output, and entries for its record."""

    folder: Path
    """Where the files are written, under their final names."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Counts for the record."""
    more: dict[str, Any] = field(default_factory=dict)
    """Further entries of the record."""
    elsewhere: dict[str, Callable[[], Mapping[str, Any]]] = field(default_factory=dict)
    """Functions that write a file directly to its final place, by the file's name.

    A large object is joined within its bucket, for example, rather than written here first. Each
    function returns the file's entry of the record, as `OutputPlace.take` does.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOutput:
    """The files that one call makes in one folder, and their record."""

    record: Location
    """Path of the record, in the folder of the files."""
    made_from: Mapping[str, Any]
    """Everything that decides the bytes, as plain values; see `record_of`."""
    files: tuple[Location, ...]
    """Files that are always made, in the order in which they are put in place.

    The output is complete once the last one exists.
    """
    others: tuple[Location, ...] = ()
    """Files that are made only if needed, such as a list of rejected lines.

    If a call does not make one, it removes the one of an earlier call.
    """
    flags: Mapping[str, str] = field(default_factory=dict)
    """Flags of the command by setting, for settings whose flag has another name."""
    hashed: bool = False
    """Whether the record stores the sha256 of the files instead of their times of change."""

    @classmethod
    def single(
        cls, target: Location, made_from: Mapping[str, Any], *others: Location
    ) -> RecordedOutput:
        """Return an output that consists of one file.

        Args:
            target: The file.
            made_from: Everything that decides its bytes.
            others: Files that may be made in addition.
        """
        return cls(record=record_path(target), made_from=made_from, files=(target,), others=others)

    @property
    def place(self) -> OutputPlace:
        """The folder of all files."""
        return OutputPlace(self.record.parent)

    def find(self, *, overwrite: bool = False) -> dict[str, Any] | None:
        """Return the record if the output is complete, or None if it has to be made.

        Args:
            overwrite: Whether other files in its place may be replaced.

        Raises:
            ConfigError: There are other files, and `overwrite` is not set.
        """
        self._check_no_folders()
        existing = [path for path in self._all_files() if self.place.has(path.name)]
        record = read_record(self.record)
        if record is None or not self._is_made_from(record):
            if existing and not overwrite:
                raise self._occupied(existing[0], record)
            return None
        if "files" not in record:
            return None  # The call was killed while it moved the files.

        changes = self._changes(existing, record["files"])
        has_all_files = existing[: len(self.files)] == list(self.files)
        has_changed_noted_file = any(path.name in record["files"] for path in changes)
        # A file that the record does not list is no reason to write anything: records of older
        # versions do not list the rejected lines.
        if has_all_files and not has_changed_noted_file:
            return record
        if changes and not overwrite:
            changed_file, change = next(iter(changes.items()))
            raise ConfigError(
                "the output was changed since it was made",
                where=changed_file,
                found=change,
                remedy=_REMEDY,
            )
        return None

    def _all_files(self) -> tuple[Location, ...]:
        return (*self.files, *self.others)

    def _check_no_folders(self) -> None:
        """Raise ConfigError if a local folder has the name of one of the files."""
        for path in (*self._all_files(), self.record):
            # In a bucket, an object may have the name of a folder.
            if isinstance(path, Path) and path.is_dir():
                raise ConfigError(
                    "a folder of this name already exists",
                    where=path,
                    remedy="name another output",
                )

    def _is_made_from(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record names the same command, sources and settings as this output."""
        return all(record.get(key) == value for key, value in self.made_from.items())

    def _changes(
        self, existing: Iterable[Location], noted: Mapping[str, Mapping[str, Any]]
    ) -> dict[Location, str]:
        """Return the existing files that differ from the record, each with what has changed.

        Args:
            existing: Files of this output that exist.
            noted: The record's entry of each file, by name.
        """
        changes = {}
        for path in existing:
            change: str | None = f"{path.name} was not there when the others were made"
            if path.name in noted:
                change = self.place.change(path.name, noted[path.name])
            if change is not None:
                changes[path] = change
        return changes

    @contextmanager
    def making(self, *, overwrite: bool = False) -> Iterator[Draft]:
        """Yield a draft to write the files into, and move them in place if the block succeeds.

        A call that is killed leaves the earlier files or the new ones, never a mixture. A single
        file is renamed. Of several files, the last one, without which the output is incomplete, is
        removed before the first one is replaced; the same call, when repeated, then completes them.

        Args:
            overwrite: Whether other files in their place may be replaced.

        Raises:
            ConfigError: There are other files, or another call made some in the meantime, and
                `overwrite` is not set.
            StorageError: The folder cannot be written to, or is full.
        """
        with self.place.writing():
            self.find(overwrite=overwrite)
            with self.place.draft(self.files[-1].name, self.record.name) as scratch:
                draft = Draft(scratch)
                yield draft
                self._publish(draft, overwrite=overwrite)

    def _publish(self, draft: Draft, *, overwrite: bool) -> None:
        """Move the files of a draft to their places, and write the record."""
        names = [path.name for path in self.files]
        names += [path.name for path in self.others if (draft.folder / path.name).exists()]
        sums: dict[str, str | None] = dict.fromkeys(names)
        if self.hashed:
            # Before the folder is locked, since it takes long.
            sums = {name: sha256_file(draft.folder / name) for name in names}

        # A local folder is locked against other processes of this machine; a bucket has no locks.
        folder = self.place.folder
        lock = alone_in(folder) if isinstance(folder, Path) else nullcontext()
        with lock:
            self.find(overwrite=overwrite)
            entries = self._put_in_place(draft, sums)
            files = {name: entries[name] for name in names}
            self._write({**self.made_from, "facts": draft.facts, "files": files, **draft.more})

    def _put_in_place(
        self, draft: Draft, sums: Mapping[str, str | None]
    ) -> dict[str, Mapping[str, Any]]:
        """Move the files of a draft to their places, and remove those that were not made.

        Args:
            draft: The files.
            sums: Name of each file that was made → its sha256, or None if it was not hashed.

        Returns:
            Name of each file → its entry of the record.
        """
        # A record without files says that this call was here, if it is killed from now on.
        self._write(self.made_from)
        if len(self.files) > 1:
            self.place.store.delete(self.files[-1].name)

        entries = {}
        for path in (*self.others, *self.files):
            name = path.name
            if name in draft.elsewhere:
                entries[name] = draft.elsewhere[name]()
            elif name in sums:
                entries[name] = self.place.take(draft.folder / name, name, sha256=sums[name])
            else:
                self.place.store.delete(name)
        return entries

    def _write(self, record: Mapping[str, Any]) -> None:
        """Write the record."""
        self.place.store.put(self.record.name, json.dumps(record, indent=1).encode() + b"\n")

    def _occupied(self, path: Location, record: Mapping[str, Any] | None) -> ConfigError:
        """Return the error for a file that this call did not make, and must not replace.

        Args:
            path: The file.
            record: Its record; None if it has none.
        """
        if record is None:
            what = "a file exists already, and nothing says what it was made from"
            found = f"no {self.record.name} next to it"
        else:
            what = "an output of other input or settings exists already"
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
    """Make a file, unless the same call has made it already.

    Args:
        command: The call's name, such as `pack merge`.
        target: The file.
        sources: The files that it is made from, in order.
        options: The settings that decide its bytes.
        make: Writes the file to the path that it is passed; returns facts, as plain values.
        overwrite: Whether another file in its place may be replaced.

    Returns:
        The facts that `make` returned, now or earlier, and whether the file was made now.

    Raises:
        ConfigError: The target is one of the sources, or another file is in its place and may not
            be replaced.
        StorageError: The target cannot be written.
    """
    source_paths = list(sources)
    check_apart([target], source_paths)
    made_from = record_of(command, target, source_paths, options)
    output = RecordedOutput.single(target, made_from)

    record = output.find(overwrite=overwrite)
    if record is not None:
        return record["facts"], False
    with output.making(overwrite=overwrite) as draft:
        draft.facts = make(draft.folder / target.name)
    return draft.facts, True


def _differences(
    record: Mapping[str, Any], made_from: Mapping[str, Any], flags: Mapping[str, str]
) -> list[str]:
    """Return how the call of a record differs from another call, for a message.

    Args:
        record: The record of an existing output, which may have been edited.
        made_from: What the other call makes its output from.
        flags: Flags of the command by setting, for settings whose flag has another name.
    """
    if record.get("command") != made_from.get("command"):
        # Records of `nanoset tokenize` once did not name their command.
        return [f"it was made by `nanoset {record.get('command') or 'tokenize'}`"]

    file_differences = _source_differences(record.get("sources"), made_from["sources"])
    options = record.get("options")
    if not isinstance(options, Mapping):
        options = {}
    option_differences = flag_differences(options, made_from["options"], flags)
    return [*file_differences, *option_differences] or ["another version"]


def _source_differences(sources_before: object, sources_now: object) -> list[str]:
    """Return how the input files of two calls differ; `_MAX_NAMED_FILES` are named at most."""
    before = _sources_by_path(sources_before)
    now = _sources_by_path(sources_now)
    differences = []
    for path in {**now, **before}:
        if before.get(path) == now.get(path):
            continue
        if path not in now:
            differences.append(f"{path} was one of the files")
        elif path not in before:
            differences.append(f"{path} was not among the files")
        else:
            differences.append(f"{path} was another file, or written again since")

    if not differences and list(before) != list(now):
        return ["the files came in another order"]
    n_unnamed = len(differences) - _MAX_NAMED_FILES
    if n_unnamed > 0:
        differences[_MAX_NAMED_FILES:] = [f"{n_unnamed:,} more files differ"]
    return differences


def flag_differences(
    before: Mapping[str, Any], now: Mapping[str, Any], flags: Mapping[str, str]
) -> list[str]:
    """Return the settings that differ, each as `--flag: before → now`.

    Args:
        before: Settings of the earlier call.
        now: Settings of this call.
        flags: Flags of the command by setting, for settings whose flag has another name.
    """
    lines = []
    for difference in setting_differences(before, now, {}):
        name, values = difference.split(": ", 1)
        flag = flags.get(name, "--" + name.replace("_", "-"))
        lines.append(f"{flag}: {values}")
    return lines


def _sources_by_path(sources: object) -> dict[str, list[Any]]:
    """Return path → entries of a record's sources; a file that is read twice has two entries.

    Args:
        sources: The list in a record; if a record was edited, it may be anything.
    """
    entries_by_path: dict[str, list[Any]] = {}
    if not isinstance(sources, Sequence):
        return entries_by_path
    for source in sources:
        if isinstance(source, Mapping):
            entries = entries_by_path.setdefault(str(source.get("path")), [])
            entries.append(dict(source))
    return entries_by_path
