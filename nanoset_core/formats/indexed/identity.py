"""Recognise a dataset that is named twice: one whose .bin and .idx are both the same."""

from __future__ import annotations

import filecmp
from collections.abc import Hashable, Iterable
from pathlib import Path

from nanoset_core.errors import ConfigError
from nanoset_core.formats.indexed.layout import pair_files
from nanoset_core.storage.identity import file_identity, names_of_both
from nanoset_core.storage.location import Location


def first_repeated_dataset(prefixes: Iterable[Location]) -> tuple[Location, Location] | None:
    """Return the first two prefixes that lead to the same dataset, or None if all are different.

    Views of a corpus share its .bin by a hard link and choose other documents in their .idx, so that two datasets are
    the same only if their indexes are, too: the same file, or a copy of it.
    """
    prefixes_by_tokens: dict[Hashable, list[Location]] = {}
    for prefix in prefixes:
        tokens_path, index_path = pair_files(prefix)
        others = prefixes_by_tokens.setdefault(file_identity(tokens_path), [])
        for other in others:
            if _is_same_index(pair_files(other)[1], index_path):
                return other, prefix
        others.append(prefix)
    return None


def check_different_datasets(prefixes: Iterable[Location], where: object, remedy: str) -> None:
    """Raise ConfigError if two prefixes lead to the same dataset: every sample would come twice.

    Args:
        prefixes: of the datasets; those that are missing are reported by whoever reads them.
        where: what names them, for the message.
        remedy: what to do, for the message.
    """
    repeated = first_repeated_dataset(prefixes)
    if repeated is not None:
        raise ConfigError(
            "a dataset is named twice",
            where=str(where),
            found=names_of_both(*repeated),
            expected="each dataset once, by whatever path or link",
            remedy=remedy,
        )


def _is_same_index(first: Location, second: Location) -> bool:
    if file_identity(first) == file_identity(second):
        return True
    if not isinstance(first, Path) or not isinstance(second, Path):
        return False
    try:
        return filecmp.cmp(first, second, shallow=False)
    except OSError:  # missing: whoever reads it reports that
        return False
