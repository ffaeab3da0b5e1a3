"""Open a built nanoset: from an output root to samples, with nothing but numpy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from nanoset_core.errors import MissingError, StaleError, one_of, remedy_for_name
from nanoset_core.loading.blended_nanoset import BlendedNanoset, open_split
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot, open_root
from nanoset_core.records.parsing import parse
from nanoset_core.sampling.config import MASKS, NanosetConfig
from nanoset_core.sampling.indices import BlendIndices, MemberIndices
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.storage.location import StorageSpec
from nanoset_core.storage.paths import is_inside

STAGE = "nanosets"
CACHE = "cache"
PLAN_FILE = "plan.json"
MAPPINGS, BLEND, HANDOFF = "index_mappings", "blend", "handoff"
LACKING = "lacking"
"""Fact of a split that has a share of the data and no sample: why."""
MASKS_OPTION = "masks"
"""Option of a handoff's recipe: those of `MASKS` that nanoset.yaml sets."""


def load_nanoset(
    root: str | os.PathLike[str] | OutputRoot,
    name: str,
    split: str,
    storage: StorageSpec | None = None,
    *,
    reset_position_ids: bool | None = None,
    reset_attention_mask: bool | None = None,
    eod_mask_loss: bool | None = None,
    create_attention_mask: bool | None = None,
    inter_document_masking: bool | None = None,
) -> Nanoset | BlendedNanoset:
    """Open the live version of one split of a nanoset; a mask of None is as nanoset.yaml said at
    the live handoff.

    Args:
        root: the project's output root, wherever it lies now; in a bucket (s3://bucket/prefix) its
            index files are fetched, and of the tokens the blocks that samples lie in.
        name: of the nanoset.
        split: train, valid or test.
        storage: how a bucket is reached; absent = as the AWS configuration says.
        reset_position_ids: whether positions begin again after an end of document.
        reset_attention_mask: whether attention stops at an end of document; needs
            `create_attention_mask`.
        eod_mask_loss: whether the loss leaves out end-of-document tokens.
        create_attention_mask: whether samples carry their attention mask, bool, shape (1,
            sequence_length, sequence_length).
        inter_document_masking: whether samples tell where documents begin, and positions begin
            again there.

    Raises:
        ConfigError: a mask that the preset's samples do not have, or without another that it needs,
            or the documents have no end token.
        MissingError: it was not built, a file is gone, or the split has no share of the data.
        FormatError, StaleError: a file is not as it was written, or does not belong to the others.
    """
    outputs = open_root(root, storage)
    with outputs.access.named():
        values = (
            reset_position_ids,
            reset_attention_mask,
            eod_mask_loss,
            create_attention_mask,
            inter_document_masking,
        )
        manifest = live_version(outputs, f"{name}/{split}")
        return open_version(outputs, manifest, dict(zip(MASKS, values, strict=True)))


def open_version(
    outputs: OutputRoot, manifest: Manifest, masks: Mapping[str, bool | None] | None = None
) -> Nanoset | BlendedNanoset:
    """Open the version of a split that a manifest is of; `masks` and errors as of `load_nanoset`,
    default without.
    """
    name, split, _ = manifest.name.split("/")
    plan, config = manifest.load(PLAN_FILE, lambda value: read_split(value, outputs.folder))
    if plan is None:
        raise _nothing_in(name, split, manifest, config)
    if masks is not None and (chosen := _masks(outputs, name, masks)):
        config = config.with_masks(chosen, _end_token(outputs, plan))
    return open_split(plan, config, outputs.folder / STAGE / name / CACHE, outputs.access)


def _nothing_in(name: str, split: str, manifest: Manifest, config: NanosetConfig) -> MissingError:
    """Return the error for a split without samples, which says why as nanoset.yaml puts it."""
    lacking = manifest.facts.get(LACKING)
    if lacking is not None:
        return MissingError(
            f"the {split} split of {name} has no sample",
            where=manifest.url(),
            found=lacking,
            remedy="give it a share in nanoset.yaml, and build again",
        )
    if config.blend_per_split is not None:
        others = [
            kind
            for kind, blend in zip(SPLITS, config.blend_per_split, strict=True)
            if blend is not None
        ]
        return MissingError(
            f"the {split} split of {name} has no blend",
            where=manifest.url(),
            found=f"blends for {' and '.join(others)}" if others else "no blend",
            expected=f"a blend for {split}",
            remedy=f"add {split} to blend_per_split in nanoset.yaml and build again, or read one of the other splits",
        )
    return MissingError(
        f"the {split} split of {name} has no share of the data",
        where=manifest.url(),
        found=f"split: {config.split}",
        expected=f"a share for {split}",
        remedy="give it a share in nanoset.yaml and build again, or read another split",
    )


def _masks(outputs: OutputRoot, name: str, asked: Mapping[str, bool | None]) -> tuple[str, ...]:
    given: Collection[str] = ()
    if None in asked.values():
        handoff = outputs.current(STAGE, f"{name}/{HANDOFF}")
        given = handoff.recipe["options"].get(MASKS_OPTION, ()) if handoff is not None else ()
    return tuple(
        mask for mask, value in asked.items() if (mask in given if value is None else value)
    )


