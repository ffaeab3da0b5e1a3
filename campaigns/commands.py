"""Run every command of nanoset under the same faults, and check what each leaves behind.

Faults are, for example: the command runs twice, or at the same time as another call; its output is
its own input, or a file of another program; it has no permissions; the disk is full; it is killed.

Whatever happens, a command must not

- end in a traceback, or leave a process behind;
- change a file that it was not asked to change;
- succeed although it cannot have done its work;
- leave a file that looks finished and differs from the one that it writes when it succeeds.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaigns.receipts import is_opening_receipt
from campaigns.runner import Child, Kind, Outcome, Skipped, Trial, drop_rights, each, watch
from campaigns.uses import USES, Use, commands, make_world
from helpers.child_processes import members, wait_until
from nanoset_core.cli import main
from nanoset_core.stages.shards.standalone import ranges as standalone_ranges

HEAD = ("command", "fault")
"""First columns of the table."""
COLUMNS = ()
"""Columns of counts, besides those of every campaign."""
TRIALS = 5
"""Trials of each command with each fault that is random."""
KILLS_PER_TRIAL = 3
"""Kills at steps for each trial with another fault: what a kill leaves depends on the step."""
NOISE = (
    "Traceback",
    "internal error",
    "Exception ignored",
    "sqlalchemy",
    "SpawnProcess",
    "Aborted",
)
"""Words that no command may print."""
MESSAGE_AFTER_SIGNAL = {
    signal.SIGINT: "interrupted: what is finished is kept; run the same command again to continue",
    signal.SIGTERM: (
        "ended by SIGTERM: what is finished is kept; run the same command again to continue"
    ),
}
ERROR_WORDS = ("error: ", "Error: ", "failed: ", "run the same command again")
"""One of these must be printed by a command that fails."""
REFUSAL_WORDS = (
    "nothing says what it was made from",
    "something else",
    "did not write this",
    "would say what it was made from",
    "already",
)
"""One of these must be printed by a command that finds another program's file in its place."""
SMALL_FILE_WORDS = ("a file may not grow further", "takes no more", "[Errno 0]")
"""One of these must be printed if files cannot grow. The last one is about a semaphore of worker
processes, which is a file as well.
"""
_PRELOADED = (
    "duckdb",
    "email.parser",
    "isal.isal_zlib",
    "multiprocessing.synchronize",
    "numpy.ma",
    "numpy.random",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyarrow.acero",
    "rich._emoji_codes",
    "rich.console",
    "rich.status",
    "rich.table",
    "tokenizers",
    "yaml",
    "zstandard",
    "nanoset_core.lineage.exclusion",
    "nanoset_core.lineage.explain",
    "nanoset_core.lineage.find",
    "nanoset_core.lineage.takedown",
    "nanoset_core.project.columns.rows",
    "nanoset_core.project.columns.statistics",
    "nanoset_core.project.diff.datasets",
    "nanoset_core.project.first_config.write",
    "nanoset_core.project.purge.interrupted",
    "nanoset_core.project.status",
    "nanoset_core.project.verify",
    "nanoset_core.project.diff.views",
    "nanoset_core.stages.dataset.standalone",
    "nanoset_core.stages.dataset.verify",
    "nanoset_core.stages.exports.standalone",
    "nanoset_core.stages.mappings.standalone",
    "nanoset_core.stages.mappings.verify",
    "nanoset_core.stages.pbin.selection",
    "nanoset_core.stages.pbin.standalone",
    "nanoset_core.stages.pbin.verify",
    "nanoset_core.stages.registry",
    "nanoset_core.stages.shards.standalone.preprocess",
    "nanoset_core.stages.views.listing",
    "nanoset_core.stages.views.verify",
    "nanoset_core.stages.webdataset.standalone.preview",
    "nanoset_core.stages.webdataset.standalone.shuffle",
    "nanoset_core.stages.webdataset.verify",
    "nanoset_core.text.importing",
    "nanoset_core.tokenizers.engines.gate",
    "nanoset_core.tokenizers.engines.numpy_engine",
)
"""Modules that commands import while they run. They are imported once, before the trials, so that
each trial, which is a fork, starts at once.
"""
_NOT_COMPARED = (".dagster/", "data/.in-use/", "cache/")
"""Folders whose content differs from call to call: history, leases and caches."""
_SMALL_RANGE_BYTES = 1 << 12
"""Smallest range of text for one worker, so that little text makes work for several."""
_CLONE_NEWNS = 0x00020000
"""Flag of unshare(2): mounts are seen by this process only."""
_MS_REC_PRIVATE = 1 << 18 | 1 << 14
"""Flags of mount(2), MS_PRIVATE and MS_REC: mounts are not passed on to other processes."""
_MINIMUM_PATIENCE = 5
"""Seconds that worker processes may take to end after their command."""
Problems = Iterator[str]
"""Messages that say what is wrong after a trial; none if all is well."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a command does if nothing goes wrong."""

    before: dict[str, str]
    """Files before it, as `tree` describes them."""
    after: dict[str, str]
    """Files after it."""
    seconds: float
    """How long it takes."""

    def new_files(self) -> list[str]:
        """Return the files for readers that it makes, outside projects.

        The schema that editors read next to a nanoset.yaml does not count.
        """
        names: list[str] = []
        for name in self.after.keys() - self.before.keys():
            is_of_project = name.startswith(("data/", "unbuilt/"))
            if not is_of_project and not _is_hidden(name) and not name.endswith(".schema.json"):
                names.append(name)
        return sorted(names)


