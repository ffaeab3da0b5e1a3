"""Machines without a common disk that take turns at one root in a bucket, and what has to hold
after each turn.

By hand, against a server that is running: PYTHONPATH=.:tests python -m storage.turns ENDPOINT
FOLDER ROUNDS SEED
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from helpers.building import build_all
from helpers.child_processes import start_forked
from helpers.chosen_server import CREDENTIALS
from helpers.s3_server import new_bucket, objects, upload_raw, versions
from helpers.sample_project import (
    FEWER,
    jsonl,
    outputs_of,
    sentences,
    tokenizer_json,
    write_project,
)
from nanoset_core.project.gc import collect
from nanoset_core.storage.leases import FOLDER
from nanoset_core.storage.s3 import S3Store

MACHINES = ("first", "second", "third")
TURNS = ("build", "build", "kill", "kill", "append", "append", "status", "gc", "verify", "new disk")
CORPORA = ("web", "code", "books")


class Machine:
    """A project folder, a home and a folder for temporary files of its own; raw text and outputs
    lie in the bucket.
    """

    def __init__(self, folder: Path, settings: str, tokenizer: bytes) -> None:
        self.folder, self._settings, self._tokenizer = folder, settings, tokenizer
        self.set_up()

    def set_up(self) -> None:
        """As with a new disk."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("project", "home", "tmp"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "project/nanoset.yaml").write_text(self._settings)
        (self.folder / "project/tokenizer.json").write_bytes(self._tokenizer)

    def run(self, *command: str, most_seconds: float | None = None) -> tuple[int | None, str]:
        """Run a command, with kill -9 after some seconds; → (exit code, what it said)."""
        said = self.folder / "said"
        said.unlink(missing_ok=True)
        places = {
            "HOME": self.folder / "home",
            "TMPDIR": self.folder / "tmp",
            "XDG_CACHE_HOME": self.folder / "home",
        }
        environment = {**CREDENTIALS, **{name: str(place) for name, place in places.items()}}
        config = ("--config", str(self.folder / "project/nanoset.yaml"))
        process = start_forked(
            command[0], *config, *command[1:], environment=environment, said=said
        )
        process.join(most_seconds)
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        return process.exitcode, said.read_text(errors="replace") if said.exists() else ""


class Turns:
    """Machines at one root, and a local project of the same text, which says what the root has to
    hold.
    """

    def __init__(self, folder: Path, place: S3Store, seed: int) -> None:
        self.place, self._random = place, random.Random(seed)
        tokenizer = tokenizer_json()
        (folder / "tokenizer.json").write_bytes(tokenizer)
        packed = {"nanosets:": "pbin: [web]\nnanosets:"}
        self.local = write_project(folder / "local", folder / "tokenizer.json", FEWER | packed)
        self.raw = upload_raw(self.local.parent / "raw", place)
        settings = self.local.read_text().replace("raw: raw", f"raw: {self.raw.url()}")
        settings = settings.replace(
            "root: data", f"root: {place.url()}\nstorage: {{endpoint_url: {place.endpoint_url!r}}}"
        )
        self.machines = {name: Machine(folder / name, settings, tokenizer) for name in MACHINES}
        self._appended = 0
        self._cut = set[str]()
        """machines on which a build was killed: its run may have ended before its checks, which are
        run again
        """
        self.is_built = False

    def turn(self) -> str:
        """One turn of one machine; → what it was. AssertionError where something does not hold."""
        name, what = self._random.choice(MACHINES), self._random.choice(TURNS)
        machine, before, seconds = (
            self.machines[name],
            self._known(),
            self._random.uniform(0.2, 6.0),
        )
        if what == "append":
            self._append()
        elif what == "new disk":
            machine.set_up()
        elif what == "kill":
            self.is_built = machine.run("build", most_seconds=seconds)[0] == 0
            self._cut |= set() if self.is_built else {name}
        elif what == "build":
            self._expect(machine, "build")
            self.is_built = True
            other = self._random.choice(MACHINES)
            self._expect(self.machines[other], "status")
        elif what == "gc":
            self._expect(machine, "gc", "--yes", codes=(0,) if self.is_built else (0, 1))
        else:
            self._expect(machine, what, codes=(0,) if self.is_built else (0, 1))
        after = versions(self.place)
        again = [one for one, mark in before.items() if one in after and after[one] != mark]
        assert not again, f"{name}: {what} made again what a manifest knew: {again[:5]}"
        return f"{name}: {what}"

    def end(self) -> None:
        """Build and collect on one machine: the root holds what one machine would have built, and
        nothing else.
        """
        machine = self.machines[self._random.choice(MACHINES)]
        self._expect(machine, "build")
        self._expect(machine, "gc", "--yes", "--unfinished")
        project = build_all(self.local)
        collect(project, unfinished=True)
        assert {
            name: sha for name, sha in objects(self.place).items() if not name.startswith(FOLDER)
        } == outputs_of(self.local)
        name, before = self._random.choice(MACHINES), versions(self.place)
        self._expect(self.machines[name], "status")
        said = self._expect(self.machines[name], "build")
        assert name in self._cut or "nothing was made" in said, said
        assert versions(self.place) == before, said

    def _expect(self, machine: Machine, *command: str, codes: tuple[int, ...] = (0,)) -> str:
        code, said = machine.run(*command)
        assert code in codes, (
            f"{machine.folder.name}: {' '.join(command)}: exit code {code}\n{said[-3000:]}"
        )
        return said

    def _append(self) -> None:
        """Grow a file, or add one: in the bucket and beside the local project."""
        self._appended, self.is_built = self._appended + 1, False
        more = jsonl(sentences(f"more {self._appended}", 12))
        grown = self._random.random() < 0.5
        name = (
            "web/part-0/web-0.jsonl"
            if grown
            else f"{self._random.choice(CORPORA)}/new-{self._appended}.jsonl"
        )
        path = self.local.parent / "raw" / name
        path.write_bytes((path.read_bytes() if path.exists() else b"") + more)
        self.raw.put(name, path.read_bytes())

    def _known(self) -> dict[str, str]:
        """Object → version of all that a manifest lists, and of manifests."""
        stored, known = versions(self.place), set[str]()
        for name in (name for name in stored if name.endswith("/manifest.json")):
            manifest, folder = json.loads(self.place.read(name) or b"{}"), name.rpartition("/")[0]
            known |= {name, *(f"{folder}/{file}" for file in manifest.get("files", ()))}
            cache = "/".join([*name.split("/")[:2], "cache"])
            known |= {
                f"{cache}/{file}" for file in manifest.get("facts", {}).get("cache_files", ())
            }
        return {name: found for name, found in stored.items() if name in known}


def rounds(folder: Path, place: S3Store, count: int, seed: int) -> Iterator[str]:
    """Let the machines take so many turns, and compare what is there at the end; yield each turn."""
    turns = Turns(folder, place, seed)
    for _ in range(count):
        yield turns.turn()
    turns.end()


if __name__ == "__main__":
    endpoint, base, number, first = sys.argv[1:]
    os.environ.update(CREDENTIALS)
    Path(base).mkdir(parents=True)
    began = time.monotonic()
    for told in rounds(Path(base), new_bucket(endpoint, "some/prefix"), int(number), int(first)):
        print(f"{time.monotonic() - began:7.1f} s  {told}", flush=True)
    print("the same bytes, nothing made twice")
