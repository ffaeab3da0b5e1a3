"""Do the files of an export hold the tokens and documents of its dataset?"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, stream_of
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_current
from nanoset_core.stages.dataset.token_check import StoredArray
from nanoset_core.stages.exports.formats import FORMATS, LinkedFormat
from nanoset_core.stages.exports.sample_files import SampleFiles
from nanoset_core.stages.exports.samples import INDEX, SampledFormat
from nanoset_core.stages.exports.stage import EXPORT, sample_files, tokens_of
from nanoset_core.stages.exports.writing import write_beside
from nanoset_core.stages.pbin.verify import TokenComparison, made_from
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.shards.stage import framing
from nanoset_core.stages.stage import Key
from nanoset_core.storage.atomic import sha256_file

_READ_TOKENS = 1 << 20


def verify_export(project: Project, name: str, deep: bool = False) -> Report:
    """Check the current version of an export.

    Its files are those written (`deep`: byte for byte), and documents end where they do in its dataset, or index.json
    is that of samples of its tokens. With `deep` all tokens are compared with the dataset's, and where a reader goes by
    end tokens those within documents are counted: it splits a document there.
    """

    def look(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        found = made_from(report, project, manifest, is_sampled=not deep) if report.passed else None
        if found is None:
            return
        exit_format = FORMATS[manifest.facts["format"]]
        if isinstance(exit_format, SampledFormat):
            _check_samples(report, project, manifest, exit_format, *found, deep)
        else:
            _check_linked(report, project, manifest, exit_format, found[1], deep)

    return check_current(project, EXPORT, Key(name), look, "documents", "tokens", "left_out", deep=deep)


def _check_linked(
    report: Report,
    project: Project,
    manifest: Manifest,
    exit_format: LinkedFormat,
    dataset: MMapIndexedDataset,
    deep: bool,
) -> None:
    tokens = tokens_of(project, manifest.name, dataset.dtype, manifest.facts["tokens"])
    own, *beside = exit_format.files(manifest.name)
    remedy = f"delete {manifest.url()}, and {BUILD}"
    with tempfile.TemporaryDirectory(prefix="nanoset-export-") as scratch:
        write_beside(exit_format, Path(scratch), manifest.name, dataset, stream_of(dataset), tokens)
        for file in beside:
            found, expected = (f"sha256 {sha256_file(one)}" for one in (manifest.path(file), Path(scratch, file)))
            what = "documents end elsewhere than in the dataset"
            report.compare(what, manifest.path(file), found, expected, remedy)
    if deep:
        _check_tokens(report, project, manifest, own, dataset)


def _check_samples(
    report: Report,
    project: Project,
    manifest: Manifest,
    exit_format: SampledFormat,
    whole: Manifest,
    dataset: MMapIndexedDataset,
    deep: bool,
) -> None:
    """Compare files and index.json with what the dataset's tokens give; with `deep` each byte."""
    count, remedy = int(dataset.sequence_lengths.sum(dtype=np.int64)), f"delete {manifest.url()}, and {BUILD}"
    length = manifest.facts["sequence_length"]
    tokens = replace(tokens_of(project, manifest.name, dataset.dtype, count), sequence_length=length)
    samples = sample_files(project, whole, manifest.folder, exit_format, tokens)
    names = exit_format.names(samples.cut)
    expected = {name: exit_format.size(samples.cut, number) for number, name in enumerate(names[:-1])}
    found = {name: fact.size for name, fact in manifest.files.items() if name != INDEX}
    if found != expected:
        sizes = (f"{len(some):,} files, {sum(some.values()):,} bytes" for some in (found, expected))
        report.error("these are not the files of its dataset", manifest.url(), *sizes, remedy)
        return
    index = samples.index([manifest.files[name] for name in names[:-1]])
    told, wanted = (f"sha256 {one}" for one in (sha256_file(manifest.path(INDEX)), hashlib.sha256(index).hexdigest()))
    report.compare("index.json is not that of its dataset", manifest.url(INDEX), told, wanted, remedy)
    for task in samples.tasks(stream_of(dataset)) if deep else ():
        if not _check_file(report, samples, task, remedy):
            return
        report.figures["tokens_read"] = samples.cut.span(task[0])[1]


def _check_file(report: Report, samples: SampleFiles, task: tuple[int, Stream], remedy: str) -> bool:
    name, at = samples.format.file(task[0]), 0
    for block in samples.blocks(*task, samples.source):
        found = samples.target.read_range(name, at, at + len(block))
        if found != block:
            at += int((np.frombuffer(found, np.uint8) != np.frombuffer(block, np.uint8)).argmax())
            where = f"{samples.target.url(name)}, byte {at}"
            report.error("a token is not that of the dataset", where, None, None, remedy)
            return False
        at += len(block)
    return True


def _check_tokens(report: Report, project: Project, manifest: Manifest, own: str, dataset: MMapIndexedDataset) -> None:
    """Compare all tokens, and warn of end tokens within documents."""
    remedy, end = f"delete {manifest.url()}, and {BUILD}", framing(project).after[-1]
    written = StoredArray(*manifest.access.stored_at(manifest.folder / own), dataset.dtype)
    store, prefix = dataset.stored()
    check = TokenComparison(written, StoredArray(store, f"{prefix}.bin", dataset.dtype), remedy, stream_of(dataset))
    count, ends = int(manifest.facts["tokens"]), 0
    for begin in range(0, count, _READ_TOKENS):
        part = begin, min(begin + _READ_TOKENS, count)
        outcome = check.look(part)
        if outcome[1] is not None:
            check.conclude(report, [outcome])
            return
        ends += int((written.read(*part) == end).sum())
    report.figures["tokens_read"] = count
    if (more := ends - manifest.facts["documents"]) > 0:
        what = f"{more:,} end tokens lie within documents: a reader that finds documents by them splits these"
        expected, remedy = "one behind each document", "let it read where documents end from the file beside the tokens"
        report.warn(what, manifest.url(own), None, expected, remedy)
