"""Find the datasets, pairs of .bin and .idx, that a path on a command line names."""

from __future__ import annotations

from nanoset_core.errors import MissingError
from nanoset_core.storage.location import Location, store_of

PAIR_ENDINGS = (".bin", ".idx")
"""Endings of the two files of a pair."""


def prefix_of(place: Location) -> Location:
    """Return the prefix of a dataset that is named by its prefix or by one of its two files.

        data/web, data/web.bin, data/web.idx      data/web

    Args:
        place: The path, or the address of an object in a bucket. It need not exist.
    """
    return place.with_name(place.stem) if place.suffix in PAIR_ENDINGS else place


def pairs_at(place: Location) -> list[Location]:
    """Return the datasets that a path on a command line names.

    A dataset is a pair of files, such as web_text_document.bin and web_text_document.idx, and is
    named by its prefix, `web_text_document`. The path may be

    - the prefix,
    - one of the two files,
    - a folder with pairs, or
    - the beginning of the names of pairs: `web` also names web_text_document.

    Args:
        place: The path, or the address of an object in a bucket.

    Returns:
        The prefixes. If nothing has this path, the path itself, so that opening it reports the
        error.

    Raises:
        MissingError: The path is that of a folder without pairs, or of another file.
    """
    prefix = prefix_of(place)
    names_in_same_folder = _stems(prefix.parent)
    if prefix.name in names_in_same_folder:
        return [prefix]

    pairs_in_folder = [place / name for name in _stems(place)]
    if pairs_in_folder:
        return pairs_in_folder

    beginning = f"{prefix.name}_"
    longer_names = [name for name in names_in_same_folder if name.startswith(beginning)]
    if longer_names:
        return [prefix.with_name(name) for name in longer_names]

    other_content = _other_content(place)
    if other_content is not None:
        raise MissingError(
            "no dataset here",
            where=place,
            found=other_content,
            expected="the prefix of a .bin and .idx, or a folder that contains some",
            remedy="correct the path; files of other formats, such as tars and .pbin, are not read",
        )
    return [prefix]


def _other_content(place: Location) -> str | None:
    """Return what a path leads to that is no dataset, for an error; None if it leads to nothing.

    Args:
        place: The path of neither a dataset nor a folder of datasets.
    """
    if _is_root(place):  # it has no name, so it cannot be a prefix
        return "a folder without them"
    folders, files = store_of(place).level()
    if folders or files:
        return "a folder without them"
    if store_of(place.parent).stat(place.name) is not None:
        return "another file"
    return None


def _is_root(place: Location) -> bool:
    """Return whether a place is the root of a disk or bucket."""
    # A root is its own parent. So is the current folder, ".".
    return place == place.parent and str(place) != "."


def _stems(folder: Location) -> list[str]:
    """Return the names of the datasets in a folder, sorted: web for web.bin and web.idx.

    A name is included even if one of the two files is missing. Hidden files are left out.
    """
    _, names = store_of(folder).level()
    stems = set()
    for name in names:
        stem, dot, ending = name.rpartition(".")
        if f"{dot}{ending}" in PAIR_ENDINGS and not name.startswith("."):
            stems.add(stem)
    return sorted(stems)
