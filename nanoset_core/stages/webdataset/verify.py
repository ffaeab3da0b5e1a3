"""Verify a webdataset: its files are as they were written, and have the contexts of the plan.

A context is a sample of a tar. By the plan and the datasets it is known which tokens each context
must have: for example, context 3 of tar 7 has the tokens 4,096 to 6,144 of the corpus `web`. A
quick check compares a few contexts with these, and a deep check all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError
from nanoset_core.formats.tars.members import read_member
from nanoset_core.formats.tars.samples import iterate_token_members
from nanoset_core.formats.tars.tar import map_archive
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_file, check_freshness, current_manifest
from nanoset_core.stages.dataset.token_ranges import spread_rows
from nanoset_core.stages.datasets import current_dataset, dataset_of
from nanoset_core.stages.report import (
    BUILD,
    FORCE_BUILD,
    PART_BYTES,
    DividedCheck,
    Report,
    Run,
    run_here,
    runs,
)
from nanoset_core.stages.stage import Key
from nanoset_core.stages.webdataset.gathering import gather
from nanoset_core.stages.webdataset.make import current_plan, group_facts
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.recipes import STAGE
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.stages.webdataset.stage import SHUFFLE_PLAN, WEBDATASET
from nanoset_core.stages.webdataset.tars import TarFacts, shard_stem
from nanoset_core.storage.uploads import drop_copies

_REMOVE = f"delete the tar, and {BUILD}"
"""Remedy for a tar with wrong content, which a build keeps because its size is right."""
_TARS_OPENED = 8
"""Number of tars that the quick check opens."""
_BATCH = 256
"""Number of contexts that are compared at once."""
_QUOTED_TOKENS = 8
"""Number of tokens that messages quote of a context."""
_MAX_PARTS = 64
"""At most this many parts of a deep check, since each part reads the plan, which may be large."""


def verify_webdataset(
    project: Project, name: str, *, deep: bool = False, run: Run = run_here
) -> Report:
    """Check the current version of a webdataset: tars of contexts, which are shuffled by a plan.

    All tars must exist with their recorded size, and the lists with their recorded sha256. Eight
    tars, spread evenly, are opened: their members are counted, and the first and the last one are
    compared with the contexts of the plan.

    With `deep`, all tars are read and all members are compared. If the datasets are in a bucket and
    may not be copied to this machine, only the first and the last member of each tar are compared.

    Args:
        project: Its outputs have the webdataset, the plan and the datasets.
        name: Name of the webdataset.
        deep: Whether to read every byte.
        run: Runs the parts of a deep check, here or on other machines.
    """
    key = Key(name)
    report = Report(WEBDATASET.report_name(key))
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, WEBDATASET, key)
        report.copy_facts(
            manifest, ["shards", "sequences", "tokens", "pad_tokens", "tokens_dropped"]
        )
        check_freshness(report, project, WEBDATASET, key, manifest)

        plan, _ = current_plan(project, name)
        # If the plan has changed, the webdataset has been reported as stale.
        if plan.digest == manifest.recipe["parents"]["plan"]:
            _check_evenness(report, plan)

        # One listing of the folder answers for all files.
        manifest = replace(manifest, stored=manifest.sizes())
        intact_files = _intact_files(report, manifest)
        parts_of = _deep_parts if deep else _quick_parts
        divided_check = DividedCheck(
            parts=parts_of(manifest, intact_files),
            check_part=partial(_check_tars, name=name, digest=manifest.digest, deep=deep),
            project=project,
        )
        # A quick check is not worth the start of workers.
        run_check = run if deep else run_here
        run_check(report, divided_check)
    return report


def _quick_parts(manifest: Manifest, intact_files: set[str]) -> list[list[int]]:
    """Choose the tars that a quick check opens: a few, spread evenly over the webdataset.

    If a file is missing or damaged, none is opened.

    Args:
        manifest: Manifest of the webdataset: its files, and facts about each tar.
        intact_files: Names of the intact files.

    Returns:
        Numbers of the tars of each task, of which there is at most one.
    """
    if len(intact_files) < len(manifest.files):
        return []
    n_tars = len(manifest.facts["shards_written"])
    return [spread_rows(n_tars, _TARS_OPENED).tolist()]


def _intact_files(report: Report, manifest: Manifest) -> set[str]:
    """Check all files of a webdataset, and return the names of the intact ones.

    A tar is intact if it has the recorded size. A list must also have the recorded sha256.

    Args:
        report: Gets an error for each of the other files.
        manifest: Manifest of the webdataset: its files, and facts about each tar.
    """
    tars = {_tar_name(row) for row in manifest.facts["shards_written"]}
    intact_files: set[str] = set()
    for name in manifest.files:
        is_list = name not in tars
        if check_file(report, manifest, name, deep=is_list, remedy=FORCE_BUILD):
            intact_files.add(name)
    return intact_files


def _deep_parts(manifest: Manifest, intact_files: set[str]) -> list[list[int]]:
    """Divide the intact tars of a webdataset into parts of similar size.

    Each part is checked by one task, so that several processes can share the work.

    Args:
        manifest: Manifest of the webdataset: its files, and facts about each tar.
        intact_files: Names of the intact files.

    Returns:
        Numbers of the tars of each part.
    """
    all_facts = manifest.facts["shards_written"]  # the facts of each tar
    intact_tars: list[int] = []
    sizes: list[int] = []
    for number, tar_facts in enumerate(all_facts):
        if _tar_name(tar_facts) in intact_files:
            intact_tars.append(number)
            sizes.append(tar_facts["size_bytes"])

    # Each part is a range of these tars.
    part_bytes = max(PART_BYTES, sum(sizes) // _MAX_PARTS)
    return [intact_tars[part.start : part.stop] for part in runs(sizes, part_bytes)]


def verify_plan(project: Project, name: str) -> Report:
    """Check that the current plan of a webdataset is as it was written, and shuffles evenly.

    The plan says which context (sample) goes into which tar.

    Args:
        project: Its outputs have the plan.
        name: Name of the webdataset.
    """
    key = Key(name)
    report = Report(SHUFFLE_PLAN.report_name(key))
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, SHUFFLE_PLAN, key)
        check_freshness(report, project, SHUFFLE_PLAN, key, manifest)
        for file in manifest.files:
            check_file(report, manifest, file, deep=True, remedy=FORCE_BUILD)
        _check_evenness(report, manifest)
    return report


def verify_group(project: Project, name: str, group: str) -> Report:
    """Check one group of a webdataset's tars, also if the webdataset is not complete yet.

    All tars of the group must exist with their recorded size. The first one is opened, as in
    `verify_webdataset`.

    Args:
        project: Its outputs have the plan and the tars.
        name: Name of the webdataset.
        group: Number of the group, as text.
    """
    report = Report(f"{STAGE}/{name}/tars {group}")
    with report.catching(remedy=BUILD):
        # Path of each tar → its facts; None if it is missing or has another size.
        facts_by_tar = group_facts(project, name, int(group))
        missing_tars = [tar for tar, facts in facts_by_tar.items() if facts is None]
        _report_missing_tars(report, project, missing_tars)
        report.figures["shards"] = len(facts_by_tar)
        _begin_counting_contexts(report)

        # Opening one tar shows whether the group was written from the plan.
        plan, _ = current_plan(project, name)
        if facts_by_tar:
            first_tar = next(iter(facts_by_tar))
            first_facts = facts_by_tar[first_tar]
            if first_facts is not None:
                _check_tar_of_group(report, project, plan, first_tar, first_facts)
    return report


def _report_missing_tars(report: Report, project: Project, tars: Sequence[Path]) -> None:
    """Report tars that are missing, or that have another size than when they were written.

    Args:
        report: Gets an error for each of them.
        project: Its output root contains the tars.
        tars: Their paths.
    """
    for tar in tars:
        report.error(
            "a tar is missing, or has another size than when it was written",
            where=project.outputs.access.url(tar),
            remedy=BUILD,
        )


def _begin_counting_contexts(report: Report) -> None:
    """Make a report state the number of contexts that were read, even if none is."""
    report.count("contexts_read", 0)


def _check_tar_of_group(
    report: Report, project: Project, plan: Manifest, tar: Path, facts: TarFacts
) -> None:
    """Compare the ends of a tar with the plan; a tar in a bucket is copied to this machine for it.

    Args:
        report: Report on the group of the tar.
        project: Its outputs have the tar, and the datasets that it was made from.
        plan: Manifest of the current plan of the webdataset.
        tar: Path of the tar, which may be in a bucket only.
        facts: What was recorded when the tar was written.
    """
    access = project.outputs.access
    with report.catching(remedy=_REMOVE):
        path = access.fetch(tar)
        expected = _expected_contexts(project, plan, plan_digest=plan.digest, deep=False)
        _check_tar(report, path, asdict(facts), expected, deep=False)
    drop_copies(access, [tar])


def _check_tars(
    project: Project, tar_numbers: Sequence[int], *, name: str, digest: str, deep: bool
) -> Report:
    """Check some tars of a webdataset; may be called in any process.

    Args:
        project: Its outputs have the webdataset and the datasets.
        tar_numbers: Numbers of the tars.
        name: Name of the webdataset.
        digest: Digest of its version.
        deep: Whether to read every byte.
    """
    report = Report(f"{STAGE}/{name}")
    manifest = project.outputs.version(
        STAGE, name, digest, "the webdataset was removed meanwhile", "verify again"
    )
    plan_digest = manifest.recipe["parents"]["plan"]
    expected = _expected_contexts(project, manifest, plan_digest=plan_digest, deep=deep)
    _begin_counting_contexts(report)
    for number in tar_numbers:
        tar_facts = manifest.facts["shards_written"][number]
        _check_stored_tar(report, manifest, tar_facts, expected, deep=deep)
        # Free the space of the tokens that were fetched before the next tar needs it.
        for source in expected.sources:
            source.evict()
    return report


def _check_stored_tar(
    report: Report,
    manifest: Manifest,
    tar_facts: Mapping[str, Any],
    expected: _ExpectedContexts,
    *,
    deep: bool,
) -> None:
    """Check a tar of a webdataset, which is downloaded for that if it is in a bucket.

    Args:
        report: Gets an error for a wrong tar.
        manifest: Manifest of the webdataset: its files, and facts about each tar.
        tar_facts: Recorded facts of the tar: number of the shard, number of contexts.
        expected: What its contexts are compared with.
        deep: Whether to read every byte.
    """
    tar_name = _tar_name(tar_facts)
    with report.catching(remedy=_REMOVE):
        # A deep check compares the sha256 first.
        if not deep or _is_intact(report, manifest, tar_name):
            path = manifest.path(tar_name)  # downloads it if needed
            _check_tar(report, path, tar_facts, expected, deep=deep)
    # Free the space of a download before the next tar needs it.
    drop_copies(manifest.access, [manifest.folder / tar_name])


def _is_intact(report: Report, manifest: Manifest, tar_name: str) -> bool:
    """Check the sha256 of a tar. One that must be downloaded counts as intact: it is checked then.

    Args:
        report: Gets an error if it differs.
        manifest: Manifest of the webdataset: its files, and facts about each tar.
        tar_name: Name of the tar.
    """
    if not manifest.access.is_here(manifest.folder / tar_name):
        return True
    return check_file(report, manifest, tar_name, deep=True, remedy=FORCE_BUILD)


def _check_evenness(report: Report, plan: Manifest) -> None:
    """Warn if a plan does not shuffle evenly, by the measures that were recorded with it.

    One measure is the correlation of a context's place in its source and its place in the tars: 0,
    up to chance.

    Args:
        report: Report on the plan, or on a webdataset that was made from it.
        plan: Manifest of the plan.
    """
    quality = plan.facts["quality"]
    report.figures["rank_correlation"] = round(quality["rank_correlation"], 6)
    if quality["even"]:
        return
    measures = (
        f"rank correlation {quality['rank_correlation']:.4f} "
        f"(by chance 0 ± {quality['rank_correlation_error']:.4f}), "
        f"a source's neighbour is of the same source {quality['same_source']:.4f} of the time "
        f"(by chance {quality['same_source_expected']:.4f})"
    )
    report.warn(
        "the contexts are not shuffled as evenly as chance would have it",
        where=plan.folder,
        found=measures,
        expected="measures within four standard errors of chance, as all but one seed in "
        "thousands gives",
        remedy=f"set another webdatasets.{plan.name}.seed",
    )


def _tar_name(row: Mapping[str, Any]) -> str:
    """Return the file name of a tar, given its facts in a manifest."""
    return f"{shard_stem(row['shard'])}.tar"


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
    sources: tuple[TokenSource, ...] = ()
    """The tokens of the plan's datasets, in the order of the plan."""


