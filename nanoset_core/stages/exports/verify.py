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
from nanoset_core.stages.checking import check_files, check_freshness, current_manifest
from nanoset_core.stages.dataset.token_check import StoredArray
from nanoset_core.stages.exports.formats import FORMATS, LinkedFormat
from nanoset_core.stages.exports.make import sample_files, traits_of
from nanoset_core.stages.exports.sample_files import FileTask, SampleFiles
from nanoset_core.stages.exports.samples import INDEX, SampledFormat
from nanoset_core.stages.exports.writing import LinkedExport
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
    report = Report(stage.report_name(key))
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, stage, key)
        report.copy_facts(manifest, ["documents", "tokens", "left_out"])
        check_files(report, manifest, deep=deep)
        check_freshness(report, project, stage, key, manifest)
        if not report.passed:
            return report
        source = made_from(report, project, manifest, is_sampled=not deep)
        if source is None:
            return report

        export_format = FORMATS[manifest.facts["format"]]
        if isinstance(export_format, SampledFormat):
            _check_samples(report, project, manifest, export_format, source, deep=deep)
        else:
            _check_linked(report, project, manifest, export_format, source.dataset, deep=deep)
    return report


def _remedy(manifest: Manifest) -> str:
    """Return the remedy for a wrong export, which a build keeps unless its version is deleted."""
    return f"delete {manifest.url()}, and {BUILD}"


def _check_linked(
    report: Report,
    project: Project,
    manifest: Manifest,
    export_format: LinkedFormat,
    dataset: MMapIndexedDataset,
    *,
    deep: bool,
) -> None:
    """Check an export whose file of tokens is the dataset's .bin, or a copy of it.

    The small files, such as the ends of documents, are written again to a temporary folder, and
    compared with those of the export.

    Args:
        report: Report on the export.
        project: The project.
        manifest: Manifest of the export.
        export_format: Format of the export.
        dataset: The dataset that it was made from.
        deep: Whether to compare the tokens, too.
    """
    traits = traits_of(project, manifest.name, dataset.dtype, manifest.facts["tokens"])
    tokens_file, *small_files = export_format.files(manifest.name)
    export = LinkedExport(
        format=export_format,
        name=manifest.name,
        dataset=dataset,
        stream=stream_of(dataset),
        traits=traits,
    )
    with tempfile.TemporaryDirectory(prefix="nanoset-export-") as scratch:
        folder = Path(scratch)
        export.write_small_files(folder)
        for name in small_files:
            report.compare(
                "documents end elsewhere than in the dataset",
                where=manifest.path(name),
                found=f"sha256 {sha256_file(manifest.path(name))}",
                expected=f"sha256 {sha256_file(folder / name)}",
                remedy=_remedy(manifest),
            )
    if deep:
        _check_tokens(report, project, manifest, tokens_file, dataset)


def _check_samples(
    report: Report,
    project: Project,
    manifest: Manifest,
    export_format: SampledFormat,
    source: Source,
    *,
    deep: bool,
) -> None:
    """Check an export that consists of samples: token sequences of one length, in many files.

    The names and sizes of the files, and index.json, are compared with those that the dataset
    gives.

    Args:
        report: Report on the export.
        project: The project.
        manifest: Manifest of the export.
        export_format: Format of the export.
        source: The dataset that it was made from.
        deep: Whether to compare all bytes, too.
    """
    # The files that the export of this dataset should have.
    n_tokens = int(source.dataset.sequence_lengths.sum(dtype=np.int64))
    traits = traits_of(project, manifest.name, source.dataset.dtype, n_tokens)
    traits = replace(traits, sequence_length=manifest.facts["sequence_length"])
    samples = sample_files(project, source.manifest, manifest.folder, export_format, traits)
    if not _check_sizes(report, manifest, samples):
        return

    # The list of these files.
    names = [export_format.file(number) for number in range(samples.cut.files)]
    index = samples.index([manifest.files[name] for name in names])
    report.compare(
        "index.json is not that of its dataset",
        where=manifest.url(INDEX),
        found=f"sha256 {sha256_file(manifest.path(INDEX))}",
        expected=f"sha256 {hashlib.sha256(index).hexdigest()}",
        remedy=_remedy(manifest),
    )

    # Their bytes, up to the first file that differs.
    if not deep:
        return
    for task in samples.tasks(stream_of(source.dataset)):
        if not _check_sample_file(report, samples, task, remedy=_remedy(manifest)):
            return
        # Files are in the order of the tokens, so this is also the number of tokens read so far.
        _, stop_token = samples.cut.span(task.number)
        report.figures["tokens_read"] = stop_token


