"""Verify a webdataset: its files are as they were written, and have the contexts of the plan.

A context is a sample of a tar. By the plan and the datasets it is known which tokens each context
must have: for example, context 3 of tar 7 has the tokens 4,096 to 6,144 of the corpus `web`. A
quick check compares a few contexts with these, and a deep check all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError
from nanoset_core.formats.tars.members import read_member
from nanoset_core.formats.tars.samples import iterate_token_members
from nanoset_core.formats.tars.tar import map_archive
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_file, check_freshness, current_manifest
from nanoset_core.stages.dataset.differences import include_differences
from nanoset_core.stages.dataset.token_ranges import spread_rows
from nanoset_core.stages.dataset.tokens import bin_name
from nanoset_core.stages.datasets import current_dataset, dataset_of
from nanoset_core.stages.report import (
    BUILD,
    DELETE_FILE,
    PART_BYTES,
    CheckRunner,
    DividedCheck,
    Report,
    group_by_bytes,
    run_here,
)
from nanoset_core.stages.stage import Key
from nanoset_core.stages.webdataset.gathering import gather
from nanoset_core.stages.webdataset.make import current_plan, group_facts
from nanoset_core.stages.webdataset.names import FOLDER
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.stages.webdataset.stage import SHUFFLE_PLAN, WEBDATASET
from nanoset_core.stages.webdataset.tars import TarFacts, tar_name
from nanoset_core.storage.writing.uploads import drop_copies

_TARS_OPENED = 8
"""Number of tars that the quick check opens."""
_BATCH = 256
"""Number of contexts that are compared at once."""
_QUOTED_TOKENS = 8
"""Number of tokens that messages quote of a context."""
_MAX_PARTS = 64
"""At most this many parts of a deep check, since each part reads the plan, which may be large."""


def verify_webdataset(project: Project, name: str, *, deep: bool, run: CheckRunner) -> Report:
    """Check the files of a shuffled dataset: tars of training samples, and lists that name them.

                    a quick check                         a deep check
        lists       have the recorded sha256              the same
        tars        have the recorded size; 8 of them     have the recorded sha256
                    are opened
        samples     the first and the last one of these   all are what the plan says
                    are what the plan says

    The plan says which tokens each sample has. If the tokens are in a bucket, and may not be copied
    to this machine, a deep check compares only the first and the last sample of each tar.

    Args:
        project: Its outputs have the dataset, the plan, and the tokens that it was made from.
        name: Name of the dataset.
        deep: Whether to read every byte.
        run: Runs the parts of a deep check, here or on other machines.

    Returns:
        Errors and warnings, and counts such as the number of samples that were read.
    """
    key = Key(name)
    report = Report(WEBDATASET.report_name(key))
    # Errors that are raised here become errors of the report.
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, WEBDATASET, key)
        report.copy_facts(
            manifest, ["shards", "sequences", "tokens", "pad_tokens", "tokens_dropped"]
        )
        check_freshness(report, project, WEBDATASET, key, manifest)

        plan, _ = current_plan(project, name)
        # If the plan has changed, the dataset has been reported as out of date.
        if plan.digest == manifest.recipe["parents"]["plan"]:
            _check_evenness(report, plan)

        # One listing of the folder answers for all files.
        manifest = replace(manifest, stored=manifest.sizes())
        intact_files = _intact_files(report, manifest)
        if deep:
            parts = _deep_parts(manifest, intact_files)
            run_check = run
        else:
            parts = _quick_parts(manifest, intact_files)
            run_check = run_here  # a quick check is not worth the start of workers
        divided_check = DividedCheck(
            parts=parts,
            check_part=partial(_check_tars, name=name, digest=manifest.digest, deep=deep),
            add_outcomes=partial(_add_findings, deep=deep),
            project=project,
        )
        run_check(report, divided_check)
    return report


def _quick_parts(manifest: Manifest, intact_files: set[str]) -> list[list[int]]:
    """Choose which tar files of a shuffled dataset are opened by a quick check.

    These are 8, spread evenly over the dataset: of 701 tars, the tars 0, 100, 200 and so on up to
    700.

    Args:
        manifest: Record of the dataset: its files, and facts about each tar.
        intact_files: Names of its files that exist and have the recorded size.

    Returns:
        Numbers of the tars, as a list of tasks for worker processes. There is one task, such as
        [[0, 100, 200]]. If a file is damaged, there is none: the check has failed already.
    """
    if len(intact_files) < len(manifest.files):
        return []
    n_tars = len(manifest.facts["shards_written"])
    return [spread_rows(n_tars, _TARS_OPENED).tolist()]


def _intact_files(report: Report, manifest: Manifest) -> set[str]:
    """Check the files of a shuffled dataset against their record, and report the damaged ones.

    The dataset consists of many tar files with training samples, and of a few small lists, which
    name the tars:

        shard-00000000.tar    is intact if it has the recorded size
        index.json            is intact if it has the recorded size and sha256

    To compute the sha256 of the tars, all of them would have to be read.

    Args:
        report: Gets an error for each file that is not intact.
        manifest: Record of the dataset: its files, and facts about each tar.

    Returns:
        Names of the intact files.
    """
    tars = {tar_name(tar_facts["shard"]) for tar_facts in manifest.facts["shards_written"]}

    def check(name: str) -> Report:
        """Return a report on one of the files."""
        file_report = Report(report.output)
        is_list = name not in tars
        check_file(file_report, manifest, name, deep=is_list)
        return file_report

    # `each` reads lists in a bucket with several requests at the same time.
    file_reports = manifest.access.each(check, manifest.files)
    report.add_up(file_reports)
    return {name for name, file in zip(manifest.files, file_reports, strict=True) if file.passed}


def _deep_parts(manifest: Manifest, intact_files: set[str]) -> list[list[int]]:
    """Divide the tar files of a dataset into parts of similar size, to check them in parallel.

    Each part is checked by one task, in any process. Tars that are known to be damaged are left
    out, such as tar 2 here. If a part should have some 50 MB, the result is [[0, 1], [3]]:

        tar           0        1        2          3
        size in MB    30       20       (damaged)  50
        part          first    first               second

    Args:
        manifest: Record of the dataset: its files, and facts about each tar.
        intact_files: Names of its files that exist and have the recorded size.

    Returns:
        Numbers of the tars of each part.
    """
    intact_tars: list[int] = []
    sizes: list[int] = []
    for number, tar_facts in enumerate(manifest.facts["shards_written"]):
        if tar_name(tar_facts["shard"]) in intact_files:
            intact_tars.append(number)
            sizes.append(tar_facts["size_bytes"])

    # Large datasets have larger parts, so that there are at most _MAX_PARTS.
    part_bytes = max(PART_BYTES, sum(sizes) // _MAX_PARTS)
    ranges = group_by_bytes(sizes, part_bytes)  # of indices: range(0, 2), range(2, 3)
    return [intact_tars[indices.start : indices.stop] for indices in ranges]


def verify_plan(project: Project, name: str) -> Report:
    """Check the plan of a shuffled dataset: its file is undamaged, and it shuffles evenly.

    The dataset consists of tar files of training samples. Before they are written, a plan decides
    which sample goes into which tar. The plan is a small file, plan.json. How evenly it shuffles
    was measured when it was made, so this only looks at the recorded measures.

    Args:
        project: Its outputs have the plan.
        name: Name of the dataset, such as "train_tars".

    Returns:
        Errors and warnings, if there are any.
    """
    key = Key(name)
    report = Report(SHUFFLE_PLAN.report_name(key))
    # A missing plan and the like raise errors. These become errors of the report.
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, SHUFFLE_PLAN, key)  # the record of the plan
        check_freshness(report, project, SHUFFLE_PLAN, key, manifest)
        for file in manifest.files:
            check_file(report, manifest, file, deep=True)
        _check_evenness(report, manifest)
    return report


def verify_group(project: Project, name: str, group: str) -> Report:
    """Check one group of the tar files of a shuffled dataset, also if others are not written yet.

    A large dataset is written in groups of tars, by several machines. This checks that every tar of
    the group exists, with its recorded size. Of the first tar, it also checks samples.

    Args:
        project: Its outputs have the dataset.
        name: Name of the dataset.
        group: Number of the group, as text, such as "3".

    Returns:
        The errors, and the numbers of tars and of samples that were read.
    """
    report = Report(f"{FOLDER}/{name}/tars {group}")
    # `catching` turns exceptions, such as that of a missing file, into errors of the report.
    with report.catching(remedy=BUILD):
        facts_by_tar = group_facts(project, name, int(group))  # None for a tar that is missing
        missing_tars = [tar for tar, facts in facts_by_tar.items() if facts is None]
        _report_missing_tars(report, project, missing_tars)
        report.figures["shards"] = len(facts_by_tar)
        report.count("contexts_read", 0)  # so that this count is shown even if it stays 0
        _check_first_tar(report, project, name, facts_by_tar)
    return report


def _check_first_tar(
    report: Report, project: Project, name: str, facts_by_tar: Mapping[Path, TarFacts | None]
) -> None:
    """Check samples of the first tar of a group, unless it is missing.

    The other tars are not opened, since all tars of a group are written by the same plan, which
    says which samples each should have.

    Args:
        report: Gets the errors.
        project: Its outputs have the dataset.
        name: Name of the dataset.
        facts_by_tar: Path of each tar of the group → its recorded facts; None if it is missing.
    """
    plan, _ = current_plan(project, name)
    first_tar, first_facts = next(iter(facts_by_tar.items()), (None, None))
    if first_tar is not None and first_facts is not None:
        _check_ends_of_tar(report, project, plan, first_tar, first_facts)


def _report_missing_tars(report: Report, project: Project, tars: Sequence[Path]) -> None:
    """Report tar files that are missing, or were cut off or changed after they were written.

    Each gives an error with its path or its address in a bucket, and with the remedy, which is to
    build the dataset again.

    Args:
        report: Gets the errors.
        project: Its output root contains the tars.
        tars: Paths of the tars that are missing or have a wrong size.
    """
    for tar in tars:
        report.error(
            "a tar is missing, or has another size than when it was written",
            where=project.outputs.access.url(tar),
            remedy=BUILD,
        )


def _check_ends_of_tar(
    report: Report, project: Project, plan: Manifest, tar: Path, facts: TarFacts
) -> None:
    """Compare the first and the last sample of a tar file with what the plan says.

    The plan decides which training sample goes into which tar. If the tar was written from another
    plan, both its first and its last sample are most probably wrong.

    The tokens that a sample should have are read from the text dataset that it was made from. If
    the tokens in the tar differ, there are two possible reasons, and two errors:

        the dataset was damaged since    an error about the dataset
        it is undamaged                  an error about the sample

    Args:
        report: Gets the error.
        project: Its outputs have the tar, and the tokens that it was made from.
        plan: Record of the current plan.
        tar: Path of the tar. If it is in a bucket, it is copied to this machine for the check.
        facts: What was recorded when the tar was written, such as its number of samples.
    """
    access = project.outputs.access
    with report.catching(remedy=DELETE_FILE):
        path = access.fetch(tar)
        expected = _expected_contexts(project, plan, plan_digest=plan.digest, deep=False)

        # Samples with wrong tokens get a report of their own, since the reason is not known yet.
        differences = Report(report.output)
        findings = _TarFindings(report, differences, expected.datasets)
        _check_tar(findings, path, asdict(facts), expected, deep=False)
        include_differences(report, differences, expected.datasets, deep=False)
    drop_copies(access, [tar])


class _TarFindings(NamedTuple):
    """What is wrong with some tars."""

    report: Report
    """What the tars show by themselves, such as a wrong sha256; and counts."""
    differences: Report
    """Samples that have other tokens than the plan and its datasets say."""
    datasets: Sequence[Manifest]
    """Manifests of these datasets; none if the samples were not compared with them."""

    @staticmethod
    def none_yet(output: str, datasets: Sequence[Manifest]) -> _TarFindings:
        """Return findings without errors, for tars of an output such as "webdatasets/web"."""
        return _TarFindings(Report(output), Report(output), datasets)


def _add_findings(report: Report, findings_of_parts: Sequence[_TarFindings], *, deep: bool) -> None:
    """Add what was found in the tar files of a shuffled dataset to its report.

    The tars were checked in several parts, perhaps on several machines. There are two kinds of
    errors:

        a tar shows it by itself, such as a wrong sha256    the error is added
        a sample has other tokens than the text dataset     the error is added, unless the text
        from which it was made                              dataset is damaged

    If a text dataset is damaged, the samples may be right. Then one error is added, which says that
    the text dataset is damaged, and none about samples.

    Args:
        report: The report.
        findings_of_parts: What was found in each part of the tars.
        deep: Whether large text datasets may be read to find out whether they are damaged.
    """
    report.add_up([findings.report for findings in findings_of_parts])

    differences = Report(report.output)  # of samples
    differences.add_up([findings.differences for findings in findings_of_parts])

    datasets: Sequence[Manifest] = ()
    if findings_of_parts:
        datasets = findings_of_parts[-1].datasets  # the same for all parts
    include_differences(report, differences, datasets, deep=deep)  # or reports their damage


def _check_tars(
    project: Project, tar_numbers: Sequence[int], *, name: str, digest: str, deep: bool
) -> _TarFindings:
    """Check some tar files of a shuffled dataset.

    A check of a large dataset is divided among processes, perhaps on several machines. Each calls
    this with the numbers of its tars, such as [100, 101, 102], and returns its own findings.

    Args:
        project: Its outputs have the dataset, and the tokens that it was made from.
        tar_numbers: Numbers of the tars.
        name: Name of the dataset.
        digest: Says which version of the dataset to check, in case it is built anew meanwhile.
        deep: Whether to read every sample, rather than the first and the last one of each tar.
    """
    manifest = project.outputs.version(
        FOLDER, name, digest, "the webdataset was removed meanwhile", "verify again"
    )
    # The tars were made from a plan, which says which tokens each sample should have.
    plan_digest = manifest.recipe["parents"]["plan"]
    expected = _expected_contexts(project, manifest, plan_digest=plan_digest, deep=deep)

    findings = _TarFindings.none_yet(f"{FOLDER}/{name}", expected.datasets)
    findings.report.count("contexts_read", 0)  # so that this count is shown even if it stays 0
    for number in tar_numbers:
        tar_facts = manifest.facts["shards_written"][number]  # such as its number of samples
        _check_stored_tar(findings, manifest, tar_facts, expected, deep=deep)
        expected.release_downloads()
    return findings


def _check_stored_tar(
    findings: _TarFindings,
    manifest: Manifest,
    tar_facts: Mapping[str, Any],
    expected: _ExpectedContexts,
    *,
    deep: bool,
) -> None:
    """Check one tar file of a shuffled dataset. If it is in a bucket, download it for that.

    A deep check compares the sha256 of the whole file first. If it differs, the samples in the tar
    are not looked at.

    Args:
        findings: Gets an error if the tar is wrong.
        manifest: Record of the dataset: its files, and facts about each tar.
        tar_facts: Recorded facts of this tar, such as {"shard": 7, "sequences": 8192, ...}: its
            number and its number of samples.
        expected: The tokens that its samples must have.
        deep: Whether to read every sample, rather than the first and the last one.
    """
    name = tar_name(tar_facts["shard"])
    with findings.report.catching(remedy=DELETE_FILE):
        if not deep or _is_intact(findings.report, manifest, name):
            path = manifest.path(name)  # downloads it if needed
            _check_tar(findings, path, tar_facts, expected, deep=deep)
    # Free the space of a download before the next tar needs it.
    drop_copies(manifest.access, [manifest.folder / name])


def _is_intact(report: Report, manifest: Manifest, name: str) -> bool:
    """Check the sha256 of a tar file against the recorded one.

    If the tar is in a bucket, it has to be downloaded first, which compares the sha256 anyway. So
    it counts as intact here.

    Args:
        report: Gets an error if the sha256 is wrong.
        manifest: Record of the dataset, with the sha256 of each file.
        name: Name of the tar.
    """
    if not manifest.access.is_here(manifest.folder / name):
        return True
    return check_file(report, manifest, name, deep=True)


def _check_evenness(report: Report, plan: Manifest) -> None:
    """Warn if the samples of a dataset are not shuffled as evenly as chance would shuffle them.

    The evenness was measured when the shuffle was planned. The warning names two of the measures:

        rank_correlation    correlation of the order before the shuffle and after it: about 0 by
                            chance, 1 if nothing was shuffled
        same_source         share of successive samples that are from the same source of text

    Args:
        report: Gets the warning.
        plan: Record of the plan, with the measures.
    """
    quality = plan.facts["quality"]
    report.figures["rank_correlation"] = round(quality["rank_correlation"], 6)
    if quality["even"]:  # all measures are close to what chance gives
        return
    measures = (
        f"rank correlation {quality['rank_correlation']:.4f} "
        f"(by chance 0 ± {quality['rank_correlation_error']:.4f}), "
        f"share of successive contexts from the same source {quality['same_source']:.4f} "
        f"(by chance {quality['same_source_expected']:.4f})"
    )
    report.warn(
        "the contexts are not shuffled as evenly as chance would have it",
        where=plan.folder,
        found=measures,
        expected="measures within four standard errors of chance, "
        "which nearly every seed gives (all but one in thousands)",
        remedy=f"set another webdatasets.{plan.name}.seed",
    )


@dataclass(frozen=True, slots=True)
class _ExpectedContexts:
    """What the contexts of tars are compared with."""

    length: int
    """Tokens in each context."""
    greatest_id: int
    """Greatest id that a token may have."""
    plan: ShufflePlan | None = None
    """The plan, which says which tokens each context has.

    None if it is not current any more or its datasets were deleted.
    """
    datasets: tuple[Manifest, ...] = ()
    """Manifests of the plan's datasets, in the order of the plan."""
    sources: tuple[TokenSource, ...] = ()
    """The tokens of these datasets."""

    @property
    def reads_from_bucket(self) -> bool:
        """Whether a part of the tokens is in a bucket."""
        return any(source.access is not None for source in self.sources)

    def release_downloads(self) -> None:
        """Delete downloaded tokens, before the next tar needs the disk space."""
        for source in self.sources:
            source.evict()