def _end_token(outputs: OutputRoot, plan: SplitPlan) -> int | None:
    """Return the token that ends every document; None where there is none, or not one for all."""
    ends = set()
    for member in plan.members:
        manifest = outputs.manifest_at(Path(member.prefix).parent)
        # A derived dataset has the end token of the dataset that it was made from.
        while manifest is not None and "corpus" in manifest.facts:
            corpus = manifest.facts["corpus"]
            of, digest = manifest.facts.get("of", corpus), manifest.recipe["parents"]["dataset"]
            manifest = outputs.manifest_at(
                outputs.folder / ("datasets" if of == corpus else "views") / of / digest
            )
        after = manifest.recipe["options"]["framing"]["after"] if manifest is not None else ()
        ends.add(after[-1] if after else None)
    return ends.pop() if len(ends) == 1 else None


def live_version(outputs: OutputRoot, place: str) -> Manifest:
    """Return the live blend of a split such as `pretrain/train`, or its index mappings where it is
    not blended.
    """
    mappings = outputs.current(STAGE, f"{place}/{MAPPINGS}")
    if mappings is None:
        names = (found.name.split("/") for found in outputs.access.store.list(STAGE))
        built = sorted({"/".join(name[1:3]) for name in names if name[3:4] == [MAPPINGS]})
        expected = one_of(built, "one that was built; there is none yet")
        what = "no such nanoset, or no such split of it"
        remedy = remedy_for_name(place, built, "run `nanoset build`, or correct the names")
        where = outputs.access.url(outputs.folder / STAGE / place)
        raise MissingError(what, where=where, expected=expected, remedy=remedy)
    if not mappings.facts["blended"]:
        return mappings
    blend = outputs.require(STAGE, f"{place}/{BLEND}", remedy="run `nanoset build`")
    if blend.recipe["parents"][MAPPINGS] != mappings.digest:
        what, found = (
            "the blend belongs to other index mappings than the live ones",
            blend.recipe["parents"][MAPPINGS],
        )
        raise StaleError(
            what,
            where=blend.url(),
            found=found,
            expected=mappings.digest,
            remedy="run `nanoset build`",
        )
    return blend


def split_bytes(root: Path, plan: SplitPlan | None, config: NanosetConfig) -> bytes:
    """Return a split's plan and settings as JSON, with prefixes relative to the root, so that it
    can be moved.
    """
    value = {"plan": None if plan is None else plan.to_json(), "config": config.to_json()}
    relative = _respelled(value, lambda prefix: Path(prefix).relative_to(root).as_posix())
    return (
        json.dumps(
            relative | {"config": relative["config"] | {"path_to_cache": None}}, indent=1
        ).encode()
        + b"\n"
    )


def read_split(value: Mapping[str, Any], root: Path) -> tuple[SplitPlan | None, NanosetConfig]:
    """Return the plan and settings that `split_bytes` wrote, with prefixes below the output root as
    it lies now.

    Raises ValueError, KeyError, TypeError or AttributeError for anything else, or what leads out of
    the root.
    """
    if value["plan"] is not None:
        plan: SplitPlan = parse(SplitPlan, value["plan"], "plan", PLAN_FILE)
        if not plan.members or any(len(member.rows) != 2 for member in plan.members):
            raise ValueError("no datasets, or rows of a split that are no (begin, end)")
        for part in (*plan.members, *filter(None, [plan.blend])):
            kind = MemberIndices if isinstance(part, MemberPlan) else BlendIndices
            if not kind.__dataclass_fields__.keys() <= part.files.keys():
                raise ValueError("an index file is not named")
            if not all(map(is_inside, (*part.files.values(), part.sidecar))):
                raise ValueError("an index file that is not below its folder")

    def inside(prefix: str) -> str:
        if not is_inside(prefix):
            raise ValueError(f"the prefix {prefix!r} is not below the output root")
        return str(root / prefix)

    absolute = _respelled(value, inside)
    config = NanosetConfig.from_json(absolute["config"])
    return None if absolute["plan"] is None else SplitPlan.from_json(absolute["plan"]), config


def _respelled(value: Mapping[str, Any], spell: Callable[[str], str]) -> dict[str, Any]:
    plan, config = value["plan"], dict(value["config"])
    if config["blend_per_split"] is None:
        config["data_path"] = _respelled_blend(config["data_path"], spell)
    else:
        config["blend_per_split"] = [
            _respelled_blend(blend, spell) for blend in config["blend_per_split"]
        ]
    for key in ("trainer_paths", *filter(config.__contains__, ("orders",))):
        config[key] = {spell(prefix): value for prefix, value in config[key].items()}
    if plan is not None:
        members = [member | {"prefix": spell(member["prefix"])} for member in plan["members"]]
        plan = dict(plan) | {"members": members}
    return {"plan": plan, "config": config}


def _respelled_blend(blend: Any, spell: Callable[[str], str]) -> Any:
    if blend is None or isinstance(blend, str):
        return blend and spell(blend)
    if isinstance(blend, Mapping):
        return {spell(prefix): weight for prefix, weight in blend.items()}
    return [spell(prefix) for prefix in blend]
