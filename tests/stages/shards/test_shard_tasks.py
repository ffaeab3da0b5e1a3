"""Tasks of making shards can be killed and resumed, report their progress, and load one engine."""

from __future__ import annotations

import gzip
import pickle
import random
import subprocess
import sys
import time

from helpers.shards import FILES_OF_SHARD, bytes_by_path, json_lines, task_for
from nanoset_core.execution.progress import Amount, PartReport, progress_reported_to
from nanoset_core.stages.shards import one_shard as shards_module
from nanoset_core.stages.shards.one_shard import engine_choice
from nanoset_core.text.inventory.pieces import cut_ranges
from nanoset_core.text.inventory.take import take_inventory

MAKE_ALL = """
import pickle, sys
from nanoset_core.stages.shards.framing import Framing
from nanoset_core.stages.shards.one_shard import ShardTask
from nanoset_core.execution.processes import run_tasks
tasks = pickle.load(open(sys.argv[1], "rb"))
print("begun", flush=True)
list(run_tasks(ShardTask.make, tasks, 2))
"""
"""A program that makes the shards of tasks, which are pickled in a file, in two processes."""


def test_shards_that_are_killed_at_any_moment_and_resumed_have_the_same_bytes(corpus, tmp_path):
    for number in range(10):
        texts = [f"{number} {row} fox " * 20 for row in range(100)]
        (corpus / f"part-{number}.jsonl").write_bytes(json_lines(*texts))
    ranges = cut_ranges(take_inventory(corpus, "web"), 30_000)
    assert len(ranges) > 4
    for source in ranges:
        task_for(corpus, tmp_path / "undisturbed", source).make()
    tasks = [task_for(corpus, tmp_path / "killed", source) for source in ranges]
    tasks_file = tmp_path / "tasks"
    tasks_file.write_bytes(pickle.dumps(tasks))
    command = [sys.executable, "-c", MAKE_ALL, str(tasks_file)]
    generator = random.Random(11)

    # Kill the program at random moments: shards that are visible are complete.
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(generator.uniform(0.1, 0.9))
            process.kill()
        for folder in (tmp_path / "killed").glob("shards/web/*"):
            if not folder.name.startswith("."):
                assert sorted(path.name for path in folder.iterdir()) == FILES_OF_SHARD

    # Let it run to its end.
    subprocess.run(command, check=True, capture_output=True)
    assert bytes_by_path(tmp_path / "killed") == bytes_by_path(tmp_path / "undisturbed")


def test_the_progress_of_a_shard_is_reported(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(shards_module, "_REPORT_SECONDS", -1)
    text = json_lines(*[f"{row} fox " * 2000 for row in range(80)])
    (corpus / "a.jsonl").write_bytes(text)
    (corpus / "b.jsonl.gz").write_bytes(gzip.compress(text))
    task = task_for(corpus, tmp_path / "out")
    reports: list[object] = []

    with progress_reported_to(reports.append):
        shard = task.make()

    part_reports = [report for report in reports if isinstance(report, PartReport)]
    read_bytes = [report.amount.units for report in part_reports]
    everything = Amount(units=task.source.size, documents=160, tokens=shard.facts["tokens"])
    assert len(part_reports) > 2
    assert read_bytes == sorted(read_bytes)
    assert part_reports[-1] == PartReport(shard.digest, everything)


def test_naming_the_engine_and_making_a_shard_load_one_engine(corpus, tmp_path):
    """A second one would hold the tables of the tokenizer, and every word learnt, twice."""
    (corpus / "a.jsonl").write_bytes(json_lines("one", "two"))
    task = task_for(corpus, tmp_path)
    shards_module._loaded_engine.cache_clear()

    engine_choice(task.settings.tokenizer_file, task.settings.engine)
    task.make()

    assert shards_module._loaded_engine.cache_info().misses == 1
