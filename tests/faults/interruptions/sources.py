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

from faults.interruptions.places import LocalPlace, dispose, start
from faults.interruptions.subject import LONG, LONG_FILES, Subject, outputs, visible, write_subject
from faults.runner import Outcome, Trial
from sample_project import encoded, sentences

_MEGABYTES = 2
_GROWTH_STEPS = 12


def append(path: Path) -> None:
    """More documents at its end; a table is written anew, since it cannot grow."""
    if path.name.endswith(".parquet"):
        return replace(path)
    with path.open("ab") as file:
        file.write(encoded(path.name, sentences("late", 40), 40))


def grow(path: Path) -> None:
    """More documents bit by bit, as of an upload under way."""
    if path.name.endswith(".parquet"):
        return replace(path)
    for step in range(_GROWTH_STEPS):
        with path.open("ab") as file:
            file.write(encoded(path.name, sentences(f"late {step}", 5), 5))
        time.sleep(0.01)


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


def remove(path: Path) -> None:
    """It is gone."""
    path.unlink()


CHANGES: tuple[Callable[[Path], None], ...] = (append, grow, truncate, rewrite, replace, remove)


def changed_while_read(place: LocalPlace, rng: random.Random, number: int) -> Trial:
    """Change one file at a random moment of a build; then build again, and compare with a fresh build of what is there.

    place: gives the folder and the time that a build takes.
    """
    change = CHANGES[number % len(CHANGES)]
    victim = LONG_FILES[number // len(CHANGES) % len(LONG_FILES)]
    trial, workers = Trial(), rng.choice((1, 1, 2))
    subject = write_subject(place.base / f"changed-{number}", workers=workers, long=_MEGABYTES)
    build = start(subject)
    time.sleep(rng.uniform(0, 1.5 * place.seconds(workers)))
    trial.counts["faults"] = int(not build.poll())
    change(subject.folder / "raw" / LONG / victim)
    trial.ended(build.wait(), "done", "refused")
    trial.wrong += inconsistent(subject.root)
    afterwards = start(subject).wait()
    return _compare(subject, afterwards, trial)


def _compare(subject: Subject, afterwards: Outcome, trial: Trial) -> Trial:
    """The build after the change, and a fresh one of the same text: the same end, the same outputs."""
    fresh = Subject(subject.folder.with_name(f"{subject.folder.name}-fresh") / "nanoset.yaml")
    shutil.copytree(subject.folder, fresh.folder, ignore=shutil.ignore_patterns("data"))
    wanted = start(fresh).wait()
    if wanted.end != afterwards.end or afterwards.end not in ("done", "refused"):
        trial.wrong.append(f"after the change it ended as {afterwards}; a fresh build as {wanted}")
    trial.wrong += inconsistent(subject.root)
    if wanted.end == "done":
        found = outputs(subject.root)
        differing = [name for name, digest in outputs(fresh.root).items() if found.get(name) != digest]
        trial.wrong += [f"{name} is not as of a fresh build" for name in differing]
    if not trial.wrong:
        dispose(subject)
    dispose(fresh)
    return trial


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
    other = [name for name in listed if name in shown and _sha256(shown[name]) != listed[name]]
    return missing + [f"{name} has other bytes than its manifest says" for name in other]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
