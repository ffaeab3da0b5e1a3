"""`plan.json` of a split: what its index files are, and the settings that they were built by.

The output root may be moved, or be mounted elsewhere on another machine. So the file stores the
prefixes of datasets relative to the root.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nanoset_core.records.parsing import parse
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import BlendIndices, MemberIndices
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.storage.paths import is_inside

PLAN_FILE = "plan.json"


def split_bytes(root: Path, plan: SplitPlan | None, config: NanosetConfig) -> bytes:
    """Return the content of a split's plan file.

    Args:
        root: The output root.
        plan: The plan, or None for a split without samples.
        config: Settings of the nanoset.
    """

    def relative(prefix: str) -> str:
        return Path(prefix).relative_to(root).as_posix()

    plan_values = None if plan is None else _with_prefixes_of_plan(plan.to_json(), relative)
    config_values = _with_prefixes_of_config(config.to_json(), relative)
    config_values["path_to_cache"] = None
    values = {"plan": plan_values, "config": config_values}
    return json.dumps(values, indent=1).encode() + b"\n"


def read_split(value: Mapping[str, Any], root: Path) -> tuple[SplitPlan | None, NanosetConfig]:
    """Return the plan and the settings of a plan file.

    Args:
        value: The parsed JSON of the file.
        root: The output root, wherever it is now.

    Returns:
        (plan, or None for a split without samples; settings), with absolute prefixes.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: The file is not as `split_bytes` writes it,
            or contains a path that leads out of the root.
    """

    def absolute(prefix: str) -> str:
        if not is_inside(prefix):
            raise ValueError(f"the prefix {prefix!r} is not below the output root")
        return str(root / prefix)

    plan_values = value["plan"]
    plan: SplitPlan | None = None
    if plan_values is not None:
        _check_plan(parse(SplitPlan, plan_values, "plan", PLAN_FILE))
        plan_values = _with_prefixes_of_plan(plan_values, absolute)
    config = NanosetConfig.from_json(_with_prefixes_of_config(value["config"], absolute))
    if plan_values is not None:
        plan = SplitPlan.from_json(plan_values)
    return plan, config


def _check_plan(plan: SplitPlan) -> None:
    """Check the values of a plan whose fields have the right types.

    Raises:
        ValueError: The plan has no dataset, a dataset has no range of rows, or an index file is
            not named or is outside of its folder.
    """
    has_ranges = all(len(member.rows) == 2 for member in plan.members)
    if not plan.members or not has_ranges:
        raise ValueError("no datasets, or rows of a split that are no (begin, end)")
    for member in plan.members:
        _check_files(member, MemberIndices)
    if plan.blend is not None:
        _check_files(plan.blend, BlendIndices)


def _check_files(
    part: MemberPlan | BlendPlan, kind: type[MemberIndices] | type[BlendIndices]
) -> None:
    """Check that a part of a plan names a file for each index array, in the folder of its files.

    Raises:
        ValueError: A file is not named, or is outside of the folder.
    """
    if not kind.__dataclass_fields__.keys() <= part.files.keys():
        raise ValueError("an index file is not named")
    if not all(is_inside(name) for name in (*part.files.values(), part.sidecar)):
        raise ValueError("an index file that is not below its folder")


def _with_prefixes_of_plan(
    plan: Mapping[str, Any], convert: Callable[[str], str]
) -> dict[str, Any]:
    """Return the values of a plan with the prefix of each dataset converted."""
    members: list[dict[str, Any]] = []
    for member in plan["members"]:
        members.append(member | {"prefix": convert(member["prefix"])})
    return dict(plan) | {"members": members}


def _with_prefixes_of_config(
    config: Mapping[str, Any], convert: Callable[[str], str]
) -> dict[str, Any]:
    """Return the values of a configuration with the prefix of each dataset converted."""
    converted = dict(config)
    if config["blend_per_split"] is None:
        converted["data_path"] = _with_prefixes_of_blend(config["data_path"], convert)
    else:
        blends = [_with_prefixes_of_blend(blend, convert) for blend in config["blend_per_split"]]
        converted["blend_per_split"] = blends

    converted["trainer_paths"] = _with_prefixes_as_keys(config["trainer_paths"], convert)
    if "orders" in config:  # left out if there are none
        converted["orders"] = _with_prefixes_as_keys(config["orders"], convert)
    return converted


def _with_prefixes_as_keys(
    values: Mapping[str, Any], convert: Callable[[str], str]
) -> dict[str, Any]:
    """Return a mapping whose keys are prefixes with each of them converted."""
    return {convert(prefix): value for prefix, value in values.items()}


def _with_prefixes_of_blend(blend: Any, convert: Callable[[str], str]) -> Any:
    """Return a blend in any of its forms with the prefix of each dataset converted."""
    if not blend:
        return blend
    if isinstance(blend, str):
        return convert(blend)
    if isinstance(blend, Mapping):
        return _with_prefixes_as_keys(blend, convert)
    return [convert(prefix) for prefix in blend]
