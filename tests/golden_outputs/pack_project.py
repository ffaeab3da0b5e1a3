"""Packs a project that `nanoset build` has built, with its history, for `test_old_project.py`.

`python -m golden_outputs.pack_project FOLDER FILE.tar.xz`, in the folder `tests`.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tarfile
from contextlib import closing
from pathlib import Path


def trim(project: Path) -> None:
    """Leave the captured output of runs out, and give the databases of the history no more than they hold."""
    home = project / ".dagster"
    shutil.rmtree(home / "storage", ignore_errors=True)
    for path in sorted(home.rglob("*.db")):
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode=DELETE")
            database.execute("VACUUM")


def pack(project: Path, file: Path) -> None:
    """Write all of it, with times, which tell the build that a file is the one it knows; owners are left out."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(file, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as archive:
        for path in sorted(project.rglob("*")):
            archive.add(path, path.relative_to(project).as_posix(), recursive=False, filter=anonymous)


if __name__ == "__main__":
    folder, target = map(Path, sys.argv[1:])
    trim(folder)
    pack(folder, target)
    print(f"{target}: {target.stat().st_size:,} bytes")
