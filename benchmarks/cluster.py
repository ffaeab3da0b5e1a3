"""Measure how a Dask cluster scales, and what the process costs that distributes the tasks.

    python -m benchmarks.cluster [--megabytes 128] [--range-mib 16] [--workers 2] [--rounds 1]
        [--sleepers 8] [--tasks 64] [--seconds 0.5]

Two tables are printed:

- Tasks that only sleep are run by one worker, and by `--sleepers` workers. Their wall times show
  how the work scales, independently of the processors of this machine.
- A corpus of `--megabytes` in a bucket is tokenized, merged and packed by `--workers` workers. The
  table shows how much processor time the workers take, and how much this process takes. The bucket
  is on a moto server on this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import options
from benchmarks.s3 import BUCKET, moto_server, set_credentials
from nanoset_core.demo.writing import write_demo
from nanoset_core.execution.cluster_executor import ClusterExecutor
from nanoset_core.execution.dask_scheduler import DaskScheduler
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.make import make_dataset
from nanoset_core.stages.inventory.make import make_inventory
from nanoset_core.stages.pbin.stage import PBIN
from nanoset_core.stages.shards.make import tokenize_corpus
from nanoset_core.stages.stage import Key
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.stores.s3.store import S3Store

CORPUS = "text"
PROJECT = """raw: {raw}
root: s3://{bucket}/out-{number}
tokenizer: {{path: {demo}/tokenizer.json, eod: '<|endoftext|>'}}
tokenization: {{range_mib: {range_mib}, engine: numpy}}
storage: {{endpoint_url: {endpoint!r}}}
executor: {{kind: dask, address: {address!r}}}
pbin: [{corpus}]
"""
MAX_DEMO_MEGABYTES = 24.0
"""Text that the demo can make; a larger corpus repeats it."""
START_SECONDS = 120
"""Time within which the workers of a cluster must have started."""


def main() -> None:
    """Print both tables."""
    arguments = options(
        __doc__,
        megabytes=128.0,
        range_mib=16.0,
        workers=2,
        sleepers=8,
        tasks=64,
        seconds=0.5,
        rounds=1,
    )
    set_credentials()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compare_sleepers(folder, arguments.sleepers, arguments.tasks, arguments.seconds)

        demo = folder / "demo"
        megabytes = write_corpus(demo, arguments.megabytes)
        print(
            f"\n{megabytes:,.0f} MB of text, tasks of {arguments.range_mib:g} MiB, "
            f"{arguments.workers} worker(s)\n"
        )
        print("| stage | tasks | CPU s of the workers | CPU s here | share | ms here a task |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        workers = start_cluster(folder / "cluster", arguments.workers)
        with moto_server() as endpoint, workers as address:
            S3Store(BUCKET, "", endpoint).client().create_bucket(Bucket=BUCKET)
            for number in range(arguments.rounds):
                project_folder = folder / f"project-{number}"
                project_folder.mkdir()
                config = project_folder / "nanoset.yaml"
                text = PROJECT.format(
                    raw=demo / "raw",
                    bucket=BUCKET,
                    number=number,
                    demo=demo,
                    range_mib=arguments.range_mib,
                    endpoint=endpoint,
                    address=address,
                    corpus=CORPUS,
                )
                config.write_text(text, encoding="utf-8")
                print_costs(config, address)


@contextmanager
def start_cluster(folder: Path, n_workers: int) -> Iterator[str]:
    """Run a Dask scheduler, and workers of one thread; yield the address of the scheduler.

    Each of them is a process.

    Args:
        folder: Is made, and receives the log.
        n_workers: Number of workers.
    """
    from distributed import Client

    folder.mkdir()
    file = folder / "scheduler.json"
    scheduler = ["scheduler", "--port", "0", "--no-show", "--scheduler-file", str(file)]
    worker = ["worker", "--scheduler-file", str(file), "--no-nanny", "--nthreads", "1"]
    processes = []
    try:
        for kind, *words in [scheduler, *[worker] * n_workers]:
            processes.append(_start_dask(folder, kind, words))
        with Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(n_workers, timeout=START_SECONDS)
            address = client.scheduler.address
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def _start_dask(folder: Path, kind: str, words: list[str]) -> subprocess.Popen[bytes]:
    """Start a process of a cluster.

    Args:
        folder: Has the log.
        kind: `scheduler` or `worker`.
        words: Its options.
    """
    module = f"distributed.cli.dask_{kind}"
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, *words, "--no-dashboard", "--host", "127.0.0.1"],
            stdout=log,
            stderr=log,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )


def compare_sleepers(folder: Path, n_workers: int, n_tasks: int, seconds: float) -> None:
    """Print how long sleeping tasks take with one worker, and with several.

    Args:
        folder: Receives the logs.
        n_workers: Number of workers, if there are several.
        n_tasks: Number of tasks.
        seconds: How long each task sleeps.
    """
    print("| workers | tasks | each sleeps s | wall s | times one worker's rate |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    wall_of_one = time_sleepers(folder / "sleep-1", 1, n_tasks, seconds)
    wall_of_all = time_sleepers(folder / f"sleep-{n_workers}", n_workers, n_tasks, seconds)
    for count, wall in ((1, wall_of_one), (n_workers, wall_of_all)):
        print(f"| {count} | {n_tasks} | {seconds} | {wall:.1f} | {wall_of_one / wall:.1f} |")


def time_sleepers(folder: Path, n_workers: int, n_tasks: int, seconds: float) -> float:
    """Return the wall time in which workers run tasks that only sleep."""
    with start_cluster(folder, n_workers) as address:
        executor = ClusterExecutor(DaskScheduler(address), FileAccess(folder))
        # The first tasks of each worker also import modules: they are not timed.
        list(executor.run(time.sleep, [0.1] * n_workers * 4))
        started = time.perf_counter()
        list(executor.run(time.sleep, [seconds] * n_tasks))
        return time.perf_counter() - started


def write_corpus(demo: Path, megabytes: float) -> float:
    """Write a demo whose only corpus has one large file; return its size in megabytes.

    Args:
        demo: Receives `tokenizer.json` and `raw`.
        megabytes: Least size of the file.
    """
    write_demo(demo, megabytes=min(megabytes, MAX_DEMO_MEGABYTES))
    lines = b"".join(path.read_bytes() for path in sorted((demo / "raw").rglob("*.jsonl")))
    shutil.rmtree(demo / "raw")

    path = demo / "raw" / CORPUS / "text.jsonl"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        while file.tell() < megabytes * 1e6:
            file.write(lines)
    return path.stat().st_size / 1e6


class ProcessorTime(NamedTuple):
    """Seconds of processor time."""

    here: float
    """Of this process."""
    workers: float
    """Of all workers together."""


def print_costs(config: Path, address: str) -> None:
    """Make all outputs of a corpus, and print a row for each stage.

    Args:
        config: The nanoset.yaml of the project.
        address: Address of the Dask scheduler.
    """
    from distributed import Client

    make_inventory(Project.open(config), CORPUS)
    with Client(address, set_as_default=False) as client:

        def make(work: Callable[[Project, str], Any]) -> tuple[Any, ProcessorTime]:
            """Return the manifest that a stage made, and what it took."""
            before = ProcessorTime(time.process_time(), worker_seconds(client))
            manifest = work(Project.open(config), CORPUS)
            after = ProcessorTime(time.process_time(), worker_seconds(client))
            cost = ProcessorTime(after.here - before.here, after.workers - before.workers)
            return manifest, cost

        tokenized, cost = make(tokenize_corpus)
        print_row("tokenize", len(tokenized.facts["shards"]), cost)
        _, cost = make(make_dataset)
        print_row("merge", 1, cost)
        _, cost = make(lambda project, corpus: PBIN.make(project, Key(corpus)))
        print_row("pack", 1, cost)


def worker_seconds(client: Any) -> float:
    """Return the processor time that all workers have taken since they started."""
    return sum(client.run(time.process_time).values())


def print_row(stage: str, n_tasks: int, cost: ProcessorTime) -> None:
    """Print what a stage took.

    Args:
        stage: Name of the stage.
        n_tasks: Number of its tasks.
        cost: What it took.
    """
    share = cost.here / (cost.here + cost.workers)
    milliseconds = cost.here / n_tasks * 1e3
    print(
        f"| {stage} | {n_tasks} | {cost.workers:.2f} | {cost.here:.2f} | {share:.1%} | "
        f"{milliseconds:.0f} |"
    )


if __name__ == "__main__":
    main()
