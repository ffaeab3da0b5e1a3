"""Damage to one file of a project: every loss must be said by build, `status`, `verify` and the
UI's check alike.

A trial takes a built project, damages one file of its raw text and builds again; or damages one
file of its outputs and verifies deeply. It is bad where something was lost without a word.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import dagster as dg

from campaigns.mutations import Mutation, cut, flip, zero
from campaigns.runner import Kind, Trial, each
from helpers.building import build_all
from helpers.sample_project import CONFIG, encoded, sentences, tokenizer_json, write_raw
from nanoset_assets.build import build
from nanoset_assets.commands import show_report
from nanoset_core.cli.commands.status import print_tables
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.project.verify import verify_project
from nanoset_core.text.documents import read_documents
from nanoset_core.text.inventories import take_inventory
from nanoset_core.text.pieces import cut_ranges
from nanoset_core.text.table_documents import ZEROS

HEAD, COLUMNS = ("what", "damage"), ("refused", "warned", "unharmed")
"""The build fails and names the file; everything warns and names it; no document is lost."""
TRIALS = 200
_CONFIG = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
documents: {max_rejected_fraction: 0.5, max_unreadable_fraction: LIMIT}
tokenization: {range_mib: 0.004, workers: 1, engine: tokenizers}
"""
_ENDINGS = (
    ".jsonl",
    ".jsonl.gz",
    ".jsonl.zst",
    ".parquet",
    ".arrow",
    ".json",
    ".txt",
    ".bak",
    ".jsonl.bz2",
    ".csv",
)
_COMPANION_ENDINGS = (".jsonl.lock", ".bin", ".md", ".jsonl.md5", ".crc")
_OUTPUT_NAMES = (
    "manifest.json",
    "documents.parquet",
    "current.json",
    "inventory.json",
    "plan.json",
)


def write_text(raw: Path) -> None:
    """Three corpora, with a file or more of every kind that is read."""
    rows = iter(sentences("text", 260))
    for name, count, part in (
        ("lines/part-0/a.jsonl", 30, 30),
        ("lines/part-0/b.jsonl", 30, 30),
        ("lines/part-1/c.ndjson", 20, 20),
        ("packed/a.jsonl.gz", 25, 25),
        ("packed/members.json.gz", 25, 12),
        ("packed/a.jsonl.zst", 25, 25),
        ("packed/frames.jsonl.zst", 25, 12),
        ("tables/a.parquet", 20, 7),
        ("tables/b.parquet", 20, 7),
        ("tables/c.arrow", 20, 7),
        ("tables/saved/data-00000-of-00001.stream.arrow", 20, 7),
    ):
        data = encoded(name, list(islice(rows, count)), part, checked="b.parquet" not in name)
        path = raw / name.replace(".stream", "")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for name in ("dataset_info.json", "state.json"):  # as Hugging Face's save_to_disk leaves them
        (raw / "tables/saved" / name).write_text(json.dumps({"_split": "train"}))


def _to_bytes(*mutations: Mutation) -> Damage:
    """Damage that changes the bytes of a file."""

    def damage(_folder: Path, path: Path, rng: random.Random) -> None:
        sound = path.read_bytes()
        data = bytearray(sound)
        while data == sound:
            rng.choice(mutations)(data, rng)
        path.write_bytes(data)

    return damage


def _cut_between(data: bytearray, rng: random.Random) -> None:
    """At the end of a line, member or frame, where it has such, so that the file itself shows
    nothing.
    """
    begins = rb"\n(?=.)" if data[:1] == b"{" else rb"(?<=.)(?=\x1f\x8b\x08\0|\x28\xb5\x2f\xfd)"
    places = [match.end() for match in re.finditer(begins, data, re.DOTALL)]
    if data[:4] in (b"PAR1", b"ARRO") or not places:
        return cut(data, rng)
    del data[rng.choice(places) :]


def _swap(folder: Path, path: Path, rng: random.Random) -> Path:
    other = rng.choice([one for one in text_files(folder) if one != path])
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)
    return other


