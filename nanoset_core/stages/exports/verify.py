"""Verify that the files of an export have the tokens and documents of its dataset.

What the files should contain is computed from the dataset again, and compared. A quick check
compares the small files, such as the one that says where documents end. A deep check also compares
all tokens.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import stream_of
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import (
    check_files,
    check_freshness,
    current_manifest,
    remedy_for_bytes,
)
from nanoset_core.stages.dataset.differences import include_differences
from nanoset_core.stages.dataset.token_check import StoredArray, stored_tokens
from nanoset_core.stages.exports.formats import FORMATS, LinkedFormat
from nanoset_core.stages.exports.make import sample_files, traits_of
from nanoset_core.stages.exports.sample_files import FileTask, SampleFiles
from nanoset_core.stages.exports.samples import INDEX, SampledFormat
from nanoset_core.stages.exports.writing import LinkedExport
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.shards.options import framing
from nanoset_core.stages.source_comparison import TokenComparison, made_from
from nanoset_core.stages.stage import Key, Stage
from nanoset_core.storage.atomic import sha256_file


def verify_export(project: Project, stage: Stage, key: Key, *, deep: bool) -> Report:
    """Check the current version of an export: a dataset's tokens in the format of another program.

    A quick check reads little: the sizes of files, and small files, which say where documents end
    or list the other files. A deep check reads everything: it also compares the sha256 of the
    files, and all tokens with those of the dataset.

    Args:
        project: Its outputs have the export and its dataset.
        stage: The stage of exports.
        key: Its `subject` is the name of the export.
        deep: Whether to make the deep check.
    """
    report = Report(stage.report_name(key))
    with report.catching(remedy=BUILD):
        export = current_manifest(project, stage, key)
        report.copy_facts(export, ["documents", "tokens", "left_out"])
        check_files(report, export, deep=deep)
        check_freshness(report, project, stage, key, export)
        if not report.passed:
            return report

        # The files are as they were written. Did they have the right content then?
        _compare_with_dataset(report, project, export, deep=deep)
    return report


def _compare_with_dataset(
    report: Report, project: Project, export: Manifest, *, deep: bool
) -> None:
    """Compare an export with the dataset that it was made from, if this still exists.

    There are two kinds of exports:

        linked     one file with all tokens, the same as that of the dataset, and small files
        sampled    many files with samples, which are sequences of one length, and index.json

    Args:
        report: Report on the export, to which errors are added.
        project: Its outputs have the dataset.
        export: Manifest of the export.
        deep: Whether to compare all tokens. Otherwise few of them are read.
    """
    source = made_from(report, project, export, is_sampled=not deep)
    if source is None:
        return  # the dataset is missing: the report has a warning now
    # If they differ, either may be damaged: `include_differences` finds out which of the two.
    differences = Report(report.output)
    check = _ExportCheck(differences, project, export, source.manifest, source.dataset)
    export_format = FORMATS[export.facts["format"]]
    with differences.catching(remedy=BUILD):
        if isinstance(export_format, SampledFormat):
            check.check_samples(export_format, deep=deep)
        else:
            check.check_linked(export_format, deep=deep)
    include_differences(report, differences, [source.manifest], deep=deep)


@dataclass(frozen=True, slots=True)
class _ExportCheck:
    """Compares an export with the dataset that it was made from."""

    report: Report
    """Gets an error for each difference."""
    project: Project
    export: Manifest
    """Manifest of the export."""
    dataset_manifest: Manifest
    """Manifest of the dataset that it was made from."""
    dataset: MMapIndexedDataset
    """This dataset, opened."""

    def check_linked(self, export_format: LinkedFormat, *, deep: bool) -> None:
        """Check an export whose file of tokens is the dataset's .bin, or a copy of it.

        Args:
            export_format: Format of the export.
            deep: Whether to compare the tokens, too.
        """
        tokens_file, *small_files = export_format.files(self.export.name)
        self._check_small_files(export_format, small_files)
        if deep:
            self._check_tokens(tokens_file)

    def _check_small_files(self, export_format: LinkedFormat, names: Sequence[str]) -> None:
        """Check the small files that say where documents end in an export's file of tokens.

        They are computed from the dataset again, in a temporary folder. The stored ones must have
        the same checksums:

            web.ds.index       sha256 77cd…, and computed again 77cd…
            web.ds.metadata    sha256 a07e…, and computed again 30f2…: an error

        Args:
            export_format: Format of the export, such as that of datatrove.
            names: Names of these files.
        """
        name = self.export.name
        n_tokens = self.export.facts["tokens"]
        expected_export = LinkedExport(
            format=export_format,
            name=name,
            dataset=self.dataset,
            stream=stream_of(self.dataset),
            traits=traits_of(self.project, name, self.dataset.dtype, n_tokens),
        )
        with tempfile.TemporaryDirectory(prefix="nanoset-export-") as scratch:
            expected_export.write_small_files(Path(scratch))
            for file_name in names:
                stored_file = self.export.path(file_name)
                self.report.compare(
                    "documents end elsewhere than in the dataset",
                    where=stored_file,
                    found=f"sha256 {sha256_file(stored_file)}",
                    expected=f"sha256 {sha256_file(Path(scratch, file_name))}",
                    remedy=remedy_for_bytes(self.export),
                )

    def _check_tokens(self, tokens_file: str) -> None:
        """Compare all tokens with those of the dataset, and warn of end tokens inside documents.

        With the end token 0, the documents 5 9 0 and 7 0 8 0 have three end tokens, but there are
        only two documents. So one of them is inside a document.

        Args:
            tokens_file: Name of the export's file of tokens.
        """
        comparison = self._token_comparison(tokens_file)
        outcome = comparison.compare((0, int(self.export.facts["tokens"])))
        comparison.conclude(self.report, [outcome])  # adds an error if a token differs
        if outcome.wrong is not None:
            return

        # Each document ends with one end token. Any other is part of the text of a document.
        n_inside = outcome.n_counted - self.export.facts["documents"]
        if n_inside > 0:
            self.report.warn(
                f"{n_inside:,} end tokens are inside documents: "
                "a reader that looks for end tokens splits these documents",
                where=self.export.url(tokens_file),
                expected="one after each document",
                remedy="let the reader take the ends of documents from the file next to the tokens",
            )

    def _token_comparison(self, tokens_file: str) -> TokenComparison:
        """Prepare the comparison of an export's file of tokens with the dataset's, the .bin.

        Nothing is read yet. Both files may be in a bucket.

        Args:
            tokens_file: Name of the export's file of tokens, such as "web.ds".
        """
        path = self.export.folder / tokens_file
        export_store, export_name = self.export.access.stored_at(path)
        return TokenComparison(
            copy=StoredArray(export_store, export_name, self.dataset.dtype),
            dataset=stored_tokens(self.dataset, as_copies=False),
            remedy=remedy_for_bytes(self.export),
            # Where the tokens are in the .bin, if the dataset is a selection of documents.
            stream=stream_of(self.dataset),
            counted_token=framing(self.project).after[-1],  # the last token of every document
        )

    def check_samples(self, export_format: SampledFormat, *, deep: bool) -> None:
        """Check an export that consists of samples: token sequences of one length, in many files.

            each file exists, with the expected size      otherwise nothing else is checked
            the index lists these files
            each file has the tokens of the dataset       only with `deep`, since all are read

        Args:
            export_format: Format of the export, such as that of MosaicML's streaming.
            deep: Whether to compare the bytes of the files, too.
        """
        samples = self._expected_samples(export_format)
        if not _check_sizes(self.report, self.export, samples):
            return
        self._check_index(samples)
        if deep:
            self._check_sample_files(samples)

    def _expected_samples(self, export_format: SampledFormat) -> SampleFiles:
        """Compute from the dataset which tokens each file of the export should have.

        For example, 10,000 tokens in samples of 100, and files of 40 samples:

            file 0    tokens 0 to 4,000
            file 1    tokens 4,000 to 8,000
            file 2    tokens 8,000 to 10,000

        Args:
            export_format: The format, which decides how many samples are in a file.
        """
        n_tokens = int(self.dataset.sequence_lengths.sum(dtype=np.int64))  # 10,000
        # The length of samples, and other properties of tokens that the format depends on.
        traits = traits_of(self.project, self.export.name, self.dataset.dtype, n_tokens)

        # The length in nanoset.yaml may have changed: take the one that the export was made with.
        traits = replace(traits, sequence_length=self.export.facts["sequence_length"])
        folder = self.export.folder
        return sample_files(self.project, self.dataset_manifest, folder, export_format, traits)

    def _check_index(self, samples: SampleFiles) -> None:
        """Check that index.json lists the files of samples with their recorded digests."""
        names = [samples.format.file(number) for number in range(samples.cut.files)]
        expected_index = samples.index([self.export.files[name] for name in names])
        self.report.compare(
            "index.json is not that of its dataset",
            where=self.export.url(INDEX),
            found=f"sha256 {sha256_file(self.export.path(INDEX))}",
            expected=f"sha256 {hashlib.sha256(expected_index).hexdigest()}",
            remedy=remedy_for_bytes(self.export),
        )

    def _check_sample_files(self, samples: SampleFiles) -> None:
        """Compare the bytes of the files of samples with those that the dataset gives.

        This ends with the first file that differs, since the later ones then usually differ, too.

        Args:
            samples: The files that the export should have.
        """
        remedy = remedy_for_bytes(self.export)
        for task in samples.tasks(stream_of(self.dataset)):  # a task is one file
            is_equal = _check_sample_file(self.report, samples, task, remedy=remedy)
            if not is_equal:
                return
            # File 0 has the tokens 0 to 1,000, for example, and file 1 those up to 2,000.
            _, stop_token = samples.cut.span(task.number)
            self.report.figures["tokens_read"] = stop_token


def _check_sizes(report: Report, manifest: Manifest, samples: SampleFiles) -> bool:
    """Check the names and sizes of an export's files of samples.

    How many tokens go into each file follows from the dataset, so the sizes do, too:

        {"shard.00000.mds": 67000000, "shard.00001.mds": 12000000}

    Args:
        report: Gets an error if they are not as expected.
        manifest: Manifest of the export.
        samples: The files that the export should have.

    Returns:
        Whether they are as expected.
    """
    expected_sizes = _expected_sizes(samples)
    # index.json has no samples, and is checked separately.
    recorded_sizes = {name: fact.size for name, fact in manifest.files.items() if name != INDEX}
    if recorded_sizes == expected_sizes:
        return True
    report.error(
        "these are not the files of its dataset",
        where=manifest.url(),
        found=f"{len(recorded_sizes):,} files, {sum(recorded_sizes.values()):,} bytes",
        expected=f"{len(expected_sizes):,} files, {sum(expected_sizes.values()):,} bytes",
        remedy=remedy_for_bytes(manifest),
    )
    return False


def _expected_sizes(samples: SampleFiles) -> dict[str, int]:
    """Return how many bytes each file of an export should have: `{"shard.00000.mds": 67000000, …}`.

    Args:
        samples: The files.
    """
    size_by_name: dict[str, int] = {}
    for number in range(samples.cut.files):
        name = samples.format.file(number)
        size_by_name[name] = samples.format.size(samples.cut, number)
    return size_by_name


def _check_sample_file(
    report: Report, samples: SampleFiles, task: FileTask, *, remedy: str
) -> bool:
    """Compare a file of samples with the bytes that the dataset gives.

    The bytes are computed again from the tokens of the dataset, block by block. If the first
    difference is at byte 70 of the second block, and the first block has 1,000 bytes, the error
    names byte 1,070.

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
    for expected in samples.blocks(task, samples.source):
        # This raises an error if the file is shorter, so both have the same length.
        stored = samples.target.read_range(name, start_byte, start_byte + len(expected))
        if stored != expected:
            wrong_byte = start_byte + _first_difference(stored, expected)
            report.error(
                "a token is not that of the dataset",
                where=f"{samples.target.url(name)}, byte {wrong_byte}",
                remedy=remedy,
            )
            return False
        start_byte += len(expected)
    return True


def _first_difference(first: bytes, second: bytes) -> int:
    """Return the position of the first byte in which two blocks of the same size differ.

    For b"abc" and b"abd", it is 2.
    """
    differs = np.frombuffer(first, np.uint8) != np.frombuffer(second, np.uint8)
    return int(differs.argmax())