def _expected_contexts(
    project: Project, manifest: Manifest, *, plan_digest: str, deep: bool
) -> _ExpectedContexts:
    """Return which tokens the contexts (samples) of tars should have, as far as that is known.

    The tokens are known only if the plan of the tars is still the current one, and its datasets
    still exist. The length of contexts, and the greatest id, are known in any case.

    Args:
        project: Its outputs have the plan and the datasets.
        manifest: Manifest of the webdataset, or of its plan.
        plan_digest: Digest of the plan that the tars were made from.
        deep: Whether all tokens will be read.
    """
    length = manifest.facts["sequence_length"]
    greatest_id = project.tokenizer.max_id
    # An error means that the plan or a dataset is missing or has changed.
    with contextlib.suppress(NanosetError):
        plan_manifest, plan = current_plan(project, manifest.name)
        if plan_manifest.digest == plan_digest:
            # The preset tokshuf pads contexts with an id that the vocabulary may not have.
            greatest_id = max(greatest_id, plan.settings.pad_id or 0)
            sources = _planned_sources(project, plan, deep=deep)
            return _ExpectedContexts(length, greatest_id, plan, sources)

    # Without the tokens, the length and the ids can still be checked.
    return _ExpectedContexts(length, greatest_id)


def _planned_sources(project: Project, plan: ShufflePlan, *, deep: bool) -> tuple[TokenSource, ...]:
    """Open the tokens of a plan's datasets, in the order of the plan.

    Args:
        project: Its outputs have the datasets.
        plan: Says which context (sample) goes into which tar.
        deep: Whether all tokens will be read.

    Raises:
        NanosetError: A dataset was deleted, or is not the planned one.
    """
    sources = tuple(_open_source(project, source.name, deep=deep) for source in plan.table.sources)
    plan.check_sources(sources)
    return sources


