"""The project whose builds are disturbed, and checks of what its outputs look like to readers.

The project, the *subject* of a trial, has every stage and every kind of raw file.
"""

from __future__ import annotations

import glob
import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from campaigns.receipts import is_opening_receipt
from helpers.building import run_stages
from helpers.sample_project import CONFIG, encoded, sentences, tokenizer_json, tree, write_raw
from nanoset_core.project.project import Project
from nanoset_core.stages.registry import sweep

_MORE_SETTINGS = """\
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
"""Settings of the stages that the sample project's nanoset.yaml does not have. They continue its
last section, the webdatasets.
"""
LONG = "long"
"""Name of the corpus whose files take a while to be read."""
LONG_FILES = ("long-0.jsonl", "long-1.jsonl.gz", "long-2.jsonl.zst", "long-3.parquet")
"""Its files."""
_DOCUMENTS_PER_MEGABYTE = 520
"""Number of documents of that corpus that make about a megabyte."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A project in a folder of its own."""

    config: Path
    """Its nanoset.yaml."""
    workers: int
    """Number of worker processes of a build."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its builds."""

    @property
    def folder(self) -> Path:
        """The folder of the project."""
        return self.config.parent

    @property
    def root(self) -> Path:
        """The local root of outputs."""
        return self.folder / "data"

    def beside(self, ending: str) -> Subject:
        """Return a project in the folder whose name has another ending; the folder is not made."""
        folder = self.folder.with_name(self.folder.name + ending)
        return Subject(folder / self.config.name, self.workers)


def write_subject(
    folder: Path, *, workers: int = 1, root: str = "data", storage: str = "", long: int = 0
) -> Subject:
    """Write a project with its raw text, tokenizer and settings.

    Args:
        folder: The folder, which must not exist.
        workers: Number of worker processes of a build.
        root: Where the outputs are: a folder, or a location in a bucket.
        storage: The section `storage` of the nanoset.yaml; empty for a local root.
        long: Size of the corpus LONG in megabytes, roughly; 0 if the project does not have it.
    """
    folder.mkdir(parents=True)
    write_raw(folder / "raw")
    (folder / "raw" / "tables").mkdir()
    rows = sentences("tables", 80)
    for number, half in enumerate((rows[:40], rows[40:])):
        data = encoded(".parquet", half, 15)
        (folder / "raw" / "tables" / f"rows-{number}.parquet").write_bytes(data)
    if long:
        _write_long(folder / "raw" / LONG, long)
    scores = [{"id": f"web-{number}", "score": number % 10 / 10} for number in range(240)]
    (folder / "scores.parquet").write_bytes(encoded(".parquet", scores, 50))
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    text = CONFIG.replace("workers: 1", f"workers: {workers}")
    text = text.replace("root: data", f"root: {root}\n{storage}".rstrip())
    (folder / "nanoset.yaml").write_text(text + _MORE_SETTINGS)
    return Subject(folder / "nanoset.yaml", workers)


def rewrite(subject: Subject, settings: str, *, raw: str = "raw") -> None:
    """Give a project other settings; where its outputs are stays.

    Args:
        subject: The project.
        settings: The new settings, without `raw`, `root` and `storage`.
        raw: Where its raw text is.
    """
    lines = [f"raw: {raw}"]
    for line in subject.config.read_text().splitlines():
        if line.startswith(("root:", "storage:")):
            lines.append(line)
    lines.append(settings)
    subject.config.write_text("\n".join(lines))


def _write_long(folder: Path, megabytes: int) -> None:
    """Write the corpus LONG, whose texts have about 2,000 characters each.

    The texts are random numbers, so that compressed files are nearly as large as plain ones.

    Args:
        folder: The folder of the corpus.
        megabytes: Size of all its text, roughly.
    """
    folder.mkdir()
    rng = random.Random(megabytes)
    rows: list[dict[str, str]] = []
    for number in range(_DOCUMENTS_PER_MEGABYTE * megabytes):
        words = [f"{rng.getrandbits(48):x}" for _ in range(150)]
        rows.append({"id": f"{number}", "text": " ".join(words)})
    n_files = len(LONG_FILES)
    for number, name in enumerate(LONG_FILES):
        (folder / name).write_bytes(encoded(name, rows[number::n_files], 100))


def build_stages(config: Path, *, rebuild: bool = False) -> None:
    """Run every stage of a project without Dagster, each after the stages that it reads.

    Args:
        config: The project's nanoset.yaml.
        rebuild: Whether outputs that exist are built again.
    """
    project = Project.open(config, rebuild=rebuild)
    sweep(project)
    run_stages(project)


def outputs(root: Path) -> dict[str, str]:
    """Return the sha256 of every file below a root, by relative path.

    Hidden files are included. The lock files of running builds, which never stay, are not.
    """
    digests: dict[str, str] = {}
    for name, digest in tree(root).items():
        if not name.startswith(".in-use/"):
            digests[name] = digest
    return digests


def visible(root: Path) -> dict[str, Path]:
    """Return the files and links that a program finds below a root, by relative path.

    Programs that search for files find no hidden ones. Of a link to a folder, only the link is
    returned, and not the files in the folder.
    """
    files: dict[str, Path] = {}
    # Without `include_hidden`, `glob` leaves out hidden files.
    for name in glob.glob("**", root_dir=root, recursive=True):
        path = root / name
        is_found = path.is_symlink() or path.is_file()
        if is_found and not _is_below_link(path, root):
            files[path.relative_to(root).as_posix()] = path
    return files


def _is_below_link(path: Path, root: Path) -> bool:
    """Return whether one of the folders between a root and a path is a link."""
    for parent in path.parents:
        if parent == root:
            return False
        if parent.is_symlink():
            return True
    return False


def partial(root: Path, *complete: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the files that a reader sees, which may be called at any moment.

    Each file must be one of a finished run, or say that the files next to it are not finished.

    Args:
        root: The root of the outputs.
        complete: What `outputs` returned after a run that nothing disturbed. There are several if
            the raw text changed between two runs.
    """
    if not root.is_dir():
        return []
    wrong: list[str] = []
    for name, path in visible(root).items():
        if path.is_symlink():
            digest = f"-> {path.readlink()}"  # as `tree` describes links
        else:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        is_of_finished_run = any(run.get(name) == digest for run in complete)
        if not is_of_finished_run and not is_opening_receipt(path):
            wrong.append(f"{name} is of no finished run")
        if path.is_symlink() and not (path / "manifest.json").is_file():
            wrong.append(f"{name} points to an output that is not complete")
        if path.name == "manifest.json":
            wrong += _missing_files(path)
    return wrong


def _missing_files(manifest: Path) -> list[str]:
    """Return a message for each file that a manifest lists and that does not exist."""
    wrong: list[str] = []
    for name in json.loads(manifest.read_bytes())["files"]:
        path = manifest.parent / name
        if not path.is_file():
            wrong.append(f"{path} is listed but missing")
    return wrong


def differences(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Return a message for each file that is not the same in two runs.

    Args:
        found: What `outputs` returned after one run.
        expected: What it returned after a run that nothing disturbed.
    """
    messages: list[str] = []
    for name in sorted(found.keys() | expected.keys()):
        if name not in found:
            messages.append(f"{name} is lost")
        elif name not in expected:
            messages.append(f"{name} is left over")
        elif found[name] != expected[name]:
            messages.append(f"{name} has other bytes")
    return messages
