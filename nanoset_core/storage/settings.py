"""The section `storage` of nanoset.yaml, which says how buckets are accessed."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from nanoset_core.records.frozen import set_while_made
from nanoset_core.records.parsing import parse
from nanoset_core.records.settings import Range, own_fields
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """How buckets are accessed. Credentials come from the usual sources of each cloud.

    The arguments are described in docs/python.md.
    """

    endpoint_url: str | None = None
    """URL of a store that speaks S3; absent = AWS, or what AWS_ENDPOINT_URL says."""
    region: str | None = None
    """Region of a bucket of S3; absent = what the AWS configuration says."""
    profile: str | None = None
    """Name of a profile in the AWS configuration."""
    anonymous: bool = False
    """Send requests to S3 without a signature, as public buckets allow."""
    fingerprint: Literal["content", "etag", "etag-pieces"] = "content"
    """How changes of raw objects are recognized: by a digest of their bytes, as for local files,
    for which each object is read once more; or by their ETags, which needs no reading. Then each
    object is one piece, or with etag-pieces, plain objects above 128 MiB are divided into pieces of
    64 MiB.
    """
    mirror: str | None = None
    """Local folder of working copies; absent = .nanoset/mirror next to nanoset.yaml."""
    scratch_mib: Annotated[int, Range(1, 1 << 30)] | None = None
    """MiB of the disk that working copies may take: outputs are removed from `mirror` after they
    were uploaded, and old copies if room is needed; absent = all copies are kept.
    """
    shards: Literal["keep", "drop"] = "keep"
    """Whether shards keep their tokens after a dataset contains them, too; with drop, `nanoset gc`
    removes those of the shards.
    """
    keep_runs: tuple[str, ...] = field(
        default=(), metadata={"example": ["data/nanosets/pretrain/handoff/0a1b2c3d4e5f60718293"]}
    )
    """Training runs whose data `nanoset gc` keeps, each by the folder of the handoff's version that
    it was started with.
    """

    def __post_init__(self) -> None:
        """Check the types of all fields, and store paths and values of numpy as plain values.

        Fields from nanoset.yaml were checked when it was read, but a caller in Python may have
        passed anything, such as `StorageSpec(scratch_mib="5")`.

        Raises:
            ConfigError: A value has a wrong type, or is out of range.
        """
        values = {}
        for declared_field, hint in own_fields(StorageSpec):
            name = declared_field.name
            value = getattr(self, name)
            if isinstance(value, PathLike):
                value = fspath(value)
            elif isinstance(value, np.generic):
                value = value.item()  # np.int64(5) becomes 5
            elif isinstance(value, tuple):
                value = list(value)  # as it is written in nanoset.yaml
            values[name] = parse(hint, value, path=name, where="StorageSpec")
        set_while_made(self, values)

    @property
    def capacity(self) -> int | None:
        """Bytes of disk space for working copies, or None if all are kept."""
        return None if self.scratch_mib is None else self.scratch_mib << 20

    def access_to(self, place: Store, copies: Path) -> FileAccess:
        """Return access to the files of a store, with as much space for copies as is configured.

        Args:
            place: The store, such as a bucket.
            copies: Absolute path of the local folder for working copies.

        Returns:
            Access that is limited to `scratch_mib` of copies, if that is set.
        """
        return FileAccess(copies, place, capacity=self.capacity)
