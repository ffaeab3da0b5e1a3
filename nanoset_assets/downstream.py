"""For other assets that train on a nanoset: from the materialisation of its handoff to its samples."""

from __future__ import annotations

import os
from typing import Any

import dagster as dg

from nanoset_assets.dagster_compat import DATA_VERSION_TAG
from nanoset_core.errors import MissingError, StaleError
from nanoset_core.loading.blended_nanoset import BlendedNanoset
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import HANDOFF, STAGE, live_version, load_nanoset
from nanoset_core.outputs.root import open_root
from nanoset_core.storage.location import StorageSpec

ROOT = "root"
"""Metadata of a handoff: where the outputs were when it was made."""
NAME = "nanoset"
"""Metadata of a handoff: the name of its nanoset."""


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
        event: Of `<nanoset>/handoff`, as `context.instance.get_latest_materialization_event(key)`
            returns it.
        split: train, valid or test.
        root: Where the outputs are now; default: where they were when the handoff was made.
        storage: How a bucket is reached; default: as the AWS configuration says.
        masks: See `load_nanoset`.

    Raises:
        MissingError: There is no materialisation, or it is not one of a handoff that says where its
            outputs are.
        StaleError: The nanoset was rebuilt since.
        ConfigError, FormatError: See `load_nanoset`.
    """
    materialization = event.asset_materialization if isinstance(event, dg.EventLogEntry) else event
    if materialization is None:
        raise _no_handoff(None)
    metadata: dict[str, Any] = {key: entry.value for key, entry in materialization.metadata.items()}
    version = (materialization.tags or {}).get(DATA_VERSION_TAG)
    if NAME not in metadata or version is None:
        raise _no_handoff(materialization.asset_key)

    # The handoff that was materialised must still be the live one.
    name = metadata[NAME]
    outputs = open_root(metadata[ROOT] if root is None else root, storage)
    live = outputs.current(STAGE, f"{name}/{HANDOFF}")
    if live is None or live.digest != version:
        raise StaleError(
            "the nanoset was built anew, or removed, since it was materialised",
            where=outputs.folder / STAGE / name / HANDOFF,
            found="none" if live is None else live.digest,
            expected=version,
            remedy="take the latest materialisation; where the outputs were moved, say by `root` where they lie",
        )

    # A split may be rebuilt before its handoff: compare what was opened with what the handoff is
    # made from.
    nanoset = load_nanoset(outputs, name, split, storage, **masks)
    live_split = live_version(outputs, f"{name}/{split}").digest
    handoff_split = live.recipe["parents"][split]
    if live_split != handoff_split:
        raise StaleError(
            "the split was built anew since, and the handoff was not",
            where=outputs.folder / STAGE / name / split,
            found=live_split,
            expected=handoff_split,
            remedy="wait until the handoff is made, and take its latest materialisation",
        )
    return nanoset


def _no_handoff(key: dg.AssetKey | None) -> MissingError:
    return MissingError(
        "this is no materialisation of a nanoset's handoff",
        where=None if key is None else key.to_user_string(),
        expected="the latest event of <prefix>/<nanoset>/handoff",
        remedy="materialise the handoff with this version of the platform first",
    )
