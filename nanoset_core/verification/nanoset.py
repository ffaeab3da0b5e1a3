"""Are a nanoset's index files there, fresh, and within range?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed.layout import idx_path
from nanoset_core.loading.nanoset import Nanoset, open_members
from nanoset_core.loading.opening import BLEND, MAPPINGS, PLAN_FILE, STAGE, read_split
from nanoset_core.mapping.cache import FileSet, blend_set, member_set, open_blend
from nanoset_core.mapping.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.mapping.presets import get_preset
from nanoset_core.mapping.splits import SplitName
from nanoset_core.outputs.current import setting_differences
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline import mapping
from nanoset_core.pipeline.planning import cache_folder
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.verification.dataset import spread_rows
from nanoset_core.verification.files import check_freshness
from nanoset_core.verification.index_arrays import check_within, count_misplaced
from nanoset_core.verification.report import Report

_BUILD = "run `nanoset build`"
_SAMPLES_READ = 256
_CHUNK = 1 << 20


def verify_nanoset(project: Project, name: str, split: SplitName, deep: bool = False) -> Report:
    """Check one split of a nanoset: `verify_mappings`, then `verify_blend` where there is one."""
    report = Report(f"{STAGE}/{name}/{split}")
    report.include(verify_mappings(project, name, split, deep))
    with report.catching(_BUILD):
        if _current(project, f"{name}/{split}/{MAPPINGS}").facts["blended"]:
            report.include(verify_blend(project, name, split, deep))
    return report


def verify_mappings(project: Project, name: str, split: SplitName, deep: bool = False) -> Report:
    """Check the index files of every corpus of one split.

    The files are those that the trainer will look for, of the sizes written (`deep`: sha256), made from the .idx that
    lies there now; document_index within the split's sequences, sample_index ascending and within the sequences,
    shuffle_index within the samples; `deep`: each sequence once an epoch, each sample once. 256 spread samples of each
    corpus are read: whole, and of tokens of the vocabulary.
    """
    report = Report(f"{STAGE}/{name}/{split}/{MAPPINGS}")
    with report.catching(_BUILD):
        manifest = _current(project, f"{name}/{split}/{MAPPINGS}")
        check_freshness(report, project, mapping.INDEX_MAPPINGS, Key(name, split), manifest)
        plan = _plan(project, manifest)
        report.figures["samples"] = manifest.facts["samples"]
        if plan is None:
            return report
        whole = _check_cache(report, project, name, manifest, plan, deep)
        for member in plan.members:
            _check_idx(report, project, name, member)
        if whole and report.passed:
            loaded = _open(project, name, split, plan)
            for nanoset in loaded:
                _check_member(report, nanoset, deep)
            if report.passed:
                for nanoset in loaded:
                    _check_samples(report, project, nanoset)
    return report


def verify_blend(project: Project, name: str, split: SplitName, deep: bool = False) -> Report:
    """Check the blend of one split: its files as in `verify_mappings`, every corpus and sample number within range."""
    report = Report(f"{STAGE}/{name}/{split}/{BLEND}")
    with report.catching(_BUILD):
        manifest = _current(project, f"{name}/{split}/{BLEND}")
        mappings = _current(project, f"{name}/{split}/{MAPPINGS}")
        if manifest.recipe["parents"][MAPPINGS] != mappings.digest:
            report.error(
                "the blend belongs to other index mappings than the live ones",
                where=manifest.folder,
                found=manifest.recipe["parents"][MAPPINGS],
                expected=mappings.digest,
                remedy=_BUILD,
            )
            return report
        plan = _plan(project, manifest)
        if plan is None or plan.blend is None:
            return report
        if _check_cache(report, project, name, manifest, plan, deep):
            _check_blend(report, plan, plan.blend, cache_folder(project, name), manifest.access)
    return report


def _current(project: Project, place: str) -> Manifest:
    return project.outputs.require(STAGE, place, remedy=_BUILD)


def _plan(project: Project, manifest: Manifest) -> SplitPlan | None:
    """The plan as it was written, with prefixes that start at the output root."""
    return manifest.load(PLAN_FILE, lambda value: read_split(value, project.outputs.folder))[0]


def _check_cache(report: Report, project: Project, name: str, manifest: Manifest, plan: SplitPlan, deep: bool) -> bool:
    """Whether every file that the trainer will look for is there, as it was written."""
    cache = cache_folder(project, name)
    config = manifest.load(PLAN_FILE, lambda value: read_split(value, project.outputs.folder))[1]
    facts: Mapping[str, Any] = manifest.facts["cache_files"]
    wanted = [name for part in _parts(manifest, plan) for name in part.cache_files]
    sidecars = [part.sidecar for part in _parts(manifest, plan)]
    sizes = manifest.access.sizes(cache, [*wanted, *facts, *sidecars])
    whole = True
    for file in dict.fromkeys([*wanted, *facts]):
        whole &= _check_cache_file(report, manifest.access, cache / file, sizes.get(file), facts.get(file), deep)
    for part in _parts(manifest, plan):
        if part.sidecar not in sizes:
            report.error(
                "the note of what index files were made from is missing: a changed dataset would not be noticed",
                where=cache / part.sidecar,
                remedy=_BUILD,
            )
            whole = False
        elif whole:
            files = member_set(part, config, cache) if isinstance(part, MemberPlan) else blend_set(plan, part, cache)
            _check_description(report, manifest.access, files, {name: facts[name] for name in part.files.values()})
    return whole


def _parts(manifest: Manifest, plan: SplitPlan) -> tuple[MemberPlan | BlendPlan, ...]:
    if manifest.name.endswith(f"/{BLEND}"):
        return () if plan.blend is None else (plan.blend,)
    return plan.members


def _check_cache_file(
    report: Report, access: FileAccess, path: Path, size: int | None, fact: Mapping[str, Any] | None, deep: bool
) -> bool:
    if fact is None:
        report.error(
            "the trainer looks for a file that the build does not list", where=path, remedy=f"{_BUILD} --force"
        )
        return False
    if size is None:
        report.error(
            "an index file that the trainer looks for is missing",
            where=path,
            expected=f"{fact['bytes']:,} bytes",
            remedy=_BUILD,
        )
        return False
    if size != fact["bytes"]:
        report.error(
            "an index file has another size than when it was written",
            where=path,
            found=f"{size:,} bytes",
            expected=f"{fact['bytes']:,} bytes",
            remedy=_BUILD,
        )
        return False
    if deep and (digest := access.sha256(path)) != fact["sha256"]:
        report.error(
            "an index file has other bytes than when it was written",
            where=path,
            found=f"sha256 {digest}",
            expected=f"sha256 {fact['sha256']}",
            remedy=f"delete it, and {_BUILD}",
        )
        return False
    return True


def _check_description(
    report: Report, access: FileAccess, files: FileSet, facts: Mapping[str, Mapping[str, Any]]
) -> None:
    """Whether description and note say what was planned."""
    if "description" in files.files:
        path = access.fetch(files.folder / files.files["description"])
        if read_regular(path) != files.description.encode():
            report.error("the description is not the one that the file names were made from", where=path, remedy=_BUILD)
    path = access.fetch(files.folder / files.sidecar)
    try:
        noted = json.loads(read_regular(path))
    except (ValueError, RecursionError):
        noted = None
    if noted != files.note(facts):
        report.error(
            "the note of what index files were made from does not say what was planned, and what was written",
            where=path,
            found="; ".join(setting_differences(_made_from(noted), files.made_from)) or "other files than were written",
            remedy=_BUILD,
        )


def _made_from(noted: object) -> Mapping[str, Any]:
    made_from = noted.get("made_from") if isinstance(noted, dict) else None
    return made_from if isinstance(made_from, dict) else {}


def _check_idx(report: Report, project: Project, name: str, member: MemberPlan) -> None:
    """Whether the .idx is the one that the index files were made from."""
    path = project.outputs.access.fetch(idx_path(member.prefix))
    if not path.is_file():
        report.error("a dataset of the nanoset is missing", where=path, remedy=_BUILD)
    elif (digest := sha256_file(path)) != member.idx_sha256:
        report.error(
            "index files are stale: the dataset is not the one that they were made from",
            where=path,
            found=f"sha256 {digest}",
            expected=f"sha256 {member.idx_sha256}",
            remedy=f"{_BUILD}; it makes {name} anew",
        )


def _open(project: Project, name: str, split: SplitName, plan: SplitPlan) -> list[Nanoset]:
    """The members on their index files, without the blend, which may not be there yet."""
    manifest = _current(project, f"{name}/{split}/{MAPPINGS}")
    _, config = manifest.load(PLAN_FILE, lambda value: read_split(value, project.outputs.folder))
    cache = cache_folder(project, name)
    return open_members(plan.members, config, cache, manifest.access)


def _check_member(report: Report, nanoset: Nanoset, deep: bool) -> None:
    member, where = nanoset.member, Path(nanoset.cache_dir or "")
    files = {part: where / name for part, name in member.files.items()}
    ranges = {
        "document_index": (nanoset.document_index, *member.rows),
        "shuffle_index": (nanoset.shuffle_index, 0, member.samples_built),
    }
    repeats = {"document_index": member.epochs, "shuffle_index": member.repeats}
    for part, (array, begin, end) in ranges.items():
        if not check_within(report, files[part], array, begin, end):
            return
        if not deep:
            continue
        if (bad := count_misplaced(array, begin, end, repeats[part])) is not None:
            value, count = bad
            report.error(
                f"{part} does not hold each entry as often as it must",
                where=files[part],
                found=f"{value} {count} times",
                expected=f"each of {begin} to {end - 1} {repeats[part]} times",
                remedy=f"delete it, and {_BUILD}",
            )
    _check_sample_index(report, files["sample_index"], nanoset)


def _check_sample_index(report: Report, path: Path, nanoset: Nanoset) -> None:
    rows, documents = nanoset.sample_index, nanoset.document_index
    for begin in range(0, len(rows), _CHUNK):
        # one row more, so that neighbours across chunks are compared
        part = rows[begin : begin + _CHUNK + 1].astype(np.int64)
        places, offsets = part[:, 0], part[:, 1]
        wrong = (places < 0) | (places >= max(len(documents), 1)) | (offsets < 0)
        if not wrong.any() and len(documents):
            wrong |= offsets > nanoset.dataset.sequence_lengths[documents[places]]
        steps = np.diff(places)
        backwards = (steps < 0) | ((steps == 0) & (np.diff(offsets) <= 0))
        wrong[1:] |= backwards
        if wrong.any():
            at = int(np.argmax(wrong))
            report.error(
                f"row {begin + at} of the sample index is out of order, or outside of the documents",
                where=path,
                found=part[at].tolist(),
                expected=f"after row {begin + at - 1}, a place below {len(documents)}, an offset within its sequence",
                remedy=f"delete it, and {_BUILD}",
            )
            return


def _check_blend(report: Report, plan: SplitPlan, blend: BlendPlan, cache: Path, access: FileAccess) -> None:
    indices = open_blend(plan, cache, access)
    lengths = np.array([member.samples_given for member in plan.members], np.int64)
    wraps = get_preset(plan.preset).wraps == "read"
    taken = np.zeros(len(lengths), np.int64)
    for begin in range(0, blend.size, _CHUNK):
        members = indices.dataset_index[begin : begin + _CHUNK].astype(np.int64)
        samples = indices.dataset_sample_index[begin : begin + _CHUNK]
        foreign = (members < 0) | (members >= len(lengths))
        if foreign.any():
            _report_blend(
                report, cache / blend.files["dataset_index"], begin, foreign, members, f"0 to {len(lengths) - 1}"
            )
            return
        outside = (samples < 0) | (np.zeros_like(foreign) if wraps else samples >= lengths[members])
        if outside.any():
            limit = f"0 to {int(lengths[members[np.argmax(outside)]]) - 1}"
            _report_blend(report, cache / blend.files["dataset_sample_index"], begin, outside, samples, limit)
            return
        taken += np.bincount(members, minlength=len(lengths))
    for member, count in zip(plan.members, taken.tolist(), strict=True):
        corpus = Path(member.prefix).parent.parent.name
        report.figures[f"share_{corpus}"] = round(count / max(blend.size, 1), 6)


def _report_blend(
    report: Report, path: Path, begin: int, wrong: NDArray[np.bool_], values: NDArray[Any], expected: str
) -> None:
    at = int(np.argmax(wrong))
    report.error(
        f"entry {begin + at} of the blend is outside of its datasets",
        where=path,
        found=int(values[at]),
        expected=expected,
        remedy=f"delete it, and {_BUILD}",
    )


def _check_samples(report: Report, project: Project, nanoset: Nanoset) -> None:
    """Read spread samples of a corpus: whole, and of tokens of the vocabulary."""
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
