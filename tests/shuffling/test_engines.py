import errno
import hashlib
import pickle
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from nanoset_core.errors import ConfigError, FormatError, SampleIndexError, StaleError, StorageError
from nanoset_core.shuffling import PlanSettings, TokenSource, plan_shuffle, write_shard
from nanoset_core.shuffling.engines import WriteOptions, buckets, choice, choose_engine, free_memory, run, write_shards
from nanoset_core.shuffling.engines.run import SourceFile, source_files

ENGINES = ("mmap", "tiled", "buckets")
LENGTH = 65


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    rng = np.random.default_rng(5)
    made = []
    for name, tokens in (("web", LENGTH * 400 + 5), ("empty", 0), ("code", LENGTH * 170 + 32)):
        path = folder / f"{name}.bin"
        rng.integers(0, 50_000, tokens).astype(np.uint16).tofile(path)
        made.append(SourceFile(name, path, "uint16", tokens).open())
    return made


def plan_of(sources, **changes):
    options = {"sequence_length": LENGTH, "samples_per_shard": 16, "seed": 1234, "member": "npy"} | changes
    return plan_shuffle(sources, PlanSettings(**options))


def least(plan, shards=3):
    """A budget that holds a few shards, so that tiles and buckets are many."""
    return choice.least_bytes(plan) + (shards - 1) * plan.samples_per_shard * (choice.row_bytes(plan) + 80)


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.tar")}


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
    plan = plan_of(sources, **changes)
    expected = [write_shard(plan, sources, shard, tmp_path / "one") for shard in range(plan.shards)]
    assert sum(facts.pad_tokens for facts in expected) == plan.pad_tokens
    assert sum(facts.tokens for facts in expected) == plan.tokens
    for engine in ENGINES:
        folder = tmp_path / engine
        facts = write_shards(
            plan, sources, range(plan.shards), folder, WriteOptions(engine=engine, memory_bytes=least(plan))
        )
        assert facts == expected
        assert digests(folder) == digests(tmp_path / "one")
        assert hidden(folder) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_workers_change_nothing(tmp_path, sources, engine):
    plan = plan_of(sources)
    expected = [write_shard(plan, sources, shard, tmp_path / "one") for shard in range(plan.shards)]
    options = {"engine": engine, "memory_bytes": 2 * least(plan), "workers": 2}
    assert write_shards(plan, sources, range(plan.shards), tmp_path / "two", WriteOptions(**options)) == expected
    assert digests(tmp_path / "two") == digests(tmp_path / "one")


def test_sources_without_a_file_are_read_by_this_process(tmp_path, sources):
    arrays = [TokenSource(source.name, np.array(source.tokens)) for source in sources]
    plan = plan_of(arrays)
    expected = [write_shard(plan, sources, shard, tmp_path / "one") for shard in range(plan.shards)]
    for engine in ENGINES:
        options = {"engine": engine, "memory_bytes": 2 * least(plan), "workers": 2}
        assert write_shards(plan, arrays, range(plan.shards), tmp_path / engine, WriteOptions(**options)) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_there_is_left_alone(tmp_path, sources, engine):
    plan = plan_of(sources)
    options = {"engine": engine, "memory_bytes": least(plan)}
    some = write_shards(plan, sources, [1, 2, 7, 30], tmp_path, WriteOptions(**options))
    assert [facts.shard for facts in some] == [1, 2, 7, 30]
    inodes = {path.name: path.stat().st_ino for path in tmp_path.glob("*.tar")}
    assert len(inodes) == 4
    (tmp_path / "shard-00000002.tar").write_bytes(b"cut off")
    news = []
    facts = write_shards(plan, sources, range(plan.shards), tmp_path, WriteOptions(listener=news.append, **options))
    assert [fact.shard for fact in facts] == list(range(plan.shards))
    assert facts[7] == some[2]
    assert news[-1].done == news[-1].total == plan.shards - 3
    for name in ("shard-00000001.tar", "shard-00000007.tar", "shard-00000030.tar"):
        assert (tmp_path / name).stat().st_ino == inodes[name]
    before = {path.name: path.stat().st_ino for path in tmp_path.glob("*.tar")}
    assert write_shards(plan, sources, range(plan.shards), tmp_path, WriteOptions(**options)) == facts
    assert {path.name: path.stat().st_ino for path in tmp_path.glob("*.tar")} == before
    assert write_shards(plan, sources, range(plan.shards), tmp_path, WriteOptions(**options), again=True) == facts
    assert {path.name: path.stat().st_ino for path in tmp_path.glob("*.tar")} != before