def _check_sizes(report: Report, manifest: Manifest, samples: SampleFiles) -> bool:
    """Check the names and sizes of an export's files of samples.

    Args:
        report: Gets an error if they are not as expected.
        manifest: Manifest of the export.
        samples: The files that the export should have.

    Returns:
        Whether they are as expected.
    """
    # `samples.cut` says how the tokens are divided among the files.
    expected_sizes: dict[str, int] = {}
    for number in range(samples.cut.files):
        name = samples.format.file(number)
        expected_sizes[name] = samples.format.size(samples.cut, number)

    # index.json has no samples, and is checked separately.
    recorded_sizes = {name: fact.size for name, fact in manifest.files.items() if name != INDEX}
    if recorded_sizes == expected_sizes:
        return True
    report.error(
        "these are not the files of its dataset",
        where=manifest.url(),
        found=f"{len(recorded_sizes):,} files, {sum(recorded_sizes.values()):,} bytes",
        expected=f"{len(expected_sizes):,} files, {sum(expected_sizes.values()):,} bytes",
        remedy=_remedy(manifest),
    )
    return False


def _check_sample_file(
    report: Report, samples: SampleFiles, task: FileTask, *, remedy: str
) -> bool:
    """Compare a file of samples with the bytes that the dataset gives.

    Args:
        report: Gets an error for the first byte that differs.
        samples: The files of the export.
        task: The file, and where its tokens are in the dataset.
        remedy: What the user should do if they differ.

    Returns:
        Whether all bytes are equal.
    """
    name = samples.format.file(task.number)
    start_byte = 0  # of the block
    # `blocks` yields the bytes that an export would write.
    for expected in samples.blocks(task, samples.source):
        # This raises an error if the file is shorter, so both have the same length.
        stored = samples.target.read_range(name, start_byte, start_byte + len(expected))
        if stored != expected:
            differs = np.frombuffer(stored, np.uint8) != np.frombuffer(expected, np.uint8)
            first_wrong_byte = start_byte + int(differs.argmax())
            report.error(
                "a token is not that of the dataset",
                where=f"{samples.target.url(name)}, byte {first_wrong_byte}",
                remedy=remedy,
            )
            return False
        start_byte += len(expected)
    return True


def _check_tokens(
    report: Report,
    project: Project,
    manifest: Manifest,
    tokens_file: str,
    dataset: MMapIndexedDataset,
) -> None:
    """Compare all tokens with those of the dataset, and warn of end tokens inside documents.

    Args:
        report: Report on the export.
        project: The project.
        manifest: Manifest of the export.
        tokens_file: Name of the export's file of tokens.
        dataset: The dataset that it was made from.
    """
    # Both files are read where they are stored, which may be a bucket.
    store, name = manifest.access.stored_at(manifest.folder / tokens_file)
    dataset_store, prefix = dataset.stored()
    exported = StoredArray(store, name, dataset.dtype)
    comparison = TokenComparison(
        copy=exported,
        dataset=StoredArray(dataset_store, f"{prefix}.bin", dataset.dtype),
        remedy=_remedy(manifest),
        stream=stream_of(dataset),
    )

    # Compare them in ranges, up to the first difference, and count the end tokens.
    end_token = framing(project).after[-1]
    n_tokens = int(manifest.facts["tokens"])
    n_end_tokens = 0
    for start in range(0, n_tokens, _READ_TOKENS):
        stop = min(start + _READ_TOKENS, n_tokens)
        outcome = comparison.look((start, stop))
        if outcome.wrong is not None:
            comparison.conclude(report, [outcome])
            return
        n_end_tokens += int(np.count_nonzero(exported.read(start, stop) == end_token))
    report.figures["tokens_read"] = n_tokens

    # Each document ends with one end token. Any other is part of the text of a document.
    n_inside = n_end_tokens - manifest.facts["documents"]
    if n_inside > 0:
        report.warn(
            f"{n_inside:,} end tokens are inside documents: "
            "a reader that looks for end tokens splits these documents",
            where=manifest.url(tokens_file),
            expected="one after each document",
            remedy="let the reader take the ends of documents from the file next to the tokens",
        )