def _rename(_folder: Path, path: Path, rng: random.Random) -> Path:
    name = path.name.partition(".")
    ending = rng.choice([one for one in _ENDINGS if one != name[1] + name[2]])
    return path.rename(path.with_name(name[0] + "-renamed" + ending))


def _rename_aside(_folder: Path, path: Path, rng: random.Random) -> None:
    """To a name of which nothing is said by itself."""
    path.rename(
        path.with_name(
            rng.choice(["." + path.name, *(path.name + ending for ending in _COMPANION_ENDINGS)])
        )
    )


Damage = Callable[[Path, Path, random.Random], Path | None]
"""Takes a corpus, a file of it and a generator; → another file that may be named instead."""
_EMPTY: Mutation = lambda data, _rng: data.clear()  # noqa: E731
DAMAGES: dict[str, Damage] = {
    "cut": _to_bytes(cut),
    "cut between records": _to_bytes(_cut_between),
    "zeroed": _to_bytes(zero),
    "swapped": _swap,
    "renamed": _rename,
    "emptied": _to_bytes(_EMPTY),
    "flipped": _to_bytes(flip),
    "renamed aside": _rename_aside,
    "deleted": lambda _folder, path, _rng: path.unlink(),
}
_TO_OUTPUTS = _to_bytes(cut, zero, flip, _EMPTY)


def text_files(folder: Path) -> list[Path]:
    """The files of a corpus that hold text."""
    return sorted(
        path
        for path in folder.rglob("*.*")
        if path.is_file() and path.parent.name + path.suffix != "saved.json"
    )


