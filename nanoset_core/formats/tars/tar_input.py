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
from nanoset_core.formats.tars.members import read_member
from nanoset_core.formats.tars.samples import DATA_KEYS, TarSample, iterate_samples
from nanoset_core.formats.tars.tar import Archive, FileBytes, TarMember
from nanoset_core.records.text import format_count
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.regular_files import open_regular, read_regular

_PERHAPS_TEXT = ("json", "txt")
"""Of `DATA_KEYS`, those that descriptions have as well, such as `info.json` and `README.txt`."""
_CHUNK_BYTES = 1 << 20
_TOKENS = "tokens.bin"


@dataclass(frozen=True, slots=True)
class TarSource:
    """One tar, and the number and extension of its members that hold tokens."""

    path: Path
    data_key: str
    contexts: int
    passed_over: int = 0
    """Entries that belong to no sample, such as `.DS_Store`, or to a sample without tokens, such as `README.md`."""
    passed_over_example: str = ""
    """The first of them."""


@dataclass(frozen=True, slots=True)
class TarInput:
    """All tars of one run: contexts of one length, in the order of the tars."""

    tars: tuple[TarSource, ...]
    sequence_length: int
    dtype: str
    greatest_id: int | None = None
    """The greatest id that a token may be; None: any that `dtype` holds."""

    @property
    def tokens(self) -> int:
        """Tokens of all tars, padding included: tars don't say what is padding."""
        return sum(tar.contexts for tar in self.tars) * self.sequence_length


def passed_over_text(surveys: Sequence[TarInput]) -> str | None:
    """Return what to say of members that hold no tokens, or None if all do."""
    tars = [tar for survey in surveys for tar in survey.tars if tar.passed_over]
    if not tars:
        return None
    count = format_count(sum(tar.passed_over for tar in tars), "member")
    return f"{count} without tokens passed over, such as {tars[0].passed_over_example!r} in {tars[0].path.name}"


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
        data_key: extension of the members to take, as OpenLM's `--data-key`. None: what the first sample has, which
            all others must have as well.
        dtype: of the tokens; None: that of the first `npy` member, int32 for text.
        sequence_length: that every context must have; None: that of the first one.

    Raises:
        ConfigError: members of the kind `data_key` cannot be read.
        FormatError: a tar is damaged or holds no tokens, or some samples have them in another kind of member.
    """
    if data_key not in (None, *DATA_KEYS):
        what, expected = "members of this kind are not supported", f"one of {', '.join(DATA_KEYS)}"
        raise ConfigError(what, where="--data-key", found=data_key, expected=expected, remedy="leave it out")
    tars: list[TarSource] = []
    for path in paths:
        first_key = tars[0].data_key if tars else None
        tars.append(_survey(path, data_key, first_key))
    data_key = tars[0].data_key
    first = next(_contexts(tars[0]))
    dtype = dtype or (first.dtype.newbyteorder("=").name if data_key == "npy" else "int32")
    return TarInput(tuple(tars), sequence_length or len(first), dtype)


def _survey(path: Path, data_key: str | None, first_key: str | None) -> TarSource:
    """Count the contexts of a tar.

    Args:
        path: the archive.
        data_key: extension that the user named; samples without it are passed over.
        first_key: extension that the tars before this one have.
    """
    chosen = data_key or first_key
    contexts = 0
    passed_over = 0
    example = ""
    counts = Counter[str]()  # extension → members
    with open_regular(path) as file:
        archive = FileBytes(file)
        for sample in iterate_samples(archive, path):
            counts.update(sample.members.keys())
            if chosen is None:
                chosen = _kind_of_tokens(sample, archive, path)
            if chosen in sample.members:
                contexts += 1
                continue
            if data_key is None:
                _check_without_tokens(sample, archive, path, chosen)
            passed_over += sample.member_count
            example = example or sample.name

    # No text that can be read: decoding the first one says what is wrong with it.
    if chosen is None:
        chosen = next((ending for ending in _PERHAPS_TEXT if counts[ending]), None)
        contexts = counts[chosen or ""]
    if chosen is None or not contexts:
        text = ", ".join(f"{count:,} .{extension}" for extension, count in counts.items()) or "no members"
        expected = f"members ending in {chosen or ', '.join(DATA_KEYS)}"
        what, remedy = "the tar holds no members with tokens", "name their ending with --data-key, or leave the tar out"
        raise FormatError(what, where=f"{path}, offset 0", found=text, expected=expected, remedy=remedy)
    return TarSource(path, chosen, contexts, passed_over, example)


def _kind_of_tokens(sample: TarSample, archive: Archive, path: Path) -> str | None:
    """Return the first of `DATA_KEYS` in which a sample holds tokens, or None."""
    for data_key in DATA_KEYS:
        member = sample.members.get(data_key)
        if member is not None and _may_hold_tokens(member, archive, path):
            return data_key
    return None


def _check_without_tokens(sample: TarSample, archive: Archive, path: Path, chosen: str | None) -> None:
    """Raise FormatError if a sample without the chosen kind of member holds tokens in another one."""
    for member in sample.members.values():
        if _may_hold_tokens(member, archive, path):
            raise FormatError(
                "samples hold their tokens in members of different kinds",
                where=f"{path}, offset {member.offset}",
                found=f"{member.name!r}",
                expected=f"a member ending in .{chosen} in each sample, as in the first",
                remedy=f"shuffle them apart, or take only those with --data-key {chosen}",
            )


def _may_hold_tokens(member: TarMember, archive: Archive, path: Path) -> bool:
    """Return whether a member's name and content allow it to be a context.

    `info.json` and `README.txt` are no lists of numbers. A damaged `npy` or `json.gz` counts as a context, so that
    it is not taken for a description and lost.
    """
    name = member.name.lower()
    if not name.endswith(tuple(f".{ending}" for ending in _PERHAPS_TEXT)):
        return name.endswith(tuple(f".{ending}" for ending in DATA_KEYS))
    try:
        read_member(archive, member, path)
    except FormatError:
        return False
    return True


def _contexts(tar: TarSource) -> Iterator[NDArray[np.integer[Any]]]:
    with open_regular(tar.path) as file:
        archive = FileBytes(file)
        for sample in iterate_samples(archive, tar.path):
            member = sample.members.get(tar.data_key)
            if member is not None:
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
    limit = int(np.iinfo(found.dtype).max)
    least = int(tokens.min())
    most = int(tokens.max())
    if found.greatest_id is not None and found.greatest_id < limit and (least < 0 or most > found.greatest_id):
        foreign = np.flatnonzero((tokens < 0) | (tokens > found.greatest_id))
        raise InputError(
            "a token is not in the vocabulary",
            where=f"{where}, token {foreign[0]}",
            found=f"id {tokens[foreign[0]]}",
            expected=f"0 to {found.greatest_id}",
            remedy="name the tokenizer that made the tokens, or leave --tokenizer out",
        )
    if least < 0 or most > limit:
        expected, what = f"0 to {limit} ({found.dtype})", "a token does not fit the token type"
        remedy = "name the tokenizer that made the tokens with --tokenizer"
        raise InputError(what, where=where, found=f"{least} to {most}", expected=expected, remedy=remedy)
    return tokens
