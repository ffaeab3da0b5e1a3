"""Recognise a dataset that is named twice: one whose .bin and .idx are both the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from nanoset_core.errors import ConfigError
from nanoset_core.formats.indexed.layout import pair_files
from nanoset_core.storage.location import Location
from nanoset_core.storage.reading.identity import file_identity, has_same_content, names_of_both


def first_repeated_dataset(prefixes: Iterable[Location]) -> tuple[Location, Location] | None:
    """Find two paths that lead to the same dataset, for example by a link.

    Two datasets may share their file of tokens, the .bin, and choose other documents from it by
    different indexes. So they are the same only if their indexes are the same, too.

    Args:
        prefixes: Paths of the datasets, without .bin and .idx; missing ones count as different.

    Returns:
        (the earlier path, the later path), or None if all datasets are different.
    """
    prefixes_by_tokens: dict[Hashable, list[Location]] = {}
    for prefix in prefixes:
        tokens_path, index_path = pair_files(prefix)
        prefixes_with_same_tokens = prefixes_by_tokens.setdefault(file_identity(tokens_path), [])
        for earlier_prefix in prefixes_with_same_tokens:
            _, earlier_index_path = pair_files(earlier_prefix)
            if has_same_content(earlier_index_path, index_path):
                return earlier_prefix, prefix
        prefixes_with_same_tokens.append(prefix)
    return None


def check_different_datasets(prefixes: Iterable[Location], where: object, remedy: str) -> None:
    """Check that no dataset is named twice, by whatever paths.

    Otherwise training would see each of its samples twice. A dataset may also be named by two
    different paths, such as data/web and a link to it.

    Args:
        prefixes: Paths of the datasets, without .bin and .idx; missing ones are not reported.
        where: The setting or argument that names them, for the message.
        remedy: What the user should do, for the message.

    Raises:
        ConfigError: Two paths lead to the same dataset.
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
