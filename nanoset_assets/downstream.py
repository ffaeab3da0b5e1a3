"""Open a nanoset in an asset that trains on it.

The asset depends on the nanoset's handoff. `load_materialized` opens exactly the version that was
materialised, so that the lineage in Dagster is true, or reports that it was rebuilt. For example,
`load_materialized(instance.get_latest_materialization_event(handoff_key), "train")[0]` is the first
sample of train.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import dagster as dg

from nanoset_assets.dagster_compat import DATA_VERSION_TAG
from nanoset_core.errors import MissingError, StaleError
from nanoset_core.loading.blended_nanoset import BlendedNanoset
from nanoset_core.loading.layout import HANDOFF, NANOSETS_FOLDER
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import current_split, load_nanoset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot, open_root
from nanoset_core.storage.settings import StorageSpec

ROOT = "root"
"""Metadata of a handoff: the root of the outputs when it was made."""
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
    """Open the training samples of a nanoset in exactly the version that Dagster has recorded.

    This is for assets of other teams, which train on a nanoset (a mixture of data) or examine it.
    Dagster shows from which version of the nanoset such an asset was made. With `load_nanoset`
    alone, the asset would get whatever version is current at that moment:

        recorded by Dagster    current    result
        version 5f0c           5f0c       its samples
        version 5f0c           81c2       StaleError: the nanoset was rebuilt

    Args:
        event: Dagster's record of the nanoset's handoff (the files with which a trainer is
            started), as `context.instance.get_latest_materialization_event(key)` returns it.
        split: train, valid or test.
        root: The folder or URL of the outputs; default: where they were when the handoff was made.
        storage: How to access a bucket; default: the AWS configuration.
        masks: Options of `load_nanoset` for the masks in a sample, such as create_attention_mask.

    Returns:
        The samples of the split, as `load_nanoset` returns them.

    Raises:
        MissingError: There is no such record, or an earlier version of this package made it, which
            did not record the root.
        StaleError: The nanoset has been rebuilt since.
        ConfigError: The samples cannot have one of the masks.
        FormatError: A file of the nanoset is damaged.
    """
    handoff = _recorded_handoff(event)
    if root is None:
        root = handoff.root
    outputs = open_root(root, storage)
    current_handoff = _current_handoff(outputs, handoff)
    nanoset = load_nanoset(outputs, handoff.nanoset, split, storage, **masks)
    _check_split(outputs, handoff.nanoset, split, current_handoff)
    return nanoset


def _current_handoff(outputs: OutputRoot, handoff: _RecordedHandoff) -> Manifest:
    """Return the current handoff, if it is the version that Dagster has recorded.

    A handoff is the folder of files with which a trainer is started on a nanoset (a data mixture).
    If the nanoset was rebuilt since, a training would get other samples than Dagster says it did.

    Args:
        outputs: The outputs of the project.
        handoff: The version that Dagster has recorded.

    Raises:
        StaleError: Another version is current, or none.
    """
    current = outputs.current(NANOSETS_FOLDER, f"{handoff.nanoset}/{HANDOFF}")
    if current is not None and current.digest == handoff.digest:
        return current

    current_digest = "none"
    if current is not None:
        current_digest = current.digest
    raise StaleError(
        "the nanoset was rebuilt, moved or deleted after it was materialised",
        where=outputs.folder / NANOSETS_FOLDER / handoff.nanoset / HANDOFF,
        found=current_digest,
        expected=handoff.digest,
        remedy="use the latest materialisation; if the outputs were moved, pass their new "
        "location as `root`",
    )


def _check_split(outputs: OutputRoot, nanoset: str, split: str, handoff: Manifest) -> None:
    """Check that a split (such as train) is still the one from which its handoff was made.

    The handoff, the files with which a trainer is started, is made after the splits. While a
    nanoset is rebuilt, there is a moment when a split is new and the handoff old:

        digest of train in the handoff    digest of train now    result
        5f0c                              5f0c                   fine
        5f0c                              81c2                   StaleError

    Args:
        outputs: The outputs of the project.
        nanoset: Name of the nanoset, which is a data mixture.
        split: train, valid or test.
        handoff: Manifest of the handoff; its recipe lists the digests of what it was made from.

    Raises:
        StaleError: The split was rebuilt.
    """
    current_digest = current_split(outputs, f"{nanoset}/{split}").digest
    digest_of_handoff = handoff.recipe["parents"][split]
    if current_digest != digest_of_handoff:
        raise StaleError(
            "the split was rebuilt after its handoff",
            where=outputs.folder / NANOSETS_FOLDER / nanoset / split,
            found=current_digest,
            expected=digest_of_handoff,
            remedy="wait until the handoff is rebuilt, and use its latest materialisation",
        )


@dataclass(frozen=True, slots=True)
class _RecordedHandoff:
    """The version of a handoff that a materialisation records."""

    nanoset: str
    """Name of the nanoset."""
    root: str
    """Folder or URL of the outputs when the handoff was made."""
    digest: str
    """Digest of the version."""


def _recorded_handoff(event: dg.EventLogEntry | dg.AssetMaterialization | None) -> _RecordedHandoff:
    """Return which handoff a Dagster event is about: a folder of files that start a trainer.

    When Dagster makes a handoff, it records, for example:

        nanoset    pretrain     (the data mixture on which the trainer is started)
        root       /data/out
        digest     81c2…        (identifies the version)

    Args:
        event: The record (a materialisation), or an entry of Dagster's log with this record.

    Raises:
        MissingError: There is no event, or it is about something else.
    """
    if isinstance(event, dg.EventLogEntry):
        materialization = event.asset_materialization  # None if the entry is about something else
    else:
        materialization = event
    if materialization is None:
        raise _not_a_handoff(None)

    metadata = materialization.metadata
    digest = (materialization.tags or {}).get(DATA_VERSION_TAG)
    if NAME not in metadata or digest is None:  # it is of another asset
        raise _not_a_handoff(materialization.asset_key)
    nanoset: Any = metadata[NAME].value
    root: Any = metadata[ROOT].value  # recorded together with the name
    return _RecordedHandoff(nanoset=nanoset, root=root, digest=digest)


def _not_a_handoff(asset: dg.AssetKey | None) -> MissingError:
    """Return the error for a Dagster event that does not say where the files for a trainer are.

    In Dagster, the asset with the files for a trainer is called `handoff`. The user has passed the
    event of another asset, or none, because `handoff` was never made.

    Args:
        asset: The asset of the event; None if there is no event.
    """
    return MissingError(
        "this is not a materialisation of a nanoset's handoff",
        where=None if asset is None else asset.to_user_string(),  # such as "pretrain/blend"
        expected="the latest event of <prefix>/<nanoset>/handoff",
        remedy="materialise the handoff with this version of the platform first",
    )