def _expected_contexts(
    project: Project, manifest: Manifest, *, plan_digest: str, deep: bool
) -> _ExpectedContexts:
    """Return what is known about the samples (contexts) that tar files should contain.

    If the plan and the datasets that the tars were made from still exist, all tokens of each sample
    are known. Otherwise, only the length of samples and the greatest id of tokens are known.

    Args:
        project: Its outputs have the plan and the datasets.
        manifest: Record of the tars, or of their plan.
        plan_digest: Identifies the plan that the tars were made from.
        deep: Whether all tokens will be read.
    """
    length = manifest.facts["sequence_length"]
    greatest_id = project.tokenizer.max_id
    try:
        plan_manifest, plan = current_plan(project, manifest.name)
        if plan_manifest.digest != plan_digest:
            return _ExpectedContexts(length, greatest_id)  # there is a newer plan
        # The preset tokshuf pads samples with an id that the vocabulary may not have.
        greatest_id = max(greatest_id, plan.settings.pad_id or 0)

        datasets = tuple(current_dataset(project, source.name) for source in plan.table.sources)
        sources = tuple(_open_source(project, dataset, deep=deep) for dataset in datasets)
        plan.check_sources(sources)  # they must be the versions that the plan was made for
    except NanosetError:
        return _ExpectedContexts(length, greatest_id)  # something is missing, or has changed
    return _ExpectedContexts(length, greatest_id, plan, datasets, sources)


