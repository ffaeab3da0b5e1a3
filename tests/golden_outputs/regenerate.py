"""Write the files with which tests compare: `PYTHONPATH=.:tests python -m golden_outputs.regenerate`.

The code that PYTHONPATH names makes the outputs. An argument says which file is written:

    regenerate                      the golden outputs
    regenerate interface            what users type and call in scripts
    regenerate requests             how many requests commands send
    regenerate COMMIT               what commands and Dagster make of the project that a commit built
    regenerate pack FOLDER FILE     such a project, after `nanoset build`, with its history, as a .tar.xz

Commit 2f92378 wrote the golden outputs. They show what a later commit must not change by accident.
Write them again only if a change of bytes or digests is intended, which makes outputs of users
stale. In this case, increase the stage's version, describe the change in the change log, and look at
each line of the difference.

The raw text remains as it is committed, because versions of compressors and of pyarrow write
different bytes for the same text.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from golden_outputs import interface, old_project, requests
from golden_outputs.command import run
from golden_outputs.commands import run_commands
from golden_outputs.projects import PROJECTS, make_project
from golden_outputs.record import FILE, record, writers

from helpers.s3_server import CREDENTIALS


def main(what: str = "outputs", *arguments: str) -> None:
    """Write the file that the arguments on the command line name."""
    if what == "pack":
        folder, file = arguments
        pack_project(Path(folder), Path(file))
        return

    with scratch_folder() as folder:
        if what == "outputs":
            outputs = record_outputs(folder)
            FILE.write_text(golden_text({"writers": {"writers": writers()}} | outputs))
        elif what == "interface":
            write_json(interface.FILE, interface.describe_interface(folder))
        elif what == "requests":
            write_json(requests.FILE, requests.requests_sent(folder))
        else:
            write_json(old_project.golden(what), record_old_project(what, folder))


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make an empty folder the current one, with a cache of its own and credentials of a bucket."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.update(CREDENTIALS, XDG_CACHE_HOME=scratch)
        folder = Path(scratch).resolve() / "made"
        folder.mkdir()
        os.chdir(folder)
        yield folder
        # The folder is going to be removed.
        os.chdir("/")


def record_outputs(folder: Path) -> dict[str, Any]:
    """Build all projects and run all commands below an empty folder; return the record of each."""
    records = {name: record(make_project(name, folder) / "data") for name in PROJECTS}

    command_folder = folder / "commands"
    command_folder.mkdir()
    os.chdir(command_folder)
    run_commands(command_folder)
    records["commands"] = record(command_folder)
    return records


def record_old_project(commit: str, folder: Path) -> dict[str, Any]:
    """Build the project of a commit again, and return what commands, Dagster and readers return."""
    old_project.unpack(commit, folder)
    os.environ["DAGSTER_HOME"] = str(folder / ".dagster")
    os.environ["NANOSET_CONFIG"] = str(folder / "nanoset.yaml")
    run(["build"])
    with dg.DagsterInstance.get() as instance:
        printed = old_project.printed(commit, folder)
        defined = old_project.defined(instance)
    return {"printed": printed, "defined": defined, "read": old_project.read(folder)}


def pack_project(project: Path, file: Path) -> None:
    """Pack a project with its history.

    Times are packed too, because a build recognizes its files by them. Owners of files are not, nor
    the captured output of Dagster's runs.
    """
    home = project / ".dagster"
    shutil.rmtree(home / "storage", ignore_errors=True)
    for path in sorted(home.rglob("*.db")):
        compact_database(path)

    with tarfile.open(file, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as archive:
        for path in sorted(project.rglob("*")):
            name = path.relative_to(project).as_posix()
            archive.add(path, name, recursive=False, filter=without_owner)


def compact_database(path: Path) -> None:
    """Make a database one file, without the space of deleted rows."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=DELETE")
        database.execute("VACUUM")


def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member of a tar without the user and group that own the file."""
    return member.replace(uid=0, gid=0, uname="", gname="", deep=False)


def write_json(file: Path, value: Any) -> None:
    """Write a value as JSON, with sorted keys."""
    file.write_text(json.dumps(value, indent=1, sort_keys=True, default=str) + "\n")


def golden_text(records: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return records as JSON with a line for each entry, so that a difference is read by lines."""
    texts = []
    for name, parts in sorted(records.items()):
        part_texts = []
        for part, entries in sorted(parts.items()):
            lines = [
                f"  {json.dumps(key)}: {json.dumps(entry)}"
                for key, entry in sorted(entries.items())
            ]
            part_texts.append(f" {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n }")
        texts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(part_texts) + "\n}")
    return "{\n" + ",\n".join(texts) + "\n}\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
