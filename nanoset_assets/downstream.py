"""For other assets that train on a nanoset: from the materialisation of its handoff to its samples."""

from __future__ import annotations

import os
from typing import Any

import dagster as dg

from nanoset_assets.dagster_compat import DATA_VERSION_TAG
from nanoset_core.errors import MissingError, StaleError
from nanoset_core.loading.nanoset import BlendedNanoset, Nanoset
from nanoset_core.loading.opening import HANDOFF, STAGE, live_version, load_nanoset
from nanoset_core.outputs.root import open_root
from nanoset_core.storage.location import StorageSpec

ROOT, NAME = "root", "nanoset"
"""Metadata of a handoff: where the outputs lay when it was made, and the name of its nanoset."""


def load_materialized(
    event: dg.EventLogEntry | dg.AssetMaterialization | None,
    split: str,
    *,
    root: str | os.PathLike[str] | None = None,
    storage: StorageSpec | None = None,
    **masks: bool | None,
) -> Nanoset | BlendedNanoset:
    """Open one split of the nanoset whose handoff was materialised, and no other version of it.

    Args:
        event: of `<nanoset>/handoff`, as `context.instance.get_latest_materialization_event(key)` gives it.
        split: train, valid or test.
        root: where the outputs lie now; default: where they lay when the handoff was made.
        storage: how a bucket is reached; absent = as the AWS configuration says.
        masks: see load_nanoset.

    Raises:
        MissingError: there is no materialisation, or it is none of a handoff that says where its outputs are.
        StaleError: the nanoset was built anew since.
        ConfigError, FormatError: see load_nanoset.
    """
    made = event.asset_materialization if isinstance(event, dg.EventLogEntry) else event
    values: dict[str, Any] = {} if made is None else {key: entry.value for key, entry in made.metadata.items()}
    version = None if made is None else (made.tags or {}).get(DATA_VERSION_TAG)
    if made is None or NAME not in values or version is None:
        raise MissingError(
            "this is no materialisation of a nanoset's handoff",
            where=None if made is None else made.asset_key.to_user_string(),
            expected="the latest event of <prefix>/<nanoset>/handoff",
            remedy="materialise the handoff with this version of the platform first",
        )
    where = root if root is not None else values[ROOT]
    outputs = open_root(where, storage)
    live = outputs.current(STAGE, f"{values[NAME]}/{HANDOFF}")
    if live is None or live.digest != version:
        raise StaleError(
            "the nanoset was built anew, or removed, since it was materialised",
            where=outputs.folder / STAGE / values[NAME] / HANDOFF,
            found="none" if live is None else live.digest,
            expected=version,
            remedy="take the latest materialisation; where the outputs were moved, say by `root` where they lie",
        )
    nanoset = load_nanoset(outputs, values[NAME], split, storage, **masks)
    live_split = live_version(outputs, f"{values[NAME]}/{split}").digest
    if live_split != live.recipe["parents"][split]:
        raise StaleError(
            "the split was built anew since, and the handoff was not",
            where=outputs.folder / STAGE / values[NAME] / split,
            found=live_split,
            expected=live.recipe["parents"][split],
            remedy="wait until the handoff is made, and take its latest materialisation",
        )
    return nanoset
