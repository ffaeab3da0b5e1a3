"""Tars are the same whichever engine writes them, and after every kind of interruption."""

from __future__ import annotations

import errno
import hashlib
import pickle
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pytest

from helpers.progress import RecordingDisplay
from helpers.token_sources import plan_of, source_in_file, write_tars
from nanoset_core.errors import ConfigError, FormatError, SampleIndexError, StaleError, StorageError
from nanoset_core.execution.resources import free_memory
from nanoset_core.stages.webdataset import buckets, sizing, writing
from nanoset_core.stages.webdataset.markers import read_markers
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.settings import engine_warning
from nanoset_core.stages.webdataset.sizing import choose_engine
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.storage.access import FileAccess

ENGINES = ["mmap", "buckets"]
LENGTH = 65
SAMPLES_PER_TAR = 16
ROW_BYTES = LENGTH * 2 + 8
"""Of a context in a bucket: its tokens, and its rank."""
MEBI = 1 << 20


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[TokenSource]:
    """Three sources, of which one is empty."""
    folder = tmp_path_factory.mktemp("sources")
    generator = np.random.default_rng(5)
    n_tokens_by_name = {"web": LENGTH * 400 + 5, "empty": 0, "code": LENGTH * 170 + 32}
    sources = []
    for name, n_tokens in n_tokens_by_name.items():
        tokens = generator.integers(0, 50_000, n_tokens).astype(np.uint16)
        sources.append(source_in_file(folder, name, tokens))
    return sources


@pytest.fixture
def plan(sources) -> ShufflePlan:
    """A plan of 36 tars."""
    return plan_of(sources, sequence_length=LENGTH, samples_per_shard=SAMPLES_PER_TAR)


@pytest.fixture(params=ENGINES)
def engine(request) -> str:
    """The engine that writes tars."""
    return request.param


def memory_for(plan: ShufflePlan, n_tars: int = 3) -> int:
    """Return the memory that holds a few tars, so that they are written in many runs."""
    return sizing.least_bytes(plan, n_tars * plan.settings.samples_per_shard)


