"""Read the tars of a shuffled webdataset, and the manifest that lists them.

The manifest is a file of JSON lines, such as

    {"shard": "shard-000000", "num_sequences": 1000}
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.formats.tars.members import read_member
from nanoset_core.formats.tars.samples import MANIFEST_NAME, iterate_token_members
from nanoset_core.formats.tars.tar import map_archive
from nanoset_core.records.arguments import whole_number
from nanoset_core.storage.location import path_on_this_machine
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.regular_files import read_regular, required

_MAX_BYTES_SHOWN = 80
"""Longer lines of a manifest are cut in messages."""


class ManifestRow(NamedTuple):
    """A row of a manifest, which describes one tar."""

    stem: str
    """Path of its tar below the manifest's folder, without `.tar`."""
    samples: int
    """Number of contexts in the tar."""


def iterate_shard(path: Path | str, begin: int = 0) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the training samples of one tar, each as a row of tokens.

    The tar has a file for each sample (context):

        00000000_00000000.npy    tokens 5, 17, 2, …
        00000000_00000001.npy    tokens 9, 1, 4, …

    Other members, such as hidden files and `README.md`, are skipped.

    Args:
        path: Path of the tar.
        begin: How many samples to skip without reading them.

    Yields:
        The tokens of each sample, shape (length,). They are int64 if they are stored as `json.gz`,
        and have their stored dtype if they are stored as `npy`.

    Raises:
        MissingError: The file does not exist.
        FormatError: The shard is damaged.
        ConfigError: The path is the address of a bucket, or `begin` is not a number from 0 on.
    """
    path = path_on_this_machine(path)
    begin = whole_number("begin", begin, 0, sys.maxsize)
    archive = map_archive(path)
    for member in islice(iterate_token_members(archive, path), begin, None):
        yield read_member(archive, member, path)


def iterate_shards(folder: Path | str) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the training samples of all tars of a folder, each as a row of tokens.

    The file `manifest.jsonl` in the folder lists the tars, and how many samples each one has. A tar
    with another number is an error, so that no data is lost unnoticed. Tars that the manifest does
    not list are not read, and a tar that it lists twice is read twice.

    Args:
        folder: Folder of the tars and their manifest.

    Yields:
        The tokens of each sample, shape (length,), as `iterate_shard` yields them.

    Raises:
        MissingError: The manifest or a shard does not exist.
        FormatError: A shard is not as the manifest says, or the manifest lists none.
        ConfigError: The folder is the address of a bucket.
    """
    folder = path_on_this_machine(folder)
    for row in manifest_rows(folder / MANIFEST_NAME):
        yield from iterate_counted(folder / f"{row.stem}.tar", row.samples)


def iterate_counted(path: Path, samples: int, start: int = 0) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the training samples of a tar, and check that there are as many as expected.

    A tar that was not copied completely would otherwise just give fewer samples. The check comes
    after the last sample.

    Args:
        path: Path of the tar.
        samples: How many samples the tar must have.
        start: How many samples to skip without reading them.

    Raises:
        MissingError: The file does not exist.
        FormatError: The tar is damaged, or has more or fewer samples.
    """
    n_read = start
    for sample in iterate_shard(path, start):
        n_read += 1
        if n_read > samples:  # one too many: the rest need not be read
            raise _wrong_count_error(path, f"{n_read} contexts or more", samples)
        yield sample
    if n_read != samples:
        raise _wrong_count_error(path, f"{n_read} contexts", samples)


def _wrong_count_error(path: Path, found: str, samples: int) -> FormatError:
    """Return the error for a tar that has more or fewer samples than the manifest says.

    Args:
        path: Path of the tar.
        found: How many it has. Messages call a sample a context.
        samples: How many it should have.
    """
    return FormatError(
        "a tar has another number of contexts than the manifest says",
        where=path,
        found=found,
        expected=f"{samples} contexts",
        remedy="make the tar again, or fetch it again",
    )


def manifest_rows(path: Path) -> list[ManifestRow]:
    """Read a `manifest.jsonl`, the list of the tars of a folder.

    A line such as {"shard": "shard-000000", "num_sequences": 1000} says that `shard-000000.tar` has
    1000 training samples.

    Args:
        path: Path of the manifest.

    Returns:
        A row for each tar, at least one.

    Raises:
        MissingError: The file does not exist.
        FormatError: A line is something else, or there is none.
    """
    with required(
        path,
        f"a folder of tars, with their list {MANIFEST_NAME}",
        "finish writing the dataset, or name the folder of a finished one",
    ):
        lines = read_regular(path).splitlines()

    rows: list[ManifestRow] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(_parse_row(line))
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(
                "not a row of a manifest of tars",
                where=f"{path}, line {number}",
                found=f"{line[:_MAX_BYTES_SHOWN]!r} ({error})",
                remedy="write the manifest again",
            ) from error

    # No webdataset is written without tars. So the manifest was not copied completely, for example.
    if not rows:
        raise FormatError(
            "the manifest of tars is empty",
            where=path,
            expected="a line for each tar",
            remedy="copy the manifest again, or write it again",
        )
    return rows


def _parse_row(line: bytes) -> ManifestRow:
    """Parse one line of a manifest, which describes a tar.

    Args:
        line: The line, such as `{"shard": "shard-000000", "num_sequences": 1000}`.

    Raises:
        ValueError, KeyError, TypeError: It is not a row of a manifest.
    """
    row = orjson.loads(line)
    stem = row["shard"]
    samples = row["num_sequences"]
    # A bool is an int in Python, but not a count.
    is_count = type(samples) is int and samples >= 0
    if not is_inside(stem) or not is_count:
        raise ValueError(
            "shard must name a file below the manifest's folder, num_sequences be a whole number"
        )
    return ManifestRow(stem, samples)
