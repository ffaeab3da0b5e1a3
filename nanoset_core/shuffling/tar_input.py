"""Existing tars as a source: the contexts of every sample, decoded once into one flat token file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
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
_CHUNK_BYTES = 1 << 20
_TOKENS = "tokens.bin"


@dataclass(frozen=True, slots=True)
class TarSource:
    """One tar, and the number and extension of its members that hold tokens."""

    path: Path
    data_key: str
    contexts: int


@dataclass(frozen=True, slots=True)
class TarInput:
    """All tars of one run: contexts of one length, in the order of the tars."""

    tars: tuple[TarSource, ...]
    sequence_length: int
    dtype: str

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
    """
    if data_key not in (None, *DATA_KEYS):
        what, expected = "members of this kind are not supported", f"one of {', '.join(DATA_KEYS)}"
        raise ConfigError(what, where="--data-key", found=data_key, expected=expected, remedy="leave it out")
    tars: list[TarSource] = []
    for path in paths:
        tars.append(_survey(path, data_key))
        data_key = tars[-1].data_key
    first = next(_contexts(tars[0]))
    dtype = dtype or (first.dtype.newbyteorder("=").name if data_key == "npy" else "int32")
    return TarInput(tuple(tars), sequence_length or len(first), dtype)


def _survey(path: Path, data_key: str | None) -> TarSource:
    counts, of_first, first = Counter[str](), set[str](), ""
    for member, extension, _ in _members(path):
        counts[extension] += 1
        key = member.name[: -len(extension)]
        first = first or key
        if key == first:
            of_first.add(extension)
    chosen = data_key or next((known for known in DATA_KEYS if known in of_first), "")
    if chosen not in counts:
        text = ", ".join(f"{count:,} .{extension}" for extension, count in counts.items()) or "no members"
        expected = f"members ending in {data_key or ', '.join(DATA_KEYS)}"
        what, remedy = "the tar holds no members with tokens", "name their ending with --data-key, or leave the tar out"
        raise FormatError(what, where=f"{path}, offset 0", found=text, expected=expected, remedy=remedy)
    return TarSource(path, chosen, counts[chosen])


def _members(path: Path) -> Iterator[tuple[TarMember, str, FileBytes]]:
    """Yield the regular files of a tar, their extensions (all after a name's first dot), and the tar."""
    with open_regular(path) as file:
        archive = FileBytes(file)
        for member in iterate_members(archive, path):
            name = member.name.rpartition("/")[2]
            if "." in name and not name.startswith("__"):
                yield member, name.partition(".")[2].lower(), archive


def _contexts(tar: TarSource) -> Iterator[NDArray[np.integer[Any]]]:
    for member, extension, archive in _members(tar.path):
        if extension == tar.data_key:
            yield read_member(archive, member, tar.path)


def flatten_tars(found: TarInput, folder: Path, *, workers: int, listener: ProgressCallback = silent) -> Path:
    """Decode all contexts into `folder/tokens.bin`, in order; tars that an earlier call finished are left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    target, size = folder / _TOKENS, found.tokens * np.dtype(found.dtype).itemsize
    with target.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
        file.truncate(size)
    firsts = np.cumsum([0, *(tar.contexts for tar in found.tars)]).tolist()
    tasks = [(folder, number, replace(found, tars=(tar,)), firsts[number]) for number, tar in enumerate(found.tars)]
    for finished, _ in enumerate(run_tasks(_flatten, tasks, workers), start=1):
        listener(Progress("read", "tars", finished, len(tasks), unit="tars"))
    return target


def _flatten(task: tuple[Path, int, TarInput, int]) -> None:
    folder, number, found, first_row = task
    (tar,), length, dtype = found.tars, found.sequence_length, np.dtype(found.dtype)
    identity = asdict(tar) | {"path": str(tar.path), "mtime_ns": tar.path.stat().st_mtime_ns}
    done = folder / f"done-{number}.json"
    if done.exists() and json.loads(read_regular(done)) == identity:
        return
    rows = max(1, _CHUNK_BYTES // (length * dtype.itemsize))
    contexts = (_checked(tokens, f"{tar.path}, context {at}", found) for at, tokens in enumerate(_contexts(tar)))
    with (folder / _TOKENS).open("r+b") as file:
        file.seek(first_row * length * dtype.itemsize)
        while chunk := list(islice(contexts, rows)):
            file.write(np.array(chunk, dtype).tobytes())
        file.flush()
        os.fsync(file.fileno())
    write_atomic(done, json.dumps(identity).encode())


def _checked(tokens: NDArray[np.integer[Any]], where: str, found: TarInput) -> NDArray[np.integer[Any]]:
    if len(tokens) != found.sequence_length:
        what, expected = "the contexts of the tars must have one length", f"{found.sequence_length}, as in the first"
        remedy = "shuffle tars of different lengths apart"
        raise InputError(what, where=where, found=f"{len(tokens)} tokens", expected=expected, remedy=remedy)
    least, most, limit = int(tokens.min()), int(tokens.max()), np.iinfo(found.dtype).max
    if least < 0 or most > limit:
        expected, what = f"0 to {limit} ({found.dtype})", "a token does not fit the token type"
        remedy = "name the tokenizer that made the tokens with --tokenizer"
        raise InputError(what, where=where, found=f"{least} to {most}", expected=expected, remedy=remedy)
    return tokens