def sha256_by_tar(folder: Path) -> dict[str, str]:
    """Return the sha256 of each tar in a folder, by its name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.tar")
    }


def inode_by_tar(folder: Path) -> dict[str, int]:
    """Return the inode of each tar in a folder, which changes if the tar is rewritten."""
    return {path.name: path.stat().st_ino for path in folder.glob("*.tar")}


def temporary_files(folder: Path) -> list[str]:
    """Return the names of the temporary files and folders below a folder."""
    return sorted(path.name for path in folder.rglob(".tmp-*"))


# Engines


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"member": "json.gz"}, id="json"),
        pytest.param({"tail": "pad", "pad_id": 60_000}, id="padded"),
        pytest.param({"tail": "carry"}, id="carried"),
        pytest.param({"bos_id": 7}, id="with BOS"),
        pytest.param({"frequencies": {"web": 0.37, "code": 2.4}}, id="repeated"),
        pytest.param({"even": True}, id="even"),
        pytest.param({"samples_per_shard": 1000}, id="one tar"),
    ],
)
def test_both_engines_write_the_same_tars(tmp_path, sources, settings):
    defaults = {"sequence_length": LENGTH, "samples_per_shard": SAMPLES_PER_TAR}
    plan = plan_of(sources, **(defaults | settings))

    facts = write_tars(plan, sources, tmp_path / "mmap", engine="mmap")
    facts_of_buckets = write_tars(
        plan, sources, tmp_path / "buckets", engine="buckets", memory_bytes=memory_for(plan)
    )

    assert facts_of_buckets == facts
    assert sha256_by_tar(tmp_path / "buckets") == sha256_by_tar(tmp_path / "mmap")
    assert temporary_files(tmp_path / "buckets") == []
    assert sum(tar.pad_tokens for tar in facts) == plan.pad_tokens
    assert sum(tar.tokens for tar in facts) == plan.tokens


def test_two_processes_write_the_same_tars_as_one(tmp_path, sources, plan, engine):
    facts = write_tars(plan, sources, tmp_path / "one", engine="mmap")

    facts_of_two = write_tars(
        plan,
        sources,
        tmp_path / "two",
        engine=engine,
        memory_bytes=2 * memory_for(plan),
        workers=2,
    )

    assert facts_of_two == facts
    assert sha256_by_tar(tmp_path / "two") == sha256_by_tar(tmp_path / "one")
    assert temporary_files(tmp_path / "two") == []
    assert sum(tar.pad_tokens for tar in facts) == plan.pad_tokens
    assert sum(tar.tokens for tar in facts) == plan.tokens


def test_auto_maps_sources_that_fit_the_cache(sources, plan):
    n_bytes = sum(source.bytes for source in sources)

    assert choose_engine(plan, 10 * n_bytes).engine == "mmap"


def test_by_default_not_all_free_memory_is_used(plan):
    assert choose_engine(plan).memory_bytes < free_memory()


def test_auto_sorts_larger_sources_into_buckets(sources, plan):
    n_bytes = sum(source.bytes for source in sources)
    memory_bytes = memory_for(plan, 2)

    choice = choose_engine(plan, n_bytes // 2, memory_bytes=memory_bytes)

    assert choice.engine == "buckets"
    assert choice.memory_bytes == memory_bytes
    assert 0 < choice.scratch_bytes <= n_bytes * 1.1
    assert "exceed the cache" in choice.reason


def test_buckets_that_fit_the_memory_take_no_scratch(sources, plan):
    n_bytes = sum(source.bytes for source in sources)

    choice = choose_engine(plan, n_bytes // 2, memory_bytes=memory_for(plan, plan.shards))

    assert choice.engine == "buckets"
    assert choice.scratch_bytes == 0


@pytest.mark.parametrize("cached_share", [10, 0.5], ids=["mmap", "buckets"])
def test_the_deprecated_engine_is_auto(sources, plan, cached_share):
    available = int(cached_share * sum(source.bytes for source in sources))

    choice = choose_engine(plan, available, engine="tiled")

    assert choice == choose_engine(plan, available, engine="auto")


def test_the_deprecated_engine_writes_the_same_tars(tmp_path, sources, plan):
    write_tars(plan, sources, tmp_path / "tiled", engine="tiled")
    write_tars(plan, sources, tmp_path / "auto", engine="auto")

    assert sha256_by_tar(tmp_path / "tiled") == sha256_by_tar(tmp_path / "auto")


def test_the_deprecated_engine_has_a_warning():
    assert engine_warning("tiled", "--engine") == (
        "--engine: tiled is deprecated, and auto is used, which writes the same tars: "
        "remove this setting"
    )


def test_other_engines_have_no_warning():
    assert engine_warning("auto", "--engine") is None


# Memory and scratch


@pytest.mark.parametrize(
    ("engine", "samples_per_tar"),
    [
        pytest.param("mmap", 512, id="mmap"),
        pytest.param("buckets", 512, id="buckets"),
        pytest.param("mmap", 20_000, id="mmap, tars larger than the memory"),
    ],
)
def test_memory_stays_within_the_budget(tmp_path, engine, samples_per_tar):
    tokens = np.random.default_rng(0).integers(0, 50_000, 96 * MEBI // 2, dtype=np.uint16)
    source = source_in_file(tmp_path, "web", tokens)
    plan = plan_of([source], sequence_length=2048, samples_per_shard=samples_per_tar)
    choice = choose_engine(plan, engine=engine, memory_bytes=64 * MEBI)

    tracemalloc.start()
    try:
        write_tars(plan, [source], tmp_path / "out", engine=engine, memory_bytes=64 * MEBI)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes <= choice.memory_bytes
    assert choice.memory_bytes <= 64 * MEBI


def test_buckets_take_as_much_scratch_as_was_announced_and_shrink(
    tmp_path, sources, plan, monkeypatch
):
    bucket_bytes = []

    def measure(folder, *_):
        sizes = [path.stat().st_size for path in folder.rglob("bucket-*")]
        bucket_bytes.append(sum(sizes))

    monkeypatch.setattr(writing, "write_markers", measure)
    choice = choose_engine(plan, engine="buckets", memory_bytes=memory_for(plan))

    write_tars(plan, sources, tmp_path, engine="buckets", memory_bytes=memory_for(plan))

    assert choice.scratch_bytes == plan.contexts * ROW_BYTES
    assert bucket_bytes[0] == choice.scratch_bytes
    assert bucket_bytes == sorted(bucket_bytes, reverse=True)
    assert bucket_bytes[-1] <= 3 * SAMPLES_PER_TAR * ROW_BYTES


def test_too_little_room_for_buckets_is_reported_before_work_begins(
    tmp_path, sources, plan, monkeypatch
):
    options = {"engine": "buckets", "memory_bytes": memory_for(plan)}
    n_bytes = choose_engine(plan, **options).scratch_bytes
    disk_usage = type(buckets.shutil.disk_usage(tmp_path))
    monkeypatch.setattr(
        buckets.shutil, "disk_usage", lambda path: disk_usage(total=100, used=99, free=1)
    )

    with pytest.raises(StorageError, match="too little room for the buckets") as caught:
        write_tars(plan, sources, tmp_path, **options)

    assert f"expected: {n_bytes:,} bytes" in str(caught.value)
    assert temporary_files(tmp_path) == []


def disk_is_full(*_: object) -> NoReturn:
    """Fail as writing does if the disk is full."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_of_tars_is_reported(tmp_path, sources, plan, engine, monkeypatch):
    first_tars = []

    def write_four_markers(folder, facts, *_):
        first_tars.append(facts[0].shard)
        if len(first_tars) > 4:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(writing, "write_markers", write_four_markers)

    with pytest.raises(StorageError, match="the disk is full") as caught:
        write_tars(plan, sources, tmp_path, engine=engine, memory_bytes=memory_for(plan))

    assert "what is finished is kept" in str(caught.value)
    assert temporary_files(tmp_path) == []