def test_shards_of_other_tokens_or_another_plan_are_made_again(tmp_path):
    path = tmp_path / "web.bin"
    source = SourceFile("web", path, "uint16", 1000)
    np.arange(1000, dtype=np.uint16).tofile(path)
    plan = plan_shuffle([source.open()], PlanSettings(sequence_length=10, samples_per_shard=50, seed=1, member="npy"))
    first = write_shards(plan, [source.open()], range(2), tmp_path / "out", WriteOptions())
    other = plan_shuffle([source.open()], PlanSettings(sequence_length=10, samples_per_shard=50, seed=2, member="npy"))
    second = write_shards(other, [source.open()], range(2), tmp_path / "out", WriteOptions())
    assert [facts.sha256 for facts in first] != [facts.sha256 for facts in second]
    np.arange(1, 1001, dtype=np.uint16).tofile(path)
    third = write_shards(other, [source.open()], range(2), tmp_path / "out", WriteOptions())
    assert [facts.sha256 for facts in third] != [facts.sha256 for facts in second]
    assert [digests(tmp_path / "out")[f"{facts.stem}.tar"] for facts in third] == [facts.sha256 for facts in third]


def test_notes_that_a_power_cut_left_empty(tmp_path, sources):
    plan = plan_of(sources)
    facts = write_shards(plan, sources, range(4), tmp_path, WriteOptions())
    before = digests(tmp_path)
    for number, text in enumerate((b"", b"{", b"[]")):
        (tmp_path / ".shards" / f"shard-{number:08d}.json").write_bytes(text)
    (tmp_path / "shard-00000003.tar").unlink()
    assert write_shards(plan, sources, range(4), tmp_path, WriteOptions()) == facts
    assert digests(tmp_path) == before


def test_progress_is_told(tmp_path, sources):
    plan = plan_of(sources)
    news = []
    write_shards(
        plan,
        sources,
        range(20),
        tmp_path,
        WriteOptions(engine="buckets", memory_bytes=least(plan), listener=news.append),
    )
    dealt = [piece for piece in news if piece.stage == "buckets"]
    tars = [piece for piece in news if piece.stage == "tars"]
    assert dealt[-1].done == dealt[-1].total > 0
    assert [piece.done for piece in tars] == sorted(piece.done for piece in tars)
    assert (tars[-1].done, tars[-1].total, tars[-1].unit) == (20, 20, "shards")


MEBI = 1 << 20


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_stays_within_the_budget(tmp_path, engine):
    path = tmp_path / "web.bin"
    np.random.default_rng(0).integers(0, 50_000, 96 * MEBI // 2, dtype=np.uint16).tofile(path)
    sources = [SourceFile("web", path, "uint16", 48 * MEBI).open()]
    plan = plan_shuffle(sources, PlanSettings(sequence_length=2048, samples_per_shard=512, seed=1, member="npy"))
    choice = choose_engine(plan, engine=engine, memory_bytes=64 * MEBI)
    tracemalloc.start()
    try:
        write_shards(
            plan, sources, range(plan.shards), tmp_path / "out", WriteOptions(engine=engine, memory_bytes=64 * MEBI)
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= choice.memory_bytes <= 64 * MEBI


def test_a_budget_below_one_shard(tmp_path, sources):
    plan = plan_of(sources)
    for engine in ("tiled", "buckets"):
        with pytest.raises(ConfigError, match="does not hold one shard"):
            write_shards(plan, sources, range(3), tmp_path, WriteOptions(engine=engine, memory_bytes=MEBI))
    with pytest.raises(ConfigError, match="no such engine"):
        write_shards(plan, sources, range(3), tmp_path, WriteOptions(engine="quick"))
    assert list(tmp_path.glob("*.tar")) == []


def test_wrong_shards_and_sources(tmp_path, sources):
    plan = plan_of(sources)
    with pytest.raises(SampleIndexError, match="no such shard"):
        write_shards(plan, sources, [plan.shards], tmp_path, WriteOptions())
    with pytest.raises(StaleError, match="not those of the plan"):
        write_shards(plan, sources[:1], [0], tmp_path, WriteOptions())
    assert write_shards(plan, sources, [], tmp_path, WriteOptions()) == []
    files = source_files(sources)
    files[0].path.write_bytes(files[0].path.read_bytes())
    with pytest.raises(StaleError, match="does not hold its tokens"):
        SourceFile("web", files[0].path, "uint16", 5).open()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_disk_that_fills_up_with_shards(tmp_path, sources, engine, monkeypatch):
    plan = plan_of(sources)
    calls = []

    def full(folder, facts, made_from):
        calls.append(facts.shard)
        if len(calls) > 4:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(run, "write_receipt", full)
    with pytest.raises(StorageError, match="the disk is full") as caught:
        write_shards(plan, sources, range(plan.shards), tmp_path, WriteOptions(engine=engine, memory_bytes=least(plan)))
    assert "what is finished is kept" in str(caught.value)
    assert hidden(tmp_path) == []


class Twice:
    """An executor as a cluster is one whose workers die just before they would say that they are done."""

    def run(self, work, tasks):
        for number, task in reversed(list(enumerate(tasks))):
            work(pickle.loads(pickle.dumps(task)))
            yield number, pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(task)))))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_may_be_run_twice(tmp_path, sources, engine, again):
    plan = plan_of(sources)
    wanted = write_shards(plan, sources, range(plan.shards), tmp_path / "once", WriteOptions())
    for _ in range(1 + again):
        options = WriteOptions(engine=engine, memory_bytes=least(plan), executor=Twice())
        facts = write_shards(plan, sources, range(plan.shards), tmp_path / "twice", options, again=again)
        assert facts == wanted
    assert digests(tmp_path / "twice") == digests(tmp_path / "once")
    assert hidden(tmp_path / "twice") == []


