"""handoff: a nanoset's built splits → the files with which its trainer is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.config.nanoset import NanosetSpec, corpora_of
from nanoset_core.errors import MissingError
from nanoset_core.handoff import Handoff, handoff_files
from nanoset_core.handoff.megatron import loads_fast
from nanoset_core.handoff.request import DatasetCounts
from nanoset_core.indexed.layout import idx_path
from nanoset_core.indexed.reading import read_idx
from nanoset_core.loading.opening import BLEND, CACHE, MAPPINGS, STAGE
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.plan import LengthReader
from nanoset_core.mapping.splits import SPLITS, SplitName
from nanoset_core.outputs.manifest import Manifest, Recipe, first_fault
from nanoset_core.pipeline import mapping
from nanoset_core.pipeline.indexed import current_dataset
from nanoset_core.pipeline.planning import (
    PlannedSplit,
    cache_folder,
    index_folder,
    plan_nanoset,
    trainer_prefix,
    trainer_root,
)
from nanoset_core.pipeline.project import Project, holding

VERSION = 2
HANDOFF = "handoff"


def handoff_recipe(project: Project, name: str, splits: Mapping[str, str]) -> Recipe:
    """What a handoff is made from: split → digest of its last output (blend, or index mappings)."""
    spec = project.nanoset(name)
    options: dict[str, Any] = {
        "trainer_path": trainer_root(project, name),
        "vocab_size": project.tokenizer.max_id + 1,
        "transitions": _transitions(spec),
    }
    if spec.schedule is not None:
        schedule = spec.schedule
        options["schedule"] = [
            schedule.iterations, schedule.global_batch_size, schedule.eval_interval, schedule.eval_iters
        ]  # fmt: skip
        options["span"] = spec.span and list(spec.span)
    return Recipe(STAGE, f"{name}/{HANDOFF}", VERSION, splits, options)


@holding
def write_handoff(project: Project, name: str) -> Manifest:
    """Write the files with which the nanoset's trainer is started, over its built splits.

    Raises:
        MissingError: a split, or an index file that the trainer will look for, is not there.
        StaleError: a split was made from other datasets, or under other settings, than the present ones.
        ConfigError: a path that the trainer would cut in two.
    """
    spec = project.nanoset(name)
    last = BLEND if spec.is_blended else MAPPINGS
    built = {
        split: project.outputs.require(
            STAGE, f"{name}/{split}/{last}", remedy=f"materialise {name}/{last} for the split {split!r} first"
        )
        for split in SPLITS
    }
    recipe = handoff_recipe(project, name, {split: manifest.digest for split, manifest in built.items()})
    check_caches(project, name)
    request = _request(project, name, recipe)
    for split, manifest in built.items():
        present = mapping.present_mappings(project, name, split)
        present = mapping.blend_recipe(present) if spec.is_blended else present
        mapping.check_present(manifest, present, f"{name}/{last} for the split {split!r}")

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        files, notes = handoff_files(request)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        return {"notes": notes, "samples": dict(request.samples), "loads_fast": loads_fast(request)}, {}

    manifest = project.outputs.publish(recipe, write)
    project.outputs.make_current(manifest)
    return manifest


def check_caches(project: Project, name: str) -> None:
    """Raise MissingError unless every index file that the trainer will look for is there, of the size it had.

    With --dataloader-fast-cache-load Megatron-LM takes them for granted.
    """
    cache = cache_folder(project, name)
    for split in SPLITS:
        for asset in (MAPPINGS, BLEND):
            manifest = project.outputs.current(STAGE, f"{name}/{split}/{asset}")
            files = manifest.facts["cache_files"] if manifest is not None else {}
            if (fault := first_fault(cache, {file: fact["bytes"] for file, fact in files.items()})) is not None:
                raise MissingError(
                    "an index file that the trainer will look for is not there",
                    where=cache / fault[0],
                    expected=f"{files[fault[0]]['bytes']:,} bytes",
                    remedy=f"materialise {name}/{asset} for the split {split!r} again",
                )


def _request(project: Project, name: str, recipe: Recipe) -> Handoff:
    spec = project.nanoset(name)
    reader = LengthReader()
    planned = {split: plan_nanoset(project, name, split, reader) for split in SPLITS}
    root = trainer_root(project, name)
    datasets = {}
    for corpus in dict.fromkeys(corpus for split in SPLITS for corpus in corpora_of(spec.blend_of(split))):
        dataset = current_dataset(project, corpus)
        idx = read_idx(idx_path(dataset.folder / dataset.facts["prefix"]), validate=False)
        counts = DatasetCounts(len(idx.sequence_lengths), len(idx.document_indices), np.dtype(idx.dtype).name)
        datasets[trainer_prefix(project, name, dataset)] = counts
    return Handoff(
        name=name,
        config=_whole(planned),
        samples={split: found.samples for split, found in planned.items()},
        folder=f"{root}/{STAGE}/{name}/{HANDOFF}/{recipe.digest}",
        cache=f"{root}/{STAGE}/{name}/{CACHE}/{index_folder(project, name)}".rstrip("/"),
        datasets=datasets,
        vocab_size=project.tokenizer.max_id + 1,
        schedule=spec.schedule,
        transitions=tuple(_transitions(spec)),
        span=spec.span,
    )


def _whole(planned: Mapping[SplitName, PlannedSplit]) -> NanosetConfig:
    """One configuration of the three that the splits were built with."""
    first = planned["train"].config.with_samples(
        {split: found.config.samples(split) for split, found in planned.items()}
    )
    paths = {prefix: path for found in planned.values() for prefix, path in found.config.trainer_paths.items()}
    if first.blend_per_split is not None:
        blends = [
            found.config.blend_per_split[number] if found.plan is not None and found.config.blend_per_split else None
            for number, found in enumerate(planned.values())
        ]
        return replace(first, blend_per_split=blends, trainer_paths=paths)
    return replace(first, trainer_paths=paths)


def _transitions(spec: NanosetSpec) -> list[int]:
    return [phase.until for phase in spec.phases[:-1] if phase.until is not None]
