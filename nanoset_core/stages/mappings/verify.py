"""Verify the index files of a split: the trainer finds them, and they contain what was planned.

An index file is an array, such as the order in which the samples of a dataset are read. Its name,
size and sha256 are compared with those that were recorded, some of its entries are followed to the
tokens, and a deep check computes the array again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import StaleError
from nanoset_core.formats.indexed.layout import idx_path
from nanoset_core.loading.layout import BLEND, MAPPINGS, NANOSETS_FOLDER
from nanoset_core.loading.nanoset import Nanoset, open_nanoset
from nanoset_core.loading.plan_file import read_split
from nanoset_core.outputs.manifest import FileFact, Manifest
from nanoset_core.project.project import Project
from nanoset_core.rounding import ceil_division
from nanoset_core.sampling.cache import FileSet, blend_set, member_set, open_blend
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import BlendIndices
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SplitName
from nanoset_core.stages.checking import (
    check_freshness,
    check_written,
    current_manifest,
    remedy_for_bytes,
)
from nanoset_core.stages.dataset.token_ranges import spread_rows
from nanoset_core.stages.mappings.facts import CACHE_FILES
from nanoset_core.stages.mappings.lookup import cache_folder
from nanoset_core.stages.mappings.stage import BLENDED, INDEX_MAPPINGS
from nanoset_core.stages.report import BUILD, DELETE_FILE, Report
from nanoset_core.stages.stage import Key
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.regular_files import read_regular

MAX_REBUILT_ENTRIES = 100_000_000
"""Index files with more entries are not built again in memory: their sha256 is enough."""
_SAMPLED_SAMPLES = 256
"""Samples of each dataset that every check reads."""
_DISK_BLOCK_BYTES = 4096
"""Disk space that a file takes is a multiple of this, on usual file systems."""
_SAMPLES_AT_ONCE = 16
"""Samples that are read together where room for working copies is bounded."""
_SAMPLED_ENTRIES = 1 << 16
"""Entries of a blend that every check looks at."""


def verify_mappings(project: Project, name: str, split: SplitName, *, deep: bool) -> Report:
    """Check the index files of every dataset of one split.

    They must have the names that the trainer looks for and the sizes that were written. The .idx
    files that they were made from must not have changed since. Of each dataset, evenly spread
    samples are read: they must be complete, and all of their tokens in the vocabulary.

    Args:
        project: Its outputs have the index files, and what they were made from.
        name: Name of the nanoset.
        split: `train`, `valid` or `test`.
        deep: Also compare sha256, and compare each index file with one that is built again in
            memory. Very large ones are not built; the figure `entries_not_rebuilt` counts their
            entries.
    """
    key = Key(name, split)
    report = Report(f"{NANOSETS_FOLDER}/{name}/{split}")
    with report.catching(remedy=BUILD):  # errors that are raised go into the report
        manifest = current_manifest(project, INDEX_MAPPINGS, key)
        report.copy_facts(manifest, ["samples"])
        check_freshness(report, project, INDEX_MAPPINGS, key, manifest)
        _repeat_warnings(report, project, manifest)

        plan, config = read_split(manifest, project.outputs.folder)
        if plan is not None:  # otherwise the split has no data
            cache = cache_folder(project, name)
            file_sets = [member_set(member, config, cache) for member in plan.members]
            indexed_split = _IndexedSplit(manifest, plan, config, file_sets)
            _check_split(report, project, name, indexed_split, deep=deep)
    return report


def _repeat_warnings(report: Report, project: Project, manifest: Manifest) -> None:
    """Add the warnings of the build to a report, such as that the split has no sample.

    Args:
        report: Gets the warnings.
        project: The project.
        manifest: The record of the build.
    """
    for warning in INDEX_MAPPINGS.show(project, manifest).warnings:
        report.warn(warning, where=manifest.folder)


def verify_blend(project: Project, name: str, split: SplitName, *, deep: bool) -> Report:
    """Check the index files of the blend of one split.

    A blend says which dataset each sample is read from. Its files are checked like those of
    `verify_mappings`, and it must have been made from the current index mappings.

    Args:
        project: Its outputs have the index files, and what they were made from.
        name: Name of the nanoset.
        split: `train`, `valid` or `test`.
        deep: Also compare sha256, and compare the index files with some that are built again in
            memory.
    """
    key = Key(name, split)
    report = Report(f"{NANOSETS_FOLDER}/{name}/{split}/{BLEND}")
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, BLENDED, key)
        mappings = current_manifest(project, INDEX_MAPPINGS, key)
        is_of_current_mappings = report.compare(
            "the blend belongs to other index mappings than the current ones",
            where=manifest.folder,
            found=manifest.recipe["parents"][MAPPINGS],
            expected=mappings.digest,
            remedy=BUILD,
        )
        if is_of_current_mappings:
            _check_blend_files(report, project, name, manifest, deep=deep)
    return report


def _check_blend_files(
    report: Report, project: Project, name: str, manifest: Manifest, *, deep: bool
) -> None:
    """Check the index files of a blend, and what they contain if they are as they were written.

    Args:
        report: Gets the errors, and the share of each dataset.
        project: The project.
        name: Name of the nanoset.
        manifest: The record of the blend.
        deep: Compare sha256, and compute the index files again.
    """
    plan, _ = read_split(manifest, project.outputs.folder)
    if plan is None or plan.blend is None:  # the split has no data, or reads one dataset
        return
    files = blend_set(plan, plan.blend, cache_folder(project, name))
    if _check_files(report, manifest, [files], deep=deep):
        indices = open_blend(plan, files.folder, manifest.access)
        _check_entries(report, plan, files, indices)
        if deep:
            _check_rebuilt(report, files, indices)
    _report_shares(report, manifest)


def _report_shares(report: Report, blend: Manifest) -> None:
    """Add to a report which share of the samples each dataset of a blend has, such as 0.7.

    Args:
        report: Gets a figure for each dataset.
        blend: The record of the blend, with the shares that were counted when it was built.
    """
    for member in blend.facts["members"]:
        report.figures[f"share_{member['corpus']}"] = round(member["share"], 6)


def _check_files(
    report: Report, manifest: Manifest, file_sets: Sequence[FileSet], *, deep: bool
) -> bool:
    """Check that the index files that a trainer will look for are as they were written.

    An index file has the order in which the trainer reads samples. These files are in a folder of
    the trainer, where anybody may delete or replace them. Next to them are receipts, small files
    that say what they were made from, which must exist, too.

    Args:
        report: Errors are added to it.
        manifest: The record of the build, which has the size and sha256 of each index file.
        file_sets: The files that the trainer will look for, with their receipts, all in one folder.
        deep: Compare sha256, too, and not only sizes.

    Returns:
        Whether the index files are as they were written, and no receipt is missing.
    """
    index_names = _names_to_check(manifest, file_sets)
    receipt_names = [files.receipt_name for files in file_sets]
    folder = file_sets[0].folder
    size_by_name = manifest.access.sizes(folder, [*index_names, *receipt_names])

    n_errors_before = len(report.errors)
    for name in index_names:
        size = size_by_name.get(name)  # None if it is missing
        _check_index_file(report, manifest, folder, name, size=size, deep=deep)
    files_are_intact = len(report.errors) == n_errors_before

    all_receipts_exist = True
    for files in file_sets:
        if files.receipt_name not in size_by_name:
            _report_missing_receipt(report, files)
            all_receipts_exist = False
        elif files_are_intact:  # a receipt of files that were changed would differ in any case
            _check_receipt(report, manifest, files)
    return files_are_intact and all_receipts_exist


def _names_to_check(manifest: Manifest, file_sets: Sequence[FileSet]) -> list[str]:
    """Return the names of the index files to check: those of the trainer, and those of the build.

    Usually these are the same.

    Args:
        manifest: The record of the build, with the files that it has written.
        file_sets: The files that the trainer will look for.

    Returns:
        Each name once.
    """
    names: list[str] = []
    for files in file_sets:
        names += files.files.values()
    names += manifest.facts[CACHE_FILES]
    return list(dict.fromkeys(names))


def _report_missing_receipt(report: Report, files: FileSet) -> None:
    """Report an error: the receipt of index files, which says what they were made from, is missing.

    Args:
        report: Gets the error.
        files: The index files, with the name of their receipt.
    """
    report.error(
        "the receipt of what index files were made from is missing: "
        "a changed dataset would not be noticed",
        where=files.folder / files.receipt_name,
        remedy=BUILD,
    )


def _check_index_file(
    report: Report, manifest: Manifest, folder: Path, name: str, *, size: int | None, deep: bool
) -> None:
    """Check that an index file is as it was written, by its size, and by its sha256 if `deep`.

    An index file has the order in which a trainer reads samples. It is in a folder of the trainer,
    where it may be changed or deleted.

    Args:
        report: Gets an error if the file differs.
        manifest: The record of the build, with size and sha256 of each file that was written.
        folder: The folder of the trainer.
        name: Path of the file below this folder, such as "5ce5…-shuffle_index.npy".
        size: Its present size in bytes; None if it is missing.
        deep: Whether to compare its sha256, too, which takes longer.
    """
    recorded = manifest.facts[CACHE_FILES]  # {"5ce5…-shuffle_index.npy": {"bytes": 800, …}, …}
    if name not in recorded:
        report.error(
            "the trainer looks for a file that the build does not list",
            where=folder / name,
            remedy=remedy_for_bytes(manifest),
        )
        return
    expected = FileFact(recorded[name]["bytes"], recorded[name]["sha256"])
    check_written(
        report,
        manifest.access,
        folder / name,
        size=size,
        expected=expected,
        deep=deep,
        remedy_for_size=BUILD,
        remedy_for_bytes=DELETE_FILE,
        kind="an index file",
    )


def _check_receipt(report: Report, manifest: Manifest, files: FileSet) -> None:
    """Check the receipt that is stored next to some index files.

    It is a small JSON file, which says what the index files were made from, such as the sha256 of a
    dataset, and their sizes and sha256. Two things may be wrong:

        it says that they were made from something else than is planned
        it has other sizes or sha256 than the record of the build

    Args:
        report: An error is added to it if the receipt is wrong.
        manifest: The record of the build, which has the size and sha256 of each index file, too.
        files: The index files that are planned, and the name of their receipt.
    """
    recorded = manifest.facts[CACHE_FILES]  # {"5ce5…-shuffle_index.npy": {"bytes": 800, …}, …}
    expected_entries = {name: recorded[name] for name in files.files.values()}

    path = files.folder / files.receipt_name
    receipt = read_regular(manifest.access.fetch(path))
    if files.file_entries_in(receipt) == expected_entries:
        return

    difference = files.describe_mismatch("index files", receipt)
    if difference is None:  # they were made from what is planned
        difference = "other files than were written"
    report.error(
        "the receipt of what index files were made from does not say what was planned and written",
        where=path,
        found=difference,
        remedy=BUILD,
    )


def _check_dataset(report: Report, project: Project, name: str, member: MemberPlan) -> None:
    """Check that a dataset is still the one that the index files were made from.

    An index file refers to documents by their numbers. If the dataset was built again with more
    text, the numbers are those of other documents. That shows in its .idx, whose sha256 has
    changed.

    Args:
        report: Report on the index mappings, to which errors are added.
        project: Its output root contains the .idx.
        name: Name of the nanoset.
        member: The plan of the dataset, which has the sha256 of the .idx.
    """
    path = project.outputs.access.fetch(idx_path(member.prefix))
    if not path.is_file():
        report.error("a dataset of the nanoset is missing", where=path, remedy=BUILD)
        return
    report.compare(
        "index files are stale: the dataset is not the one that they were made from",
        where=path,
        found=f"sha256 {sha256_file(path)}",
        expected=f"sha256 {member.idx_sha256}",
        remedy=f"{BUILD}; it rebuilds {name}",
    )


class _IndexedSplit(NamedTuple):
    """The index files of all datasets of a split, by which a trainer reads samples in order."""

    manifest: Manifest
    """The record of the build."""
    plan: SplitPlan
    """Which samples of which datasets are read."""
    config: NanosetConfig
    """The settings that decide the samples."""
    file_sets: Sequence[FileSet]
    """The files of each dataset, in the order of `plan.members`."""


def _check_split(
    report: Report, project: Project, name: str, split: _IndexedSplit, *, deep: bool
) -> None:
    """Check the index files of a split, and the datasets that they were made from.

    An index file has the order in which a trainer reads samples. What the files contain is only
    checked if they and the datasets are as they were when the files were written.

    Args:
        report: Gets the errors.
        project: Its outputs have the datasets.
        name: Name of the nanoset.
        split: The index files.
        deep: Compare sha256, and compute the index files again.
    """
    _check_files(report, split.manifest, split.file_sets, deep=deep)
    for member in split.plan.members:
        _check_dataset(report, project, name, member)
    if report.passed:
        _check_contents_of_split(report, project, split, deep=deep)


def _check_contents_of_split(
    report: Report, project: Project, split: _IndexedSplit, *, deep: bool
) -> None:
    """Check what the index files of each dataset of a split contain.

    An error that is raised for one dataset does not end the check of the others. But if files do
    not fit their dataset, which has not changed, one of them is damaged, and has the right size.
    Then the sha256 of all files are compared to find out which one.

    Args:
        report: Gets the errors.
        project: Its tokenizer says which tokens exist.
        split: The index files, whose sizes are right.
        deep: Also compute the index files again, and compare them.
    """
    for files, member in zip(split.file_sets, split.plan.members, strict=True):
        with report.catching(remedy=BUILD):
            try:
                _check_contents(report, project, split, member, files, deep=deep)
            except StaleError:
                if _check_files(report, split.manifest, split.file_sets, deep=True):
                    raise
                return


def _check_contents(
    report: Report,
    project: Project,
    split: _IndexedSplit,
    member: MemberPlan,
    files: FileSet,
    *,
    deep: bool,
) -> None:
    """Check what the index files of a dataset contain, by reading some samples as a trainer would.

    An index file has the order in which a trainer reads samples. Wrong files usually lead to tokens
    that do not exist.

    Args:
        report: Gets the errors.
        project: Its tokenizer says which tokens exist.
        split: The index files of all datasets, and the settings that decide the samples.
        member: Which samples of the dataset are read.
        files: Its index files.
        deep: Also compute the index files again, and compare them.
    """
    _make_room(split.manifest, member, files)
    # If the dataset is in a bucket, do not download all of it for a few samples.
    access = replace(split.manifest.access, is_sampled=True)
    samples = open_nanoset(member, split.config, files.folder, access)
    if deep:
        _check_rebuilt(report, files, samples)
    _check_samples(report, project, samples)


def _make_room(manifest: Manifest, member: MemberPlan, files: FileSet) -> None:
    """Delete copies of other files from this disk, so that those of some index files fit on it.

    If outputs are in a bucket, nanoset copies files to this disk to read them. If there is no room
    for another copy, it deletes an old one. Index files and the .idx of their dataset are read
    together, so none of them may be deleted for another one.

    Args:
        manifest: The record of the index files, with their sizes.
        member: The plan of the dataset.
        files: The index files.

    Raises:
        StorageError: They do not fit into `storage.scratch_mib`.
    """
    access = manifest.access
    if not access.is_space_limited:
        return
    sizes = [access.size(idx_path(member.prefix)) or 0]
    for name in files.files.values():
        sizes.append(manifest.facts[CACHE_FILES][name]["bytes"])
    n_blocks = sum(ceil_division(size, _DISK_BLOCK_BYTES) for size in sizes)
    n_bytes = n_blocks * _DISK_BLOCK_BYTES
    access.make_room(n_bytes, f"{files.folder}: the index files of a dataset, with its .idx")


def _check_rebuilt(report: Report, files: FileSet, indices: Nanoset | BlendIndices) -> None:
    """Compute index files again, and compare each of their entries with the stored one.

    An index file is an array of numbers, such as the order in which a trainer reads samples:

        stored            3 0 2 1
        computed again    3 0 1 2      an error for entry 2

    Files with more than 100 million entries are left out, since that would take long.

    Args:
        report: Gets an error for the first wrong entry of each file.
        files: The index files.
        indices: Their arrays: its attribute `shuffle_index` is the array of the file of that name.
    """
    array_names = [name for name in files.files if name != "description"]  # that one is a text
    stored_arrays = {name: getattr(indices, name) for name in array_names}
    n_entries = max(len(array) for array in stored_arrays.values())
    if n_entries > MAX_REBUILT_ENTRIES:
        report.count("entries_not_rebuilt", n_entries)
        return

    rebuilt = files.build_arrays()
    for name, stored in stored_arrays.items():
        _compare_array(report, files, name, stored, expected=getattr(rebuilt, name))


def _compare_array(
    report: Report, files: FileSet, name: str, stored: NDArray[Any], expected: NDArray[Any]
) -> None:
    """Add an error to a report if the array of an index file is not the expected one.

    Args:
        report: Gets an error for the first wrong entry.
        files: The index files.
        name: Name of the array, such as `shuffle_index`.
        stored: The array in the file, shape (n_entries,) or (n_entries, 2).
        expected: The array that was computed again, of the same shape.
    """
    entry = _first_difference(stored, expected)
    if entry is not None:
        report.error(
            f"entry {entry} of {name} is not what the plan gives",
            where=files.folder / files.files[name],
            found=stored[entry].tolist(),
            expected=expected[entry].tolist(),
            remedy=DELETE_FILE,
        )


def _first_difference(stored: NDArray[Any], expected: NDArray[Any]) -> int | None:
    """Return the index of the first entry in which two arrays differ, or None if they are equal.

        stored      [5, 9, 7, 1]
        expected    [5, 9, 8, 2]     the result is 2

    Args:
        stored: Shape (n_entries,), or (n_entries, 2) if an entry consists of two numbers.
        expected: The same shape.
    """
    if np.array_equal(stored, expected):
        return None
    differs = (stored != expected).reshape(len(expected), -1)  # (n_entries, 1 or 2)
    is_wrong = differs.any(axis=1)  # (n_entries,)
    return int(np.argmax(is_wrong))  # the first True


def _check_entries(report: Report, plan: SplitPlan, files: FileSet, indices: BlendIndices) -> None:
    """Check that evenly spread entries of a blend name a dataset and a sample that exist.

    An entry is a sample for training, as the number of a dataset and the number of a sample in it:

        entry of the blend      0    1    2    3
        dataset                 0    0    1    0
        sample in it            0    1    0    2

    Args:
        report: Gets an error for the first wrong entry.
        plan: The plan of the split: its datasets, and how many samples of each.
        files: The index files of the blend.
        indices: The stored arrays: for each sample of the blend, its dataset and its number there.
    """
    rows = spread_rows(plan.samples, _SAMPLED_ENTRIES)  # (n_rows,)
    datasets = indices.dataset_index[rows]
    samples = indices.dataset_sample_index[rows]
    is_wrong = _lead_nowhere(plan, datasets, samples)
    if not is_wrong.any():
        return
    first_wrong = int(np.argmax(is_wrong))
    entry = rows[first_wrong]
    report.error(
        "an entry of the blend leads nowhere",
        where=f"{files.folder / files.files['dataset_index']}, entry {entry}",
        found=f"sample {samples[first_wrong]} of dataset {datasets[first_wrong]}",
        expected=f"one of {len(plan.members)} datasets, and a sample of it",
        remedy=DELETE_FILE,
    )


def _lead_nowhere(
    plan: SplitPlan, datasets: NDArray[np.integer], samples: NDArray[np.integer]
) -> NDArray[np.bool_]:
    """Return which entries of a blend name a dataset or a sample that does not exist.

    A blend mixes datasets. Each of its entries is a sample for training: the number of a dataset,
    and the number of a sample in it. For example, with two datasets of 10 and 20 samples:

        dataset      0      1      0      2
        sample       5     19     10      0
        is wrong    no     no    yes    yes

    Args:
        plan: The plan of the split, with its datasets.
        datasets: Number of the dataset of each entry, shape (n_entries,).
        samples: Number of the sample in this dataset, shape (n_entries,).
    """
    is_unknown_dataset = (datasets < 0) | (datasets >= len(plan.members))  # no, no, no, yes
    is_wrong = is_unknown_dataset | (samples < 0)
    if _restarts_used_up_datasets(plan):
        return is_wrong  # no number of a sample is too large

    dataset_sizes = np.array([member.samples_given for member in plan.members])  # [10, 20]
    known_datasets = np.where(is_unknown_dataset, 0, datasets)  # unknown ones are wrong anyway
    n_samples = dataset_sizes[known_datasets]  # [10, 20, 10, 10]
    return is_wrong | (samples >= n_samples)


def _restarts_used_up_datasets(plan: SplitPlan) -> bool:
    """Return whether the trainer reads a dataset again from its start once all samples are used."""
    return get_preset(plan.preset).wraps == "read"


def _check_samples(report: Report, project: Project, nanoset: Nanoset) -> None:
    """Check that the tokens of evenly spread samples of a dataset are in the vocabulary.

    A dataset is read through its index files, as a trainer would. A wrong index file usually leads
    to tokens that are no tokens, such as the id 70,000 in a vocabulary of 50,257.

    Args:
        report: Gets an error for the first wrong token.
        project: Its tokenizer says which ids tokens may have.
        nanoset: The samples of the dataset.
    """
    # The index files of a run that has read samples of this dataset before begin after these.
    member = nanoset.member
    n_readable = len(nanoset) - member.begin
    samples = member.begin + spread_rows(n_readable, _SAMPLED_SAMPLES)  # (n_samples,)
    report.count("samples_read", len(samples))

    max_id = project.tokenizer.max_id
    unknown = _first_unknown_token(nanoset, samples, max_id)
    if unknown is not None:
        report.error(
            "a sample holds a token that is not in the vocabulary",
            where=f"{member.prefix}, {member.split} sample {unknown.sample}, "
            f"token {unknown.position}",
            found=unknown.token,
            expected=f"at most {max_id}",
            remedy="build again with the tokenizer that made the data",
        )


class _TokenOutsideVocabulary(NamedTuple):
    """A token of a sample that is not in the vocabulary."""

    sample: int
    position: int
    """Position in the sample."""
    token: int
    """The token id."""


def _first_unknown_token(
    nanoset: Nanoset, samples: NDArray[np.int64], max_id: int
) -> _TokenOutsideVocabulary | None:
    """Return the first token of some samples that is not in the vocabulary, or None.

    Some samples are read at a time, so that downloads do not fill the disk.

    Args:
        nanoset: The samples of a dataset.
        samples: Numbers of the samples to read, shape (n_samples,).
        max_id: The largest id of a token.
    """
    for span in nanoset.dataset.spans(len(samples), _SAMPLES_AT_ONCE):
        tokens = nanoset.batch(samples[span])  # (n_samples of the span, tokens of a sample)
        unknown = np.argwhere(tokens > max_id)  # (n_unknown, 2) row and column of each
        if len(unknown) > 0:
            row, column = unknown[0]
            return _TokenOutsideVocabulary(samples[span][row], column, tokens[row, column])
    return None