def _check_tar(
    report: Report,
    path: Path,
    tar_facts: Mapping[str, Any],
    expected: _ExpectedContexts,
    *,
    deep: bool,
) -> None:
    """Check one tar up to its first wrong context, and count the contexts that were read.

    Args:
        report: Gets an error for a wrong context or a wrong number of members.
        path: Path of the tar.
        tar_facts: Recorded facts of the tar: number of the shard, number of contexts.
        expected: What its contexts are compared with.
        deep: Whether to check all contexts, rather than only the first and the last one.
    """
    archive = map_archive(path)
    members = list(iterate_token_members(archive, path))
    has_all_members = report.compare(
        "a tar has another number of members than it should",
        where=path,
        found=len(members),
        expected=tar_facts["sequences"],
        remedy=_REMOVE,
    )
    if not has_all_members:
        return

    numbers = list(range(len(members)))
    if not deep:
        # A wrong order, or contexts that were cut elsewhere, show at both ends of a tar, too.
        numbers = sorted({0, len(members) - 1})

    # The planned tokens are read from the datasets for a batch of contexts at once.
    for start in range(0, len(numbers), _BATCH):
        batch = numbers[start : start + _BATCH]
        planned = _planned_contexts(expected, tar_facts["shard"], batch)
        for number in batch:
            context = read_member(archive, members[number], path)
            difference = _compare_context(context, expected, planned.get(number))
            if difference is not None:
                _report_wrong_context(report, path, number, difference)
                return
        report.count("contexts_read", len(batch))


