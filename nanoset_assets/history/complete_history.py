"""Remember that Dagster's history has all outputs of a project, so that a build need not open it.

If everything is up to date, a build needs Dagster only to find out whether its history lacks an
output, for example because another machine made it, and whether a check of an output has failed.
Importing Dagster and reading its history takes more than a second. So a build that has found
nothing of this kind writes `.complete.json` to the folder of the history: the digest of the outputs
that it looked at, and size and times of the file of the history. As long as the file has not
changed, and the outputs have the same digest, the next build does not need Dagster.

A history that is not in an SQLite file, but for example in Postgres, is read by every build.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nanoset_core.errors import FormatError
from nanoset_core.project.graph.step import Step
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.json_records import JsonForm, Record, canonical_json, dump, load
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.file_stats import FileStat, file_stat
from nanoset_core.tokenizers.cache import installed_version

FILE = ".complete.json"
"""The file in the folder of the history."""
_SETTINGS = "dagster.yaml"
"""File in the folder of the history that says how the history is stored."""
_ENVIRONMENT = re.compile(r"\benv\b")
"""Key of a setting that has its value from an environment variable, as in `{env: NAME}`."""
_PACKAGE = "nanoset-platform"
_RACY_NS = 2_000_000_000
"""A file that was written this recently could change again without another modification time, since
clocks of file systems are coarse.
"""


@dataclass(frozen=True, slots=True)
class CompleteHistory(Record):
    """The content of the file: which outputs a history has, in the state that it is in."""

    json_form: ClassVar[JsonForm] = JsonForm("this is not the state of a history", indent=1)

    database: str
    """Path of Dagster's SQLite file with the events of all assets, partitions, checks and runs."""
    files: tuple[FileStat, ...]
    """The settings of Dagster, and the files of the database, when it was read."""
    outputs: tuple[str, ...]
    """Digests of the outputs of projects, of which the history lacks none."""


def digest_of_outputs(config: ProjectConfig, steps: Iterable[Step]) -> str:
    """Return a hash of all outputs of a project and their names in Dagster's history.

    If a later build computes the same hash, the history has all of its outputs.

    Args:
        config: The settings of nanoset.yaml.
        steps: The work of making each output, with the digest of its current version.
    """
    # Such as ["datasets", "web", "81c2…"]. Text or settings may change the digest.
    outputs = [[step.node.stage.layout.folder, step.node.name, step.digest] for step in steps]
    state = {
        "outputs": outputs,
        "key_prefix": config.dagster.key_prefix,  # of the names in Dagster, such as "llm"
        "version": installed_version(_PACKAGE),  # another one may give assets other names
    }
    return hashlib.sha256(canonical_json(state)).hexdigest()


def known_outputs(home: Path) -> tuple[str, ...]:
    """Return digests of projects whose outputs are all in Dagster's history, by an earlier note.

    Reading the history takes more than a second. So a build that has found all outputs of its
    project in it writes a note, `.complete.json`, for example:

        database    "/runs/history/index.db"    (the SQLite file of the history)
        files       sizes and times of this file and of dagster.yaml
        outputs     ["3f9c…"]                   (a hash of all outputs of the project)

    The note is valid as long as these files have not changed. A build that computes the same hash
    then knows that the history has all of its outputs, and need not read it.

    Args:
        home: The folder of the history.

    Returns:
        One digest for each project that shares the history; none without a valid note.
    """
    path = home / FILE
    try:
        note = load(CompleteHistory, path.read_bytes(), path)
        files_now = _stats(home, Path(note.database))
    except (OSError, FormatError):
        return ()  # there is no note, or it is damaged
    if not _are_unchanged(note.files, files_now):
        return ()
    return note.outputs


def remember_outputs(home: Path, database: Path, digest: str, read_at_ns: int) -> None:
    """Write a note that Dagster's history has all outputs of a project, next to the history.

    The next build reads the note instead of the history, which saves more than a second. The note
    is valid as long as the files of the history keep their sizes and times.

    Args:
        home: The folder of the history.
        database: Dagster's SQLite file with the events of all assets.
        digest: A hash of all outputs of the project, from `digest_of_outputs`.
        read_at_ns: When the first query of the history began, in nanoseconds since 1970.
    """
    with suppress(OSError):  # without the note, the next build only takes longer
        if _depends_on_environment(home / _SETTINGS):
            return  # the next build may have another environment, and so read another history
        files = _stats(home, database)
        if _may_have_changed_since(files, read_at_ns):
            return

        # Several projects may share the history. Keep the digests of the others in the note.
        digests = {*known_outputs(home), digest}
        note = CompleteHistory(str(database), files, tuple(sorted(digests)))
        write_atomic(home / FILE, dump(note))


def _depends_on_environment(settings_file: Path) -> bool:
    """Return whether a dagster.yaml takes a setting from an environment variable.

    For example, the folder of the history may be written as `{env: FOLDER}`.

    Args:
        settings_file: The dagster.yaml.

    Raises:
        OSError: It cannot be read.
    """
    settings = settings_file.read_text(encoding="utf-8", errors="replace")
    return _ENVIRONMENT.search(settings) is not None


def _may_have_changed_since(files: Iterable[FileStat], time_ns: int) -> bool:
    """Return whether a file may have been written after a point in time.

    The clocks of file systems are coarse: if a file is written twice in quick succession, both may
    give it the same modification time. So a file also counts as changed if it was written up to two
    seconds before. For the time 12:00:10:

        file was modified at     result
        12:00:05                 False
        12:00:09                 True: perhaps it was written again at 12:00:10
        12:00:15                 True

    Args:
        files: The files, with their modification times.
        time_ns: The point in time, in nanoseconds since 1970.
    """
    return any(file.mtime_ns > time_ns - _RACY_NS for file in files)


def _stats(home: Path, database: Path) -> tuple[FileStat, ...]:
    """Return size and times of the files that change whenever Dagster's history changes.

    These are its settings, dagster.yaml, the SQLite file, and the file to which SQLite writes new
    events first (the write-ahead log, if there are any events in it).

    Args:
        home: The folder of the history.
        database: Its SQLite file.

    Raises:
        FileNotFoundError: A file is missing.
    """
    stats = []
    for path in (home / _SETTINGS, database):
        stats.append(file_stat(str(path), path.stat()))

    # SQLite also creates an empty log when it only reads: that is no change.
    log = database.with_name(f"{database.name}-wal")
    with suppress(FileNotFoundError):
        stat = file_stat(str(log), log.stat())
        if stat.size:
            stats.append(stat)
    return tuple(stats)


def _are_unchanged(files: tuple[FileStat, ...], files_now: tuple[FileStat, ...]) -> bool:
    """Return whether files are the same as before: same paths, sizes and times.

    Args:
        files: Size and times of each file as they were noted.
        files_now: The same as they are now.
    """
    if [file.path for file in files] != [file.path for file in files_now]:
        return False
    return all(file.is_same_version(now) for file, now in zip(files, files_now, strict=True))
