"""Damage to one file of a project: every loss must be said by build, `status`, `verify` and the UI's check alike.

    PYTHONPATH=tests python -m faults.damage --trials 200

A trial takes a built project, damages one file of its raw text and builds again; or damages one file of its outputs and
verifies deeply. Prints tables; exits with 1 where something was lost without a word.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import random
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
from faults.settings import tokenizer_json
from sample_project import CONFIG, build_all, jsonl, sentences, write_raw

from nanoset_assets.build import build
from nanoset_assets.commands import show_report
from nanoset_core.cli.status_tables import print_tables
from nanoset_core.pipeline.project import Project
from nanoset_core.raw.documents import ZEROS, read_documents
from nanoset_core.raw.pieces import cut_ranges
from nanoset_core.raw.survey import take_inventory
from nanoset_core.verification.verify import verify_project
from nanoset_core.versions.status import project_status

OUTCOMES = ("refused", "warned", "unharmed", "silent")
"""The build fails and names the file; everything warns and names it; no document is lost; anything else."""
_CONFIG = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
documents: {max_rejected_fraction: 0.5, max_unreadable_fraction: LIMIT}
tokenization: {range_mib: 0.004, workers: 1, engine: tokenizers}
"""
_ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow", ".json", ".txt", ".bak", ".jsonl.bz2", ".csv")
_COMPANION_ENDINGS = (".jsonl.lock", ".bin", ".md", ".jsonl.md5", ".crc")
_OUTPUT_NAMES = ("manifest.json", "documents.parquet", "current.json", "inventory.json", "plan.json")


def write_text(raw: Path) -> None:
    """Three corpora, with a file or more of every kind that is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    rows = iter(sentences("text", 260))

    def some(count: int) -> list[dict[str, str]]:
        return [next(rows) for _ in range(count)]

    def lines(count: int) -> bytes:
        return jsonl(some(count))

    compressor = zstandard.ZstdCompressor(write_checksum=True)
    files = {
        "lines/part-0/a.jsonl": lines(30),
        "lines/part-0/b.jsonl": lines(30),
        "lines/part-1/c.ndjson": lines(20),
        "packed/a.jsonl.gz": gzip.compress(lines(25), mtime=0),
        "packed/members.json.gz": gzip.compress(lines(12), mtime=0) + gzip.compress(lines(13), mtime=0),
        "packed/a.jsonl.zst": compressor.compress(lines(25)),
        "packed/frames.jsonl.zst": compressor.compress(lines(12)) + compressor.compress(lines(13)),
    }
    for name, data in files.items():
        path = raw / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    folder = raw / "tables"
    (folder / "saved").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(some(20)), folder / "a.parquet", row_group_size=7, write_page_checksum=True)
    pq.write_table(pa.Table.from_pylist(some(20)), folder / "b.parquet", row_group_size=7)
    table = pa.Table.from_pylist(some(20))
    with pa.ipc.new_file(folder / "c.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    table = pa.Table.from_pylist(some(20))
    with pa.ipc.new_stream(folder / "saved" / "data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=7)
    for name in ("dataset_info.json", "state.json"):  # as Hugging Face's save_to_disk leaves them
        (folder / "saved" / name).write_text(json.dumps({"_split": "train"}))


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done to a corpus."""

    kind: str
    names: tuple[str, ...]
    """Any of which has to be told: relative paths, before and after."""


def _cut(folder: Path, path: Path, rng: random.Random) -> Damage:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(1, len(data))])
    return _one("cut", folder, path)


def _cut_between(folder: Path, path: Path, rng: random.Random) -> Damage:
    """At the end of a line, member or frame, so that the file itself shows nothing."""
    data = path.read_bytes()
    mark = {".gz": b"\x1f\x8b\x08\0", ".zst": b"\x28\xb5\x2f\xfd"}.get(path.suffix)
    if mark is None:
        places = [at + 1 for at, byte in enumerate(data[:-1]) if byte == 10]
    else:
        places = [at for at in range(1, len(data)) if data.startswith(mark, at)]
    if path.suffix in (".parquet", ".arrow") or not places:
        return _cut(folder, path, rng)
    path.write_bytes(data[: rng.choice(places)])
    return _one("cut between records", folder, path)


def _zero(folder: Path, path: Path, rng: random.Random) -> Damage:
    data = bytearray(path.read_bytes())
    begin = rng.randrange(len(data))
    size = min(len(data) - begin, rng.choice((16, 512, 4096, len(data))))
    data[begin : begin + size] = bytes(size)
    path.write_bytes(data)
    return _one("zeroed", folder, path)


def _flip(folder: Path, path: Path, rng: random.Random) -> Damage:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 3, 20))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return _one("flipped", folder, path)


