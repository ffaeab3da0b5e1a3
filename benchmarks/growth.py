"""Measure how time and memory of each stage grow with the corpora.

    python -m benchmarks.growth [--shards 100 1000 10000]
        [--documents 1000000 10000000] [--milliseconds 10] [--tokenizer FILE]

Two things grow, one after the other:

- Shards. Each is made from a file of made-up text, by 32 workers (threads of one process). The
  store is a folder in which each request waits for some milliseconds. Reported is how much memory
  grows.
- Documents of one dataset: an .idx of made-up lengths, and a .bin of zeros that takes no disk
  space, read by `nanoset map`. Reported is anonymous memory, without the mapped .idx.

The tokenizer is that of the demo, unless FILE is a tokenizer.json.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from benchmarks.harness import options, run_in_new_process
from nanoset_core.cli.entry import nanoset
from nanoset_core.demo.writing import write_demo
from nanoset_core.errors import NanosetError
from nanoset_core.execution.bounded import BoundedRun
from nanoset_core.formats.indexed.layout import HEADER, MAGIC, VERSION, dtype_code, pointer_chunks
from nanoset_core.lineage.documents import Lineage
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.gc.collect import plan_gc
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.dataset.make import make_dataset
from nanoset_core.stages.datasets import current_dataset, dataset_of
from nanoset_core.stages.handoff.make import write_handoff
from nanoset_core.stages.inventory.make import make_inventory
from nanoset_core.stages.mappings.make import write_mappings
from nanoset_core.stages.report import run_here
from nanoset_core.stages.shards.make import tokenize_corpus
from nanoset_core.stages.shards.one_shard import engine_choice
from nanoset_core.stages.shards.verify import verify_shards
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.store import Stored
from nanoset_core.storage.stores.local import LocalStore

WORKERS = 32
DOCUMENTS_PER_FILE = 9
"""About a kilobyte of text."""
MEAN_TOKENS = 64
"""Tokens of a document, on average, in the datasets that `nanoset map` reads."""
CHUNK_DOCUMENTS = 1 << 22
"""Documents of such a dataset that are written together."""
LOOK_SECONDS = 0.02
"""Time between two looks at the memory of this process."""
RECENT_SECONDS = 2.1
"""Files that were written more recently are read again by the next inventory."""
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
tokenizer: {{path: {tokenizer}, eod: '<|endoftext|>'}}
tokenization: {{range_mib: 0.001}}
nanosets: {{pretrain: {{blend: web, sequence_length: 64, split: '98,1,1'}}}}
webdatasets: {{shuffled: {{corpora: [web], sequence_length: 65, samples_per_shard: {samples}, member: npy, groups: 1}}}}
"""
requests: Counter[str] = Counter()
"""Requests of a `DelayedStore` by kind, since the last measurement started."""