class World:
    """A folder with inputs for all commands, of which each trial gets a fresh copy.

    Args:
        folder: Where the folder is made.
        warm: Whether the cache contains what engines know of the tokenizer.
    """

    def __init__(self, folder: Path, *, warm: bool) -> None:
        self.trial = folder / "trial"
        """Where trials run: always the same place, since outputs may contain their path."""
        self.original = folder / "world"
        """The folder that is copied."""
        self.references: dict[str, Reference] = {}
        """Name of a use of a command → its reference."""
        self.step_counts: dict[str, int] = {}
        """Name of a use of a command → how many changes to the folder it makes."""

        def make() -> None:
            os.environ["XDG_CACHE_HOME"] = str(self.trial / "cache" if warm else folder / "other")
            if warm and (folder / "cache").exists():
                shutil.copytree(folder / "cache", self.trial / "cache")
            make_world(self.trial)

        list(commands())  # imports the modules of all commands
        for name in _PRELOADED:
            importlib.import_module(name)
        # Made in a fork, so that no threads remain in this process.
        Child(make).wait().require_done()
        self.trial.rename(self.original)


class Attempt:
    """One use of a command, which is run under a fault.

    Args:
        world: The inputs.
        name: Name of the use in `USES`.
        random_source: Decides everything that is random in the trial.
    """

    def __init__(self, world: World, name: str, random_source: random.Random) -> None:
        self._world = world
        self._name = name
        self._is_done = False
        self.random = random_source
        self.use: Use = USES[name]
        self.folder = world.trial

        # The first attempt runs the command without a fault, for comparison.
        if name not in world.references:
            before = tree(self.fresh())
            start = time.monotonic()
            self.run().require_done()
            seconds = time.monotonic() - start
            world.references[name] = Reference(before, tree(self.folder), seconds)
            self._is_done = True
        self.reference = world.references[name]

    def fresh(self) -> Path:
        """Copy the inputs again, and return their folder.

        The outputs of the project are left out if the command has no project.
        """
        self._is_done = False
        if self.folder.exists():
            # A trial may have taken permissions away.
            self.folder.chmod(0o755)
            for parent, folder_names, _ in os.walk(self.folder):
                for name in folder_names:
                    path = os.path.join(parent, name)
                    if not os.path.islink(path):
                        os.chmod(path, 0o755)
            shutil.rmtree(self.folder)
        ignore = None if "{project}" in self.use.words else shutil.ignore_patterns("data")
        shutil.copytree(self._world.original, self.folder, symlinks=True, ignore=ignore)
        (self.folder / "cache").mkdir(exist_ok=True)
        return self.folder

    def finish(self) -> None:
        """Let the folder be as an undisturbed command leaves it, by running one if need be."""
        if not self._is_done:
            self.fresh()
            self.run().require_done()
            self._is_done = True

    def count_steps(self) -> int:
        """Return how many changes to the folder an undisturbed command makes."""
        counts = self._world.step_counts
        if self._name not in counts:
            notes = self.fresh() / "cache" / ".steps"
            child = self.start(prepare=lambda: watch(self.folder, 0, notes))
            child.wait().require_done()
            counts[self._name] = notes.stat().st_size
        return counts[self._name]

    def write_marks(self) -> list[tuple[int, int]]:
        """Return inode and time of each file that the command makes: they change if it is written."""
        marks: list[tuple[int, int]] = []
        for name in self.reference.new_files():
            path = self.folder / name
            # With other settings, the files may have other names.
            if os.path.lexists(path):
                status = path.lstat()
                marks.append((status.st_ino, status.st_mtime_ns))
        return marks

    def start(
        self,
        *options: str,
        prepare: Callable[[], object] = lambda: None,
        input: str | None = None,
        output: str | None = None,
    ) -> Child:
        """Start the command in a process of its own.

        Args:
            options: Further words of the command line.
            prepare: Called in the process first.
            input: Replaces the input of the command.
            output: Replaces its output.
        """
        self._is_done = False
        # Composed here: in the new process, a signal could arrive meanwhile.
        words = [*self.use.line(input=input, output=output), *options]

        def work() -> None:
            os.chdir(self.folder)
            cache = str(self.folder / "cache")
            os.environ |= {"XDG_CACHE_HOME": cache, "COLUMNS": "200", "TMPDIR": cache}
            standalone_ranges.MIN_RANGE_BYTES = _SMALL_RANGE_BYTES
            prepare()
            main(words)

        return Child(work)

    def run(self, *options: str) -> Outcome:
        """Run the command with further options, and wait for its end."""
        return self.start(*options).wait()

    def run_and_check(
        self,
        *options: str,
        prepare: Callable[[], object] = lambda: None,
        is_fresh: bool = True,
        input: str | None = None,
        output: str | None = None,
        must_fail: bool = False,
        messages: Sequence[str] = (),
        is_elsewhere: bool = False,
        patience: float = _MINIMUM_PATIENCE,
    ) -> Problems:
        """Run the command on a fresh copy of the inputs, and check how it ends.

        Args:
            options: Further words of the command line.
            prepare: Called in its process first.
            is_fresh: Whether to copy the inputs first; otherwise they are as an earlier run left
                them.
            input: See `start`.
            output: See `start`.
            must_fail: See `check`.
            messages: See `check`.
            is_elsewhere: See `check`.
            patience: See `check`.
        """
        if is_fresh:
            self.fresh()
        child = self.start(*options, prepare=prepare, input=input, output=output)
        yield from self.check(
            child,
            must_fail=must_fail,
            messages=messages,
            is_elsewhere=is_elsewhere,
            patience=patience,
        )

    def check(
        self,
        child: Child | None = None,
        *,
        must_fail: bool = False,
        messages: Sequence[str] = (),
        is_elsewhere: bool = False,
        patience: float = _MINIMUM_PATIENCE,
    ) -> Problems:
        """Wait for the end of the command, and check what it printed, and all files.

        Args:
            child: Its process; None if it has ended well.
            must_fail: Whether it cannot have done its work.
            messages: What it has to print.
            is_elsewhere: Whether its output has another place than usual.
            patience: Seconds that other processes may take to end after it.
        """
        outcome = Outcome("done") if child is None else child.wait()
        if child is not None and not wait_until(lambda: not members(child.pid), patience):
            yield f"it left {len(members(child.pid))} processes"
            os.killpg(child.pid, signal.SIGKILL)
        yield from _message_problems(outcome, must_fail=must_fail, messages=messages)
        yield from self._file_problems(outcome, is_elsewhere=is_elsewhere)

    def _file_problems(self, outcome: Outcome, *, is_elsewhere: bool) -> Problems:
        """Compare all files with those before the command and after an undisturbed one."""
        before = self.reference.before
        expected = self.reference.after
        after = tree(self.folder)

        # Files that existed before must not change, unless the command is meant to change them.
        for path, content in before.items():
            may_change = any(path.startswith(prefix) for prefix in self.use.rewrites)
            if after.get(path) != content and not may_change:
                change = "changed" if path in after else "removed"
                yield f"{path} was {change} (exit code {outcome.code})"
        if is_elsewhere and outcome.code == 0:
            return

        # New files must be those of an undisturbed command, or say that they are not finished.
        for path in after.keys() - before.keys():
            is_finished = not _is_hidden(path) and not is_opening_receipt(self.folder / path)
            if is_finished and after[path] != expected.get(path):
                yield f"{path} was left (exit code {outcome.code})"

        # Success means that all files exist. Chance decides the names of Dagster's own.
        if outcome.code == 0:
            for path in expected.keys() - after.keys():
                if "/.dagster/" not in path:
                    yield f"{path} was not made"


