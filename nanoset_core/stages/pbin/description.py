"""Describe `.pbin` files, also those in a bucket, of which only a small part is downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.pbin.layout import IndexFacts, load_index, open_pbin
from nanoset_core.storage.copies.temporary import path_and_access
from nanoset_core.storage.location import Location


@dataclass(frozen=True, slots=True)
class PbinDescription:
    """What a `.pbin` contains, and what is wrong with it."""

    layout: str
    """Letter of the layout. Layout D is the one that the current Modalities reads."""
    n_tokens: int
    """Tokens in the file."""
    token_bytes: int
    """Bytes of a token: 1, 2 or 4."""
    lengths: NDArray[np.int64]
    """Tokens of each document, shape (n_documents,)."""
    index: IndexFacts
    """Counts and faults of the index, which says where each document begins."""


def describe_pbin(path: Location) -> PbinDescription:
    """Read what a `.pbin` contains, and what is wrong with it.

    Of a file in a bucket, only the header and the index are downloaded, but not the tokens.

    Args:
        path: The file, on this machine or in a bucket.

    Raises:
        MissingError: There is no such file.
        FormatError: The file is not a `.pbin`, or is too damaged to be described.
    """
    # For a file in a bucket, `local_path` is in a temporary folder, and `access` downloads the
    # parts that are read. For a file on this machine, `access` is None.
    with path_and_access(path) as (local_path, access):
        downloaded_when_read = None if access is None else access.open_bytes(local_path)
        file = open_pbin(local_path, downloaded_when_read)
        index = load_index(file)
        return PbinDescription(
            layout=file.layout.name,
            n_tokens=len(file.tokens),
            token_bytes=file.token_bytes,
            lengths=index.lengths,
            index=index.facts,
        )
