"""Opening what the platform built: from an output root to samples, with nothing but numpy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nanoset_core.errors import MissingError, StaleError
from nanoset_core.loading.blended import BlendedNanoset
from nanoset_core.loading.builder import open_split
from nanoset_core.loading.config import NanosetConfig
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.manifest import Manifest, OutputRoot
from nanoset_core.mapping.plan import SplitPlan

STAGE = "nanosets"
CACHE = "cache"
PLAN_FILE = "plan.json"
MAPPINGS, BLEND = "index_mappings", "blend"


def load_nanoset(root: str | os.PathLike[str], name: str, split: str) -> Nanoset | BlendedNanoset:
    """Open one split of a nanoset that `nanoset build` made, in its live version.

    Args:
        root: the project's output root, wherever it lies now.
        name: of the nanoset.
        split: train, valid or test.

    Raises:
        MissingError: it was not built, a file is gone, or the split has no share of the data.
    """
    outputs = OutputRoot(Path(root).resolve())
    manifest = _live(outputs, f"{name}/{split}")
    value = json.loads(manifest.path(PLAN_FILE).read_bytes())
    if value["plan"] is None:
        raise MissingError(
            f"the {split} split of {name} has no share of the data",
            where=manifest.folder,
            found=value["config"]["split"],
        )
    absolute = _respelled(value, lambda prefix: str(outputs.folder / prefix))
    config = NanosetConfig.from_json(absolute["config"])
    return open_split(SplitPlan.from_json(absolute["plan"]), config, outputs.folder / STAGE / name / CACHE)


def _live(outputs: OutputRoot, place: str) -> Manifest:
    mappings = outputs.current(STAGE, f"{place}/{MAPPINGS}")
    if mappings is None:
        built = (
            path.parent.relative_to(outputs.folder / STAGE) for path in outputs.folder.glob(f"{STAGE}/*/*/{MAPPINGS}")
        )
        raise MissingError(
            "no such nanoset, or no such split of it",
            where=outputs.folder / STAGE / place,
            expected=f"one of {', '.join(sorted(path.as_posix() for path in built)) or 'none: nothing was built here'}",
            remedy="run `nanoset build`, or correct the names",
        )
    if not mappings.facts["blended"]:
        return mappings
    blend = outputs.require(STAGE, f"{place}/{BLEND}", remedy="run `nanoset build`")
    if blend.recipe["parents"][MAPPINGS] != mappings.digest:
        raise StaleError(
            "the blend belongs to other index mappings than the live ones",
            where=blend.folder,
            found=f"a blend over {blend.recipe['parents'][MAPPINGS]}",
            expected=f"one over {mappings.digest}",
            remedy="run `nanoset build`: it makes the blend anew",
        )
    return blend


def split_bytes(root: Path, plan: SplitPlan | None, config: NanosetConfig) -> bytes:
    """A split's plan and settings as JSON; prefixes relative to the root, so that it can be moved."""
    value = {"plan": None if plan is None else plan.to_json(), "config": config.to_json()}
    relative = _respelled(value, lambda prefix: Path(prefix).relative_to(root).as_posix())
    return json.dumps(relative | {"config": relative["config"] | {"path_to_cache": None}}, indent=1).encode() + b"\n"


def _respelled(value: Mapping[str, Any], spell: Callable[[str], str]) -> dict[str, Any]:
    plan, config = value["plan"], dict(value["config"])
    if config["blend_per_split"] is None:
        config["data_path"] = _respelled_blend(config["data_path"], spell)
    else:
        config["blend_per_split"] = [_respelled_blend(blend, spell) for blend in config["blend_per_split"]]
    config["trainer_paths"] = {spell(prefix): path for prefix, path in config["trainer_paths"].items()}
    if plan is not None:
        members = [member | {"prefix": spell(member["prefix"])} for member in plan["members"]]
        plan = dict(plan) | {"members": members}
    return {"plan": plan, "config": config}


def _respelled_blend(blend: Any, spell: Callable[[str], str]) -> Any:
    if blend is None:
        return None
    if isinstance(blend, str):
        return spell(blend)
    if isinstance(blend, Mapping):
        return {spell(prefix): weight for prefix, weight in blend.items()}
    return [spell(prefix) for prefix in blend]
