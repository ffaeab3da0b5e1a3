"""Existing tars as a source: the contexts of every sample, decoded once into one flat token file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, InputError
from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import Progress, ProgressCallback, silent
from nanoset_core.shuffling.members import read_member
from nanoset_core.shuffling.tar import FileBytes, TarMember, iterate_members
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.regular_files import open_regular, read_regular

DATA_KEYS = ("npy", "json.gz", "json", "txt")
"""Extensions that can hold tokens; where a sample has several, the first of these is taken."""
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class TarSource:
    """One tar and what is taken from it."""

    path: Path
    """The archive."""
    data_key: str
    """Extension of the members that hold tokens."""
    contexts: int
    """Members with it."""


@dataclass(frozen=True, slots=True)
class TarInput:
    """All tars of one run: contexts of one length, in the order of the tars."""

    tars: tuple[TarSource, ...]
    """In order."""
    sequence_length: int
    """Tokens in each context."""
    dtype: str
    """Of the flat token file."""

    @property
    def tokens(self) -> int:
        """Tokens of all tars, padding included: tars don't say what is padding."""
        return sum(tar.contexts for tar in self.tars) * self.sequence_length


def survey_tars(
    paths: Sequence[Path],
    *,
    data_key: str | None = None,
    dtype: str | None = None,
    sequence_length: int | None = None,
) -> TarInput:
    """Read the headers of tars, and the first context of the first one.

    Args:
        paths: the archives, in order.
        data_key: extension of the members to take, as OpenLM's `--data-key`; None: what the first sample has.
        dtype: of the tokens; None: that of the first `npy` member, int32 for text.
        sequence_length: that every context must have; None: that of the first one.

    Raises:
        ConfigError: `data_key` is none that can be read.
        FormatError: a tar is no whole tar, or holds no such members; the error names tar and offset.
    """
    if data_key is not None and data_key not in DATA_KEYS:
        what, expected = "members of this kind are not supported", f"one of {', '.join(DATA_KEYS)}"
        remedy = "name one of them, or leave it out"
        raise ConfigError(what, where="--data-key", found=data_key, expected=expected, remedy=remedy)
    tars: list[TarSource] = []
    for path in paths:
        tars.append(_survey(path, data_key))
        data_key = tars[-1].data_key
    first = next(_contexts(tars[0]))
    if dtype is None:
        dtype = first.dtype.newbyteorder("=").name if data_key == "npy" else "int32"
    return TarInput(tuple(tars), sequence_length or len(first), dtype)


def _survey(path: Path, data_key: str | None) -> TarSource:
    extensions: Counter[str] = Counter()
    first_key, of_first = None, list[str]()
    for member, extension, _ in _members(path):
        extensions[extension] += 1
        key = member.name[: -len(extension) - 1]
        first_key = key if first_key is None else first_key
        if key == first_key:
            of_first.append(extension)
    chosen = data_key or next((known for known in DATA_KEYS if known in of_first), None)
    if chosen is None or chosen not in extensions:
        found = ", ".join(f"{count:,} .{extension}" for extension, count in extensions.items()) or "no members"
        expected = f"members ending in {data_key or ', '.join(DATA_KEYS)}"
        remedy = "name their ending with --data-key, or take the tar out of the input"
        where = f"{path}, offset 0"
        raise FormatError(
            "the tar holds no members with tokens", where=where, found=found, expected=expected, remedy=remedy
        )
    return TarSource(path, chosen, extensions[chosen])


def _members(path: Path) -> Iterator[tuple[TarMember, str, FileBytes]]:
    """Yield the regular files of a tar, their extensions (all after the first dot of the file name), and the tar."""
    with open_regular(path) as file:
        archive = FileBytes(file)
        for member in iterate_members(archive, path, plain=False):
            name = member.name.rpartition("/")[2]
            if "." in name and not name.startswith("__"):
                yield member, name.partition(".")[2].lower(), archive


def _contexts(tar: TarSource) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the tokens of each context of a tar, shape (length,)."""
    for member, extension, archive in _members(tar.path):
        if extension == tar.data_key:
            yield read_member(archive, member, tar.path)


@dataclass(frozen=True, slots=True)
class _Task:
    tar: TarSource
    input: TarInput
    target: Path
    first_row: int
    done: Path
    """Marks a tar whose rows are in the target, and on the disk."""


def flatten_tars(found: TarInput, folder: Path, *, workers: int, listener: ProgressCallback = silent) -> Path:
    """Decode all contexts into `folder/tokens.bin`, in order; tars that an earlier call finished are left alone.

    Raises:
        FormatError: a member holds no tokens.
        InputError: contexts of another length, or tokens that the dtype cannot hold.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target, size = folder / "tokens.bin", found.tokens * np.dtype(found.dtype).itemsize
    with target.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
        file.truncate(size)
    common = replace(found, tars=())
    firsts = np.cumsum([0, *(tar.contexts for tar in found.tars)]).tolist()
    tasks = [
        _Task(tar, common, target, firsts[number], folder / f"done-{number}.json")
        for number, tar in enumerate(found.tars)
    ]
    for finished, _ in enumerate(run_tasks(_flatten, tasks, workers), start=1):
        listener(Progress("read", "tars", finished, len(tasks), unit="tars"))
    return target


def _flatten(task: _Task) -> None:
    tar = task.tar
    identity = asdict(tar) | {"path": str(tar.path), "mtime_ns": tar.path.stat().st_mtime_ns}
    if task.done.exists() and json.loads(read_regular(task.done)) == identity:
        return
    length, dtype = task.input.sequence_length, np.dtype(task.input.dtype)
    rows = max(1, _CHUNK_BYTES // (length * dtype.itemsize))
    chunk, filled = np.empty((rows, length), dtype), 0
    with task.target.open("r+b") as file:
        file.seek(task.first_row * length * dtype.itemsize)
        for number, tokens in enumerate(_contexts(tar)):
            _check_row(tokens, task, number)
            chunk[filled] = tokens
            filled += 1
            if filled == rows:
                file.write(chunk.tobytes())
                filled = 0
        file.write(chunk[:filled].tobytes())
        file.flush()
        os.fsync(file.fileno())
    write_atomic(task.done, json.dumps(identity).encode())


def _check_row(tokens: NDArray[np.integer[Any]], task: _Task, number: int) -> None:
    where, length = f"{task.tar.path}, context {number}", task.input.sequence_length
    if len(tokens) != length:
        what, expected = "the contexts of the tars must have one length", f"{length}, as in the first"
        remedy = "shuffle tars of different lengths apart"
        raise InputError(what, where=where, found=f"{len(tokens)} tokens", expected=expected, remedy=remedy)
    limits = np.iinfo(task.input.dtype)
    if int(tokens.min()) < max(limits.min, 0) or int(tokens.max()) > limits.max:
        found, expected = f"{tokens.min()} to {tokens.max()}", f"0 to {limits.max} ({task.input.dtype})"
        remedy = "name the tokenizer that made the tokens with --tokenizer"
        what = "a token does not fit the token type"
        raise InputError(what, where=where, found=found, expected=expected, remedy=remedy)
