import errno
import hashlib
import pickle
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from helpers.progress import RecordingDisplay
from helpers.token_sources import plan_of, source_in_file, write_tars
from nanoset_core.errors import ConfigError, FormatError, SampleIndexError, StaleError, StorageError
from nanoset_core.execution.resources import free_memory
from nanoset_core.stages.webdataset import buckets, sizing, writing
from nanoset_core.stages.webdataset.settings import engine_warning
from nanoset_core.stages.webdataset.sizing import choose_engine
from nanoset_core.stages.webdataset.sources import TokenSource

ENGINES = ("mmap", "buckets")
LENGTH = 65
MEBI = 1 << 20


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("sources"), np.random.default_rng(5)
    return [
        source_in_file(folder, name, rng.integers(0, 50_000, tokens).astype(np.uint16))
        for name, tokens in (("web", LENGTH * 400 + 5), ("empty", 0), ("code", LENGTH * 170 + 32))
    ]


@pytest.fixture
def plan(sources):
    return plan_of(sources, sequence_length=LENGTH, samples_per_shard=16)


def least(plan, shards=3):
    """A budget that holds a few shards, so that there are many runs."""
    return sizing.least_bytes(plan, shards * plan.settings.samples_per_shard)


def digests(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.tar")
    }


def inodes(folder):
    return {path.name: path.stat().st_ino for path in folder.glob("*.tar")}


def hidden(folder):
    return sorted(path.name for path in folder.rglob(".tmp-*"))


CASES = {
    "dropped": {},
    "json": {"member": "json.gz"},
    "padded": {"tail": "pad", "pad_id": 60_000},
    "carried": {"tail": "carry"},
    "with BOS": {"bos_id": 7},
    "repeated": {"frequencies": {"web": 0.37, "code": 2.4}},
    "even": {"even": True},
    "one shard": {"samples_per_shard": 1000},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_engines_write_the_same_shards(tmp_path, sources, changes):
    plan = plan_of(sources, **({"sequence_length": LENGTH, "samples_per_shard": 16} | changes))
    expected = write_tars(plan, sources, tmp_path / "mmap", engine="mmap")
    assert sum(facts.pad_tokens for facts in expected) == plan.pad_tokens
    assert sum(facts.tokens for facts in expected) == plan.tokens
    for engine in ENGINES[1:] if changes else ENGINES:  # the plainest plan with two processes
        folder, workers = tmp_path / f"{engine}-again", 1 if changes else 2
        assert (
            write_tars(
                plan,
                sources,
                folder,
                engine=engine,
                memory_bytes=workers * least(plan),
                workers=workers,
            )
            == expected
        )
        assert digests(folder) == digests(tmp_path / "mmap")
        assert hidden(folder) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_there_is_left_alone(tmp_path, sources, plan, engine):
    options = {"engine": engine, "memory_bytes": least(plan)}
    some = write_tars(plan, sources, tmp_path, [1, 2, 7, 30], **options)
    assert [facts.shard for facts in some] == [1, 2, 7, 30]
    before = inodes(tmp_path)
    assert len(before) == 4
    (tmp_path / "shard-00000002.tar").write_bytes(b"cut off")
    shown = RecordingDisplay()
    facts = write_tars(plan, sources, tmp_path, progress=shown.progress, **options)
    news = shown.works
    assert [fact.shard for fact in facts] == list(range(plan.shards))
    assert facts[7] == some[2]
    assert [one.done for one in news] == sorted(
        one.done for one in news if one.stage == "buckets"
    ) + sorted(one.done for one in news if one.stage == "tars")
    assert (news[-1].done, news[-1].total, news[-1].unit) == (
        plan.shards - 3,
        plan.shards - 3,
        "tars",
    )
    after = inodes(tmp_path)
    for name in ("shard-00000001.tar", "shard-00000007.tar", "shard-00000030.tar"):
        assert after[name] == before[name]
    assert write_tars(plan, sources, tmp_path, **options) == facts
    assert inodes(tmp_path) == after
    assert write_tars(plan, sources, tmp_path, force=True, **options) == facts
    assert inodes(tmp_path) != after


def test_shards_of_something_else_and_those_whose_markers_are_damaged_are_made_again(tmp_path):
    for seed in (1, 2):
        source = source_in_file(tmp_path, "web", np.arange(seed, seed + 1000, dtype=np.uint16))
        plan = plan_of([source], samples_per_shard=50, seed=seed)
        facts = write_tars(plan, [source], tmp_path / "out", made_from=f"of {seed}")
        assert digests(tmp_path / "out") == {f"{fact.stem}.tar": fact.sha256 for fact in facts}
    before = digests(tmp_path / "out")
    for path, text in zip(sorted((tmp_path / "out/.shards").iterdir()), (b"", b"{"), strict=True):
        path.write_bytes(text)
    assert write_tars(plan, [source], tmp_path / "out", made_from="of 2") == facts
    assert digests(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("engine", "samples"), [*((engine, 512) for engine in ENGINES), ("mmap", 20_000)]
)
def test_memory_stays_within_the_budget(tmp_path, engine, samples):
    tokens = np.random.default_rng(0).integers(0, 50_000, 96 * MEBI // 2, dtype=np.uint16)
    source = source_in_file(tmp_path, "web", tokens)
    plan = plan_of([source], sequence_length=2048, samples_per_shard=samples)
    choice = choose_engine(plan, engine=engine, memory_bytes=64 * MEBI)
    tracemalloc.start()
    try:
        write_tars(plan, [source], tmp_path / "out", engine=engine, memory_bytes=64 * MEBI)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= choice.memory_bytes <= 64 * MEBI


def test_what_cannot_be_written(tmp_path, sources, plan):
    with pytest.raises(ConfigError, match="does not hold one shard"):
        write_tars(plan, sources, tmp_path, range(3), engine="buckets", memory_bytes=MEBI)
    with pytest.raises(SampleIndexError, match="no such shard"):
        write_tars(plan, sources, tmp_path, [plan.shards])
    with pytest.raises(StaleError, match="not those of the plan"):
        write_tars(plan, sources[:1], tmp_path, [0])
    assert write_tars(plan, sources, tmp_path, []) == []
    with pytest.raises(StaleError, match="a source has changed"):
        len(TokenSource("web", sources[0].path, "uint16", 5).tokens)
    assert list(tmp_path.glob("*.tar")) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_disk_that_fills_up_with_shards(tmp_path, sources, plan, engine, monkeypatch):
    calls = []

    def full(folder, facts, *_):
        calls.append(facts[0].shard)
        if len(calls) > 4:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(writing, "write_markers", full)
    with pytest.raises(StorageError, match="the disk is full") as caught:
        write_tars(plan, sources, tmp_path, engine=engine, memory_bytes=least(plan))
    assert "what is finished is kept" in str(caught.value)
    assert hidden(tmp_path) == []


class Twice:
    """An executor as a cluster is one whose workers die just before they would say that they are
    done.
    """

    def run(self, work, tasks):
        for number, task in reversed(list(enumerate(tasks))):
            work(pickle.loads(pickle.dumps(task)))
            yield number, pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(task)))))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_may_be_run_twice(tmp_path, sources, plan, engine):
    wanted = write_tars(plan, sources, tmp_path / "once")
    for force in (False, True):
        options = {"engine": engine, "memory_bytes": least(plan), "executor": Twice()}
        assert write_tars(plan, sources, tmp_path / "twice", force=force, **options) == wanted
    assert digests(tmp_path / "twice") == digests(tmp_path / "once")
    assert hidden(tmp_path / "twice") == []