def _message_problems(outcome: Outcome, *, must_fail: bool, messages: Sequence[str]) -> Problems:
    """Yield what is wrong with the exit code of a command, and with what it printed."""
    text = outcome.said[-1500:]
    for noise in NOISE:
        if noise in outcome.said:
            yield f"it says {noise!r}: {text}"
    for message in messages:
        if message not in outcome.said:
            yield f"it does not say {message!r}: {text}"
    if outcome.end == "hung":
        yield "it hangs"
    if must_fail and outcome.code == 0:
        yield f"exit code 0: {text}"
    has_reason = any(words in outcome.said for words in ERROR_WORDS)
    if outcome.code not in (0, -signal.SIGKILL) and not has_reason:
        yield f"exit code {outcome.code}, and no word why: {text}"


def _is_hidden(path: str) -> bool:
    """Return whether a path, or a folder in it, begins with a dot."""
    return any(part.startswith(".") for part in path.split("/"))


def tree(folder: Path) -> dict[str, str]:
    """Describe all files of a folder, except history, locks and remembered times.

    Returns:
        Relative path → sha256 of a file, or target of a link.
    """
    descriptions: dict[str, str] = {}
    prefix = f"{folder}/"
    # Trials describe many folders. `Path.rglob` would take most of the time.
    for parent, folder_names, file_names in os.walk(folder):
        for file_name in (*folder_names, *file_names):
            path = os.path.join(parent, file_name)
            name = path.removeprefix(prefix)
            if name.startswith(_NOT_COMPARED) or file_name == ".fingerprints.json":
                continue
            if os.path.islink(path):
                descriptions[name] = f"-> {os.readlink(path)}"
            elif os.path.isfile(path):
                content = Path(path).read_bytes()
                descriptions[name] = hashlib.sha256(content).hexdigest()
    return descriptions