def test_a_disk_that_is_full_of_buckets_is_reported_and_cleaned(
    tmp_path, sources, plan, monkeypatch
):
    monkeypatch.setattr(buckets, "sweep", disk_is_full)
    scratch = tmp_path / "scratch"
    options = {"engine": "buckets", "memory_bytes": memory_for(plan), "scratch": scratch}

    with pytest.raises(StorageError, match="the disk is full"):
        write_tars(plan, sources, tmp_path / "out", range(9), **options)

    assert list(scratch.iterdir()) == []
    assert sha256_by_tar(tmp_path / "out") == {}


def test_a_bucket_that_another_program_wrote_to_is_reported(tmp_path, sources, plan, monkeypatch):
    def write_and_append(plan, sources, shards_by_file, *arguments):
        buckets.write_buckets(plan, sources, shards_by_file, *arguments)
        first_file = next(iter(shards_by_file))
        with first_file.open("ab") as file:
            file.write(b"x")

    monkeypatch.setattr(writing, "write_buckets", write_and_append)
    options = {"engine": "buckets", "memory_bytes": memory_for(plan)}

    with pytest.raises(FormatError, match="has another size than was written"):
        write_tars(plan, sources, tmp_path, range(9), **options)

    assert temporary_files(tmp_path) == []


# What is refused


def test_memory_that_does_not_hold_a_tar_is_refused(tmp_path, sources, plan):
    with pytest.raises(ConfigError, match="does not hold one shard"):
        write_tars(plan, sources, tmp_path, range(3), engine="buckets", memory_bytes=MEBI)

    assert list(tmp_path.glob("*.tar")) == []


