"""Temporary objects of a bucket, by way of which many objects are joined in several steps."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nanoset_core.errors import StorageError
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.requests import SMALL_REQUESTS_AT_ONCE, in_parallel
from nanoset_core.storage.store import Store, checked_name


@contextmanager
def temporary_objects(store: Store, name: str, n_objects: int) -> Iterator[list[str]]:
    """Yield names for temporary objects, which are deleted at the end of the block.

    They are in the same folder as the object that is made of them, here `web/a.bin`:

        ["web/.tmp-a.bin-7f3a91c0-0", "web/.tmp-a.bin-7f3a91c0-1"]

    If they cannot be deleted at the end, `nanoset gc` recognises them by these names.

    Args:
        store: The bucket.
        name: Name of the object that is made of them.
        n_objects: How many temporary objects the block writes.

    Raises:
        ConfigError: The name would lead out of the bucket's folder.
    """
    folder, slash, base = checked_name(name).rpartition("/")
    prefix = f"{folder}{slash}{UNFINISHED}{base}-{secrets.token_hex(4)}"
    temporary_names = [f"{prefix}-{number}" for number in range(n_objects)]
    try:
        yield temporary_names
    finally:
        with suppress(StorageError):
            in_parallel(store.delete, temporary_names, SMALL_REQUESTS_AT_ONCE)