def test_a_dataset_made_anew_in_its_place_is_read_anew(tmp_path):
    """By workers that live longer than one build."""
    rng, made = np.random.default_rng(3), []
    for name in ("first", "second"):
        source_in_file(tmp_path, "new", rng.integers(0, 50_000, LENGTH * 40).astype(np.uint16))
        (tmp_path / "new.bin").rename(tmp_path / "s.bin")
        found = [TokenSource.of_file("s", tmp_path / "s.bin", "uint16")]
        plan = plan_of(found, sequence_length=LENGTH, samples_per_shard=16)
        write_tars(plan, found, tmp_path / name, executor=Twice())
        write_tars(plan, found, tmp_path / f"{name}-here")
        assert digests(tmp_path / name) == digests(tmp_path / f"{name}-here")
        made.append(digests(tmp_path / name))
    assert made[0] != made[1]


def test_a_disk_that_fills_up_with_spill_files(tmp_path, sources, plan, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(buckets, "sweep", full)
    scratch = tmp_path / "scratch"
    with pytest.raises(StorageError, match="the disk is full"):
        options = {"engine": "buckets", "memory_bytes": least(plan), "scratch": scratch}
        write_tars(plan, sources, tmp_path / "out", range(9), **options)
    assert list(scratch.iterdir()) == []
    assert digests(tmp_path / "out") == {}


def test_too_little_room_is_told_before_work_begins(tmp_path, sources, plan, monkeypatch):
    options = {"engine": "buckets", "memory_bytes": least(plan)}
    usage = type(buckets.shutil.disk_usage(tmp_path))
    monkeypatch.setattr(buckets.shutil, "disk_usage", lambda path: usage(100, 99, 1))
    with pytest.raises(StorageError, match="too little room for the buckets") as caught:
        write_tars(plan, sources, tmp_path, **options)
    assert f"expected: {choose_engine(plan, **options).scratch_bytes:,} bytes" in str(caught.value)
    assert hidden(tmp_path) == []


def test_scratch_is_what_was_stated_and_shrinks(tmp_path, sources, plan, monkeypatch):
    sizes, row = [], LENGTH * 2 + 8

    def measured(folder, *_):
        sizes.append(sum(path.stat().st_size for path in folder.rglob("bucket-*")))

    monkeypatch.setattr(writing, "write_markers", measured)
    choice = choose_engine(plan, engine="buckets", memory_bytes=least(plan))
    write_tars(plan, sources, tmp_path, engine="buckets", memory_bytes=least(plan))
    assert sizes[0] == choice.scratch_bytes == plan.contexts * row
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 3 * 16 * row


def test_a_spill_file_that_something_else_wrote_to(tmp_path, sources, plan, monkeypatch):
    def write_and_spoil(plan, sources, shards_by_file, *arguments):
        buckets.write_buckets(plan, sources, shards_by_file, *arguments)
        with next(iter(shards_by_file)).open("ab") as file:
            file.write(b"x")

    monkeypatch.setattr(writing, "write_buckets", write_and_spoil)
    with pytest.raises(FormatError, match="does not hold the rows that were written"):
        write_tars(plan, sources, tmp_path, range(9), engine="buckets", memory_bytes=least(plan))
    assert hidden(tmp_path) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from helpers.token_sources import plan_of, write_tars
from nanoset_core.stages.webdataset import buckets, sizing, writing
from nanoset_core.stages.webdataset.sources import TokenSource

folder, engine, moment = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
source = TokenSource.of_file("web", folder / "web.bin", "uint16")
plan = plan_of([source], samples_per_shard=100, seed=1)
calls = []

def killed_at(module, name, count):
    real = getattr(module, name)
    def call(*arguments):
        calls.append(name)
        return real(*arguments) if len(calls) < count else os.kill(os.getpid(), signal.SIGKILL)
    setattr(module, name, call)

if moment == "shards":
    killed_at(writing, "write_markers", 12)
if moment == "buckets":
    buckets.ROW_BYTES = 1 << 16  # many steps
    killed_at(buckets, "sweep", 3)
write_tars(plan, [source], folder / "out", engine=engine, memory_bytes=sizing.least_bytes(plan) + 30_000)
"""


@pytest.mark.parametrize(
    ("engine", "moment"), [*((engine, "shards") for engine in ENGINES), ("buckets", "buckets")]
)
def test_a_killed_run_goes_on_to_the_same_shards(tmp_path, engine, moment, pytestconfig):
    source = source_in_file(
        tmp_path, "web", np.random.default_rng(1).integers(0, 9999, 100_000).astype(np.uint16)
    )

    def run(when):
        command = [sys.executable, "-c", KILLED, str(tmp_path), engine, when]
        return subprocess.run(
            command, check=False, env={"PYTHONPATH": f"{pytestconfig.rootpath}/tests"}
        ).returncode

    assert run(moment) == -signal.SIGKILL
    left, out = inodes(tmp_path / "out"), tmp_path / "out"
    marked = [path.stem for path in (out / ".shards").glob("shard-*.json")]
    assert (len(marked) == 11) == (moment == "shards")
    assert run("never") == 0
    assert hidden(out) == []
    assert all(inodes(out)[f"{name}.tar"] == left[f"{name}.tar"] for name in marked)
    write_tars(plan_of([source], samples_per_shard=100, seed=1), [source], tmp_path / "whole")
    assert digests(out) == digests(tmp_path / "whole")


def test_auto_maps_sources_that_fit_the_cache(sources, plan):
    size = sum(source.bytes for source in sources)
    assert choose_engine(plan, 10 * size).engine == "mmap"
    assert choose_engine(plan).memory_bytes < free_memory()


def test_auto_sorts_larger_sources_into_buckets(sources, plan):
    size = sum(source.bytes for source in sources)
    choice = choose_engine(plan, size // 2, memory_bytes=least(plan, 2))
    assert choice.engine == "buckets"
    assert 0 < choice.scratch_bytes <= size * 1.1
    assert choice.memory_bytes == least(plan, 2)
    assert "exceed the cache" in choice.reason


def test_buckets_that_fit_the_memory_take_no_scratch(sources, plan):
    size = sum(source.bytes for source in sources)
    choice = choose_engine(plan, size // 2, memory_bytes=least(plan, plan.shards))
    assert choice.engine == "buckets"
    assert choice.scratch_bytes == 0


def test_the_deprecated_engine_is_auto(sources, plan):
    size = sum(source.bytes for source in sources)
    for available in (10 * size, size // 2):
        assert choose_engine(plan, available, engine="tiled") == choose_engine(
            plan, available, engine="auto"
        )


def test_the_deprecated_engine_writes_the_same_tars(tmp_path, sources, plan):
    write_tars(plan, sources, tmp_path / "tiled", engine="tiled")
    write_tars(plan, sources, tmp_path / "auto", engine="auto")
    assert digests(tmp_path / "tiled") == digests(tmp_path / "auto")


def test_only_the_deprecated_engine_has_a_warning():
    assert engine_warning("auto", "--engine") is None
    warning = engine_warning("tiled", "--engine")
    assert (
        warning
        == "--engine: tiled is deprecated, and auto is used, which writes the same tars: remove this setting"
    )