def test_a_tar_that_is_not_planned_is_refused(tmp_path, sources, plan):
    with pytest.raises(SampleIndexError, match="no such shard"):
        write_tars(plan, sources, tmp_path, [plan.shards])

    assert list(tmp_path.glob("*.tar")) == []


def test_other_sources_than_those_of_the_plan_are_refused(tmp_path, sources, plan):
    with pytest.raises(StaleError, match="not those of the plan"):
        write_tars(plan, sources[:1], tmp_path, [0])

    assert list(tmp_path.glob("*.tar")) == []


def test_a_source_of_another_size_than_its_file_is_refused(sources):
    source = TokenSource("web", sources[0].path, "uint16", 5)

    with pytest.raises(StaleError, match="a source has changed"):
        len(source.tokens)


def test_no_tars_are_written_if_none_is_requested(tmp_path, sources, plan):
    assert write_tars(plan, sources, tmp_path, []) == []

    assert list(tmp_path.glob("*.tar")) == []


# Tars that exist


class ExistingTars(NamedTuple):
    """Tars 1, 2, 7 and 30 of the plan, of which tar 2 was damaged since."""

    folder: Path
    facts: list[Any]
    """What was recorded of them when they were written."""
    inodes: dict[str, int]
    """Name → inode of the file."""
    options: dict[str, Any]
    """Options of `write_tars`."""


@pytest.fixture
def existing_tars(tmp_path, sources, plan, engine) -> ExistingTars:
    """A few tars that an earlier run has written."""
    options = {"engine": engine, "memory_bytes": memory_for(plan)}
    facts = write_tars(plan, sources, tmp_path, [1, 2, 7, 30], **options)
    assert [tar.shard for tar in facts] == [1, 2, 7, 30]
    inodes = inode_by_tar(tmp_path)
    assert len(inodes) == 4
    (tmp_path / "shard-00000002.tar").write_bytes(b"cut off")
    return ExistingTars(tmp_path, facts, inodes, options)


def test_tars_that_exist_are_not_rewritten(existing_tars, sources, plan):
    write_tars(plan, sources, existing_tars.folder, **existing_tars.options)

    inodes = inode_by_tar(existing_tars.folder)
    for name in ["shard-00000001.tar", "shard-00000007.tar", "shard-00000030.tar"]:
        assert inodes[name] == existing_tars.inodes[name]


def test_tars_that_exist_have_the_same_facts_as_those_that_were_written(
    existing_tars, sources, plan
):
    facts = write_tars(plan, sources, existing_tars.folder, **existing_tars.options)

    assert [tar.shard for tar in facts] == list(range(plan.shards))
    assert facts[7] == existing_tars.facts[2]


def test_the_progress_counts_only_the_tars_that_are_missing(existing_tars, sources, plan):
    display = RecordingDisplay()

    write_tars(
        plan, sources, existing_tars.folder, progress=display.progress, **existing_tars.options
    )

    # The buckets come first, if there are any.
    done_buckets = [work.done for work in display.works if work.stage == "buckets"]
    done_tars = [work.done for work in display.works if work.stage == "tars"]
    all_done = [work.done for work in display.works]
    assert all_done == sorted(done_buckets) + sorted(done_tars)
    last_work = display.works[-1]
    assert last_work.done == plan.shards - 3
    assert last_work.total == plan.shards - 3
    assert last_work.unit == "tars"


def test_nothing_is_written_if_all_tars_exist(existing_tars, sources, plan):
    facts = write_tars(plan, sources, existing_tars.folder, **existing_tars.options)
    inodes = inode_by_tar(existing_tars.folder)

    facts_again = write_tars(plan, sources, existing_tars.folder, **existing_tars.options)

    assert facts_again == facts
    assert inode_by_tar(existing_tars.folder) == inodes


def test_all_tars_are_rewritten_on_request(existing_tars, sources, plan):
    facts = write_tars(plan, sources, existing_tars.folder, **existing_tars.options)
    inodes = inode_by_tar(existing_tars.folder)

    facts_again = write_tars(
        plan, sources, existing_tars.folder, force=True, **existing_tars.options
    )

    assert facts_again == facts
    assert inode_by_tar(existing_tars.folder) != inodes


