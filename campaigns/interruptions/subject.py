"""The project that is disturbed: every stage, every kind of raw file; and what its outputs look
like from outside.
"""

from __future__ import annotations

import glob
import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from campaigns.receipts import is_opening_receipt
from helpers.building import run_stages
from helpers.sample_project import CONFIG, encoded, sentences, tokenizer_json, tree, write_raw
from nanoset_core.project.project import Project
from nanoset_core.stages.registry import sweep

_MORE = """\
  zipped:
    corpora: {books: 1.5, tables: 0.5}
    sequence_length: 17
    samples_per_shard: 200
    seed: 9
    member: json.gz
    groups: 2
pbin: [web, tables]
corpora: {web: {columns: [text]}}
attributes: {web: scores.parquet}
views: {kept: {of: web, where: score < 0.6 and text is not null, order: {seed: 3}}}
exports:
  kept-ds: {of: kept, format: datatrove}
  kept-olmo: {of: kept, format: olmo-core}
  kept-mds: {of: kept, format: mds, sequence_length: 17}
"""
LONG = "long"
LONG_FILES = ("long-0.jsonl", "long-1.jsonl.gz", "long-2.jsonl.zst", "long-3.parquet")


@dataclass(frozen=True, slots=True)
class Subject:
    """A project in a folder of its own."""

    config: Path
    """its nanoset.yaml"""
    workers: int

    @property
    def folder(self) -> Path:
        return self.config.parent

    @property
    def root(self) -> Path:
        """The local root of outputs."""
        return self.folder / "data"

    def beside(self, ending: str) -> Subject:
        """A project in another folder beside it."""
        return Subject(
            self.folder.with_name(self.folder.name + ending) / self.config.name, self.workers
        )


def write_subject(
    folder: Path, *, workers: int = 1, root: str = "data", storage: str = "", long: int = 0
) -> Subject:
    """Write a project: raw text, tokenizer, settings.

    long: megabytes, or so, of a further corpus whose files take a while to be read; 0 = none.
    """
    folder.mkdir(parents=True)
    write_raw(folder / "raw")
    (folder / "raw" / "tables").mkdir()
    rows = sentences("tables", 80)
    for part in range(2):
        data = encoded(".parquet", rows[part * 40 : part * 40 + 40], 15)
        (folder / "raw" / "tables" / f"rows-{part}.parquet").write_bytes(data)
    if long:
        _write_long(folder / "raw" / LONG, long)
    scores = [{"id": f"web-{number}", "score": number % 10 / 10} for number in range(240)]
    (folder / "scores.parquet").write_bytes(encoded(".parquet", scores, 50))
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    text = CONFIG.replace("workers: 1", f"workers: {workers}")
    text = text.replace("root: data", f"root: {root}\n{storage}".rstrip())
    (folder / "nanoset.yaml").write_text(text + _MORE)
    return Subject(folder / "nanoset.yaml", workers)


def rewrite(subject: Subject, settings: str, *, raw: str = "raw") -> None:
    """Let a project have other settings, but for where its outputs are; raw: where its text is."""
    kept = [
        line
        for line in subject.config.read_text().splitlines()
        if line.startswith(("root:", "storage:"))
    ]
    subject.config.write_text("\n".join([f"raw: {raw}", *kept, settings]))


def _write_long(folder: Path, megabytes: int) -> None:
    """Texts of about two thousand characters that no compression makes much smaller."""
    folder.mkdir()
    rng = random.Random(megabytes)
    texts = (
        " ".join(f"{rng.getrandbits(48):x}" for _ in range(150)) for _ in range(520 * megabytes)
    )
    rows = [{"id": f"{number}", "text": text} for number, text in enumerate(texts)]
    for part, name in enumerate(LONG_FILES):
        (folder / name).write_bytes(encoded(name, rows[part::4], 100))


def build_stages(config: Path, *, rebuild: bool = False) -> None:
    """Every stage of a project by the core's own functions, in the order that an engine would
    choose.
    """
    project = Project.open(config, rebuild=rebuild)
    sweep(project)
    run_stages(project)


def outputs(root: Path) -> dict[str, str]:
    """Everything below a root, hidden or not, but for the lock files of running builds: name →
    sha256.
    """
    return {name: digest for name, digest in tree(root).items() if not name.startswith(".in-use/")}


def visible(root: Path) -> dict[str, Path]:
    """What a reader who lists or globs finds below a root: no hidden files, and links themselves
    are no files.
    """
    found = (Path(root, name) for name in glob.glob("**", root_dir=root, recursive=True))
    paths = (path for path in found if path.is_symlink() or path.is_file())
    return {
        path.relative_to(root).as_posix(): path for path in paths if not _is_below_link(path, root)
    }


def _is_below_link(path: Path, root: Path) -> bool:
    return any(
        parent.is_symlink() for parent in path.parents if parent != root and root in parent.parents
    )


def partial(root: Path, *complete: Mapping[str, str]) -> list[str]:
    """What is wrong with the files that a reader can see, at any moment.

    Each must be one of a finished run, or say that the files next to it are not finished.

    complete: outputs of undisturbed runs; several where the raw text was not always the same.
    """
    if not root.is_dir():
        return []
    wrong = []
    for name, path in visible(root).items():
        digest = (
            f"-> {path.readlink()}"
            if path.is_symlink()
            else hashlib.sha256(path.read_bytes()).hexdigest()
        )
        is_unknown = all(run.get(name) != digest for run in complete)
        if is_unknown and not is_opening_receipt(path):
            wrong.append(f"{name} is of no finished run")
        if path.is_symlink() and not (path / "manifest.json").is_file():
            wrong.append(f"{name} points to what is not complete")
        if path.name == "manifest.json":
            wrong += _missing(path)
    return wrong


def _missing(manifest: Path) -> list[str]:
    listed = [manifest.parent / name for name in json.loads(manifest.read_bytes())["files"]]
    return [f"{path} is listed and not there" for path in listed if not path.is_file()]


def differences(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Names that are there in one of two runs, or not the same in both."""
    names = sorted(found.keys() | expected.keys())
    return [
        f"{name} is "
        f"{'lost' if name not in found else 'left over' if name not in expected else 'other bytes'}"
        for name in names
        if found.get(name) != expected.get(name)
    ]
