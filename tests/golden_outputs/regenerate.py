"""Writes what the tests compare with: `PYTHONPATH=.:tests python -m golden_outputs.regenerate`, by
what is imported.

    regenerate                      the golden outputs
    regenerate interface            what people type and script against
    regenerate requests             how many requests commands send
    regenerate COMMIT               what is made of the project that a commit built
    regenerate pack FOLDER FILE     such a project, which `nanoset build` has built with its history, as a .tar.xz

The outputs were written by commit 2f92378 and hold what no later commit may change unawares. Write
them again only where a change of bytes or digests is meant, which makes users' outputs stale: raise
the stage's version, say so in the change log, and look at each line of the difference. The raw text
stays as it is committed: what a compressor or pyarrow makes of a text differs between their
versions.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
from golden_outputs import interface, old_project, requests
from golden_outputs.command import run
from golden_outputs.commands import run_commands
from golden_outputs.projects import PROJECTS, make_project
from golden_outputs.record import FILE, record, writers

from helpers.s3_server import CREDENTIALS


def main(what: str = "outputs", *words: str) -> None:
    """Write a file."""
    if what == "pack":
        return pack(*map(Path, words))
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.update(CREDENTIALS, XDG_CACHE_HOME=scratch)
        folder = Path(scratch).resolve() / "made"
        folder.mkdir()
        os.chdir(folder)
        made = {
            "outputs": _outputs,
            "interface": interface.interface,
            "requests": requests.requests_sent,
        }.get(what)
        found = made(folder) if made else _old(what, folder)
        os.chdir("/")
    if what == "outputs":
        FILE.write_text(_text({"writers": {"writers": writers()}} | found))
        return
    file = {"interface": interface.FILE, "requests": requests.FILE}.get(what) or old_project.golden(
        what
    )
    file.write_text(json.dumps(found, indent=1, sort_keys=True, default=str) + "\n")


def _outputs(folder: Path) -> dict[str, Any]:
    """Everything, made below an empty folder, as it is held."""
    found = {name: record(make_project(name, folder) / "data") for name in PROJECTS}
    (folder / "commands").mkdir()
    os.chdir(folder / "commands")
    run_commands(Path.cwd())
    return found | {"commands": record(Path.cwd())}


def _old(commit: str, folder: Path) -> dict[str, Any]:
    """What is made of the project of a commit."""
    old_project.unpack(commit, folder)
    os.environ.update(
        DAGSTER_HOME=str(folder / ".dagster"), NANOSET_CONFIG=str(folder / "nanoset.yaml")
    )
    run(["build"])
    with dg.DagsterInstance.get() as instance:
        parts = {
            "printed": old_project.printed(commit, folder),
            "defined": old_project.defined(instance),
        }
    return parts | {"read": old_project.read(folder)}


def pack(project: Path, file: Path) -> None:
    """Write all of a project with times, by which the build knows its files; without owners and
    captured output.
    """
    home = project / ".dagster"
    shutil.rmtree(home / "storage", ignore_errors=True)
    for path in sorted(home.rglob("*.db")):
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode=DELETE")
            database.execute("VACUUM")

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(file, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as archive:
        for path in sorted(project.rglob("*")):
            archive.add(
                path, path.relative_to(project).as_posix(), recursive=False, filter=anonymous
            )


def _text(value: dict[str, dict[str, dict[str, Any]]]) -> str:
    """JSON with a line for each output and each file, so that a difference is read line by line."""
    rooms = []
    for name, parts in sorted(value.items()):
        inner = (
            f" {json.dumps(part)}: {{\n{_lines(entries)}\n }}"
            for part, entries in sorted(parts.items())
        )
        rooms.append(f"{json.dumps(name)}: {{\n" + ",\n".join(inner) + "\n}")
    return "{\n" + ",\n".join(rooms) + "\n}\n"


def _lines(entries: dict[str, Any]) -> str:
    return ",\n".join(
        f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in sorted(entries.items())
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
