"""Machines without a shared disk that take turns working on one root in a bucket.

After each turn, no output that a manifest lists may have been written again. In the end, the root
must hold the same bytes as a project that one machine built on its own disk.

For a longer run, by hand, against a server that is already running:

    PYTHONPATH=.:tests python -m storage.turns ENDPOINT FOLDER TURNS SEED
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
from nanoset_core.storage.leases import FOLDER as LEASES_FOLDER
from nanoset_core.storage.s3 import S3Store

MACHINE_NAMES = ("first", "second", "third")
ACTIONS = (
    "build",
    "build",
    "kill",
    "kill",
    "append",
    "append",
    "status",
    "gc",
    "verify",
    "new disk",
)
"""What a machine may do in its turn; an action that is listed twice is twice as likely."""
CORPORA = ("web", "code", "books")
KILL_AFTER_SECONDS = (0.2, 6.0)
"""The shortest and the longest time after which a build is killed."""


class CommandResult(NamedTuple):
    """How a command of `nanoset` ended."""

    exit_code: int | None
    output: str
    """What it printed to stdout and stderr."""


class Machine:
    """A machine with its own project folder, home and folder for temporary files.

    Its raw text and outputs are in the bucket.
    """

    def __init__(self, folder: Path, settings: str, tokenizer: bytes) -> None:
        """Set up the machine.

        Args:
            folder: The disk of the machine.
            settings: The text of its nanoset.yaml.
            tokenizer: The content of its tokenizer.json.
        """
        self.folder = folder
        self._settings = settings
        self._tokenizer = tokenizer
        self.replace_disk()

    def replace_disk(self) -> None:
        """Delete everything on the machine, and set up the project folder on the empty disk."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("project", "home", "tmp"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "project/nanoset.yaml").write_text(self._settings)
        (self.folder / "project/tokenizer.json").write_bytes(self._tokenizer)

    def run(self, *command: str, kill_after_seconds: float | None = None) -> CommandResult:
        """Run a command of `nanoset`, and end it with SIGKILL if it takes longer than allowed."""
        output_file = self.folder / "output"
        output_file.unlink(missing_ok=True)
        environment = {
            **CREDENTIALS,
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "XDG_CACHE_HOME": str(self.folder / "home"),
        }
        name, *arguments = command
        config = self.folder / "project/nanoset.yaml"

        process = start_forked(
            name, "--config", config, *arguments, environment=environment, said=output_file
        )
        process.join(kill_after_seconds)
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
            process.join()

        output = ""
        if output_file.exists():  # a process that was killed early has not created it
            output = output_file.read_text(errors="replace")
        return CommandResult(process.exitcode, output)