# Faults: each is a function that runs an attempt, and yields what is wrong.


def run_twice(attempt: Attempt) -> Problems:
    """The second of two equal calls changes nothing, and writes nothing again."""
    attempt.finish()
    marks = attempt.write_marks()
    yield from attempt.run_and_check(is_fresh=False)
    if tree(attempt.folder) != attempt.reference.after or attempt.write_marks() != marks:
        yield "the second call changed something, or wrote it again"


def use_wrong_input(*inputs: str) -> Fault:
    """Return the fault that the input is one of these, which are no valid inputs."""

    def run(attempt: Attempt) -> Problems:
        if attempt.use.input is not None:
            wrong_input = attempt.random.choice(inputs)
            yield from attempt.run_and_check(input=wrong_input, must_fail=True)

    return run


def write_into_input(attempt: Attempt) -> Problems:
    """The output is the command's own input, or is in its folder."""
    for output in attempt.use.onto:
        for problem in attempt.run_and_check(output=output, is_elsewhere=True):
            yield f"onto {output}: {problem}"


def find_foreign_file(attempt: Attempt) -> Problems:
    """A file that the command would write exists, and was made by another program."""
    names = attempt.reference.new_files()
    if not names:
        return
    file = attempt.fresh() / attempt.random.choice(names)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"of another tool")

    # The command refuses to replace the file.
    child = attempt.start()
    outcome = child.wait()
    is_refused = any(words in outcome.said for words in REFUSAL_WORDS)
    if not is_refused or file.read_bytes() != b"of another tool":
        yield f"{file.name} of another tool: exit code {outcome.code}: {outcome.said[-500:]}"

    # Some commands replace it if they are asked to.
    use = attempt.use
    if use.other and file.parent == (attempt.folder / use.output).parent:
        attempt.run("--overwrite").require_done()
        yield from attempt.check()
        return
    file.unlink()
    yield from attempt.check(child, must_fail=True)


def find_other_settings(attempt: Attempt) -> Problems:
    """The output of the same command with other settings is replaced only with --overwrite."""
    if not attempt.use.other:
        return
    other_options = attempt.use.other.split()
    attempt.fresh()
    attempt.run(*other_options).require_done()
    state = (tree(attempt.folder), attempt.write_marks())
    if state[0] == attempt.reference.after:
        yield "the other settings have no effect"

    outcome = attempt.run()
    messages = ("other input or settings", "--overwrite")
    yield from _message_problems(outcome, must_fail=True, messages=messages)
    if (tree(attempt.folder), attempt.write_marks()) != state:
        yield "it was written again"

    attempt.run("--overwrite").require_done()
    yield from attempt.check()