def _empty(folder: Path, path: Path, _rng: random.Random) -> Damage:
    path.write_bytes(b"")
    return _one("emptied", folder, path)


def _swap(folder: Path, path: Path, rng: random.Random) -> Damage:
    other = rng.choice([one for one in text_files(folder) if one != path])
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)
    return Damage("swapped", (_name(folder, path), _name(folder, other)))


def _rename(folder: Path, path: Path, rng: random.Random) -> Damage:
    name = path.name.partition(".")
    ending = rng.choice([one for one in _ENDINGS if one != name[1] + name[2]])
    target = path.with_name(name[0] + "-renamed" + ending)
    path.rename(target)
    return Damage("renamed", (_name(folder, path), _name(folder, target)))


def _rename_aside(folder: Path, path: Path, rng: random.Random) -> Damage:
    """To a name of which nothing is said by itself."""
    name = rng.choice(["." + path.name, *(path.name + ending for ending in _COMPANION_ENDINGS)])
    path.rename(path.with_name(name))
    return _one("renamed aside", folder, path)


def _delete(folder: Path, path: Path, _rng: random.Random) -> Damage:
    path.unlink()
    return _one("deleted", folder, path)


def _one(kind: str, folder: Path, path: Path) -> Damage:
    return Damage(kind, (_name(folder, path),))


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


DAMAGES: tuple[Callable[[Path, Path, random.Random], Damage], ...] = (
    _cut,
    _cut_between,
    _zero,
    _swap,
    _rename,
    _empty,
    _flip,
    _rename_aside,
    _delete,
)


def text_files(folder: Path) -> list[Path]:
    """The files of a corpus that hold text."""
    return sorted(
        path for path in folder.rglob("*.*") if path.is_file() and path.parent.name + path.suffix != "saved.json"
    )


