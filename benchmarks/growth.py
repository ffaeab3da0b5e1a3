"""Measure how time and memory of each stage grow with the corpora.

    python -m benchmarks.growth [--shards 100 1000 10000]
        [--documents 1000000 10000000] [--milliseconds 10]

Two things grow, one after the other:

- Shards. Each is made from a file of made-up text, by 32 workers (threads of one process). The
  store is a folder in which each request waits for some milliseconds. Reported is how much memory
  grows.
- Documents of one dataset: an .idx of made-up lengths, and a .bin of zeros that takes no disk
  space, read by `nanoset map`. Reported is anonymous memory, without the mapped .idx.
"""

from __future__ import annotations

import functools
import io
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import apart, options
from nanoset_core.cli.entry import nanoset
from nanoset_core.demo.writing import write_demo
from nanoset_core.errors import NanosetError
from nanoset_core.execution.bounded import BoundedRun
from nanoset_core.formats.indexed.layout import HEADER, MAGIC, VERSION, dtype_code, pointer_chunks
from nanoset_core.lineage.documents import Lineage
from nanoset_core.project.gc import plan_gc
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.stages.dataset.stage import make_dataset
from nanoset_core.stages.datasets import current_dataset, dataset_of
from nanoset_core.stages.handoff import stage as handoff
from nanoset_core.stages.inventory.make import make_inventory
from nanoset_core.stages.mappings import stage as mapping
from nanoset_core.stages.shards.make import engine_choice
from nanoset_core.stages.shards.tokenize import tokenize_corpus
from nanoset_core.stages.shards.verify import verify_shards
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.s3_parts import etag_of_bytes
from nanoset_core.storage.store import Stored

WORKERS = 32
DOCUMENTS = 9
"""Of a file: about a kilobyte of text."""
SMALL = 1 << 16
LISTED = 1000
"""Objects that one request lists."""
TOKENS = 64
"""Of a document, on average."""
WORDS = (
    "the",
    "data",
    "of",
    "a",
    "model",
    "is",
    "read",
    "in",
    "order",
    "and",
    "shuffled",
    "by",
    "seed",
    "then",
    "packed",
)
CONFIG = """raw: raw
root: data
tokenizer: {{path: {demo}/tokenizer.json, eod: '<|endoftext|>'}}
tokenization: {{range_mib: 0.001}}
nanosets: {{pretrain: {{blend: web, sequence_length: 64, split: '98,1,1'}}}}
webdatasets: {{shuffled: {{corpora: [web], sequence_length: 65, samples_per_shard: {samples}, member: npy, groups: 1}}}}
"""
requests: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class LateStore(LocalStore):
    """A folder as a bucket would be: each request waits, small objects have digests as marks,
    joining is its own.
    """

    seconds: float = 0.0

    def below(self, folder: str) -> LateStore:
        return LateStore(self.folder / folder, self.seconds)

    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        found = LocalStore.read_stored(self, name)
        return (
            None if found is None else (found[0], replace(found[1], mark=etag_of_bytes(found[0])))
        )

    def list(self, folder: str = "") -> Iterator[Stored]:
        for number, found in enumerate(LocalStore.list(self, folder)):
            if number % LISTED == LISTED - 1:
                self.wait("list")
            yield found

    def compose(self, name: str, sources: Any, *, sha256: Any = None, joined: Any = None) -> None:
        def blocks() -> Iterator[bytes]:
            for one in sources:
                yield LocalStore.read_range(self, one.name, one.begin, one.begin + one.size)

        LocalStore.put_parts(self, name, blocks())

    def wait(self, request: str) -> None:
        requests[request] += 1
        time.sleep(self.seconds)

    def _stat(self, name: str, path: Path) -> Stored | None:
        found = LocalStore._stat(self, name, path)
        if found is None or found.size > SMALL:
            return found
        return replace(found, mark=etag_of_bytes(path.read_bytes()))

    def _opened(self, name: str, mark: str | None) -> Any:
        return LocalStore._opened(self, name, None)