def send_signal(*signals: signal.Signals) -> Fault:
    """Return the fault that one of these signals arrives at a random moment."""

    def run(attempt: Attempt) -> Problems:
        number = attempt.random.choice(signals)
        attempt.fresh()
        child = attempt.start()
        seconds = attempt.random.uniform(0.002, attempt.reference.seconds * 1.1)
        if not child.poll(seconds):
            # A terminal sends Ctrl-C to the workers as well, `kill` only to the command.
            child.send(number, group=attempt.random.random() < 0.7)
        outcome = child.wait()

        expected_code = -number if number == signal.SIGKILL else 128 + number
        if outcome.code not in (expected_code, 0):
            yield f"exit code {outcome.code} after {number.name}: {outcome.said[-1500:]}"
        if outcome.code > 0 and outcome.said.count(MESSAGE_AFTER_SIGNAL[number]) != 1:
            message = MESSAGE_AFTER_SIGNAL[number]
            yield f"it does not say {message!r} once: {outcome.said[-1500:]}"
        yield from attempt.check(child)
        yield from _run_again(attempt)

    return run


def _run_again(attempt: Attempt) -> Problems:
    """Run the command once more, on what an earlier one left: it completes the work."""
    child = attempt.start()
    outcome = child.wait()
    missing = attempt.reference.after.keys() - tree(attempt.folder).keys()
    if outcome.code and missing:
        yield f"it does not continue: {outcome.said[-1500:]}"
    yield from attempt.check(child)


def kill_at_steps(attempt: Attempt) -> Problems:
    """The command is killed just before it creates, renames, removes or opens a file for writing.

    In one of three trials, the step is anywhere. In the others, it is among the last steps, in which
    outputs are published.
    """
    n_steps = attempt.count_steps()
    first_step = attempt.random.choice([1, max(1, n_steps - 12), max(1, n_steps - 12)])
    step = attempt.random.randint(first_step, n_steps)
    yield from attempt.run_and_check(prepare=lambda: watch(attempt.folder, step))
    yield from _run_again(attempt)


def forbid_writing(attempt: Attempt) -> Problems:
    """The folder of the output may not be written to."""
    output = attempt.use.output
    place = attempt.fresh()
    if output is not None:
        place = place / Path(output).parent
    for path in (place, *place.rglob("*")):
        if path.is_dir() and path.name != "cache" and not path.is_symlink():
            path.chmod(0o555)
    yield from attempt.run_and_check(
        is_fresh=False, prepare=drop_rights, must_fail=output is not None
    )


def forbid_reading(attempt: Attempt) -> Problems:
    """The input may not be read."""
    if attempt.use.input is None:
        return
    path = attempt.fresh() / attempt.use.input
    if not path.exists():
        path = path.with_suffix(".idx")  # the input is the prefix of a pair
    mode = path.stat().st_mode
    path.chmod(0)
    child = attempt.start(prepare=drop_rights)
    child.wait()
    path.chmod(mode)
    yield from attempt.check(child, must_fail=True)


def write_nowhere(attempt: Attempt) -> Problems:
    """The folder of the output cannot exist, or its name is too long."""
    if attempt.use.output is None:
        return
    output = attempt.random.choice(["pairs/x.bin/out", f"made/{'long' * 80}", "\udcff" * 300])
    yield from attempt.run_and_check(output=output, must_fail=True)
    messages = ("/proc/nowhere", "the folder cannot be made", "name a place")
    yield from attempt.run_and_check(output="/proc/nowhere/out", must_fail=True, messages=messages)


def limit_file_size(attempt: Attempt) -> Problems:
    """Files may not grow beyond a limit, as under `ulimit -f`."""
    tiny = 16  # no output is this small
    for limit in (int(10 ** attempt.random.uniform(0, 5)), tiny):
        attempt.fresh()
        limits = (limit, limit)
        child = attempt.start(
            prepare=lambda limits=limits: resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        )
        outcome = child.wait()
        if outcome.code and not any(words in outcome.said for words in SMALL_FILE_WORDS):
            yield f"it does not say why: {outcome.said[-500:]}"
        must_fail = limit == tiny and attempt.use.output is not None
        yield from attempt.check(child, must_fail=must_fail)


def limit_open_files(attempt: Attempt) -> Problems:
    """Few files may be open at once, as under `ulimit -n`."""
    limit = attempt.random.randint(8, 40)
    yield from attempt.run_and_check(
        prepare=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    )