@dataclass(frozen=True)
class DelayedStore(LocalStore):
    """A folder that answers as slowly as a bucket, and identifies small objects by their bytes."""

    SMALL_BYTES: ClassVar[int] = 1 << 16
    """Objects up to this size have the mark of a bucket, which is a digest."""
    LISTED_OBJECTS: ClassVar[int] = 1000
    """Objects that one request of a bucket lists."""

    seconds: float = 0.0
    """How long each request waits."""

    def below(self, folder: str) -> DelayedStore:
        return DelayedStore(self.folder / folder, self.seconds)

    def list(self, folder: str = "") -> Iterator[Stored]:
        self.wait("list")
        for number, stored in enumerate(super().list(folder)):
            if number % self.LISTED_OBJECTS == self.LISTED_OBJECTS - 1:
                self.wait("list")
            yield self._with_mark(stored)

    def level(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        self.wait("level")
        return super().level(folder)

    def stat(self, name: str) -> Stored | None:
        self.wait("stat")
        stored = super().stat(name)
        return None if stored is None else self._with_mark(stored)

    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        self.wait("read_stored")
        result = super().read_stored(name)
        if result is None:
            return None
        data, stored = result
        return data, self._with_mark(stored)

    def read_range(self, name: str, begin: int, end: int, mark: str | None = None) -> bytes:
        self.wait("read_range")
        return super().read_range(name, begin, end, mark)

    def put_parts(self, name: str, blocks: Iterable[bytes]) -> None:
        self.wait("put_parts")
        super().put_parts(name, blocks)

    def compose(
        self,
        name: str,
        sources: Any,
        *,
        sha256: str | None = None,
        joined: Any = None,
    ) -> None:
        """Join objects in one request, as a bucket does without a download."""
        self.wait("compose")

        def blocks() -> Iterator[bytes]:
            """Yield the bytes of each source, which takes no requests."""
            for source in sources:
                stop = source.begin + source.size
                yield LocalStore.read_range(self, source.name, source.begin, stop)

        LocalStore.put_parts(self, name, blocks())

    def delete(self, name: str) -> None:
        self.wait("delete")
        super().delete(name)

    def wait(self, request: str) -> None:
        """Count a request, and wait for its answer."""
        requests[request] += 1
        time.sleep(self.seconds)

    def _with_mark(self, stored: Stored) -> Stored:
        """Return the description of an object with the mark that a bucket would give it."""
        if stored.size > self.SMALL_BYTES:
            return stored
        data = (self.folder / stored.name).read_bytes()
        md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
        return replace(stored, mark=f'"{md5}"', md5=md5)

    def _opened(self, name: str, mark: str | None) -> BinaryIO:
        # Marks are not compared with those of the folder, which are others.
        return super()._opened(name, None)


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


class ThreadExecutor:
    """An executor whose workers are threads of this process."""

    def run(self, work: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        with ThreadPoolExecutor(WORKERS) as pool:
            yield from ThreadRun(pool, work).results(tasks)


def open_project(config_file: Path, access: FileAccess) -> Project:
    """Open a project whose tasks run in threads, and whose outputs are in another store.

    Args:
        config_file: The nanoset.yaml.
        access: Reaches the outputs.
    """

    class ThreadedProject(Project):
        """The project. Its copies, such as those with a cached listing, are of this class, too."""

        __slots__ = ()
        executor = ThreadExecutor()

        @property
        def outputs(self) -> OutputRoot:
            listed_access = access
            if self.listed_folder is not None:
                listed_access = access.with_listing(access.folder / self.listed_folder)
            return OutputRoot(listed_access, self.rebuild, self.seen)

    return ThreadedProject(Project.open(config_file).config)


class GrowthProject:
    """A project whose corpus has so many files, each of which becomes a shard.

    Each method opens the project anew, as a command does.
    """

    def __init__(self, folder: Path, n_shards: int, seconds: float, tokenizer: str) -> None:
        """Write the files.

        Args:
            folder: An empty folder.
            n_shards: Number of files.
            seconds: How long each request of the store waits.
            tokenizer: Path of a tokenizer.json; empty for that of the demo.
        """
        self._folder = folder
        self._seconds = seconds
        if not tokenizer:
            write_demo(folder / "demo", megabytes=2)
            tokenizer = str(folder / "demo" / "tokenizer.json")
        write_files(folder / "raw" / "web", n_shards)
        samples_per_tar = max(128, n_shards * DOCUMENTS_PER_FILE // 500)
        config = CONFIG.format(tokenizer=tokenizer, samples=samples_per_tar)
        (folder / "nanoset.yaml").write_text(config, encoding="utf-8")
        time.sleep(RECENT_SECONDS)

    def open_project(self, machine: str = "copies") -> Project:
        """Open the project as a machine with its own copies of files would.

        Args:
            machine: Name of the folder of these copies.
        """
        store = DelayedStore(self._folder / "store", self._seconds)
        access = FileAccess(self._folder / machine, store)
        return open_project(self._folder / "nanoset.yaml", access)

    def add_file(self, number: int) -> None:
        """Add a file to the corpus."""
        (self._folder / "raw" / "web" / "zz.jsonl").write_bytes(text_of_file(number))

    def make_all_mappings(self) -> None:
        """Make the index mappings of each split."""
        for split in SPLITS:
            write_mappings(self.open_project(), "pretrain", split)

    def make_tars(self) -> None:
        """Make the plan, the tars and the lists of the webdataset."""
        shuffling.make_plan(self.open_project(), "shuffled")
        shuffling.write_group(self.open_project(), "shuffled", 0)
        shuffling.finish(self.open_project(), "shuffled")

    def verify_shards(self) -> None:
        """Verify the shards of a corpus, without reading every byte."""
        verify_shards(self.open_project(), "web", deep=False, run=run_here)

    def check_status(self, machine: str = "copies") -> None:
        """Look at the state of all outputs.

        Raises:
            NanosetError: An output is not up to date.
        """
        states = {row.state for row in project_status(self.open_project(machine))}
        states.discard("up to date")
        if states:
            raise NanosetError("the project is not up to date", found=", ".join(states))

    def explain_last_document(self) -> None:
        """Find the line of the last document, on another machine."""
        project = self.open_project("elsewhere")
        dataset = current_dataset(project, "web")
        lineage = Lineage(dataset_of(project.outputs, dataset))
        lineage.origins([dataset.facts["documents"] - 1])


def with_shards(n_shards: int, seconds: float, tokenizer: str) -> None:
    """Measure the stages on a corpus with so many shards.

    Args:
        n_shards: Number of shards.
        seconds: How long each request of the store waits.
        tokenizer: Path of a tokenizer.json; empty for that of the demo.
    """
    with tempfile.TemporaryDirectory() as temporary:
        project = GrowthProject(Path(temporary), n_shards, seconds, tokenizer)
        # Make the engine before the threads: otherwise each of them would make its own.
        engine_choice(project.open_project().config.tokenizer_file, "auto")
        stages: dict[str, Callable[[], object]] = {
            "inventory": lambda: make_inventory(project.open_project(), "web"),
            "shards": lambda: tokenize_corpus(project.open_project(), "web"),
            "merge": lambda: make_dataset(project.open_project(), "web"),
            "index mappings": project.make_all_mappings,
            "handoff": lambda: write_handoff(project.open_project(), "pretrain"),
            "tars": project.make_tars,
            "status": project.check_status,
            "nothing new: shards": lambda: tokenize_corpus(project.open_project(), "web"),
            "verify shards": project.verify_shards,
            "plan gc": lambda: plan_gc(project.open_project()),
            "another machine: the last document": project.explain_last_document,
            "a third machine: status": lambda: project.check_status("third"),
        }
        for stage, work in stages.items():
            measure(stage, n_shards, work)

        project.add_file(n_shards)
        for stage in ("inventory", "shards", "merge"):
            measure(f"one file more: {stage}", n_shards, stages[stage])


def write_files(folder: Path, count: int) -> None:
    """Write files of text, a thousand in each folder."""
    for number in range(count):
        path = folder / f"{number // 1000:04}" / f"{number % 1000:03}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text_of_file(number))


def text_of_file(number: int) -> bytes:
    """Return a kilobyte of JSON lines, which differ by the number of the file."""
    lines = []
    first_document = number * DOCUMENTS_PER_FILE
    for document in range(first_document, first_document + DOCUMENTS_PER_FILE):
        n_words = 6 + document % 9
        words = [WORDS[(document * 7 + place * place) % len(WORDS)] for place in range(n_words)]
        line = json.dumps({"id": document, "text": " ".join(words)}).encode()
        lines.append(line.ljust(119) + b"\n")  # so that all lines have the same length
    return b"".join(lines)


def measure(stage: str, size: int, work: Callable[[], object]) -> None:
    """Print a row with the time, memory and requests that some work takes.

    Args:
        stage: Name of the row.
        size: Number of shards or documents.
        work: The work.
    """
    requests.clear()
    with peak_memory("RssAnon") as peak:
        memory_before = peak.megabytes
        started = time.perf_counter()
        cpu_started = time.process_time()
        work()
        wall = time.perf_counter() - started
        cpu = time.process_time() - cpu_started
    growth = max(0, peak.megabytes - memory_before)
    cells = [
        stage,
        f"{size:,}",
        f"{wall:.1f}",
        f"{cpu:.1f}",
        f"{growth:,.0f}",
        f"{sum(requests.values()):,}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


@dataclass
class PeakMemory:
    """The most memory that this process took during some work."""

    megabytes: float


@contextmanager
def peak_memory(kind: str) -> Iterator[PeakMemory]:
    """Watch the memory of this process during a `with` block.

    Args:
        kind: Which memory, such as RssAnon, as /proc/self/status calls it.

    Yields:
        The peak, which grows during the block.
    """
    peak = PeakMemory(resident_megabytes(kind))
    has_ended = threading.Event()

    def watch() -> None:
        """Look at the memory every 20 ms until the block ends."""
        while not has_ended.wait(LOOK_SECONDS):
            peak.megabytes = max(peak.megabytes, resident_megabytes(kind))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        has_ended.set()
        thread.join()


def resident_megabytes(kind: str) -> float:
    """Return how much memory of a kind this process has now."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == kind:
            kilobytes = int(value.split()[0])
            return kilobytes / 1000
    raise NanosetError(f"the system does not report {kind}")


def with_documents(n_documents: int) -> None:
    """Measure commands that read a dataset with so many documents."""
    with tempfile.TemporaryDirectory() as temporary:
        prefix = Path(temporary, "web_text_document")
        write_dataset(prefix, n_documents)
        map_words = ["map", "--data-path", str(prefix), "--seq-length", "2048"]
        map_words += ["--split", "98,1,1"]
        words_by_row = {
            "inspect": ["inspect", str(prefix)],
            "map": map_words,
            "map, nothing new": map_words,
        }
        for row, words in words_by_row.items():
            run_in_new_process(measure_command, row, n_documents, words)


def measure_command(row: str, n_documents: int, words: list[str]) -> None:
    """Print a row with what a command of nanoset takes, which runs in this process."""

    def work() -> None:
        """Run the command without its output."""
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            nanoset(words, standalone_mode=False)

    measure(row, n_documents, work)


def write_dataset(prefix: Path, n_documents: int) -> None:
    """Write a .bin/.idx pair in bounded memory; its .bin is a hole that takes no disk space.

    Args:
        prefix: Path of the pair, without the endings.
        n_documents: Number of documents, of random lengths.
    """
    rng = np.random.default_rng(0)
    n_tokens = 0
    with prefix.with_suffix(".idx").open("w+b") as file:
        header = HEADER.pack(MAGIC, VERSION, dtype_code(np.uint16), n_documents, n_documents + 1)
        file.write(header)

        # The lengths of the documents, each of which is one sequence.
        for start in range(0, n_documents, CHUNK_DOCUMENTS):
            count = min(CHUNK_DOCUMENTS, n_documents - start)
            lengths = rng.integers(1, 2 * MEAN_TOKENS, count, dtype=np.int32)
            n_tokens += int(lengths.sum())
            file.write(lengths.data)

        # Pointers: where the tokens of each sequence start in the .bin.
        file.flush()
        all_lengths = np.memmap(file, "<i4", "r", HEADER.size, (n_documents,))
        for _, pointers in pointer_chunks(all_lengths, 2):
            file.write(pointers.data)

        # Document indices: the first sequence of each document, and at the end their number.
        for start in range(0, n_documents + 1, CHUNK_DOCUMENTS):
            stop = min(start + CHUNK_DOCUMENTS, n_documents + 1)
            file.write(np.arange(start, stop, dtype=np.int64).data)
    with prefix.with_suffix(".bin").open("wb") as file:
        file.truncate(2 * n_tokens)


def main() -> None:
    """Print a table for growing numbers of shards, and one for growing numbers of documents."""
    arguments = options(
        __doc__,
        shards=[100, 1000, 10_000],
        documents=[1_000_000, 10_000_000],
        milliseconds=10.0,
        tokenizer="",
    )
    seconds = arguments.milliseconds / 1000
    print_growth_head("shards")
    for n_shards in arguments.shards:
        run_in_new_process(with_shards, int(n_shards), seconds, arguments.tokenizer)
    print_growth_head("documents")
    for n_documents in arguments.documents:
        with_documents(int(n_documents))


def print_growth_head(what: str) -> None:
    """Print the first lines of a table, given what grows."""
    headings = ["stage", what, "wall s", "CPU s", "memory MB", "requests"]
    print(f"\n| {' | '.join(headings)} |")
    print("| --- |" + " ---: |" * (len(headings) - 1), flush=True)


if __name__ == "__main__":
    main()