def test_sources_without_files_stay_here(tmp_path, sources):
    held = [TokenSource(source.name, np.array(source.tokens)) for source in sources]
    plan = plan_of(held)
    facts = write_shards(plan, held, range(plan.shards), tmp_path, WriteOptions(executor=Twice()))
    assert [fact.shard for fact in facts] == list(range(plan.shards))


def test_a_dataset_made_anew_in_its_place_is_read_anew(tmp_path):
    """By workers that live longer than one build."""
    rng = np.random.default_rng(3)
    made = []
    for name in ("first", "second"):
        path = tmp_path / "s.bin"
        rng.integers(0, 50_000, LENGTH * 40).astype(np.uint16).tofile(tmp_path / "new")
        (tmp_path / "new").rename(path)
        found = [SourceFile("s", path, "uint16", LENGTH * 40).open()]
        plan = plan_of(found)
        write_shards(plan, found, range(plan.shards), tmp_path / name, WriteOptions(executor=Twice()))
        write_shards(plan, found, range(plan.shards), tmp_path / f"{name}-here", WriteOptions())
        assert digests(tmp_path / name) == digests(tmp_path / f"{name}-here")
        made.append(digests(tmp_path / name))
    assert made[0] != made[1]


def test_a_disk_that_fills_up_with_buckets(tmp_path, sources, monkeypatch):
    plan = plan_of(sources)

    def full(file, records):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(buckets, "_write_all", full)
    scratch = tmp_path / "scratch"
    with pytest.raises(StorageError, match="the disk is full"):
        write_shards(plan, sources, range(9), tmp_path / "out", WriteOptions(engine="buckets", scratch=scratch))
    assert list(scratch.iterdir()) == []
    assert digests(tmp_path / "out") == {}


def test_too_little_room_is_told_before_work_begins(tmp_path, sources, monkeypatch):
    plan = plan_of(sources)
    usage = type(run.shutil.disk_usage(tmp_path))
    monkeypatch.setattr(run.shutil, "disk_usage", lambda path: usage(100, 99, 1))
    with pytest.raises(StorageError, match="too little room for the buckets") as caught:
        write_shards(plan, sources, range(plan.shards), tmp_path, WriteOptions(engine="buckets"))
    scratch = choose_engine(plan, engine="buckets").scratch_bytes
    assert f"expected: {scratch:,} bytes" in str(caught.value)
    assert hidden(tmp_path) == []


def test_scratch_is_what_was_stated_and_shrinks(tmp_path, sources, monkeypatch):
    plan = plan_of(sources)
    sizes = []

    def measured(folder, facts, made_from):
        sizes.append(sum(path.stat().st_size for path in folder.rglob("bucket-*")))

    monkeypatch.setattr(run, "write_receipt", measured)
    choice = choose_engine(plan, engine="buckets", memory_bytes=least(plan))
    write_shards(plan, sources, range(plan.shards), tmp_path, WriteOptions(engine="buckets", memory_bytes=least(plan)))
    assert sizes[0] == choice.scratch_bytes == plan.contexts * (LENGTH * 2 + 8)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 3 * 16 * (LENGTH * 2 + 8)


