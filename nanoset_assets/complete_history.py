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
from nanoset_core.project.graph import Step
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.json_records import JsonForm, Record, canonical_json, dump, load
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.text.listing import FileStat, file_stat
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
    """Return a digest of the outputs of a project, and of how Dagster's history names them.

    Args:
        config: The settings of nanoset.yaml.
        steps: The work of making each output, with the digest of its current version.
    """
    outputs = [[step.node.stage.layout.folder, step.node.name, step.digest] for step in steps]
    state = {
        "outputs": outputs,
        "key_prefix": config.dagster.key_prefix,
        "version": installed_version(_PACKAGE),  # another one may give assets other names
    }
    return hashlib.sha256(canonical_json(state)).hexdigest()


def known_outputs(home: Path) -> tuple[str, ...]:
    """Return the digests of outputs that a history is known to have; none if it has changed.

    Args:
        home: The folder of the history.
    """
    path = home / FILE
    try:
        known = load(CompleteHistory, path.read_bytes(), path)
        files = _stats(home, Path(known.database))
    except (OSError, FormatError):
        return ()  # there is no such file, or it is damaged
    return known.outputs if _are_unchanged(known.files, files) else ()


def remember_outputs(home: Path, database: Path, digest: str, read_at_ns: int) -> None:
    """Remember that a history has all outputs of a project, as long as it does not change.

    Args:
        home: The folder of the history.
        database: Dagster's SQLite file with the events of all assets.
        digest: What `digest_of_outputs` returns for the outputs.
        read_at_ns: When the first query of the history began, in nanoseconds since 1970.
    """
    # The file is only an optimisation: if it cannot be written, the next build reads the history.
    with suppress(OSError):
        settings = (home / _SETTINGS).read_text(encoding="utf-8", errors="replace")
        if _ENVIRONMENT.search(settings):
            return  # environment variables may lead the next build to another history
        files = _stats(home, database)
        # Another process may have changed the history since it was read, or may do so unnoticed.
        if any(file.mtime_ns > read_at_ns - _RACY_NS for file in files):
            return
        digests = {*known_outputs(home), digest}  # several projects may share the history
        known = CompleteHistory(str(database), files, tuple(sorted(digests)))
        write_atomic(home / FILE, dump(known))


def _stats(home: Path, database: Path) -> tuple[FileStat, ...]:
    """Return size and times of the files that change with a history.

    Args:
        home: The folder of the history.
        database: Its SQLite file.

    Raises:
        FileNotFoundError: A file is missing.
    """
    stats = []
    for path in (home / _SETTINGS, database):
        stats.append(file_stat(str(path), path.stat()))

    # SQLite appends new events to the write-ahead log first. It creates an empty one to read.
    log = database.with_name(f"{database.name}-wal")
    with suppress(FileNotFoundError):
        stat = file_stat(str(log), log.stat())
        if stat.size:
            stats.append(stat)
    return tuple(stats)


def _are_unchanged(files: tuple[FileStat, ...], files_now: tuple[FileStat, ...]) -> bool:
    """Return whether files are the same as before, with the same content."""
    if [file.path for file in files] != [file.path for file in files_now]:
        return False
    return all(file.is_same_version(now) for file, now in zip(files, files_now, strict=True))
