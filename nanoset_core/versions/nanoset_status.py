"""The state of a nanoset: the index mappings and blend of each split, and the trainer's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nanoset_core.errors import NanosetError
from nanoset_core.indexed.layout import idx_path
from nanoset_core.loading.opening import BLEND, MAPPINGS, STAGE
from nanoset_core.mapping.splits import SPLITS, SplitName
from nanoset_core.outputs.manifest import Manifest, first_fault
from nanoset_core.pipeline import handoff, mapping
from nanoset_core.pipeline.indexed import current_dataset
from nanoset_core.pipeline.planning import cache_folder, plan_nanoset
from nanoset_core.pipeline.project import Project
from nanoset_core.versions.corpus_status import said
from nanoset_core.versions.live import Live, live_version
from nanoset_core.versions.rows import Row, state_of, stored_bytes
from nanoset_core.versions.stat_survey import Budget

PLANNED_BYTES = 64 << 20
"""Splits that are not built are planned, to learn whether they can be, until so much of .idx files was read."""


def nanoset_rows(
    project: Project, name: str, datasets: Mapping[str, str | None], planning: Budget, *, busy: bool = False
) -> Iterator[Row]:
    """A row for each split, and one for the handoff.

    datasets: corpus → digest of the dataset that belongs to its files now; None where that cannot be told.
    planning: bytes of .idx files that may still be read to plan splits that are not built.
    """
    spec = project.nanoset(name)
    last: dict[str, str] = {}
    unknown = [corpus for corpus in spec.corpora if datasets.get(corpus) is None]
    for split in SPLITS:
        yield _split_row(project, name, split, datasets, last, planning, busy=busy)
    live = live_version(project, STAGE, f"{name}/{handoff.HANDOFF}")
    why = [f"{corpus} is not up to date" for corpus in unknown]
    if not unknown:
        why = live.why_not(handoff.handoff_recipe(project, name, last))
    figures = {} if live.manifest is None else {"bytes": stored_bytes(live.manifest)}
    yield Row("nanoset", name, handoff.HANDOFF, state_of(live, why), tuple(why), figures, live.made_at, busy)


def _split_row(
    project: Project,
    name: str,
    split: SplitName,
    datasets: Mapping[str, str | None],
    last: dict[str, str],
    planning: Budget,
    *,
    busy: bool,
) -> Row:
    """The row of one split; the digest of its last output goes into `last`."""
    spec = project.nanoset(name)
    mappings = live_version(project, STAGE, f"{name}/{split}/{MAPPINGS}")
    lives = [mappings, *([live_version(project, STAGE, f"{name}/{split}/{BLEND}")] if spec.is_blended else [])]
    known = {corpus: digest for corpus in spec.corpora_of(split) if (digest := datasets.get(corpus)) is not None}
    why = [f"{corpus} is not up to date" for corpus in spec.corpora_of(split) if corpus not in known]
    if not why:
        recipe = mapping.mappings_recipe(project, name, split, known)
        recipes = [recipe, mapping.blend_recipe(recipe)][: len(lives)]
        last[split] = recipes[-1].digest
        for live, wanted in zip(lives, recipes, strict=True):
            reasons = live.why_not(wanted) or list(_missing_files(project, name, live.manifest))
            why += [reason for reason in reasons if not (why and reason == f"{MAPPINGS} changed")]
    state = state_of(lives[-1], why := list(dict.fromkeys(why)))
    if why and (failure := _failure(project, name, split, known, planning)):
        state, why = "failing", [failure]
    return Row("nanoset", name, split, state, tuple(why), _figures(project, name, lives), lives[-1].made_at, busy)


def _missing_files(project: Project, name: str, manifest: Manifest | None) -> Iterator[str]:
    cache = cache_folder(project, name)
    facts = manifest.facts.get("cache_files", {}) if manifest is not None else {}
    wanted = {file: fact["bytes"] for file, fact in facts.items()}
    fault = first_fault(project.outputs.access.sizes(cache, wanted), wanted)
    if fault is not None:
        yield f"an index file is missing or of another size: {fault[0]}"


def _figures(project: Project, name: str, lives: list[Live]) -> dict[str, int]:
    manifests = [live.manifest for live in lives if live.manifest is not None]
    if not manifests:
        return {}
    samples = int(manifests[-1].facts["samples"])
    size = sum(fact["bytes"] for one in manifests for fact in one.facts.get("cache_files", {}).values())
    options = manifests[0].recipe["options"]
    tokens = samples * int(options.get("sequence_length", 0))
    return {"samples": samples, "tokens": tokens, "bytes": size + sum(map(stored_bytes, manifests))}


def _failure(
    project: Project, name: str, split: SplitName, datasets: Mapping[str, str], planning: Budget
) -> str | None:
    """Why the split cannot be built over the datasets as they are, where they are the right ones and not too big."""
    try:
        current = [current_dataset(project, corpus) for corpus in project.nanoset(name).corpora]
        if any(datasets.get(one.name, one.digest) != one.digest for one in current):
            return None
        size = sum(one.files[idx_path(one.facts["prefix"]).name].size for one in current)
        if size > planning.left:
            return None
    except (NanosetError, OSError):
        return None  # not built: no failure of the nanoset's
    planning.left -= size
    try:
        plan_nanoset(project, name, split)
    except NanosetError as error:
        return said(error)
    return None