def waiting(name: str) -> Callable[..., Any]:
    inner = getattr(LateStore, name)

    @functools.wraps(inner)
    def call(self: LateStore, *given: Any, **named: Any) -> Any:
        self.wait(name)
        return inner(self, *given, **named)

    return call


for request in (
    "list",
    "level",
    "stat",
    "read_stored",
    "read_range",
    "put_parts",
    "put_file",
    "compose",
    "fetch",
    "delete",
):
    setattr(LateStore, request, waiting(request))


class ThreadRun(BoundedRun[Any, Future[Any]]):
    """One run of tasks in threads."""

    def __init__(self, pool: ThreadPoolExecutor, work: Callable[[Any], Any]) -> None:
        super().__init__(2 * WORKERS)
        self._pool = pool
        self._work = work

    def submit(self, task: Any) -> Future[Any]:
        return self._pool.submit(self._work, task)

    def wait(self) -> Iterable[Future[Any]]:
        return wait(self.pending, None, FIRST_COMPLETED).done

    def result(self, handle: Future[Any]) -> Any:
        return handle.result()


class Threads:
    """An executor of threads."""

    def run(self, work: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        with ThreadPoolExecutor(WORKERS) as pool:
            yield from ThreadRun(pool, work).results(tasks)


class Spread(Project):
    """A project whose tasks run in threads."""

    __slots__ = ()
    executor = Threads()


def with_shards(shards: int, seconds: float) -> None:
    """Build and look at a corpus of so many files, each of which becomes a shard."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_demo(folder / "demo", megabytes=2)
        write_files(folder / "raw" / "web", shards)
        samples = max(128, shards * DOCUMENTS // 500)
        (folder / "nanoset.yaml").write_text(
            CONFIG.format(demo=folder / "demo", samples=samples), encoding="utf-8"
        )
        time.sleep(2.1)  # what was written just before it was read is read again

        def project(copies: str = "copies") -> Project:
            opened = Spread(Project.open(folder / "nanoset.yaml").config)
            store = LateStore(folder / "store", seconds)
            object.__setattr__(opened, "_access", FileAccess(folder / copies, store))
            return opened

        def status(copies: str = "copies") -> None:
            if states := {row.state for row in project_status(project(copies))} - {"up to date"}:
                raise NanosetError("the project is not up to date", found=", ".join(states))

        def last_document() -> None:
            dataset = current_dataset(elsewhere := project("elsewhere"), "web")
            Lineage(dataset_of(elsewhere.outputs, dataset)).origins(
                [dataset.facts["documents"] - 1]
            )

        stages: dict[str, Callable[[], object]] = {
            "inventory": lambda: make_inventory(project(), "web"),
            "shards": lambda: tokenize_corpus(project(), "web"),
            "merge": lambda: make_dataset(project(), "web"),
            "index mappings": lambda: [
                mapping.write_mappings(project(), "pretrain", split)  # type: ignore[arg-type]
                for split in ("train", "valid", "test")
            ],
            "handoff": lambda: handoff.write_handoff(project(), "pretrain"),
            "tars": lambda: (
                shuffling.make_plan(project(), "shuffled"),
                shuffling.write_group(project(), "shuffled", 0),
                shuffling.finish(project(), "shuffled"),
            ),
            "status": status,
            "nothing new: shards": lambda: tokenize_corpus(project(), "web"),
            "verify shards": lambda: verify_shards(project(), "web"),
            "plan gc": lambda: plan_gc(project()),
            "another machine: the last document": last_document,
            "a third machine: status": lambda: status("third"),
        }
        # else each thread would make and prove its own
        engine_choice(project().config.tokenizer_file, "auto")
        for stage, work in stages.items():
            measured(stage, shards, work)
        (folder / "raw" / "web" / "zz.jsonl").write_bytes(text(shards))
        for stage in ("inventory", "shards", "merge"):
            measured(f"one file more: {stage}", shards, stages[stage])


def write_files(folder: Path, count: int) -> None:
    """Write files of text, a thousand a folder."""
    for number in range(count):
        path = folder / f"{number // 1000:04}" / f"{number % 1000:03}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text(number))


def text(number: int) -> bytes:
    """Return a kilobyte of JSON lines, others for another number."""
    lines = []
    for document in range(number * DOCUMENTS, (number + 1) * DOCUMENTS):
        chosen = (WORDS[(document * 7 + at * at) % len(WORDS)] for at in range(6 + document % 9))
        lines.append(
            json.dumps({"id": document, "text": " ".join(chosen)}).encode().ljust(119) + b"\n"
        )
    return b"".join(lines)


def measured(stage: str, size: int, work: Callable[[], object]) -> None:
    """Print a row of what some work takes."""
    requests.clear()
    with memory("RssAnon") as used:
        wall, cpu, before = time.perf_counter(), time.process_time(), used[0]
        work()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    cells = stage, f"{size:,}", f"{wall:.1f}", f"{cpu:.1f}", f"{max(0, used[0] - before):,.0f}"
    print(f"| {' | '.join(cells)} | {sum(requests.values()):,} |", flush=True)


@contextmanager
def memory(kind: str) -> Iterator[list[float]]:
    """Yield the most MB of a kind that this process takes meanwhile, by looks every 20 ms."""
    most, ended = [resident(kind)], threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            most[0] = max(most[0], resident(kind))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def resident(kind: str) -> float:
    lines = (line.split() for line in Path("/proc/self/status").read_text("utf-8").splitlines())
    return next(int(words[1]) / 1000 for words in lines if words[0] == f"{kind}:")


def with_documents(documents: int) -> None:
    """Inspect and map a dataset of so many documents."""
    with tempfile.TemporaryDirectory() as temporary:
        prefix = Path(temporary, "web_text_document")
        write_dataset(prefix, documents)
        words = ["map", "--data-path", str(prefix), "--seq-length", "2048", "--split", "98,1,1"]
        commands = {"inspect": ["inspect", str(prefix)], "map": words, "map, nothing new": words}
        for name, command in commands.items():
            apart(command_measured, name, documents, command)


def command_measured(name: str, documents: int, command: list[str]) -> None:
    def run() -> None:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            nanoset(command, standalone_mode=False)

    measured(name, documents, run)


def write_dataset(prefix: Path, documents: int) -> None:
    """Write a pair of which the .bin takes no disk, in bounded memory."""
    rng, tokens, step = np.random.default_rng(0), 0, 1 << 22
    with prefix.with_suffix(".idx").open("w+b") as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(np.uint16), documents, documents + 1))
        for begin in range(0, documents, step):
            lengths = rng.integers(1, 2 * TOKENS, min(step, documents - begin), dtype=np.int32)
            tokens += int(lengths.sum())
            file.write(lengths.data)
        file.flush()
        written = np.memmap(file, "<i4", "r", HEADER.size, (documents,))
        for _, pointers in pointer_chunks(written, 2):
            file.write(pointers.data)
        for begin in range(0, documents + 1, step):
            file.write(np.arange(begin, min(begin + step, documents + 1), dtype=np.int64).data)
    with prefix.with_suffix(".bin").open("wb") as file:
        file.truncate(2 * tokens)


def main() -> None:
    arguments = options(
        __doc__, shards=[100, 1000, 10_000], documents=[1_000_000, 10_000_000], milliseconds=10.0
    )
    for what, sizes, work in (
        (
            "shards",
            arguments.shards,
            lambda size: apart(with_shards, size, arguments.milliseconds / 1000),
        ),
        ("documents", arguments.documents, with_documents),
    ):
        print(
            f"\n| stage | {what} | wall s | CPU s | memory MB | requests |\n| --- |{' ---: |' * 5}",
            flush=True,
        )
        for size in map(int, sizes):
            work(size)


if __name__ == "__main__":
    main()