def _report_wrong_context(
    report: Report, path: Path, number: int, difference: _ContextDifference
) -> None:
    """Report that a context of a tar is not what it must be.

    Args:
        report: Gets the error.
        path: Path of the tar.
        number: Number of the context within the tar.
        difference: How it differs.
    """
    report.error(
        f"context {number} of a tar is not what it must be",
        where=path,
        found=difference.found,
        expected=difference.expected,
        remedy=_REMOVE,
    )


@dataclass(frozen=True, slots=True)
class _ContextDifference:
    """How a context differs from what it should be, for messages."""

    found: str
    """Its length, its ids or its first tokens, whichever is wrong."""
    expected: str
    """The value that this should have."""


def _compare_context(
    context: NDArray[np.integer[Any]],
    expected: _ExpectedContexts,
    planned: NDArray[np.integer[Any]] | None,
) -> _ContextDifference | None:
    """Compare the tokens of a context with their expected length, greatest id and values.

    For example, a context of 2,049 tokens has a token with the id 70,000, and the vocabulary ends
    with 50,256.

    Args:
        context: Tokens of the context, shape (n_tokens,).
        expected: Length and greatest id.
        planned: The tokens that it should have, shape (expected.length,); None if not known.

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
        return _ContextDifference(
            found=_first_tokens(context), expected=f"{_first_tokens(planned)}, by the plan"
        )
    return None


def _first_tokens(context: NDArray[np.integer[Any]]) -> str:
    """Return the first tokens of a context, for messages: `[5, 9, 2] …`."""
    return f"{context[:_QUOTED_TOKENS].tolist()} …"


def _planned_contexts(
    expected: _ExpectedContexts, shard: int, numbers: Sequence[int]
) -> dict[int, NDArray[np.integer[Any]]]:
    """Return the tokens that some contexts (samples) of a tar should have, read from the datasets.

    By the plan, context 3 of tar 7 may be the tokens 4,096 to 6,144 of the corpus web, for example.

    Args:
        expected: The plan, and the tokens of its datasets.
        shard: Number of the tar.
        numbers: Numbers of the contexts within the tar.

    Returns:
        Number of the context → its tokens. Contexts that cannot be compared, or only at too high a
        cost, are not in it.
    """
    if expected.plan is None:
        return {}
    contexts = expected.plan.shard_contexts(shard)

    reads_from_bucket = any(source.access is not None for source in expected.sources)
    if reads_from_bucket:
        # The tokens of the contexts are scattered over the datasets. To read all of them would take
        # too many requests, so that only the first and the last context are compared.
        numbers = [number for number in numbers if number in (0, len(contexts) - 1)]
    if not numbers:
        return {}
    tokens = gather(expected.sources, expected.plan.table, contexts[list(numbers)])
    return dict(zip(numbers, tokens, strict=True))


def _open_source(project: Project, corpus: str, *, deep: bool) -> TokenSource:
    """Open the tokens of a corpus: a local file, or blocks that are fetched from a bucket.

    Args:
        project: Its outputs have the dataset of the corpus.
        corpus: Name of the corpus.
        deep: Whether all tokens will be read.
    """
    dataset = current_dataset(project, corpus)
    # An existing copy of the tokens is used. To read all tokens, it is cheaper to copy them first,
    # unless the disk space for copies is limited.
    access = dataset.access
    has_copy = access.is_here(dataset.folder / f"{dataset.facts['prefix']}.bin")
    may_copy = deep and not access.is_space_limited
    return TokenSource.of_output(
        dataset_of(project.outputs, dataset), is_copied=has_copy or may_copy
    )
