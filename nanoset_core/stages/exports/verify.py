"""Verify that the files of an export have the tokens and documents of its dataset."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import stream_of
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_current
from nanoset_core.stages.dataset.token_check import StoredArray
from nanoset_core.stages.exports.formats import FORMATS, LinkedFormat
from nanoset_core.stages.exports.make import sample_files, traits_of
from nanoset_core.stages.exports.sample_files import FileTask, SampleFiles
from nanoset_core.stages.exports.samples import INDEX, SampledFormat
from nanoset_core.stages.exports.writing import write_beside
from nanoset_core.stages.pbin.verify import Source, TokenComparison, made_from
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.shards.options import framing
from nanoset_core.stages.stage import Key, Stage
from nanoset_core.storage.atomic import sha256_file

_READ_TOKENS = 1 << 20
"""Number of tokens that are compared at once."""


def verify_export(project: Project, stage: Stage, key: Key, *, deep: bool = False) -> Report:
    """Check the current version of an export.

    All files must exist with their recorded size; with `deep`, also with their recorded sha256. The
    ends of documents are compared with those of the dataset. For a format of samples, index.json is
    compared with what the dataset's tokens give.

    With `deep`, all tokens are compared with those of the dataset. End tokens inside documents are
    counted, since a reader that looks for end tokens would split a document there.

    Args:
        project: The project.
        stage: The stage of exports.
        key: The export.
        deep: Whether to read all tokens.
    """

    def look(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        if not report.passed:
            return
        source = made_from(report, project, manifest, is_sampled=not deep)
        if source is None:
            return
        export_format = FORMATS[manifest.facts["format"]]
        if isinstance(export_format, SampledFormat):
            _check_samples(report, project, manifest, export_format, source, deep)
        else:
            _check_linked(report, project, manifest, export_format, source.dataset, deep)

    return check_current(project, stage, key, look, "documents", "tokens", "left_out", deep=deep)


def _remedy(manifest: Manifest) -> str:
    """Return what to do about a wrong export, for messages."""
    return f"delete {manifest.url()}, and {BUILD}"


def _check_linked(
    report: Report,
    project: Project,
    manifest: Manifest,
    export_format: LinkedFormat,
    dataset: MMapIndexedDataset,
    deep: bool,
) -> None:
    """Check an export that shares its tokens.

    The small files are written again to a temporary folder, and compared with those of the export.
    With `deep`, the tokens are compared, too.
    """
    traits = traits_of(project, manifest.name, dataset.dtype, manifest.facts["tokens"])
    tokens_file, *small_files = export_format.files(manifest.name)
    with tempfile.TemporaryDirectory(prefix="nanoset-export-") as scratch:
        write_beside(
            export_format, Path(scratch), manifest.name, dataset, stream_of(dataset), traits
        )
        for name in small_files:
            report.compare(
                "documents end elsewhere than in the dataset",
                manifest.path(name),
                f"sha256 {sha256_file(manifest.path(name))}",
                f"sha256 {sha256_file(Path(scratch, name))}",
                _remedy(manifest),
            )
    if deep:
        _check_tokens(report, project, manifest, tokens_file, dataset)


def _check_samples(
    report: Report,
    project: Project,
    manifest: Manifest,
    export_format: SampledFormat,
    source: Source,
    deep: bool,
) -> None:
    """Check an export that consists of samples.

    The sizes of the files, and index.json, are compared with what the dataset gives. With `deep`,
    all bytes are compared.
    """
    n_tokens = int(source.dataset.sequence_lengths.sum(dtype=np.int64))
    traits = traits_of(project, manifest.name, source.dataset.dtype, n_tokens)
    traits = replace(traits, sequence_length=manifest.facts["sequence_length"])
    samples = sample_files(project, source.manifest, manifest.folder, export_format, traits)

    # Compare the names and sizes of the files.
    names = [export_format.file(number) for number in range(samples.cut.files)]
    expected = {name: export_format.size(samples.cut, number) for number, name in enumerate(names)}
    stored = {name: fact.size for name, fact in manifest.files.items() if name != INDEX}
    if stored != expected:
        report.error(
            "these are not the files of its dataset",
            manifest.url(),
            f"{len(stored):,} files, {sum(stored.values()):,} bytes",
            f"{len(expected):,} files, {sum(expected.values()):,} bytes",
            _remedy(manifest),
        )
        return

    index = samples.index([manifest.files[name] for name in names])
    report.compare(
        "index.json is not that of its dataset",
        manifest.url(INDEX),
        f"sha256 {sha256_file(manifest.path(INDEX))}",
        f"sha256 {hashlib.sha256(index).hexdigest()}",
        _remedy(manifest),
    )
    if not deep:
        return
    for task in samples.tasks(stream_of(source.dataset)):
        if not _check_file(report, samples, task, _remedy(manifest)):
            return
        _, report.figures["tokens_read"] = samples.cut.span(task.number)


def _check_file(report: Report, samples: SampleFiles, task: FileTask, remedy: str) -> bool:
    """Compare a file with the bytes that the dataset gives, and return whether they are equal.

    Args:
        report: Gets an error if they differ.
        samples: The files of the export.
        task: The file, and where its tokens are in the dataset.
        remedy: What to do about it.
    """
    name = samples.format.file(task.number)
    start = 0
    for expected in samples.blocks(task, samples.source):
        stored = samples.target.read_range(name, start, start + len(expected))
        if stored != expected:
            differs = np.frombuffer(stored, np.uint8) != np.frombuffer(expected, np.uint8)
            report.error(
                "a token is not that of the dataset",
                f"{samples.target.url(name)}, byte {start + int(differs.argmax())}",
                None,
                None,
                remedy,
            )
            return False
        start += len(expected)
    return True


def _check_tokens(
    report: Report,
    project: Project,
    manifest: Manifest,
    tokens_file: str,
    dataset: MMapIndexedDataset,
) -> None:
    """Compare all tokens with those of the dataset, and warn of end tokens inside documents."""
    end = framing(project).after[-1]
    store, name = manifest.access.stored_at(manifest.folder / tokens_file)
    dataset_store, prefix = dataset.stored()
    written = StoredArray(store, name, dataset.dtype)
    comparison = TokenComparison(
        copy=written,
        dataset=StoredArray(dataset_store, f"{prefix}.bin", dataset.dtype),
        remedy=_remedy(manifest),
        stream=stream_of(dataset),
    )

    n_tokens = int(manifest.facts["tokens"])
    n_ends = 0
    for start in range(0, n_tokens, _READ_TOKENS):
        stop = min(start + _READ_TOKENS, n_tokens)
        compared = comparison.look((start, stop))
        if compared.wrong is not None:
            comparison.conclude(report, [compared])
            return
        n_ends += int(np.count_nonzero(written.read(start, stop) == end))
    report.figures["tokens_read"] = n_tokens

    n_inside = n_ends - manifest.facts["documents"]
    if n_inside > 0:
        report.warn(
            f"{n_inside:,} end tokens are inside documents: "
            "a reader that looks for end tokens splits these documents",
            manifest.url(tokens_file),
            None,
            "one after each document",
            "let the reader take the ends of documents from the file next to the tokens",
        )