def _check_tar(
    findings: _TarFindings,
    path: Path,
    tar_facts: Mapping[str, Any],
    expected: _ExpectedContexts,
    *,
    deep: bool,
) -> None:
    """Check the training samples in a tar file, up to the first wrong one.

    Each sample (context) is a file within the tar, which is called a member. First the members are
    counted. Then the tokens of the samples are compared with those that the plan says.

    Args:
        findings: Gets an error if the count or a sample is wrong, and the number of samples read.
        path: Path of the tar.
        tar_facts: Recorded facts of the tar, such as {"shard": 7, "sequences": 8192, ...}: its
            number and its number of samples.
        expected: The tokens that its samples must have.
        deep: Whether to check all samples, rather than only the first and the last one.
    """
    archive = map_archive(path)
    members = list(iterate_token_members(archive, path))
    has_all_members = findings.report.compare(
        "a tar has another number of members than it should",
        where=path,
        found=len(members),
        expected=tar_facts["sequences"],
        remedy=DELETE_FILE,
    )
    if not has_all_members:
        return

    if deep:
        numbers = list(range(len(members)))
    else:
        # Samples in a wrong order, or cut at other tokens, show at the ends of a tar, too. A set,
        # since the first and the last one may be the same.
        numbers = sorted({0, len(members) - 1})

    # Read the planned tokens of _BATCH (256) samples at once.
    for start in range(0, len(numbers), _BATCH):
        batch = numbers[start : start + _BATCH]
        planned = _planned_tokens(expected, tar_facts["shard"], batch)  # number → tokens
        for number in batch:
            context = read_member(archive, members[number], path)
            difference = _compare_context(context, expected, planned.get(number))
            if difference is not None:
                # Tokens may differ since a dataset is damaged. Anything else is the tar's fault.
                report = findings.differences if difference.is_by_plan else findings.report
                _report_wrong_context(report, path, number, difference)
                return
        findings.report.count("contexts_read", len(batch))


