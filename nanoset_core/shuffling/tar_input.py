"""Existing tars as a source: the contexts of every sample, decoded once into one flat token file."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, InputError, NanosetError
from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import Progress, ProgressCallback, silent
from nanoset_core.shuffling.members import check_member_size, decode_member, listed_tokens
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.regular_files import open_regular, read_regular

DATA_KEYS = ("npy", "json.gz", "json", "txt")
"""Extensions that can hold tokens; where a sample has several, the first of these is taken."""
_CHUNK_BYTES = 4 << 20
_BLOCK_BYTES = 512
_MOST_HEADER_BYTES = 16 << 10
"""Of one member, its long name and extended header included: tarfile takes time that grows with their square."""


@dataclass(frozen=True, slots=True)
class TarSource:
    """One tar and what is taken from it."""

    path: Path
    """The archive."""
    data_key: str
    """Extension of the members that hold tokens."""
    contexts: int
    """Members with it."""
    others: int
    """Members without it, which are left out."""


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
    def contexts(self) -> int:
        """Contexts of all tars."""
        return sum(tar.contexts for tar in self.tars)

    @property
    def tokens(self) -> int:
        """Tokens of all tars, padding included: tars don't say what is padding."""
        return self.contexts * self.sequence_length

    @property
    def size_bytes(self) -> int:
        """Of the flat token file."""
        return self.tokens * np.dtype(self.dtype).itemsize


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
        FormatError: a tar is no whole tar of regular files, or holds no such members; it names tar and offset.
    """
    if data_key is not None and data_key not in DATA_KEYS:
        raise ConfigError(
            "members of this kind are not supported",
            where="--data-key",
            found=data_key,
            expected=f"one of {', '.join(DATA_KEYS)}",
            remedy="name one of them, or leave it out",
        )
    tars: list[TarSource] = []
    for path in paths:
        tars.append(_survey(path, data_key))
        data_key = tars[-1].data_key
    first = next(_contexts(tars[0]))
    if dtype is None:
        dtype = first.dtype.newbyteorder("=").name if data_key == "npy" else "int32"
    return TarInput(tuple(tars), sequence_length or len(first), dtype)


def _survey(path: Path, data_key: str | None) -> TarSource:
    extensions: dict[str, int] = {}
    first_key: str | None = None
    first: list[str] = []
    for member, extension in _members(path):
        extensions[extension] = extensions.get(extension, 0) + 1
        key = member.name[: -len(extension) - 1]
        first_key = key if first_key is None else first_key
        if key == first_key:
            first.append(extension)
    chosen = data_key or next((known for known in DATA_KEYS if known in first), None)
    if chosen is None or chosen not in extensions:
        raise FormatError(
            "the tar holds no members with tokens",
            where=f"{path}, offset 0",
            found=", ".join(f"{count:,} .{extension}" for extension, count in extensions.items()) or "no members",
            expected=f"members ending in {data_key or ', '.join(DATA_KEYS)}",
            remedy="name their ending with --data-key, or take the tar out of the input",
        )
    return TarSource(path, chosen, extensions[chosen], sum(extensions.values()) - extensions[chosen])


def _members(path: Path) -> Iterator[tuple[tarfile.TarInfo, str]]:
    """Regular files of a tar with their extensions: what follows the first dot of the last part of the name."""
    size = path.stat().st_size
    try:
        with open_regular(path) as file:
            forward = _Forward(file, size)
            with tarfile.open(fileobj=cast(BinaryIO, forward), mode="r:") as archive:
                while (member := archive.next()) is not None:
                    cast(Any, archive).members.clear()  # it would keep them all
                    forward.left = _MOST_HEADER_BYTES
                    if member.issparse():
                        raise _malformed(path, member.offset, f"{member.name!r} is stored with holes", "a sparse file")
                    if member.offset_data + member.size > size:
                        raise _malformed(
                            path, member.offset, f"the body of {member.name!r} is cut off", f"{size} bytes"
                        )
                    name = member.name.rpartition("/")[2]
                    if member.isreg() and "." in name and not name.startswith("__"):
                        yield member, name.partition(".")[2].lower()
                end = archive.offset
    except NanosetError:
        raise
    except (tarfile.TarError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise _malformed(path, 0, "not a tar", str(error)) from error
    _check_end(path, size, end)


class _Forward:
    """A file for tarfile, which believes a header's sizes: nothing is read past the end, or twice, or without end."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self.left = _MOST_HEADER_BYTES
        """Bytes that may be read before the next member is known."""
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        if size < 0:
            raise tarfile.ReadError(f"a size of {size} bytes")
        if size > self.left:
            raise tarfile.ReadError(f"a header of more than {_MOST_HEADER_BYTES:,} bytes at byte {self._file.tell():,}")
        self.left -= size
        return self._file.read(min(size, max(self._size - self._file.tell(), 0)))

    def seek(self, offset: int) -> int:
        if offset < self._file.tell() - 1:  # tarfile looks one byte back
            raise tarfile.ReadError(f"a member that ends at byte {offset}, before it begins")
        return self._file.seek(min(offset, self._size))


