"""Source files that change while they are read."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from faults.interruptions.places import Attempt, LocalPlace, start
from faults.interruptions.subject import LONG, LONG_FILES, outputs, visible, write_subject
from faults.runner import Trial
from sample_project import encoded, sentences


def append(path: Path, steps: int = 1) -> None:
    """More documents at its end; a table is written anew, since it cannot grow."""
    if path.name.endswith(".parquet"):
        return replace(path)
    for step in range(steps):
        with path.open("ab") as file:
            file.write(encoded(path.name, sentences(f"late {step}", 40 // steps), 40))
        time.sleep(0.01 if steps > 1 else 0)


def grow(path: Path) -> None:
    """More documents bit by bit, as of an upload under way."""
    append(path, steps=8)


def truncate(path: Path) -> None:
    """Its second half is cut off."""
    os.truncate(path, path.stat().st_size // 2)


def rewrite(path: Path) -> None:
    """Other bytes in the same place, as many as before: lines in another order, or damage to what is compressed."""
    data = path.read_bytes()
    lines = b"\n".join(reversed(data.split(b"\n")[:-1])) + b"\n"
    other = lines if path.name.endswith(".jsonl") else data[: len(data) // 2] + bytes(64) + data[len(data) // 2 + 64 :]
    with path.open("r+b") as file:
        file.write(other)


def replace(path: Path) -> None:
    """Another file takes its name."""
    other = path.with_name(".other")
    other.write_bytes(encoded(path.name, sentences("late", 200), 50))
    other.rename(path)


CHANGES: tuple[Callable[[Path], None], ...] = (append, grow, truncate, rewrite, replace, Path.unlink)


def changed_while_read(place: LocalPlace, rng: random.Random, number: int) -> Trial:
    """Change one file at a random moment of a build; then build again, and compare with a fresh build of what is there.

    place: gives the folder and the time that a build takes.
    """
    change, victim = CHANGES[number % len(CHANGES)], LONG_FILES[number // len(CHANGES) % len(LONG_FILES)]
    subject = write_subject(place.base / f"changed-{number}", workers=rng.choice((1, 1, 2)), long=2)
    on = Attempt(place, subject, rng, 0)
    build = on.start()
    on.sleep(1.5)
    on.trial.counts["faults"] = int(not build.poll())
    change(subject.folder / "raw" / LONG / victim)
    on.trial.ended(build.wait(), "done", "refused")
    on.trial.wrong += inconsistent(subject.root)
    afterwards, fresh = on.start().wait(), subject.beside("-fresh")
    shutil.copytree(subject.folder, fresh.folder, ignore=shutil.ignore_patterns("data"))
    wanted = start(fresh).wait()
    if wanted.end != afterwards.end or afterwards.end not in ("done", "refused"):
        on.trial.wrong.append(f"after the change it ended as {afterwards}; a fresh build as {wanted}")
    on.trial.wrong += inconsistent(subject.root)
    if wanted.end == "done":
        found = outputs(subject.root)
        differing = [name for name, digest in outputs(fresh.root).items() if found.get(name) != digest]
        on.trial.wrong += [f"{name} is not as of a fresh build" for name in differing]
    if not on.trial.wrong:
        shutil.rmtree(subject.folder)
    shutil.rmtree(fresh.folder)
    return on.trial


def inconsistent(root: Path) -> list[str]:
    """Files that readers see and that no manifest lists with their very bytes."""
    shown = visible(root) if root.is_dir() else {}
    listed: dict[str, str] = {}
    for name in (name for name in shown if name.endswith("/manifest.json")):
        manifest = json.loads(shown[name].read_bytes())
        folder = name.removesuffix("manifest.json")
        listed |= {folder + file: fact["sha256"] for file, fact in manifest["files"].items()}
        cache = "/".join(["nanosets", *name.split("/")[1:2], "cache", ""])
        listed |= {cache + file: fact["sha256"] for file, fact in manifest["facts"].get("cache_files", {}).items()}
    missing = [f"{name} is listed and not there" for name in listed if name not in shown]
    digests = {name: hashlib.sha256(shown[name].read_bytes()).hexdigest() for name in listed if name in shown}
    other = [name for name, digest in digests.items() if digest != listed[name]]
    return missing + [f"{name} has other bytes than its manifest says" for name in other]
