"""Damage one file of a project, and require that every loss is reported.

- If a file of raw text is damaged and the project is built again, the build fails and names the
  file; or the build's report, `nanoset status`, `nanoset verify` and the asset check of the UI all
  name it; or no document was lost.
- If a file of an output is damaged, `nanoset verify --deep` names the file or its folder.

A trial is bad if a document or an output was lost and one of these did not report it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg

from campaigns.mutations import Mutation, cut, flip, zero
from campaigns.runner import Kind, Trial, each
from helpers.building import build_all
from helpers.sample_project import CONFIG, encoded, sentences, tokenizer_json, write_raw
from nanoset_assets.build.builder import build
from nanoset_assets.build.report import BuildReport
from nanoset_assets.commands import show_report
from nanoset_core.cli.commands.status import print_tables
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.project.verify import verify_project
from nanoset_core.text.documents import read_documents
from nanoset_core.text.inventory.pieces import cut_ranges
from nanoset_core.text.inventory.take import take_inventory
from nanoset_core.text.tables.documents import ZEROS

HEAD = ("what", "damage")
"""First columns of the table."""
COLUMNS = ("refused", "warned", "unharmed")
"""The build failed and named the file; everything named the file; no document was lost."""
TRIALS = 200
"""Trials on raw text, and as many on outputs."""
_SETTINGS = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
documents: {max_rejected_fraction: 0.5, max_unreadable_fraction: LIMIT}
tokenization: {range_mib: 0.004, workers: 1, engine: tokenizers}
"""
"""A nanoset.yaml. LIMIT is 0, then a build fails if it meets a file that it cannot read, or 1, then
it skips the file and warns.
"""
_CORPORA = ("lines", "packed", "tables")
_RENAMED_ENDINGS = (
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
"""Endings of other formats, and of formats that are not read."""
_COMPANION_ENDINGS = (".jsonl.lock", ".bin", ".md", ".jsonl.md5", ".crc")
"""Endings of files that often accompany text. Builds ignore these files without a warning."""
_NAMED_OUTPUTS = (
    "manifest.json",
    "documents.parquet",
    "current.json",
    "inventory.json",
    "plan.json",
)
"""Files of outputs that have a row of their own in the table."""
_ENDINGS_OF_OUTPUTS = (".npy", ".tar", ".jsonl", ".pbin", ".bin", ".idx")
"""All files of outputs with one of these endings have one row in the table."""
_MAX_RANGE_BYTES = 1 << 30
"""More than any corpus here has: all of its text is one range."""


class TextFile(NamedTuple):
    """A file of raw text for the project."""

    name: str
    """Path below the folder of raw text; its ending says the format, as `encoded` knows it."""
    n_documents: int
    part: int
    """Documents in the first gzip member or zstd frame, in a row group, or in a record batch."""


_TEXT_FILES = (
    TextFile("lines/part-0/a.jsonl", 30, 30),
    TextFile("lines/part-0/b.jsonl", 30, 30),
    TextFile("lines/part-1/c.ndjson", 20, 20),
    TextFile("packed/a.jsonl.gz", 25, 25),
    TextFile("packed/members.json.gz", 25, 12),
    TextFile("packed/a.jsonl.zst", 25, 25),
    TextFile("packed/frames.jsonl.zst", 25, 12),
    TextFile("tables/a.parquet", 20, 7),
    TextFile("tables/b.parquet", 20, 7),
    TextFile("tables/c.arrow", 20, 7),
    TextFile("tables/saved/data-00000-of-00001.stream.arrow", 20, 7),
)


def write_text(raw: Path) -> None:
    """Write three corpora, which contain at least one file of every format that builds read."""
    rows = iter(sentences("text", 260))
    for file in _TEXT_FILES:
        # One Parquet file has no checksums, so that damage to its pages can only show as bad text.
        has_checksums = "b.parquet" not in file.name
        documents = list(islice(rows, file.n_documents))
        data = encoded(file.name, documents, file.part, checked=has_checksums)
        path = raw / file.name.replace(".stream", "")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    # The files that `save_to_disk` of Hugging Face's `datasets` writes next to its tables.
    for name in ("dataset_info.json", "state.json"):
        (raw / "tables/saved" / name).write_text(json.dumps({"_split": "train"}))


def text_files(corpus_folder: Path) -> list[Path]:
    """Return the files of a corpus that contain text."""
    paths: list[Path] = []
    for path in sorted(corpus_folder.rglob("*.*")):
        # The JSON files in `saved` describe its tables.
        describes_tables = path.parent.name == "saved" and path.suffix == ".json"
        if path.is_file() and not describes_tables:
            paths.append(path)
    return paths


Damage = Callable[[Path, Path, random.Random], Path | None]
"""Damages a file, given the folder of its corpus, its path, and random numbers.

Returns another file that a report may name instead of this one, or None.
"""


def _damage_bytes(*mutations: Mutation) -> Damage:
    """Return damage that applies one of some mutations to the content of a file."""

    def damage(_corpus_folder: Path, path: Path, rng: random.Random) -> None:
        original = path.read_bytes()
        data = bytearray(original)
        # A mutation may do nothing, for example if it overwrites zeros with zeros.
        while data == original:
            apply_mutation = rng.choice(mutations)
            apply_mutation(data, rng)
        path.write_bytes(data)

    return damage


def _empty(data: bytearray, _rng: random.Random) -> None:
    """Remove all bytes."""
    data.clear()


def _cut_between_records(data: bytearray, rng: random.Random) -> None:
    """Remove the end of a file from the start of a line, a gzip member or a zstd frame on.

    What remains is a sound file, so that only its size shows that text was lost. Parquet and Arrow
    files, which have a footer, and files of one record are cut anywhere.
    """
    if data[:1] == b"{":
        record_start = rb"\n(?=.)"
    else:
        record_start = rb"(?<=.)(?=\x1f\x8b\x08\0|\x28\xb5\x2f\xfd)"
    starts = [match.end() for match in re.finditer(record_start, data, re.DOTALL)]

    is_table = data[:4] in (b"PAR1", b"ARRO")
    if is_table or not starts:
        cut(data, rng)
    else:
        del data[rng.choice(starts) :]


def _swap_files(corpus_folder: Path, path: Path, rng: random.Random) -> Path:
    """Exchange the contents of the file and another one of the corpus, and return the other path."""
    others = [other for other in text_files(corpus_folder) if other != path]
    other = rng.choice(others)
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return other


def _rename(_corpus_folder: Path, path: Path, rng: random.Random) -> Path:
    """Rename the file, so that its ending says another format, and return the new path."""
    stem, dot, ending = path.name.partition(".")
    other_endings = [other for other in _RENAMED_ENDINGS if other != dot + ending]
    return path.rename(path.with_name(f"{stem}-renamed{rng.choice(other_endings)}"))


def _hide(_corpus_folder: Path, path: Path, rng: random.Random) -> None:
    """Rename the file to a name that builds ignore without a warning."""
    names = [f".{path.name}"]
    names += [path.name + ending for ending in _COMPANION_ENDINGS]
    path.rename(path.with_name(rng.choice(names)))


def _delete(_corpus_folder: Path, path: Path, _rng: random.Random) -> None:
    """Delete the file."""
    path.unlink()


DAMAGES: dict[str, Damage] = {
    "cut": _damage_bytes(cut),
    "cut between records": _damage_bytes(_cut_between_records),
    "zeroed": _damage_bytes(zero),
    "swapped": _swap_files,
    "renamed": _rename,
    "emptied": _damage_bytes(_empty),
    "flipped": _damage_bytes(flip),
    "renamed aside": _hide,
    "deleted": _delete,
}
"""Name of each damage to raw text → the function that does it."""
_damage_output = _damage_bytes(cut, zero, flip, _empty)


class DamagedText:
    """Trials that damage a file of raw text and build the project again.

    The project is built once; every trial works on a copy of it.

    Args:
        scratch: Folder for the project and its copies.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._original = scratch / "sound"
        raw = self._original / "raw"
        write_text(raw)
        (self._original / "tokenizer.json").write_bytes(tokenizer_json())
        (self._original / "nanoset.yaml").write_text(_SETTINGS.replace("LIMIT", "0"))

        # Paths, below `raw`, of the files that a trial may damage.
        self._victims: list[Path] = []
        for corpus in _CORPORA:
            self._victims += [path.relative_to(raw) for path in text_files(raw / corpus)]

        # Dagster's history of runs, which the check of the UI is read from.
        self._instance = dg.DagsterInstance.ephemeral(tempdir=str(scratch))
        project = Project.open(self._original / "nanoset.yaml")
        report = build(project, self._instance)
        assert not report.failed, report.failed
        assert not _verify_findings(project)
        self._original_documents = {
            corpus: _count_documents(project, corpus) for corpus in _CORPORA
        }

    def run(self, damage: Damage, rng: random.Random) -> Trial:
        """Damage a random file of a copy of the project, build the copy, and judge the reports."""
        victim = rng.choice(self._victims)
        folder = self._scratch / "trial"
        shutil.copytree(self._original, folder, symlinks=True)
        try:
            may_skip_files = rng.random() < 0.5
            if may_skip_files:
                (folder / "nanoset.yaml").write_text(_SETTINGS.replace("LIMIT", "1"))

            corpus_folder = folder / "raw" / victim.parts[0]
            path = folder / "raw" / victim
            other_path = damage(corpus_folder, path, rng)
            names = [path.relative_to(corpus_folder).as_posix()]
            if other_path is not None:
                names.append(other_path.relative_to(corpus_folder).as_posix())

            return self._build_and_judge(folder, corpus_folder.name, names)
        finally:
            shutil.rmtree(folder)

    def _build_and_judge(self, folder: Path, corpus: str, names: list[str]) -> Trial:
        """Build a damaged project, and check that the damage is reported.

        Args:
            folder: The project.
            corpus: The corpus whose text is damaged.
            names: The files of the corpus of which each report must name at least one.
        """
        project = Project.open(folder / "nanoset.yaml")
        n_runs_before = self._instance.get_runs_count()
        report = build(project, self._instance)
        n_runs = self._instance.get_runs_count() - n_runs_before
        texts = self._report_texts(project, report, n_runs)

        silent: list[str] = []
        for channel, text in texts.items():
            if not any(name in text for name in names):
                silent.append(channel)
        if not silent:
            return Trial(Counter(["refused" if report.failed else "warned"]))
        if not report.failed and not self._has_lost_documents(project, corpus):
            return Trial(Counter(["unharmed"]))
        message = f"{' or '.join(names)} of {corpus}: nothing from {', '.join(silent)}"
        return Trial(Counter(["silent"]), [message])

    def _report_texts(self, project: Project, report: BuildReport, n_runs: int) -> dict[str, str]:
        """Return all texts in which a user may learn of the damage, by the name of their source.

        Args:
            project: The project that was built.
            report: What `build` returned for it.
            n_runs: Number of runs that the build has started.
        """
        # A build that failed has changed nothing, so its message is all that there is.
        if report.failed:
            messages = [str(message) for message in report.failed.values()]
            return {"build": " ".join(messages)}
        return {
            "build": _printed(lambda: show_report(project, report)),
            "status": _printed(lambda: print_tables(project_status(project))),
            "verify": " ".join(_verify_findings(project)),
            "check": self._check_texts(n_runs),
        }

    def _check_texts(self, n_runs: int) -> str:
        """Return what the asset checks of the last runs say, as the UI shows it.

        Args:
            n_runs: Number of the last runs.
        """
        # A limit of 0 would return all runs.
        if n_runs == 0:
            return ""
        texts: list[str] = []
        for run in self._instance.get_runs(limit=n_runs):
            entries = self._instance.all_logs(
                run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
            )
            for entry in entries:
                evaluation: Any = entry.dagster_event.event_specific_data
                texts.append(evaluation.description or "")
                # The table of findings, which not every check has.
                table = evaluation.metadata.get("findings")
                texts += [str(row.data) for row in getattr(table, "records", ())]
        return " ".join(texts)

    def _has_lost_documents(self, project: Project, corpus: str) -> bool:
        """Return whether a document of a corpus was lost by the damage.

        A flipped bit may turn a document into another one. Nobody can notice this, so it is no
        loss, unless there are fewer documents now, or texts that the reader filled with zeros.
        """
        before = self._original_documents[corpus]
        after = _count_documents(project, corpus)
        missing = before - after
        if not missing:
            return False
        has_fewer = after.total() < before.total()
        has_zeros = any(ZEROS in text for text in after)
        return has_fewer or has_zeros


def _count_documents(project: Project, corpus: str) -> Counter[str]:
    """Return how many documents of a corpus have each text."""
    folder = project.config.raw_folder / corpus
    texts: Counter[str] = Counter()
    for source in cut_ranges(take_inventory(folder, corpus), _MAX_RANGE_BYTES):
        for batch in read_documents(folder, source):
            texts.update(batch.texts)
    return texts


def _verify_findings(project: Project, *, deep: bool = False) -> list[str]:
    """Return the findings of `nanoset verify`, or of `nanoset verify --deep`."""
    findings: list[str] = []
    for result in verify_project(project, deep=deep):
        findings += [str(finding) for finding in result.findings]
    return findings


def _printed(show: Callable[[], object]) -> str:
    """Return what a function prints to standard output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        show()
    return output.getvalue()


class DamagedOutputs:
    """Trials that damage a file of an output, verify the project, and restore the file.

    Args:
        scratch: Folder for the project, which is built once.
    """

    def __init__(self, scratch: Path) -> None:
        folder = scratch / "outputs"
        write_raw(folder / "raw")
        (folder / "tokenizer.json").write_bytes(tokenizer_json())
        settings = CONFIG.replace("webdatasets:", "pbin: [books]\nwebdatasets:")
        (folder / "nanoset.yaml").write_text(settings)
        self._project = build_all(folder / "nanoset.yaml")
        self.files = [
            path for path in sorted((folder / "data").rglob("*")) if _can_be_damaged(path)
        ]
        findings = _verify_findings(self._project, deep=True)
        assert not findings, findings

    def run(self, row: str, rng: random.Random) -> Trial:
        """Damage a random file that belongs to a row of the table, and verify.

        Args:
            row: As `_row_of` names it.
            rng: Random numbers.
        """
        path = rng.choice([path for path in self.files if _row_of(path) == row])
        data = path.read_bytes()
        # Write a new file: the old one may be mapped into memory, or have other hard links.
        path.unlink()
        path.write_bytes(data)
        try:
            _damage_output(path.parent, path, rng)
            findings = "\n".join(_verify_findings(self._project, deep=True))
        finally:
            path.unlink()
            path.write_bytes(data)

        if str(path) in findings or str(path.parent) in findings:
            return Trial(Counter(["warned"]))
        return Trial(wrong=[f"{path}: {findings[:500] or 'nothing'}"])


def _can_be_damaged(path: Path) -> bool:
    """Return whether a path is a file of an output, with content, and not a link to another one."""
    if not path.is_file() or path.name.startswith(".") or path.stat().st_size == 0:
        return False
    return not any(parent.is_symlink() for parent in (path, *path.parents))


def _row_of(path: Path) -> str:
    """Return the name of the table's row that a file of an output belongs to, such as `*.npy`."""
    if path.suffix in _ENDINGS_OF_OUTPUTS:
        return f"*{path.suffix}"
    if path.name in _NAMED_OUTPUTS:
        return path.name
    return f"other *{path.suffix}"


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """Yield a kind of trial for each damage to raw text, and for each sort of file of an output.

    Args:
        folder: Where the trials write.
        options: Options of the command line.
    """

    # The projects are built when the first trial needs them: `--select` may exclude all of these.
    @cache
    def damaged_text() -> DamagedText:
        return DamagedText(folder)

    @cache
    def damaged_outputs() -> DamagedOutputs:
        return DamagedOutputs(folder)

    n_trials = math.ceil(options.trials / len(DAMAGES))
    for name, damage in DAMAGES.items():

        def run_text_trial(rng: random.Random, _number: int, damage: Damage = damage) -> Trial:
            return damaged_text().run(damage, rng)

        yield each(("raw text", name), n_trials, run_text_trial)

    rows = sorted({_row_of(path) for path in damaged_outputs().files})
    n_trials = math.ceil(options.trials / len(rows))
    for row in rows:

        def run_output_trial(rng: random.Random, _number: int, row: str = row) -> Trial:
            return damaged_outputs().run(row, rng)

        yield each(("output", row), n_trials, run_output_trial)
