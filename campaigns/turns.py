"""Let three machines without a shared disk take turns at one root in a bucket of each cloud.

After each turn, no output that a manifest lists may have been written again. In the end, the root
must hold the same bytes as a project that one machine built on its own disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from campaigns.runner import Kind, Skipped, Trial, each
from helpers.buckets import CLOUDS, Cloud, objects, root_in, upload_raw, versions
from helpers.building import build_all
from helpers.child_processes import start_forked
from helpers.sample_project import (
    FEWER,
    jsonl,
    outputs_of,
    sentences,
    tokenizer_json,
    write_project,
)
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.gc.garbage import Policy
from nanoset_core.storage.in_use.leases import FOLDER as LEASES_FOLDER
from nanoset_core.storage.store import Store

HEAD = ("bucket",)
"""First column of the table."""
COLUMNS = ("turns", "builds", "killed")
"""Columns of counts, in addition to those of every campaign."""
TRIALS = 1
"""Default of `--trials`, for each kind of bucket."""
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

    def __init__(
        self, folder: Path, settings: str, tokenizer: bytes, environment: Mapping[str, str]
    ) -> None:
        """Set up the machine.

        Args:
            folder: The disk of the machine.
            settings: The text of its nanoset.yaml.
            tokenizer: The content of its tokenizer.json.
            environment: Environment variables with which it reaches the bucket.
        """
        self.folder = folder
        self._environment = environment
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
            **self._environment,
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "XDG_CACHE_HOME": str(self.folder / "home"),
        }
        name, *arguments = command
        config = self.folder / "project/nanoset.yaml"

        process = start_forked(
            name, "--config", config, *arguments, environment=environment, output=output_file
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

    def __init__(
        self, folder: Path, place: Store, rng: random.Random, environment: Mapping[str, str]
    ) -> None:
        """Write the local project, upload its raw text, and set up the machines.

        Args:
            folder: Empty folder for the disks of the machines and the local project.
            place: The root for outputs in the bucket.
            rng: Random numbers.
            environment: Environment variables with which machines reach the bucket.
        """
        self.counts: Counter[str] = Counter()
        """How many turns were taken, and how many builds succeeded or were killed."""
        self._place = place
        self._random = rng
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

        settings = self._local.read_text().replace("raw: raw", f"raw: {self._raw.url()}")
        for setting, replacement in root_in(place).items():
            settings = settings.replace(setting, replacement)
        self._machines: dict[str, Machine] = {}
        for name in MACHINE_NAMES:
            self._machines[name] = Machine(folder / name, settings, tokenizer, environment)

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
        self.counts["turns"] += 1
        return f"{name}: {action}"

    def check_end(self) -> None:
        """Build on one machine and remove garbage: the root must equal a local one, and stay so."""
        machine = self._random_machine()
        self._run(machine, "build")
        self._run(machine, "gc", "--yes", "--unfinished")

        # The root holds what a single machine would have built, and nothing else.
        project = build_all(self._local)
        collect(project, Policy(unfinished=True))
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
            if self._is_built:
                self.counts["builds"] += 1
            else:
                self.counts["killed"] += 1
                self._killed_machines.add(machine.folder.name)
        elif action == "build":
            self._run(machine, "build")
            self.counts["builds"] += 1
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


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this campaign to the command line."""
    parser.add_argument("--turns", type=int, default=30, help="turns of each trial (default: 30)")


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """Yield a kind of trials for each kind of bucket.

    Args:
        folder: Where the trials write.
        options: Options of the command line.
    """
    for cloud in CLOUDS.values():
        yield _kind(cloud, folder, options)


def _kind(cloud: Cloud, folder: Path, options: argparse.Namespace) -> Kind:
    """Return the trials in one kind of bucket.

    Args:
        cloud: The kind of bucket.
        folder: Where the trials write.
        options: Options of the command line.
    """

    def run_trial(rng: random.Random, number: int) -> Trial:
        reason = cloud.why_missing()
        if reason is not None:
            raise Skipped(reason)
        trial = Trial()
        trial_folder = folder / f"{cloud.name}-{number}"
        trial_folder.mkdir()
        with (
            tempfile.TemporaryDirectory() as server_folder,
            cloud.serve(Path(server_folder)) as address,
        ):
            environment = cloud.environment(address)
            os.environ.update(environment)
            place = cloud.new_bucket(address, "some/prefix")
            turns = Turns(trial_folder, place, rng, environment)
            try:
                take_turns(turns, options.turns)
            except AssertionError as error:
                trial.wrong.append(str(error))
            trial.counts += turns.counts

        # The folder of a bad trial stays, for whoever looks for the reason.
        if not trial.wrong:
            shutil.rmtree(trial_folder)
        return trial

    return each((cloud.name,), options.trials, run_trial)


def take_turns(turns: Turns, n_turns: int) -> None:
    """Let machines take turns, and check the root in the end.

    Raises:
        AssertionError: A command failed, an output was written again, or the root is not as it
            should be. The message names the turns before it.
    """
    turns_taken: list[str] = []
    try:
        for _ in range(n_turns):
            turns_taken.append(turns.take_turn())
        turns.check_end()
    except AssertionError as error:
        raise AssertionError(f"after {turns_taken}: {error}") from error
