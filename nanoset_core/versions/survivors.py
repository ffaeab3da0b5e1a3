"""Which outputs of the present configuration survive when a dataset goes from one version to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from nanoset_core.errors import NanosetError
from nanoset_core.loading.opening import BLEND, MAPPINGS, STAGE
from nanoset_core.mapping.splits import SPLITS, SplitName
from nanoset_core.pipeline import indexed, packed, shuffling
from nanoset_core.pipeline.planning import cache_folder, plan_nanoset
from nanoset_core.pipeline.project import Project
from nanoset_core.versions.corpus_status import said
from nanoset_core.versions.diff_versions import DatasetVersion
from nanoset_core.versions.live import live_version

Fate = Literal["survives", "rebuilt", "to be rebuilt", "not built"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the step from one version to the other means for one output."""

    output: str
    """nanoset and split, webdataset, or packed corpus"""
    fate: Fate
    """rebuilt: it is made from the new version already"""
    why: str
    index_files: int | None = None
    """of a split: the trainer's index files that the new version asks for; None where that cannot be told"""
    kept_files: int | None = None
    """those of them that the old version had too (rebuilt), or that are there already (to be rebuilt)"""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def outcomes(project: Project, old: DatasetVersion, new: DatasetVersion) -> Iterator[Outcome]:
    """An outcome for each split of each nanoset, each webdataset and each packed corpus of nanoset.yaml."""
    corpus, versions = old.corpus, (old.digest, new.digest)
    for name, spec in project.config.nanosets.items():
        for split in SPLITS:
            yield _split(project, name, split, corpus, versions, takes=corpus in spec.corpora_of(split))
    for name, spec in project.config.webdatasets.items():
        made = _tars_made_from(project, name, corpus)
        yield _outcome(f"webdataset {name}", corpus, made, versions, takes=corpus in spec.names)
    for name in project.config.packed:
        made = _parent(project, packed.STAGE, name, "dataset")
        yield _outcome(f"packed {name}", corpus, made, versions, takes=corpus == name)


def _parent(project: Project, stage: str, name: str, parent: str) -> str | None:
    """Digest of one parent of the live version; "" where it has another origin, None where there is no version."""
    manifest = live_version(project, stage, name).manifest
    return None if manifest is None else str(manifest.recipe["parents"].get(parent, ""))


def _tars_made_from(project: Project, name: str, corpus: str) -> str | None:
    """As `_parent`, of a webdataset: the plan that its tars follow need not be the live one."""
    plan = _parent(project, shuffling.STAGE, name, "plan")
    plans = {one.digest: one for one in project.outputs.versions(shuffling.PLANS, name)} if plan is not None else {}
    if plan is None or plan not in plans:
        return None if plan is None else ""
    return str(plans[plan].recipe["parents"].get(corpus, ""))


def _outcome(output: str, corpus: str, made: str | None, versions: tuple[str, str], *, takes: bool) -> Outcome:
    old, new = versions
    if not takes:
        return Outcome(output, "survives", f"it takes nothing of {corpus}")
    if made is None:
        return Outcome(output, "not built", "there is no version of it")
    if old == new:
        return Outcome(output, "survives", "both versions are the same")
    if made == new:
        return Outcome(output, "rebuilt", "it is made from the new version")
    origin = "the old version" if made == old else "another version"
    return Outcome(output, "to be rebuilt", f"it is made from {origin}")


def _split(
    project: Project, name: str, split: SplitName, corpus: str, versions: tuple[str, str], *, takes: bool
) -> Outcome:
    made = _parent(project, STAGE, f"{name}/{split}/{MAPPINGS}", corpus)
    found = _outcome(f"nanoset {name} {split}", corpus, made, versions, takes=takes)
    if found.fate == "rebuilt":
        before, after = (_built_files(project, f"{name}/{split}", corpus, digest) for digest in versions)
        return found if before is None or after is None else _with_files(found, after, before)
    current = live_version(project, indexed.STAGE, corpus).manifest
    if found.fate != "to be rebuilt" or current is None or current.digest != versions[1]:
        return found
    try:
        planned = plan_nanoset(project, name, split).plan
    except NanosetError as error:
        return Outcome(found.output, found.fate, f"{found.why}; it cannot be built: {said(error)}")
    if planned is None:
        return found
    blend = () if planned.blend is None else planned.blend.cache_files
    files = {file for member in planned.members for file in member.cache_files}.union(blend)
    return _with_files(found, files, files & project.outputs.access.names(cache_folder(project, name)))


def _with_files(found: Outcome, files: set[str], there: set[str]) -> Outcome:
    return replace(found, index_files=len(files), kept_files=len(files & there))


def _built_files(project: Project, place: str, corpus: str, digest: str) -> set[str] | None:
    """Index files of the latest split that was made from a version of a corpus; None where there is none any more."""
    made = [
        one
        for one in project.outputs.versions(STAGE, f"{place}/{MAPPINGS}")
        if one.recipe["parents"].get(corpus) == digest
    ]
    if not made:
        return None
    latest = made[0]
    blends = [
        one
        for one in project.outputs.versions(STAGE, f"{place}/{BLEND}")
        if latest.digest in one.recipe["parents"].values()
    ]
    return {file for one in (latest, *blends) for file in one.facts.get("cache_files", {})}
