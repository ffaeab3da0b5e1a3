"""Are a nanoset's index files and handoff there, fresh, and what its plan and settings give?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path

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
from nanoset_core.outputs.manifest import FileFact, Manifest
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
        members, cache = plan.members, cache_folder(project, name)
        _check_cache(report, manifest, [member_set(member, config, cache) for member in members], deep)
        for member in members:
            path = project.outputs.access.fetch(idx_path(member.prefix))
            if not path.is_file():
                report.error("a dataset of the nanoset is missing", path, None, None, BUILD)
                continue
            what, digest = (
                "index files are stale: the dataset is not the one that they were made from",
                sha256_file(path),
            )
            expected, remedy = f"sha256 {member.idx_sha256}", f"{BUILD}; it makes {name} anew"
            report.compare(what, path, f"sha256 {digest}", expected, remedy)
        if report.passed:
            for member in members:
                _check_member(report, member, config, cache, manifest.access, deep)
        if report.passed:
            # Without the blend, which may not be there yet.
            for nanoset in open_members(members, config, cache, manifest.access):
                with report.catching(BUILD):
                    _check_samples(report, project, nanoset)
    return report


def verify_blend(project: Project, name: str, split: SplitName, deep: bool = False) -> Report:
    """Check the blend of one split: its files as in `verify_mappings`, and that it belongs to the index mappings."""
    report = Report(f"{STAGE}/{name}/{split}/{BLEND}")
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, STAGE, f"{name}/{split}/{BLEND}")
        mappings = live_manifest(project.outputs, STAGE, f"{name}/{split}/{MAPPINGS}")
        what, parents = "the blend belongs to other index mappings than the live ones", manifest.recipe["parents"]
        if not report.compare(what, manifest.folder, parents[MAPPINGS], mappings.digest, BUILD):
            return report
        plan, _ = manifest.load(PLAN_FILE, lambda value: read_split(value, project.outputs.folder))
        if plan is None or plan.blend is None:
            return report
        cache = cache_folder(project, name)
        if _check_cache(report, manifest, [blend_set(plan, plan.blend, cache)], deep):
            found = open_blend(plan, cache, manifest.access)
            _check_blend(report, plan, plan.blend, found, cache)
            if deep and _may_rebuild(report, plan.blend.size):
                _compare(report, found, build_blend_indices(plan), plan.blend.files, cache)
        for member in manifest.facts["members"]:
            report.figures[f"share_{member['corpus']}"] = round(member["share"], 6)
    return report


def _check_cache(report: Report, manifest: Manifest, sets: Sequence[FileSet], deep: bool) -> bool:
    """Check that every file that the trainer will look for is there, as it was written."""
    facts, access = manifest.facts["cache_files"], manifest.access
    wanted = [name for files in sets for name in files.files.values()]
    sizes = access.sizes(sets[0].folder, [*wanted, *facts, *(files.sidecar for files in sets)])
    whole = True
    for file in dict.fromkeys([*wanted, *facts]):
        path, fact = sets[0].folder / file, facts.get(file)
        if fact is None:
            report.error("the trainer looks for a file that the build does not list", path, None, None, AGAIN)
            whole = False
        else:
            noted, size = FileFact(fact["bytes"], fact["sha256"]), sizes.get(file)
            whole &= check_written(report, access, path, size, noted, (BUILD, _DELETE), deep=deep, kind="an index file")
    for files in sets:
        if files.sidecar not in sizes:
            what = "the note of what index files were made from is missing: a changed dataset would not be noticed"
            report.error(what, files.folder / files.sidecar, None, None, BUILD)
            whole = False
            continue
        note = read_regular(access.fetch(files.folder / files.sidecar))
        if whole and files.notes_in(note) != {name: facts[name] for name in files.files.values()}:
            what = "the note of what index files were made from does not say what was planned, and what was written"
            found = files.foreign("index files", note) or "other files than were written"
            report.error(what, files.folder / files.sidecar, found, None, BUILD)
        if whole and (name := files.files.get("description")) is not None:
            what, path = "the description is not the one that the file names were made from", files.folder / name
            if read_regular(access.fetch(path)) != files.description.encode():
                report.error(what, path, None, None, _DELETE)
    return whole


def _check_member(
    report: Report, member: MemberPlan, config: NanosetConfig, cache: Path, access: FileAccess, deep: bool
) -> None:
    """Check that index files have no entry out of range, or where they are built again, hold what the plan gives."""
    lengths = read_idx(index_here(member.prefix), validate=False).sequence_lengths
    found, files = open_member(member, cache, access), member.files
    if deep and _may_rebuild(report, max(len(found.document_index), len(found.shuffle_index))):
        _compare(report, found, build_member_indices(member, config, lengths), files, cache)
        return
    documents = found.document_index
    _check_within(report, cache / files["document_index"], documents, lambda _: member.rows[1], member.rows[0])
    _check_within(report, cache / files["shuffle_index"], found.shuffle_index, lambda _: member.samples_built)
    rows = found.sample_index
    for begin in range(0, len(rows) if report.passed else 0, _CHUNK):
        # One row more, so that neighbours across chunks are compared.
        part = rows[begin : begin + _CHUNK + 1].astype(np.int64)
        places, offsets = part.T
        wrong = (places < 0) | (places >= max(len(documents), 1)) | (offsets < 0)
        if not wrong.any() and len(documents):
            wrong |= offsets > lengths[documents[places]]
        steps = np.diff(places)
        wrong[1:] |= (steps < 0) | ((steps == 0) & (np.diff(offsets) <= 0))
        if wrong.any():
            at = int(np.argmax(wrong))
            what = f"row {begin + at} of the sample index is out of order, or outside of the documents"
            wish = f"after row {begin + at - 1}, a place below {len(documents)}, an offset within its sequence"
            report.error(what, cache / files["sample_index"], part[at].tolist(), wish, _DELETE)
            return


def _check_within(
    report: Report,
    path: Path,
    array: NDArray[np.integer],
    ends: Callable[[slice], NDArray[np.int64] | int],
    first: int = 0,
) -> None:
    """Note the first entry that is not from `first` to its end (excluded); `ends` gives those of a chunk of entries."""
    for begin in range(0, len(array), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        part, end = array[chunk], ends(chunk)
        wrong = (part < first) | (part >= end)
        if wrong.any():
            at = int(np.argmax(wrong))
            wish = f"{first} to {np.broadcast_to(end, part.shape)[at] - 1}"
            report.error(
                "an index file has an entry out of range", f"{path}, entry {begin + at}", part[at], wish, _DELETE
            )
            return


def _may_rebuild(report: Report, entries: int) -> bool:
    """Return whether index files are built again, in memory; note it where they are too large."""
    if entries > _MOST_REBUILT:
        report.count("entries_not_rebuilt", entries)
    return entries <= _MOST_REBUILT


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
            what = f"entry {at} of {part} is not what the plan gives"
            report.error(what, cache / files[part], there[at].tolist(), wanted[at].tolist(), _DELETE)


def _check_blend(report: Report, plan: SplitPlan, blend: BlendPlan, found: BlendIndices, cache: Path) -> None:
    """Check that every entry of a blend names a corpus and a sample that exist."""
    lengths = np.array([member.samples_given for member in plan.members], np.int64)
    if get_preset(plan.preset).wraps == "read":
        lengths[:] = np.iinfo(np.int64).max
    _check_within(report, cache / blend.files["dataset_index"], found.dataset_index, lambda _: len(lengths))
    if report.passed:
        path, members = cache / blend.files["dataset_sample_index"], found.dataset_index
        _check_within(report, path, found.dataset_sample_index, lambda chunk: lengths[members[chunk]])


def _check_samples(report: Report, project: Project, nanoset: Nanoset) -> None:
    """Read spread samples of a corpus: they are whole, and of tokens of the vocabulary."""
    samples = spread_rows(len(nanoset), _SAMPLES_READ)
    report.count("samples_read", len(samples))
    tokens, limit = nanoset.batch(samples), project.tokenizer.max_id
    for row, column in np.argwhere(tokens > limit)[:1]:
        report.error(
            "a sample holds a token that is not in the vocabulary",
            f"{nanoset.member.prefix}, {nanoset.member.split} sample {samples[row]}, token {column}",
            tokens[row, column],
            f"at most {limit}",
            "build again with the tokenizer that made the data",
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
        for file in manifest.files:
            if file not in wanted:
                check_file(report, manifest, file, True, remedy)
            elif manifest.access.size(manifest.folder / file) is None:
                check_file(report, manifest, file, False)
            else:
                _check_text(report, manifest, file, wanted[file], remedy)
    return report


def _check_text(report: Report, manifest: Manifest, file: str, wanted: bytes, remedy: str) -> None:
    """Note the first line of a file that is not as it should be."""
    texts = (text.splitlines(keepends=True) for text in (manifest.path(file).read_bytes(), wanted))
    for line, pair in enumerate(zip_longest(*texts), start=1):
        if pair[0] != pair[1]:
            found, expected = (
                "the end of the file" if one is None else one.decode(errors="replace").rstrip("\n") for one in pair
            )
            what = "a line of the handoff is not what the index mappings and settings give"
            report.error(what, f"{manifest.url(file)}:{line}", found or "no line end", expected, remedy)
            return