def _report_wrong_context(
    report: Report, path: Path, number: int, difference: _ContextDifference
) -> None:
    """Report that a training sample (context) in a tar file has other tokens than it should.

    The error says what the sample has and should have, for example "[2, 7] … from token 100 on" and
    "[3, 7] …, by the plan", and that the tar should be deleted and built again.

    Args:
        report: Gets the error.
        path: Path of the tar.
        number: Number of the sample within the tar.
        difference: What it has, and what it should have.
    """
    report.error(
        f"context {number} of a tar is not what it must be",
        where=path,
        found=difference.found,
        expected=difference.expected,
        remedy=DELETE_FILE,
    )


@dataclass(frozen=True, slots=True)
class _ContextDifference:
    """How a context differs from what it should be, for messages."""

    found: str
    """Its length, its ids or some tokens, whichever is wrong."""
    expected: str
    """The value that this should have."""
    is_by_plan: bool = False
    """Whether its tokens are not those that the plan says."""


def _compare_context(
    context: NDArray[np.integer[Any]],
    expected: _ExpectedContexts,
    planned: NDArray[np.integer[Any]] | None,
) -> _ContextDifference | None:
    """Compare the tokens of a training sample (context) with those that it should have.

    Three things can be wrong, which are checked in this order. For example:

        is wrong       found                  expected
        length         1,024 tokens           2,049 tokens
        token ids      ids 0 to 70000         ids 0 to 50256      (the vocabulary ends there)
        tokens         from token 100 on:     [3, 7] …, by the plan
                         [2, 7] …

    Args:
        context: Tokens of the sample, shape (n_tokens,).
        expected: The length of all samples, and the greatest token id.
        planned: The tokens that it should have by the plan, shape (expected.length,). None: they
            are not known, so only the length and the ids are checked.

    Returns:
        The first difference, or None if there is none.
    """
    if len(context) != expected.length:
        return _ContextDifference(
            found=f"{len(context):,} tokens", expected=f"{expected.length:,} tokens"
        )
    least = context.min()
    greatest = context.max()
    if least < 0 or greatest > expected.greatest_id:
        return _ContextDifference(
            found=f"ids {least} to {greatest}", expected=f"ids 0 to {expected.greatest_id}"
        )
    if planned is not None and not np.array_equal(context, planned):
        # Quote both from the first token on that differs.
        start = int(np.flatnonzero(context != planned)[0])
        stop = start + _QUOTED_TOKENS
        return _ContextDifference(
            found=f"from token {start} on: {context[start:stop].tolist()} …",
            expected=f"{planned[start:stop].tolist()} …, by the plan",
            is_by_plan=True,
        )
    return None


