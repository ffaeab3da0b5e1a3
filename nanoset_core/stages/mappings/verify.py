"""Are a nanoset's index files and handoff there, fresh, and what its plan and settings give?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.layout import idx_path
from nanoset_core.loading.nanoset import Nanoset, open_nanoset
from nanoset_core.loading.opening import BLEND, MAPPINGS, PLAN_FILE, STAGE, read_split
from nanoset_core.outputs.manifest import FileFact, Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.cache import FileSet, blend_set, member_set, open_blend
from nanoset_core.sampling.indices import BlendIndices
from nanoset_core.sampling.planned import SplitPlan
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SplitName
from nanoset_core.stages.checking import check_current
from nanoset_core.stages.dataset.verify_ranges import spread_rows
from nanoset_core.stages.handoff import stage as handoff
from nanoset_core.stages.mappings import stage as mapping
from nanoset_core.stages.mappings.planning import cache_folder
from nanoset_core.stages.report import AGAIN, BUILD, Report, check_file, check_written, live_manifest
from nanoset_core.stages.stage import Key
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.regular_files import read_regular

_DELETE = f"delete it, and {BUILD}"
_OWN_SETTINGS = f"{BUILD}; settings of your own belong behind the arguments, not in them"
_SAMPLES_READ = 256
_SAMPLES_AT_ONCE = 16
"""Where room is scarce."""
_ENTRIES_READ = 1 << 16
_MOST_REBUILT = 100_000_000
"""Entries of an index file that are built again in memory; of larger ones the sha256 says enough."""


def verify_nanoset(project: Project, name: str, split: SplitName, deep: bool = False) -> Report:
    """Check one split of a nanoset: `verify_mappings`, then `verify_blend` where there is one."""
    report = Report(f"{STAGE}/{name}/{split}")
    report.include(verify_mappings(project, name, split, deep))
    is_blended = False
    with suppress(NanosetError):  # which is a finding already
        is_blended = live_manifest(project.outputs, STAGE, f"{name}/{split}/{MAPPINGS}").facts["blended"]
    if is_blended:
        report.include(verify_blend(project, name, split, deep))
    return report


def verify_mappings(project: Project, name: str, split: SplitName, deep: bool = False) -> Report:
    """Check the index files of every corpus of one split.

    The files are those that the trainer will look for, of the sizes written, made from the .idx that lies there now.
    256 spread samples of each corpus are read: whole, and of tokens of the vocabulary. `deep`: the files have the
    sha256 that was noted, and hold what the plan gives when they are built again; those of more than 100 million
    entries are not built, which the figure entries_not_rebuilt tells.
    """

    def look(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        plan, config = manifest.load(PLAN_FILE, lambda value: read_split(value, project.outputs.folder))
        for lacking in mapping.INDEX_MAPPINGS.show(project, manifest).warnings:
            report.warn(lacking, manifest.folder)
        if plan is None:
            return
        members, cache = plan.members, cache_folder(project, name)
        sets = [member_set(member, config, cache) for member in members]
        _check_cache(report, manifest, sets, deep)
        for member in members:
            path = project.outputs.access.fetch(idx_path(member.prefix))
            if not path.is_file():
                report.error("a dataset of the nanoset is missing", path, None, None, BUILD)
                continue
            what = "index files are stale: the dataset is not the one that they were made from"
            found, expected = f"sha256 {sha256_file(path)}", f"sha256 {member.idx_sha256}"
            report.compare(what, path, found, expected, f"{BUILD}; it makes {name} anew")
        if report.passed:
            # Without the blend, which may not be there yet.
            access = replace(manifest.access, is_sampled=True)
            for files, member in zip(sets, members, strict=True):  # one at a time: what is open takes room
                with report.catching(BUILD):
                    nanoset = open_nanoset(member, config, cache, access)
                    if deep:
                        _check_rebuilt(report, files, nanoset)
                    _check_samples(report, project, nanoset)
                    del nanoset

    return check_current(project, mapping.INDEX_MAPPINGS, Key(name, split), look, "samples")


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
        files = blend_set(plan, plan.blend, cache_folder(project, name))
        if _check_cache(report, manifest, [files], deep):
            found = open_blend(plan, files.folder, manifest.access)
            _check_entries(report, plan, files, found)
            if deep:
                _check_rebuilt(report, files, found)
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
    return whole


def _check_rebuilt(report: Report, files: FileSet, found: Nanoset | BlendIndices) -> None:
    """Check that index files hold what the plan gives, when they are built again in memory; note it of larger ones."""
    arrays = {part: getattr(found, part) for part in files.files if part != "description"}
    if (entries := max(map(len, arrays.values()))) > _MOST_REBUILT:
        report.count("entries_not_rebuilt", entries)
        return
    expected = files.build()
    for part, there in arrays.items():
        wanted = getattr(expected, part)
        if not np.array_equal(there, wanted):
            at = int(np.argmax((there != wanted).reshape(len(wanted), -1).any(axis=1)))
            what = f"entry {at} of {part} is not what the plan gives"
            report.error(what, files.folder / files.files[part], there[at].tolist(), wanted[at].tolist(), _DELETE)


def _check_entries(report: Report, plan: SplitPlan, files: FileSet, found: BlendIndices) -> None:
    """Check that spread entries of a blend name a corpus and a sample that exist."""
    rows = spread_rows(plan.samples, _ENTRIES_READ)
    numbers, samples = found.dataset_index[rows], found.dataset_sample_index[rows]
    wrong = (numbers < 0) | (numbers >= len(plan.members)) | (samples < 0)
    if get_preset(plan.preset).wraps != "read":
        given = np.array([member.samples_given for member in plan.members])
        wrong |= samples >= given[np.where(wrong, 0, numbers)]
    for row in np.flatnonzero(wrong)[:1]:
        where = f"{files.folder / files.files['dataset_index']}, entry {rows[row]}"
        what, entry = "an entry of the blend leads nowhere", f"sample {samples[row]} of dataset {numbers[row]}"
        report.error(what, where, entry, f"one of {len(plan.members)} datasets, and a sample of it", _DELETE)


def _check_samples(report: Report, project: Project, nanoset: Nanoset) -> None:
    """Read spread samples of a corpus: they are whole, and of tokens of the vocabulary."""
    samples = spread_rows(len(nanoset), _SAMPLES_READ)
    report.count("samples_read", len(samples))
    limit = project.tokenizer.max_id
    for some in nanoset.dataset.spans(len(samples), _SAMPLES_AT_ONCE):
        tokens = nanoset.batch(samples[some])
        for row, column in np.argwhere(tokens > limit)[:1]:
            report.error(
                "a sample holds a token that is not in the vocabulary",
                f"{nanoset.member.prefix}, {nanoset.member.split} sample {samples[some][row]}, token {column}",
                tokens[row, column],
                f"at most {limit}",
                "build again with the tokenizer that made the data",
            )
            return


def verify_handoff(project: Project, name: str, deep: bool = False) -> Report:
    """Check that every file of a nanoset's current handoff is there, as it was written; the same `deep`."""

    def look(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        for file in manifest.files:
            check_file(report, manifest, file, True, _OWN_SETTINGS)

    return check_current(project, handoff.TRAINER_FILES, Key(name), look)