def test_tars_of_another_plan_are_rewritten(tmp_path):
    for seed in [1, 2]:
        source = source_in_file(tmp_path, "web", np.arange(seed, seed + 1000, dtype=np.uint16))
        plan = plan_of([source], samples_per_shard=50, seed=seed)

        facts = write_tars(plan, [source], tmp_path / "out", made_from=f"of {seed}")

        expected = {f"{tar.stem}.tar": tar.sha256 for tar in facts}
        assert sha256_by_tar(tmp_path / "out") == expected


def test_tars_whose_markers_are_damaged_are_rewritten(tmp_path):
    source = source_in_file(tmp_path, "web", np.arange(2, 1002, dtype=np.uint16))
    plan = plan_of([source], samples_per_shard=50, seed=2)
    facts = write_tars(plan, [source], tmp_path / "out")
    sha256_before = sha256_by_tar(tmp_path / "out")
    [first_marker, second_marker] = sorted((tmp_path / "out/.shards").iterdir())
    first_marker.write_bytes(b"")
    second_marker.write_bytes(b"{")

    rewritten_facts = write_tars(plan, [source], tmp_path / "out")

    assert rewritten_facts == facts
    assert sha256_by_tar(tmp_path / "out") == sha256_before


# Workers and interruptions


class RepeatingExecutor:
    """Runs each task twice, and the last task first.

    So does a cluster whose workers die just before they would report that they are done.
    """

    def run(self, work: Any, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number of each task and its result."""
        for number, task in reversed(list(enumerate(tasks))):
            sent_task = pickle.dumps(task)
            work(pickle.loads(sent_task))
            result = work(pickle.loads(sent_task))
            yield number, pickle.loads(pickle.dumps(result))


def test_a_task_may_be_run_twice(tmp_path, sources, plan, engine):
    facts = write_tars(plan, sources, tmp_path / "once")
    options = {
        "engine": engine,
        "memory_bytes": memory_for(plan),
        "executor": RepeatingExecutor(),
    }

    facts_of_new = write_tars(plan, sources, tmp_path / "twice", **options)
    facts_of_rewritten = write_tars(plan, sources, tmp_path / "twice", force=True, **options)

    assert facts_of_new == facts
    assert facts_of_rewritten == facts
    assert sha256_by_tar(tmp_path / "twice") == sha256_by_tar(tmp_path / "once")
    assert temporary_files(tmp_path / "twice") == []


def test_workers_read_a_dataset_that_was_replaced(tmp_path):
    """Workers may live longer than a build, and must not read the former file."""
    generator = np.random.default_rng(3)
    tars_of_workers = []
    for name in ["first", "second"]:
        tokens = generator.integers(0, 50_000, LENGTH * 40).astype(np.uint16)
        source_in_file(tmp_path, "new", tokens)
        (tmp_path / "new.bin").rename(tmp_path / "s.bin")
        sources = [TokenSource.of_file("s", tmp_path / "s.bin", "uint16")]
        plan = plan_of(sources, sequence_length=LENGTH, samples_per_shard=SAMPLES_PER_TAR)

        write_tars(plan, sources, tmp_path / f"{name}-workers", executor=RepeatingExecutor())
        write_tars(plan, sources, tmp_path / f"{name}-here")

        sha256_of_workers = sha256_by_tar(tmp_path / f"{name}-workers")
        assert sha256_of_workers == sha256_by_tar(tmp_path / f"{name}-here")
        tars_of_workers.append(sha256_of_workers)
    assert tars_of_workers[0] != tars_of_workers[1]


KILLED_PROGRAM = """
import os, signal, sys
from pathlib import Path
from helpers.token_sources import plan_of, write_tars
from nanoset_core.stages.webdataset import buckets, sizing, writing
from nanoset_core.stages.webdataset.markers import read_markers
from nanoset_core.stages.webdataset.sources import TokenSource

folder = Path(sys.argv[1])
engine = sys.argv[2]
moment = sys.argv[3]
source = TokenSource.of_file("web", folder / "web.bin", "uint16")
plan = plan_of([source], samples_per_shard=100, seed=1)
calls = []

def kill_at_call(module, name, number):
    function = getattr(module, name)
    def call(*arguments):
        calls.append(name)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    setattr(module, name, call)

if moment == "tars":
    kill_at_call(writing, "write_markers", 12)
if moment == "buckets":
    buckets.ROW_BYTES = 1 << 16  # many steps
    kill_at_call(buckets, "sweep", 3)
memory_bytes = sizing.least_bytes(plan) + 30_000
write_tars(plan, [source], folder / "out", engine=engine, memory_bytes=memory_bytes)
"""
"""Writes the tars of web.bin in a folder, and is killed at a moment."""


@pytest.mark.parametrize(
    ("engine", "moment", "n_marked"),
    [
        pytest.param("mmap", "tars", 11, id="mmap, tars"),
        pytest.param("buckets", "tars", 11, id="buckets, tars"),
        pytest.param("buckets", "buckets", 0, id="buckets, buckets"),
    ],
)
def test_a_killed_run_is_resumed_and_writes_the_same_tars(
    tmp_path, engine, moment, n_marked, pytestconfig
):
    tokens = np.random.default_rng(1).integers(0, 9999, 100_000).astype(np.uint16)
    source = source_in_file(tmp_path, "web", tokens)
    out = tmp_path / "out"

    # A run is killed when some tars are written and marked.
    command = [sys.executable, "-c", KILLED_PROGRAM, str(tmp_path), engine, moment]
    environment = {"PYTHONPATH": f"{pytestconfig.rootpath}/tests"}
    killed = subprocess.run(command, check=False, env=environment)
    assert killed.returncode == -signal.SIGKILL
    inodes_of_killed = inode_by_tar(out)
    marked = [path.stem for path in (out / ".shards").glob("shard-*.json")]
    assert len(marked) == n_marked

    # The next run keeps them, and writes the others.
    plan = plan_of([source], samples_per_shard=100, seed=1)
    write_tars(plan, [source], out, engine=engine, memory_bytes=memory_for(plan))
    assert temporary_files(out) == []
    inodes = inode_by_tar(out)
    for name in marked:
        assert inodes[f"{name}.tar"] == inodes_of_killed[f"{name}.tar"]

    # All tars are those of a run that was not killed.
    write_tars(plan, [source], tmp_path / "whole")
    assert sha256_by_tar(out) == sha256_by_tar(tmp_path / "whole")


# Tars that are sent to a bucket


def test_a_tar_is_sent_to_a_bucket_even_if_the_next_one_cannot_be_written(
    bucket, plan, sources, tmp_path, monkeypatch
):
    write_tar = writing.write_tar

    def write_only_the_first_tar(plan, shard, *arguments):
        if shard > 0:
            raise StorageError("the disk is full")
        return write_tar(plan, shard, *arguments)

    monkeypatch.setattr(writing, "write_tar", write_only_the_first_tar)
    access = FileAccess(tmp_path, bucket)

    with pytest.raises(StorageError, match="the disk is full"):
        write_tars(plan, sources, tmp_path / "tars", access=access, engine="mmap")

    assert list(read_markers(tmp_path / "tars", range(3), "these tokens", access)) == [0]


def test_writing_ends_soon_after_tars_cannot_be_sent_to_a_bucket(monkeypatch):
    written = []

    def written_tars():
        for number in range(1000):
            written.append(number)
            yield number

    def publish(number):
        raise StorageError("the bucket does not answer")

    with pytest.raises(StorageError, match="the bucket does not answer"):
        writing._publish_in_parallel(publish, written_tars())

    assert len(written) < 20