def _check_end(path: Path, size: int, offset: int) -> None:
    """Readers stop at the first block that is no header: what follows must be the end, or it would be lost silently."""
    with open_regular(path) as file:
        # the offset is that of the block where tarfile stopped, or the one after it
        file.seek(max(offset - _BLOCK_BYTES, 0))
        start = file.read(_BLOCK_BYTES)
        offset = offset - _BLOCK_BYTES if offset and not start.strip(b"\0") else offset
        file.seek(offset)
        zeros = 0
        while block := file.read(1 << 20):
            if block.strip(b"\0"):
                raise _malformed(path, offset + zeros, "no header, and not the end of the archive", "other bytes")
            zeros += len(block)
    if zeros < 2 * _BLOCK_BYTES:
        raise _malformed(path, offset, "the archive ends without its two zero blocks", f"{size - offset} bytes left")


def _malformed(path: Path, offset: int, what: str, found: str) -> FormatError:
    return FormatError(
        what,
        where=f"{path}, offset {offset}",
        found=found,
        expected="a whole, uncompressed tar",
        remedy="fetch or make it again, or take it out of the input",
    )


def _contexts(tar: TarSource) -> Iterator[NDArray[np.integer[Any]]]:
    """Tokens of each context of a tar, shape (length,)."""
    with open_regular(tar.path) as file:
        for member, extension in _members(tar.path):
            if extension == tar.data_key:
                check_member_size(member.name, member.size, f"{tar.path}, offset {member.offset}")
                file.seek(member.offset_data)
                yield _decode(member.name, file.read(member.size), f"{tar.path}, offset {member.offset}")


def _decode(name: str, body: bytes, where: str) -> NDArray[np.integer[Any]]:
    if name.lower().endswith((".npy", ".json.gz")):
        return decode_member(name.lower(), body, where)
    try:
        tokens = listed_tokens(body)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ValueError(f"shape {tokens.shape}, dtype {tokens.dtype}")
    except ValueError as error:
        raise FormatError(
            f"member {name!r} does not hold the tokens of a context",
            where=where,
            found=str(error),
            expected="a flat list of integers",
            remedy="tokenize it again, or take the tar out of the input",
        ) from error
    return tokens


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
    target = folder / "tokens.bin"
    with target.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, max(found.size_bytes, 1))
        file.truncate(found.size_bytes)
    input_of_task = replace(found, tars=())
    firsts = np.cumsum([0, *(tar.contexts for tar in found.tars)]).tolist()
    tasks = [
        _Task(tar, input_of_task, target, firsts[number], folder / f"done-{number}.json")
        for number, tar in enumerate(found.tars)
    ]
    for finished, (_, _) in enumerate(run_tasks(_flatten, tasks, workers), start=1):
        listener(Progress("read", "tars", finished, len(tasks), unit="tars"))
    return target


def _flatten(task: _Task) -> int:
    identity = asdict(task.tar) | {"path": str(task.tar.path), "mtime_ns": task.tar.path.stat().st_mtime_ns}
    if _is_done(task.done, identity):
        return task.tar.contexts
    length, dtype = task.input.sequence_length, np.dtype(task.input.dtype)
    rows = max(1, _CHUNK_BYTES // (length * dtype.itemsize))
    chunk, filled, row = np.empty((rows, length), dtype), 0, task.first_row
    with task.target.open("r+b") as file:
        file.seek(row * length * dtype.itemsize)
        for number, tokens in enumerate(_contexts(task.tar)):
            _check_row(tokens, task, number)
            chunk[filled] = tokens
            filled += 1
            if filled == rows:
                file.write(_bytes(chunk))
                filled = 0
        file.write(_bytes(chunk[:filled]))
        file.flush()
        os.fsync(file.fileno())
    write_atomic(task.done, json.dumps(identity).encode())
    return task.tar.contexts


def _bytes(rows: NDArray[np.integer[Any]]) -> memoryview:
    # (rows, length) -> (bytes,); a cast of memoryview refuses arrays without rows
    return rows.reshape(-1).view(np.uint8).data


def _is_done(path: Path, identity: dict[str, object]) -> bool:
    return path.exists() and json.loads(read_regular(path)) == identity


def _check_row(tokens: NDArray[np.integer[Any]], task: _Task, number: int) -> None:
    if len(tokens) != task.input.sequence_length:
        raise InputError(
            "the contexts of the tars must have one length",
            where=f"{task.tar.path}, context {number}",
            found=f"{len(tokens)} tokens",
            expected=f"{task.input.sequence_length}, as in the first",
            remedy="shuffle tars of different lengths apart",
        )
    limits = np.iinfo(task.input.dtype)
    if int(tokens.min()) < max(limits.min, 0) or int(tokens.max()) > limits.max:
        raise InputError(
            "a token does not fit the token type",
            where=f"{task.tar.path}, context {number}",
            found=f"{int(tokens.min())} to {int(tokens.max())}",
            expected=f"0 to {limits.max} ({task.input.dtype})",
            remedy="name the tokenizer that made the tokens with --tokenizer",
        )
