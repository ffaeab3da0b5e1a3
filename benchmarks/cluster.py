"""What a Dask cluster's workers add up to, and what the process costs that gives them work.

python -m benchmarks.cluster [--megabytes 128] [--range-mib 16] [--workers 2] [--rounds 1]
    [--sleepers 8] [--tasks 64] [--seconds 0.5]

Tasks that only sleep are run by one worker and by many: how much faster are those, whatever this
machine's processors are busy with? And a corpus in a bucket (a moto server on this machine plays
it) is tokenized, merged and packed by
workers: how much processor time does each side take?
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import options
from benchmarks.s3 import BUCKET, KEYS, moto_server
from nanoset_core.demo.writing import write_demo
from nanoset_core.execution.dask import DaskExecutor
from nanoset_core.execution.dask_scheduler import DaskScheduler
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.stage import make_dataset
from nanoset_core.stages.inventory.make import make_inventory
from nanoset_core.stages.pbin.stage import PBIN
from nanoset_core.stages.shards.tokenize import tokenize_corpus
from nanoset_core.stages.stage import Key
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.s3 import S3Store

CORPUS = "text"
PROJECT = """raw: {raw}
root: s3://{bucket}/out-{number}
tokenizer: {{path: {demo}/tokenizer.json, eod: '<|endoftext|>'}}
tokenization: {{range_mib: {range_mib}, engine: numpy}}
storage: {{endpoint_url: {endpoint!r}}}
executor: {{kind: dask, address: {address!r}}}
pbin: [{corpus}]
"""


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[str]:
    """A scheduler, and so many workers of one thread, each a process; → its address."""
    from distributed import Client

    folder.mkdir()
    file, options = folder / "scheduler.json", ["--no-dashboard", "--host", "127.0.0.1"]
    started = [["scheduler", "--port", "0", "--no-show", "--scheduler-file", file]]
    started += [["worker", "--scheduler-file", file, "--no-nanny", "--nthreads", "1"]] * workers
    with (folder / "log").open("wb") as log:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{what}", *map(str, words), *options],
                stdout=log,
                stderr=log,
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            )
            for what, *words in started
        ]
        try:
            with Client(scheduler_file=str(file), set_as_default=False) as connected:
                connected.wait_for_workers(workers, timeout=120)
                address = connected.scheduler.address
            yield address
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


def napping(folder: Path, workers: int, tasks: int, seconds: float) -> float:
    """Seconds that sleeping tasks take, the first one of each worker apart, which imports."""
    with cluster(folder, workers) as address:
        executor = DaskExecutor(DaskScheduler(address), FileAccess(folder))
        list(executor.run(time.sleep, [0.1] * workers * 4))
        started = time.perf_counter()
        list(executor.run(time.sleep, [seconds] * tasks))
        return time.perf_counter() - started


def worked(config: Path, address: str) -> tuple[int, dict[str, tuple[float, float]]]:
    """(tasks, stage → CPU seconds of this process and of all workers) of making all of a corpus."""
    from distributed import Client

    costs = {}
    make_inventory(Project.open(config), CORPUS)
    with Client(address, set_as_default=False) as connected:

        def cpu() -> tuple[float, float]:
            return time.process_time(), sum(connected.run(time.process_time).values())

        def timed(stage: str, make: Any) -> Any:
            before = cpu()
            made = make(Project.open(config), CORPUS)
            here, there = (after - earlier for after, earlier in zip(cpu(), before, strict=True))
            costs[stage] = here, there
            return made

        shards = timed("tokenize", tokenize_corpus).facts["shards"]
        timed("merge", make_dataset)
        timed("pack", lambda project, corpus: PBIN.make(project, Key(corpus)))
    return len(shards), costs


def main() -> None:
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
    os.environ.update({name: os.environ.get(name, value) for name, value in KEYS.items()})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        print("| workers | tasks | each sleeps s | wall s | times one worker's rate |")
        print("| ---: | ---: | ---: | ---: | ---: |")
        alone = 0.0
        for workers in (1, arguments.sleepers):
            wall = napping(folder / f"sleep-{workers}", workers, arguments.tasks, arguments.seconds)
            alone = alone or wall
            print(
                f"| {workers} | {arguments.tasks} | {arguments.seconds} | {wall:.1f} | "
                f"{alone / wall:.1f} |"
            )
        text, tokenizer = _text(folder / "demo", arguments.megabytes)
        print(
            f"\n{text:,.0f} MB of text, tasks of {arguments.range_mib:g} MiB, {arguments.workers} "
            "worker(s)\n"
        )
        print("| stage | tasks | CPU s of the workers | CPU s here | share | ms here a task |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        with moto_server() as endpoint, cluster(folder / "cluster", arguments.workers) as address:
            S3Store(BUCKET, "", endpoint).client().create_bucket(Bucket=BUCKET)
            for number in range(arguments.rounds):
                config = folder / f"project-{number}" / "nanoset.yaml"
                config.parent.mkdir()
                places = {
                    "bucket": BUCKET,
                    "number": number,
                    "endpoint": endpoint,
                    "address": address,
                }
                settings = {
                    "raw": folder / "demo" / "raw",
                    "demo": tokenizer.parent,
                    "range_mib": arguments.range_mib,
                }
                config.write_text(
                    PROJECT.format(**places, **settings, corpus=CORPUS), encoding="utf-8"
                )
                tasks, costs = worked(config, address)
                for stage, (here, there) in costs.items():
                    count = tasks if stage == "tokenize" else 1
                    share = here / (here + there)
                    print(
                        f"| {stage} | {count} | {there:.2f} | {here:.2f} | {share:.1%} | "
                        f"{here / count * 1e3:.0f} |"
                    )


def _text(demo: Path, megabytes: float) -> tuple[float, Path]:
    """Write a corpus of as many plain lines as that; → (its MB, a tokenizer)."""
    write_demo(demo, megabytes=min(megabytes, 24.0))
    lines = b"".join(path.read_bytes() for path in sorted((demo / "raw").rglob("*.jsonl")))
    shutil.rmtree(demo / "raw")
    (demo / "raw" / CORPUS).mkdir(parents=True)
    file = demo / "raw" / CORPUS / "text.jsonl"
    with file.open("wb") as out:
        while out.tell() < megabytes * 1e6:
            out.write(lines)
    return file.stat().st_size / 1e6, demo / "tokenizer.json"


if __name__ == "__main__":
    main()