def print_to_full_disk(attempt: Attempt) -> Problems:
    """What the command prints goes to a file on a full disk."""
    yield from attempt.run_and_check(
        prepare=lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1), must_fail=True
    )


def print_to_closed_pipe(attempt: Attempt) -> Problems:
    """What the command prints goes to a program that has ended, as after `| head -1`."""

    def close_reader() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)

    for problem in attempt.run_and_check(prepare=close_reader):
        # The command cannot say why it fails.
        if not problem.startswith("exit code 1, and no word"):
            yield problem


def fill_disk(attempt: Attempt) -> Problems:
    """The output goes to a small disk, which only the command's process sees.

    Raises:
        Skipped: This process is not root's, and cannot mount a disk.
    """
    use = attempt.use
    places = list(use.disks)
    if use.output is not None:
        places.insert(0, str(Path(use.output).parent))
    if not places:
        return
    if os.geteuid() != 0:
        raise Skipped("only root may mount a small disk")
    disk = attempt.fresh() / attempt.random.choice(places)
    disk.mkdir(exist_ok=True)

    # A build writes a thousand times as much as some commands do.
    largest_exponent = 3 if use.disks else 1.8
    n_pages = int(10 ** attempt.random.uniform(0, largest_exponent))
    n_inodes = attempt.random.choice([64, 4096])

    def mount() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        error = libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None)
        size = f"size={n_pages << 12},nr_inodes={n_inodes}".encode()
        if error or libc.mount(b"none", str(disk).encode(), b"tmpfs", 0, size):
            os._exit(0)  # in a container, even root may not mount

    yield from attempt.run_and_check(is_fresh=False, prepare=mount, is_elsewhere=True)

    # The small disk has vanished with the process, together with its part of the outputs.
    if use.disks:
        child = attempt.start()
        if child.wait().code:
            yield f"it does not continue: {child.said()[-1500:]}"
        yield from attempt.check(child, is_elsewhere=True)


def run_two_at_once(attempt: Attempt) -> Problems:
    """A second call starts while the first is at work.

    The exit code of one of them is not seen, but what it prints and leaves is.
    """
    seconds = attempt.random.uniform(0, attempt.reference.seconds)
    yield from attempt.run_and_check(prepare=lambda: os.fork() or time.sleep(seconds), patience=120)
    yield from attempt.run_and_check(is_fresh=False)


Fault = Callable[[Attempt], Problems]
FAULTS: dict[str, Fault] = {
    "twice": run_twice,
    "wrong input": use_wrong_input("nope", "nope/nanoset.yaml"),
    "empty folder": use_wrong_input("hollow", "hollow/nanoset.yaml"),
    "into its input": write_into_input,
    "another made it": find_foreign_file,
    "other settings": find_other_settings,
    "no right to write": forbid_writing,
    "no right to read": forbid_reading,
    "no place for it": write_nowhere,
    "full output": print_to_full_disk,
    "reader gone": print_to_closed_pipe,
}
"""Name of a fault in the table → the fault; these need one trial each."""
BY_CHANCE: dict[str, Fault] = {
    "full disk": fill_disk,
    "small files": limit_file_size,
    "few files": limit_open_files,
    "two at once": run_two_at_once,
    "interrupted": send_signal(signal.SIGINT, signal.SIGTERM),
    "killed": send_signal(signal.SIGKILL),
    "killed at steps": kill_at_steps,
}
"""Faults that are different in every trial, and need many."""


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this campaign."""
    parser.add_argument(
        "--no-dagster", action="store_true", help="leave out the commands that need Dagster"
    )
    parser.add_argument(
        "--warm", action="store_true", help="what engines know of the tokenizer is in the cache"
    )


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """Yield a kind of trial for each use of a command, and each fault."""
    world = World(folder, warm=options.warm)
    for name, use in USES.items():
        if use.needs_dagster and options.no_dagster:
            continue
        for fault_name, fault in (FAULTS | BY_CHANCE).items():
            n_trials = options.trials if fault_name in BY_CHANCE else 1
            if fault is kill_at_steps:
                n_trials *= KILLS_PER_TRIAL

            def trial(
                random_source: random.Random,
                _number: int,
                name: str = name,
                fault: Fault = fault,
            ) -> Trial:
                return Trial(wrong=list(fault(Attempt(world, name, random_source))))

            yield each((name, fault_name), n_trials, trial)
