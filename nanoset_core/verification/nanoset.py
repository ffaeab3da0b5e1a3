"""Are a nanoset's index files and handoff there, fresh, and what its plan and settings give?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed.dataset import index_here
from nanoset_core.indexed.layout import idx_path
from nanoset_core.indexed.reading import read_idx
from nanoset_core.loading.nanoset import Nanoset, open_members
from nanoset_core.loading.opening import BLEND, HANDOFF, MAPPINGS, PLAN_FILE, STAGE, read_split
from nanoset_core.mapping.cache import FileSet, blend_set, member_set, open_blend, open_member
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.indices import BlendIndices, MemberIndices, build_blend_indices, build_member_indices
from nanoset_core.mapping.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.mapping.presets import get_preset
from nanoset_core.mapping.splits import SplitName
from nanoset_core.outputs.current import setting_differences
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline import handoff, mapping
from nanoset_core.pipeline.planning import cache_folder
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.verification.files import AGAIN, BUILD, check_file, check_freshness, check_written, live_manifest
from nanoset_core.verification.ranges import spread_rows
from nanoset_core.verification.report import Report

_DELETE = f"delete it, and {BUILD}"
_SAMPLES_READ = 256
_CHUNK = 1 << 20
_MOST_REBUILT = 100_000_000
"""Entries of an index file that are built again in memory; of larger ones the sha256 and the ranges say enough."""


def verify_nanoset(project: Project, name: str, split: SplitName, deep: bool = False) -> Report:
    """Check one split of a nanoset: `verify_mappings`, then `verify_blend` where there is one."""
    report = Report(f"{STAGE}/{name}/{split}")
    report.include(verify_mappings(project, name, split, deep))
    with report.catching(BUILD):
        if live_manifest(project.outputs, STAGE, f"{name}/{split}/{MAPPINGS}").facts["blended"]:
            report.include(verify_blend(project, name, split, deep))
    return report


def verify_mappings(project: Project, name: str, split: SplitName, deep: bool = False) -> Report:
    """Check the index files of every corpus of one split.

    The files are those that the trainer will look for, of the sizes written, made from the .idx that lies there now.
    Every entry is within its range, and 256 spread samples of each corpus are read: whole, and of tokens of the
    vocabulary. `deep`: the files have the sha256 that was noted, and hold what the plan gives when they are built
    again; those of more than 100 million entries are not built, which the figure entries_not_rebuilt tells.
    """
    report = Report(f"{STAGE}/{name}/{split}/{MAPPINGS}")
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, STAGE, f"{name}/{split}/{MAPPINGS}")
        check_freshness(report, project, mapping.INDEX_MAPPINGS, Key(name, split), manifest)
        plan, config = manifest.load(PLAN_FILE, lambda value: read_split(value, project.outputs.folder))
        report.figures["samples"] = manifest.facts["samples"]
        if plan is None:
            return report
        cache = cache_folder(project, name)
        sets = {member.sidecar: member_set(member, config, cache) for member in plan.members}
        whole = _check_cache(report, manifest, sets, deep)
        for member in plan.members:
            _check_idx(report, project, name, member)
        if whole and report.passed:
            for member in plan.members:
                _check_member(report, member, config, cache, manifest.access, deep)
        if whole and report.passed:
            # Without the blend, which may not be there yet.
            for nanoset in open_members(plan.members, config, cache, manifest.access):
                with report.catching(BUILD):
                    _check_samples(report, project, nanoset)
    return report


def verify_blend(project: Project, name: str, split: SplitName, deep: bool = False) -> Report:
    """Check the blend of one split: its files as in `verify_mappings`, and that it belongs to the index mappings."""
    report = Report(f"{STAGE}/{name}/{split}/{BLEND}")
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, STAGE, f"{name}/{split}/{BLEND}")
        mappings = live_manifest(project.outputs, STAGE, f"{name}/{split}/{MAPPINGS}")
        if manifest.recipe["parents"][MAPPINGS] != mappings.digest:
            report.error(
                "the blend belongs to other index mappings than the live ones",
                where=manifest.folder,
                found=manifest.recipe["parents"][MAPPINGS],
                expected=mappings.digest,
                remedy=BUILD,
            )
            return report
        plan, _ = manifest.load(PLAN_FILE, lambda value: read_split(value, project.outputs.folder))
        if plan is None or plan.blend is None:
            return report
        cache = cache_folder(project, name)
        if _check_cache(report, manifest, {plan.blend.sidecar: blend_set(plan, plan.blend, cache)}, deep):
            found = open_blend(plan, cache, manifest.access)
            _check_blend(report, plan, plan.blend, found, cache)
            if deep and _may_rebuild(report, plan.blend.size):
                _compare(report, found, build_blend_indices(plan), plan.blend.files, cache)
        for member in manifest.facts["members"]:
            report.figures[f"share_{member['corpus']}"] = round(member["share"], 6)
    return report


def _check_cache(report: Report, manifest: Manifest, sets: Mapping[str, FileSet], deep: bool) -> bool:
    """Check that every file that the trainer will look for is there, as it was written; `sets` by their sidecars."""
    facts: Mapping[str, Any] = manifest.facts["cache_files"]
    cache = next(iter(sets.values())).folder
    wanted = [name for files in sets.values() for name in files.files.values()]
    sizes = manifest.access.sizes(cache, [*wanted, *facts, *sets])
    whole = True
    for file in dict.fromkeys([*wanted, *facts]):
        path, fact = cache / file, facts.get(file)
        if fact is None:
            what = "the trainer looks for a file that the build does not list"
            report.error(what, where=path, remedy=AGAIN)
            whole = False
            continue
        sha256 = fact["sha256"] if deep else None
        whole &= check_written(
            report, manifest.access, path, sizes.get(file), fact["bytes"], sha256, BUILD, _DELETE, "an index file"
        )
    for sidecar, files in sets.items():
        if sidecar not in sizes:
            report.error(
                "the note of what index files were made from is missing: a changed dataset would not be noticed",
                where=cache / sidecar,
                remedy=BUILD,
            )
            whole = False
        elif whole:
            _check_description(report, manifest.access, files, {name: facts[name] for name in files.files.values()})
    return whole


def _check_description(
    report: Report, access: FileAccess, files: FileSet, facts: Mapping[str, Mapping[str, Any]]
) -> None:
    """Check that description and note say what was planned."""
    if "description" in files.files:
        path = access.fetch(files.folder / files.files["description"])
        if read_regular(path) != files.description.encode():
            report.error("the description is not the one that the file names were made from", where=path, remedy=BUILD)
    path = access.fetch(files.folder / files.sidecar)
    try:
        noted = json.loads(read_regular(path))
    except (ValueError, RecursionError):
        noted = None
    if noted != files.note(facts):
        made_from = noted.get("made_from") if isinstance(noted, dict) else None
        changes = setting_differences(made_from if isinstance(made_from, dict) else {}, files.made_from)
        report.error(
            "the note of what index files were made from does not say what was planned, and what was written",
            where=path,
            found="; ".join(changes) or "other files than were written",
            remedy=BUILD,
        )


def _check_idx(report: Report, project: Project, name: str, member: MemberPlan) -> None:
    """Check that the .idx is the one that the index files were made from."""
    path = project.outputs.access.fetch(idx_path(member.prefix))
    if not path.is_file():
        report.error("a dataset of the nanoset is missing", where=path, remedy=BUILD)
    elif (digest := sha256_file(path)) != member.idx_sha256:
        report.error(
            "index files are stale: the dataset is not the one that they were made from",
            where=path,
            found=f"sha256 {digest}",
            expected=f"sha256 {member.idx_sha256}",
            remedy=f"{BUILD}; it makes {name} anew",
        )


def _check_member(
    report: Report, member: MemberPlan, config: NanosetConfig, cache: Path, access: FileAccess, deep: bool
) -> None:
    """Check that index files have no entry out of range, or where they are built again, hold what the plan gives."""
    lengths = read_idx(index_here(member.prefix), validate=False).sequence_lengths
    found, files = open_member(member, cache, access), member.files
    if deep and _may_rebuild(report, max(len(found.document_index), len(found.shuffle_index))):
        _compare(report, found, build_member_indices(member, config, lengths), files, cache)
        return
    _check_within(report, cache / files["document_index"], found.document_index, *member.rows)
    _check_within(report, cache / files["shuffle_index"], found.shuffle_index, 0, member.samples_built)
    if report.passed:
        _check_sample_index(report, cache / files["sample_index"], found, lengths)


def _may_rebuild(report: Report, entries: int) -> bool:
    """Return whether index files are built again, in memory; note it where they are too large."""
    if entries > _MOST_REBUILT:
        report.figures["entries_not_rebuilt"] = int(report.figures.get("entries_not_rebuilt", 0)) + entries
        return False
    return True


def _check_within(report: Report, path: Path, array: NDArray[np.integer], begin: int, end: int) -> None:
    """Note the first entry that is not from `begin` to `end` (excluded)."""
    for first in range(0, len(array), _CHUNK):
        part = array[first : first + _CHUNK]
        if int(part.min()) < begin or int(part.max()) >= end:
            at = int(np.argmax((part < begin) | (part >= end)))
            report.error(
                "an index file has an entry out of range",
                where=f"{path}, entry {first + at}",
                found=int(part[at]),
                expected=f"{begin} to {end - 1}",
                remedy=_DELETE,
            )
            return


def _check_sample_index(report: Report, path: Path, found: MemberIndices, lengths: NDArray[np.int32]) -> None:
    """Note the first sample that begins before the one in front of it, or outside of its document."""
    documents = found.document_index
    for begin in range(0, len(found.sample_index), _CHUNK):
        # One row more, so that neighbours across chunks are compared.
        part = found.sample_index[begin : begin + _CHUNK + 1].astype(np.int64)
        places, offsets = part.T
        wrong = (places < 0) | (places >= max(len(documents), 1)) | (offsets < 0)
        if not wrong.any() and len(documents):
            wrong |= offsets > lengths[documents[places]]
        steps = np.diff(places)
        wrong[1:] |= (steps < 0) | ((steps == 0) & (np.diff(offsets) <= 0))
        if wrong.any():
            at = int(np.argmax(wrong))
            report.error(
                f"row {begin + at} of the sample index is out of order, or outside of the documents",
                where=path,
                found=part[at].tolist(),
                expected=f"after row {begin + at - 1}, a place below {len(documents)}, an offset within its sequence",
                remedy=_DELETE,
            )
            return


def _compare(
    report: Report,
    found: MemberIndices | BlendIndices,
    expected: MemberIndices | BlendIndices,
    files: Mapping[str, str],
    cache: Path,
) -> None:
    for part in (field.name for field in fields(expected)):
        there, wanted = getattr(found, part), getattr(expected, part)
        if not np.array_equal(there, wanted):
            at = int(np.argmax((there != wanted).reshape(len(wanted), -1).any(axis=1)))
            report.error(
                f"entry {at} of {part} is not what the plan gives",
                where=cache / files[part],
                found=there[at].tolist(),
                expected=wanted[at].tolist(),
                remedy=_DELETE,
            )


def _check_blend(report: Report, plan: SplitPlan, blend: BlendPlan, found: BlendIndices, cache: Path) -> None:
    """Check that every entry of a blend names a corpus and a sample that exist."""
    lengths = np.array([member.samples_given for member in plan.members], np.int64)
    limits = None if get_preset(plan.preset).wraps == "read" else lengths
    for begin in range(0, blend.size, _CHUNK):
        members = found.dataset_index[begin : begin + _CHUNK].astype(np.int64)
        samples = found.dataset_sample_index[begin : begin + _CHUNK]
        foreign = (members < 0) | (members >= len(lengths))
        outside = (samples < 0) | (False if limits is None else samples >= limits[np.where(foreign, 0, members)])
        for part, wrong, values in (("dataset_index", foreign, members), ("dataset_sample_index", outside, samples)):
            if wrong.any():
                at = int(np.argmax(wrong))
                most = len(lengths) - 1 if part == "dataset_index" else int(lengths[members[at]]) - 1
                report.error(
                    f"entry {begin + at} of the blend is outside of its datasets",
                    where=cache / blend.files[part],
                    found=int(values[at]),
                    expected=f"0 to {most}",
                    remedy=_DELETE,
                )
                return


def _check_samples(report: Report, project: Project, nanoset: Nanoset) -> None:
    """Read spread samples of a corpus: they are whole, and of tokens of the vocabulary."""
    samples = spread_rows(len(nanoset), _SAMPLES_READ)
    report.figures["samples_read"] = int(report.figures.get("samples_read", 0)) + len(samples)
    limit = project.tokenizer.max_id
    tokens = nanoset.batch(samples)
    wrong = tokens > limit
    if wrong.any():
        row, column = (int(axis[0]) for axis in np.nonzero(wrong))
        report.error(
            "a sample holds a token that is not in the vocabulary",
            where=f"{nanoset.member.prefix}, {nanoset.member.split} sample {int(samples[row])}, token {column}",
            found=int(tokens[row, column]),
            expected=f"at most {limit}",
            remedy="build again with the tokenizer that made the data",
        )


def verify_handoff(project: Project, name: str, deep: bool = False) -> Report:
    """Check the current handoff of a nanoset; `deep` makes no difference.

    Every file is there and holds, line by line, what the live index mappings and settings give; where it is stale, what
    was written.
    """
    report = Report(f"{STAGE}/{name}/{HANDOFF}")
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, STAGE, f"{name}/{HANDOFF}")
        fresh = check_freshness(report, project, handoff.TRAINER_FILES, Key(name), manifest)
        wanted = handoff.handoff_texts(project, manifest, name) if fresh else {}
        remedy = f"delete {manifest.url()}, and {BUILD}; settings of your own belong behind the arguments, not in them"
        for file, fact in manifest.files.items():
            if file not in wanted:
                check_file(report, manifest, file, fact.size, fact.sha256, remedy)
            elif manifest.access.size(manifest.folder / file) is None:
                check_file(report, manifest, file, fact.size, None, BUILD)
            else:
                _check_text(report, manifest, file, wanted[file], remedy)
    return report


def _check_text(report: Report, manifest: Manifest, file: str, wanted: bytes, remedy: str) -> None:
    """Note the first line of a file that is not as it should be."""
    found = manifest.path(file).read_bytes()
    if found == wanted:
        return
    pairs = zip_longest(found.splitlines(keepends=True), wanted.splitlines(keepends=True))
    line, (there, expected) = next((number, pair) for number, pair in zip(count(1), pairs) if pair[0] != pair[1])
    report.error(
        "a line of the handoff is not what the index mappings and settings give",
        where=f"{manifest.url(file)}:{line}",
        found="the end of the file" if there is None else there.decode(errors="replace").rstrip("\n") or "no line end",
        expected="the end of the file" if expected is None else expected.decode().rstrip("\n"),
        remedy=remedy,
    )