class Bench:
    """A project that was built once, of which each trial takes a copy."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.sound = scratch, scratch / "sound"
        write_text(self.sound / "raw")
        (self.sound / "tokenizer.json").write_bytes(tokenizer_json())
        (self.sound / "nanoset.yaml").write_text(_CONFIG.replace("LIMIT", "0"))
        self.instance = dg.DagsterInstance.ephemeral(tempdir=str(scratch))
        self.victims = [
            path.relative_to(self.sound / "raw")
            for corpus in (self.sound / "raw").iterdir()
            for path in text_files(corpus)
        ]
        self.victims.sort()
        project = Project.open(self.sound / "nanoset.yaml")
        report = build(project, self.instance)
        assert not report.failed, report.failed
        assert not any(found.findings for found in verify_project(project))
        self.documents = {corpus: _documents(project, corpus) for corpus in ("lines", "packed", "tables")}

    def run(self, number: int) -> tuple[str, str, str]:
        """(kind of damage, outcome, what was said or not) of trial `number`."""
        rng = random.Random(zlib.crc32(b"damage") << 32 | number)
        folder = self.scratch / "trial"
        shutil.copytree(self.sound, folder, symlinks=True)
        try:
            victim = folder / "raw" / self.victims[number % len(self.victims)]
            corpus = folder / "raw" / self.victims[number % len(self.victims)].parts[0]
            if rng.random() < 0.5:
                config = folder / "nanoset.yaml"
                config.write_text(_CONFIG.replace("LIMIT", "1"))
            damage = rng.choice(DAMAGES)(corpus, victim, rng)
            outcome, said = self._weigh(folder, corpus.name, damage)
            return damage.kind, outcome, f"{' or '.join(damage.names)} of {corpus.name}: {said}"
        finally:
            shutil.rmtree(folder)

    def _weigh(self, folder: Path, corpus: str, damage: Damage) -> tuple[str, str]:
        project = Project.open(folder / "nanoset.yaml")
        before = self.instance.get_runs_count()
        report = build(project, self.instance)
        if report.failed:
            text = "; ".join(map(str, report.failed.values()))
            return ("refused" if _names(damage, text) else "silent"), text
        told = {
            "build": _printed(lambda: show_report(project, report)),
            "status": _printed(lambda: print_tables(project_status(project))),
            "verify": " ".join(str(one) for found in verify_project(project) for one in found.findings),
            "check": self._checks(self.instance.get_runs_count() - before),
        }
        quiet = [channel for channel, text in told.items() if not _names(damage, text)]
        if not quiet:
            return "warned", told["verify"]
        if not self._is_lost(project, corpus):
            return "unharmed", ""
        return "silent", f"nothing from {', '.join(quiet)}"

    def _checks(self, runs: int) -> str:
        """Findings of the checks of the last runs."""
        texts = []
        for run in self.instance.get_runs(limit=runs) if runs else ():
            for entry in self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
                event: Any = entry.dagster_event
                evaluation = event.event_specific_data
                if not evaluation.passed:
                    texts += [str(record.data) for record in evaluation.metadata["findings"].records]
        return " ".join(texts)

    def _is_lost(self, project: Project, corpus: str) -> bool:
        """Whether a document is gone: lines that were edited into other documents are what the text says now."""
        was, now = self.documents[corpus], _documents(project, corpus)
        return bool(was - now) and (now.total() < was.total() or _holds_zeros(now))


def _documents(project: Project, corpus: str) -> Counter[str]:
    """Text of each document that was made of a corpus → how often."""
    folder = project.config.raw_folder / corpus
    found: Counter[str] = Counter()
    for source in cut_ranges(take_inventory(folder, corpus), 1 << 30):
        for batch in read_documents(folder, source):
            found.update(batch.texts)
    return found


def _holds_zeros(texts: Counter[str]) -> bool:
    return any(ZEROS in text for text in texts)


def _names(damage: Damage, text: str) -> bool:
    return any(name in text for name in damage.names)


def _printed(show: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        show()
    return shown.getvalue()


class OutputBench:
    """The outputs of a whole project, of which each trial damages one file, has it verified deeply, and mends it."""

    def __init__(self, scratch: Path) -> None:
        folder = scratch / "outputs"
        write_raw(folder / "raw")
        (folder / "tokenizer.json").write_bytes(tokenizer_json())
        (folder / "nanoset.yaml").write_text(CONFIG.replace("webdatasets:", "packed: [books]\nwebdatasets:"))
        self.project = build_all(folder / "nanoset.yaml")
        self.files = sorted(
            path
            for path in (folder / "data").rglob("*")
            if path.is_file() and path.stat().st_size and not any(p.is_symlink() for p in (path, *path.parents))
            if not path.name.startswith(".")
        )
        self.before = self.findings()
        assert not self.before, self.before

    def findings(self) -> str:
        return "\n".join(str(one) for found in verify_project(self.project, deep=True) for one in found.findings)

    def run(self, number: int) -> tuple[str, str, str]:
        """(file's kind, outcome, what was said or not) of trial `number`."""
        rng = random.Random(zlib.crc32(b"outputs") << 32 | number)
        kinds = sorted({_kind(path) for path in self.files})
        kind = kinds[number % len(kinds)]
        path = rng.choice([one for one in self.files if _kind(one) == kind])
        data = path.read_bytes()
        path.unlink()  # it may be mapped, or linked from elsewhere
        path.write_bytes(data)
        try:
            while path.read_bytes() == data:
                damage = rng.choice((_cut, _zero, _flip, _empty))(path.parent, path, rng)
            text = self.findings()
        finally:
            path.unlink()
            path.write_bytes(data)
        said = str(path) in text or str(path.parent) in text
        return kind, "warned" if said else "silent", f"{damage.kind}: {path}: {text[:500] or 'nothing'}"


BENCHES: dict[str, Callable[[Path], Bench | OutputBench]] = {"text": Bench, "outputs": OutputBench}


def _kind(path: Path) -> str:
    """What a file of an output is, for the table."""
    if path.suffix in (".npy", ".tar", ".jsonl", ".pbin", ".bin", ".idx"):
        return f"*{path.suffix}"
    return path.name if path.name in _OUTPUT_NAMES else f"other *{path.suffix}"


def table(counts: dict[str, Counter[str]]) -> str:
    """The figures as Markdown."""
    lines = [f"| damage | trials | {' | '.join(OUTCOMES)} |", f"| --- |{' ---: |' * (len(OUTCOMES) + 1)}"]
    for kind in [*sorted(counts), "all"]:
        found = counts[kind] if kind in counts else sum(counts.values(), Counter[str]())
        lines.append(f"| {kind} | {found.total():,} | {' | '.join(f'{found[name]:,}' for name in OUTCOMES)} |")
    return "\n".join(lines)


def run(bench: Bench | OutputBench, first: int, trials: int) -> tuple[dict[str, Counter[str]], list[str]]:
    """Trials; → (kind → outcome → trials, what was silent)."""
    counts, silent = dict[str, Counter[str]](), []
    for number in range(first, first + trials):
        kind, outcome, said = bench.run(number)
        counts.setdefault(kind, Counter())[outcome] += 1
        if outcome == "silent":
            silent.append(f"trial {number}: {kind}: {said}")
    return counts, silent


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults.damage", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--only", choices=("text", "outputs"), help="what is damaged; default: one after the other")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    options = parser.parse_args()
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        quiet = 0
        for bench in [made for name, made in BENCHES.items() if options.only in (None, name)]:
            counts, silent = run(bench(Path(folder)), options.first, options.trials)
            print("\n".join(silent), file=sys.stderr)
            print(table(counts), end="\n\n", flush=True)
            quiet += len(silent)
    return int(quiet > 0)


if __name__ == "__main__":
    sys.exit(main())
