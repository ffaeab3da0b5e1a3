"""Writes the golden outputs, with the code that is imported: `PYTHONPATH=.:tests python -m golden_outputs.regenerate`.

They were written by commit 2f92378 and hold what no later commit may change unawares. Write them again only where a
change of bytes or digests is meant, which makes users' outputs stale: raise the stage's version, say so in the change
log, and look at each line of the difference.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from golden_outputs.commands import run_commands
from golden_outputs.projects import PROJECTS, make_project
from golden_outputs.record import FILE, record, writers


def made(folder: Path) -> dict[str, Any]:
    """Everything, made below an empty folder, as it is held."""
    found = {name: record(make_project(name, folder) / "data") for name in PROJECTS}
    (folder / "commands").mkdir()
    os.chdir(folder / "commands")
    run_commands(Path.cwd())
    return found | {"commands": record(Path.cwd())}


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        made_here = made(Path(folder) / "made")
    FILE.write_text(_text({"writers": {"writers": writers()}} | made_here))


def _text(value: dict[str, dict[str, dict[str, Any]]]) -> str:
    """JSON with a line for each output and each file, so that a difference is read line by line."""
    rooms = []
    for name, parts in sorted(value.items()):
        inner = (f" {json.dumps(part)}: {{\n{_lines(entries)}\n }}" for part, entries in sorted(parts.items()))
        rooms.append(f"{json.dumps(name)}: {{\n" + ",\n".join(inner) + "\n}")
    return "{\n" + ",\n".join(rooms) + "\n}\n"


def _lines(entries: dict[str, Any]) -> str:
    return ",\n".join(f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in sorted(entries.items()))


if __name__ == "__main__":
    main()