class Bench:
    """A project that was built once, of which each trial takes a copy."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.sound = scratch, scratch / "sound"
        write_text(self.sound / "raw")
        (self.sound / "tokenizer.json").write_bytes(tokenizer_json())
        (self.sound / "nanoset.yaml").write_text(_CONFIG.replace("LIMIT", "0"))
        self.instance = dg.DagsterInstance.ephemeral(tempdir=str(scratch))
        found = (path for corpus in (self.sound / "raw").iterdir() for path in text_files(corpus))
        self.victims = sorted(path.relative_to(self.sound / "raw") for path in found)
        project = Project.open(self.sound / "nanoset.yaml")
        report = build(project, self.instance)
        assert not report.failed, report.failed
        assert not any(found.findings for found in verify_project(project))
        self.documents = {
            corpus: _documents(project, corpus) for corpus in ("lines", "packed", "tables")
        }

    def run(self, damage: Damage, rng: random.Random) -> Trial:
        """Damage a file of the raw text, and build."""
        folder, victim = self.scratch / "trial", rng.choice(self.victims)
        shutil.copytree(self.sound, folder, symlinks=True)
        try:
            corpus = folder / "raw" / victim.parts[0]
            if rng.random() < 0.5:
                (folder / "nanoset.yaml").write_text(_CONFIG.replace("LIMIT", "1"))
            other = damage(corpus, folder / "raw" / victim, rng)
            names = [
                path.relative_to(corpus).as_posix()
                for path in (folder / "raw" / victim, other)
                if path
            ]
            outcome, said = self._weigh(folder, corpus.name, names)
        finally:
            shutil.rmtree(folder)
        silent = [f"{' or '.join(names)} of {corpus.name}: {said}"] if outcome == "silent" else []
        return Trial(Counter([outcome]), silent)

    def _weigh(self, folder: Path, corpus: str, names: list[str]) -> tuple[str, str]:
        """(what became of it, what was said): any of the names has to be told."""
        project = Project.open(folder / "nanoset.yaml")
        before = self.instance.get_runs_count()
        report = build(project, self.instance)
        told = {"build": " ".join(map(str, report.failed.values()))}
        if not report.failed:
            told = {
                "build": _printed(lambda: show_report(project, report)),
                "status": _printed(lambda: print_tables(project_status(project))),
                "verify": " ".join(
                    str(one) for found in verify_project(project) for one in found.findings
                ),
                "check": self._checks(self.instance.get_runs_count() - before),
            }
        quiet = [
            channel for channel, text in told.items() if not any(name in text for name in names)
        ]
        if quiet and not report.failed and not self._is_lost(project, corpus):
            return "unharmed", ""
        said = "refused" if report.failed else "warned"
        return ("silent" if quiet else said), f"nothing from {', '.join(quiet)}"

    def _checks(self, runs: int) -> str:
        """Findings of the checks of the last runs."""
        texts = []
        for run in self.instance.get_runs(limit=runs) if runs else ():
            for entry in self.instance.all_logs(
                run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
            ):
                evaluation: Any = entry.dagster_event.event_specific_data
                findings = evaluation.metadata.get("findings")
                texts += [
                    evaluation.description or "",
                    *(str(one.data) for one in getattr(findings, "records", ())),
                ]
        return " ".join(texts)

    def _is_lost(self, project: Project, corpus: str) -> bool:
        """Whether a document is gone: lines that were edited into other documents are what the text
        says now.
        """
        was, now = self.documents[corpus], _documents(project, corpus)
        return bool(was - now) and (now.total() < was.total() or any(ZEROS in text for text in now))


def _documents(project: Project, corpus: str) -> Counter[str]:
    """Text of each document that was made of a corpus → how often."""
    folder = project.config.raw_folder / corpus
    batches = (
        read_documents(folder, part) for part in cut_ranges(take_inventory(folder, corpus), 1 << 30)
    )
    return Counter(text for some in batches for batch in some for text in batch.texts)


def _printed(show: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        show()
    return shown.getvalue()


class OutputBench:
    """The outputs of a whole project, of which each trial damages one file, has it verified deeply,
    and mends it.
    """

    def __init__(self, scratch: Path) -> None:
        folder = scratch / "outputs"
        write_raw(folder / "raw")
        (folder / "tokenizer.json").write_bytes(tokenizer_json())
        (folder / "nanoset.yaml").write_text(
            CONFIG.replace("webdatasets:", "pbin: [books]\nwebdatasets:")
        )
        self.project = build_all(folder / "nanoset.yaml")
        self.files = sorted(
            path
            for path in (folder / "data").rglob("*")
            if path.is_file()
            and path.stat().st_size
            and not any(p.is_symlink() for p in (path, *path.parents))
            if not path.name.startswith(".")
        )
        self.before = self.findings()
        assert not self.before, self.before

    def findings(self) -> str:
        return "\n".join(
            str(one) for found in verify_project(self.project, deep=True) for one in found.findings
        )

    def run(self, kind: str, rng: random.Random) -> Trial:
        """Damage a file of a kind, and verify."""
        path = rng.choice([one for one in self.files if _kind(one) == kind])
        data = path.read_bytes()
        path.unlink()  # it may be mapped, or linked from elsewhere
        path.write_bytes(data)
        try:
            _TO_OUTPUTS(path.parent, path, rng)
            text = self.findings()
        finally:
            path.unlink()
            path.write_bytes(data)
        said = str(path) in text or str(path.parent) in text
        return Trial(
            Counter(warned=int(said)), [] if said else [f"{path}: {text[:500] or 'nothing'}"]
        )


def _kind(path: Path) -> str:
    """What a file of an output is, for the table."""
    if path.suffix in (".npy", ".tar", ".jsonl", ".pbin", ".bin", ".idx"):
        return f"*{path.suffix}"
    return path.name if path.name in _OUTPUT_NAMES else f"other *{path.suffix}"


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """A kind for each damage to raw text, and for each kind of output."""
    text, outputs = (cache(lambda bench=bench: bench(folder)) for bench in (Bench, OutputBench))
    share = -(-options.trials // len(DAMAGES))
    for name, damage in DAMAGES.items():
        yield each(
            ("raw text", name), share, lambda rng, _number, damage=damage: text().run(damage, rng)
        )
    names = sorted({_kind(path) for path in outputs().files})
    share = -(-options.trials // len(names))
    for name in names:
        yield each(
            ("output", name), share, lambda rng, _number, name=name: outputs().run(name, rng)
        )