def _planned_tokens(
    expected: _ExpectedContexts, shard: int, numbers: Sequence[int]
) -> dict[int, NDArray[np.integer[Any]]]:
    """Return which tokens some training samples in a tar file should have, if they are known.

    The tar was made from a plan, which says, for example, that its sample 3 has the tokens 4,096 to
    6,144 of the dataset web. So read these tokens of web.

    Args:
        expected: The plan, and the datasets.
        shard: Number of the tar.
        numbers: Numbers of the samples within the tar.

    Returns:
        Number of the sample → its tokens. A sample is left out if its tokens are not known, or if
        it would take too many requests to read them.
    """
    plan = expected.plan
    if plan is None:
        return {}
    samples_of_tar = plan.shard_contexts(shard)  # numbers within the whole dataset
    if expected.reads_from_bucket:
        # The tokens of each sample need a request, so read only the first and the last one.
        first_and_last = (0, len(samples_of_tar) - 1)
        numbers = [number for number in numbers if number in first_and_last]
    if not numbers:
        return {}
    tokens = gather(expected.sources, plan.table, samples_of_tar[list(numbers)])
    return dict(zip(numbers, tokens, strict=True))  # tokens: (n_samples, length)


def _open_source(project: Project, dataset: Manifest, *, deep: bool) -> TokenSource:
    """Open the tokens of a dataset, to compare tar files with them.

    The dataset may be in a bucket, such as S3. There are two ways to read it then:

    - from a copy on this machine, if there is one, or if all tokens are needed and a copy may be
      made;
    - block by block from the bucket, if only a few tokens are needed, or if the disk space for
      copies is limited.

    Args:
        project: Its outputs have the dataset.
        dataset: Manifest of the dataset.
        deep: Whether all tokens will be read.
    """
    access = dataset.access
    has_copy = access.is_here(dataset.folder / bin_name(dataset))
    may_copy = deep and not access.is_space_limited
    return TokenSource.of_output(
        dataset_of(project.outputs, dataset), is_copied=has_copy or may_copy
    )