class Turns:
    """Machines that share one root in a bucket, and a local project to compare the root with.

    Raw text that is added in the bucket is added to the local project, too.
    """

    def __init__(self, folder: Path, place: S3Store, seed: int) -> None:
        """Write the local project, upload its raw text, and set up the machines.

        Args:
            folder: Empty folder for the disks of the machines and the local project.
            place: The root for outputs in the bucket.
            seed: Of the random choices.
        """
        self._place = place
        self._random = random.Random(seed)
        self._n_appended = 0
        self._killed_machines: set[str] = set()
        """Machines on which a build was killed.

        Its run may have ended before its checks, which the machine's next build catches up on.
        """
        self._is_built = False
        """Whether the outputs of all of the present raw text have been built."""

        tokenizer = tokenizer_json()
        tokenizer_file = folder / "tokenizer.json"
        tokenizer_file.write_bytes(tokenizer)
        with_pbin_of_web = {"nanosets:": "pbin: [web]\nnanosets:"}
        self._local = write_project(folder / "local", tokenizer_file, FEWER | with_pbin_of_web)
        self._raw = upload_raw(self._local.parent / "raw", place)

        storage = f"storage: {{endpoint_url: {place.endpoint_url!r}}}"
        settings = self._local.read_text()
        settings = settings.replace("raw: raw", f"raw: {self._raw.url()}")
        settings = settings.replace("root: data", f"root: {place.url()}\n{storage}")
        self._machines: dict[str, Machine] = {}
        for name in MACHINE_NAMES:
            self._machines[name] = Machine(folder / name, settings, tokenizer)

    def take_turn(self) -> str:
        """Let a random machine do a random action; return both as text.

        Raises:
            AssertionError: If a command fails, or an output is written again.
        """
        name = self._random.choice(MACHINE_NAMES)
        action = self._random.choice(ACTIONS)
        versions_before = self._versions_in_manifests()
        kill_after_seconds = self._random.uniform(*KILL_AFTER_SECONDS)

        self._act(self._machines[name], action, kill_after_seconds)

        versions_after = versions(self._place)
        rewritten = []
        for key, version in versions_before.items():
            if key in versions_after and versions_after[key] != version:
                rewritten.append(key)
        assert not rewritten, f"{name}: {action} wrote outputs of a manifest again: {rewritten[:5]}"
        return f"{name}: {action}"

    def check_end(self) -> None:
        """Build on one machine and remove garbage: the root must equal a local one, and stay so."""
        machine = self._random_machine()
        self._run(machine, "build")
        self._run(machine, "gc", "--yes", "--unfinished")

        # The root holds what a single machine would have built, and nothing else.
        project = build_all(self._local)
        collect(project, unfinished=True)
        digests: dict[str, str] = {}
        for key, digest in objects(self._place).items():
            if not key.startswith(LEASES_FOLDER):
                digests[key] = digest
        assert digests == outputs_of(self._local)

        # A further build on any of the machines has nothing to do.
        machine = self._random_machine()
        versions_before = versions(self._place)
        self._run(machine, "status")
        output = self._run(machine, "build")
        has_checks_to_run = machine.folder.name in self._killed_machines
        assert has_checks_to_run or "nothing was made" in output, output
        assert versions(self._place) == versions_before, output

    def _random_machine(self) -> Machine:
        return self._machines[self._random.choice(MACHINE_NAMES)]

    def _act(self, machine: Machine, action: str, kill_after_seconds: float) -> None:
        """Let a machine do its action, and check its exit code."""
        # As long as outputs are missing, a command may report so with exit code 1.
        allowed_codes = (0,) if self._is_built else (0, 1)

        if action == "append":
            self._append_text()
        elif action == "new disk":
            machine.replace_disk()
        elif action == "kill":
            result = machine.run("build", kill_after_seconds=kill_after_seconds)
            self._is_built = result.exit_code == 0
            if not self._is_built:
                self._killed_machines.add(machine.folder.name)
        elif action == "build":
            self._run(machine, "build")
            self._is_built = True
            self._run(self._random_machine(), "status")
        elif action == "gc":
            self._run(machine, "gc", "--yes", allowed_codes=allowed_codes)
        else:
            self._run(machine, action, allowed_codes=allowed_codes)

    def _run(self, machine: Machine, *command: str, allowed_codes: tuple[int, ...] = (0,)) -> str:
        """Run a command on a machine, check its exit code, and return its output."""
        result = machine.run(*command)
        assert result.exit_code in allowed_codes, (
            f"{machine.folder.name}: {' '.join(command)}: exit code {result.exit_code}\n"
            f"{result.output[-3000:]}"
        )
        return result.output

    def _append_text(self) -> None:
        """Add documents to a raw file, or add a file: in the bucket and in the local project."""
        self._n_appended += 1
        self._is_built = False
        if self._random.random() < 0.5:
            name = "web/part-0/web-0.jsonl"
        else:
            name = f"{self._random.choice(CORPORA)}/new-{self._n_appended}.jsonl"

        path = self._local.parent / "raw" / name
        with path.open("ab") as file:
            file.write(jsonl(sentences(f"more {self._n_appended}", 12)))
        self._raw.put(name, path.read_bytes())

    def _versions_in_manifests(self) -> dict[str, str]:
        """Return the version of each manifest and of each object that a manifest lists, by key."""
        versions_in_bucket = versions(self._place)
        listed_keys: set[str] = set()
        for key in versions_in_bucket:
            folder, _, file_name = key.rpartition("/")
            if not folder or file_name != "manifest.json":
                continue
            listed_keys.add(key)
            manifest = json.loads(self._place.read(key) or b"{}")
            listed_keys.update(f"{folder}/{file}" for file in manifest.get("files", ()))

            # Index files of a nanoset are not in the folder of the output, but in one for all.
            stage, name, *_ = key.split("/")
            cache_files = manifest.get("facts", {}).get("cache_files", ())
            listed_keys.update(f"{stage}/{name}/cache/{file}" for file in cache_files)

        return {key: version for key, version in versions_in_bucket.items() if key in listed_keys}


def take_turns(folder: Path, place: S3Store, n_turns: int, seed: int) -> Iterator[str]:
    """Let the machines take turns, yield each turn as text, and check the root in the end."""
    turns = Turns(folder, place, seed)
    for _ in range(n_turns):
        yield turns.take_turn()
    turns.check_end()


def main() -> None:
    """Take turns at a new bucket of a running server, and print each of them."""
    parser = argparse.ArgumentParser(prog="python -m storage.turns")
    parser.add_argument("endpoint")
    parser.add_argument("folder", type=Path)
    parser.add_argument("turns", type=int)
    parser.add_argument("seed", type=int)
    options = parser.parse_args()

    os.environ.update(CREDENTIALS)
    options.folder.mkdir(parents=True)
    place = new_bucket(options.endpoint, "some/prefix")
    start = time.monotonic()
    for turn in take_turns(options.folder, place, options.turns, options.seed):
        print(f"{time.monotonic() - start:7.1f} s  {turn}", flush=True)
    print("the same bytes, and nothing was written twice")


if __name__ == "__main__":
    main()