def test_a_bucket_that_something_else_wrote_to(tmp_path, sources, monkeypatch):
    plan = plan_of(sources)
    plainly = buckets.distribute

    def and_spoil(*arguments):
        plainly(*arguments)
        with arguments[2][0].path.open("ab") as file:
            file.write(b"x")

    monkeypatch.setattr(buckets, "distribute", and_spoil)
    with pytest.raises(FormatError, match="does not hold the rows that were written"):
        write_shards(plan, sources, range(9), tmp_path, WriteOptions(engine="buckets"))
    assert hidden(tmp_path) == []


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from nanoset_core.shuffling import PlanSettings, plan_shuffle
from nanoset_core.shuffling.engines import WriteOptions, buckets, choice, run, write_shards
from nanoset_core.shuffling.engines.run import SourceFile

folder, engine, moment = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
source = SourceFile("web", folder / "web.bin", "uint16", 100_000).open()
plan = plan_shuffle([source], PlanSettings(sequence_length=10, samples_per_shard=100, seed=1, member="npy"))
write_receipt, write_all, noted, dealt = run.write_receipt, buckets._write_all, [], []

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def remember_some(*arguments):
    noted.append(arguments)
    write_receipt(*arguments) if len(noted) < 12 else die()

def deal_some(*arguments):
    dealt.append(arguments)
    write_all(*arguments) if len(dealt) < 3 else die()

if moment == "shards":
    run.write_receipt = remember_some
if moment == "buckets":
    buckets._write_all = deal_some
memory = choice.least_bytes(plan) + 30_000
write_shards(plan, [source], range(plan.shards), folder / "out", WriteOptions(engine=engine, memory_bytes=memory))
"""


@pytest.mark.parametrize(("engine", "moment"), [(engine, "shards") for engine in ENGINES] + [("buckets", "buckets")])
def test_a_killed_run_goes_on_to_the_same_shards(tmp_path, engine, moment):
    np.random.default_rng(1).integers(0, 9999, 100_000).astype(np.uint16).tofile(tmp_path / "web.bin")

    def run(when):
        return subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), engine, when], check=False).returncode

    assert run(moment) == -signal.SIGKILL
    left = {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}
    noted = [path.stem for path in (tmp_path / "out" / ".shards").glob("shard-*.json")]
    assert (len(noted) == 11) == (moment == "shards")
    assert run("never") == 0
    assert hidden(tmp_path / "out") == []
    for name in noted:
        assert (tmp_path / "out" / f"{name}.tar").stat().st_ino == left[f"{name}.tar"]
    source = SourceFile("web", tmp_path / "web.bin", "uint16", 100_000).open()
    plan = plan_shuffle([source], PlanSettings(sequence_length=10, samples_per_shard=100, seed=1, member="npy"))
    for shard in range(plan.shards):
        write_shard(plan, [source], shard, tmp_path / "whole")
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_auto_goes_by_size_and_storage(sources):
    plan = plan_of(sources)
    size = sum(len(source.tokens) for source in sources) * 2
    assert choose_engine(plan, 10 * size).engine == "mmap"
    assert choose_engine(plan, 0, "memory").engine == "mmap"
    tiled = choose_engine(plan, size // 2, memory_bytes=least(plan, 6))
    assert (tiled.engine, tiled.passes, tiled.scratch_bytes) == ("tiled", 6, 0)
    assert tiled.memory_bytes == least(plan, 6)
    dealt = choose_engine(plan, size // 2, memory_bytes=least(plan, 2))
    assert (dealt.engine, dealt.passes) == ("buckets", 1)
    assert 0 < dealt.scratch_bytes <= size * 1.1
    assert choose_engine(plan, size // 2, "network", memory_bytes=least(plan, 6)).engine == "buckets"
    assert "exceed the cache" in dealt.reason
    assert choose_engine(plan, engine="tiled").reason == "as asked"
    assert free_memory() > MEBI


def test_engines_take_neither_torch_nor_dagster():
    code = (
        "import sys; import nanoset_core.shuffling.engines; "
        "print(sorted({'webdataset', 'torch', 'isal', 'pyarrow', 'dagster'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
