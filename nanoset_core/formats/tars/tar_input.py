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
_PERHAPS_TEXT_ENDINGS = tuple(f".{data_key}" for data_key in _PERHAPS_TEXT)
_DATA_ENDINGS = tuple(f".{data_key}" for data_key in DATA_KEYS)
_CHUNK_BYTES = 1 << 20
"""Bytes of tokens written at once."""
_TOKENS = "tokens.bin"


@dataclass(frozen=True, slots=True)
class TarSource:
    """One tar, and the number and extension of its members that hold tokens."""

    path: Path
    data_key: str
    contexts: int
    passed_over: int = 0
    """Entries that belong to no sample, such as `.DS_Store`, or to a sample without tokens, such as
    `README.md`.
    """
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
    def common(self) -> TarInput:
        """The same without tars: what their contexts have in common."""
        return replace(self, tars=())

    @property
    def tokens(self) -> int:
        """Tokens of all tars, padding included: tars don't say what is padding."""
        return sum(tar.contexts for tar in self.tars) * self.sequence_length


def passed_over_text(surveys: Sequence[TarInput]) -> str | None:
    """Return what to say of members that hold no tokens, or None if all do."""
    tars: list[TarSource] = []
    for survey in surveys:
        tars += [tar for tar in survey.tars if tar.passed_over]
    if not tars:
        return None
    count = format_count(sum(tar.passed_over for tar in tars), "member")
    example = f"{tars[0].passed_over_example!r} in {tars[0].path.name}"
    return f"{count} without tokens passed over, such as {example}"


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
        data_key: extension of the members to take, as OpenLM's `--data-key`. None: what the first
            sample has, which all others must have as well.
        dtype: of the tokens; None: that of the first `npy` member, int32 for text.
        sequence_length: that every context must have; None: that of the first one.

    Raises:
        ConfigError: members of the kind `data_key` cannot be read.
        FormatError: a tar is damaged or holds no tokens, or some samples have them in another kind
            of member.
    """
    if data_key not in (None, *DATA_KEYS):
        raise ConfigError(
            "members of this kind are not supported",
            where="--data-key",
            found=data_key,
            expected=f"one of {', '.join(DATA_KEYS)}",
            remedy="leave it out",
        )
    tars: list[TarSource] = []
    for path in paths:
        first_key = tars[0].data_key if tars else None
        tars.append(_survey(path, data_key, first_key))
    data_key = tars[0].data_key
    first = next(_contexts(tars[0]))
    if dtype is None:
        dtype = first.dtype.newbyteorder("=").name if data_key == "npy" else "int32"
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
    counts: Counter[str] = Counter()  # extension → members
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
        members = [f"{count:,} .{extension}" for extension, count in counts.items()]
        raise FormatError(
            "the tar holds no members with tokens",
            where=f"{path}, offset 0",
            found=", ".join(members) or "no members",
            expected=f"members ending in {chosen or ', '.join(DATA_KEYS)}",
            remedy="name their ending with --data-key, or leave the tar out",
        )
    return TarSource(path, chosen, contexts, passed_over, example)


def _kind_of_tokens(sample: TarSample, archive: Archive, path: Path) -> str | None:
    """Return the first of `DATA_KEYS` in which a sample holds tokens, or None."""
    for data_key in DATA_KEYS:
        member = sample.members.get(data_key)
        if member is not None and _may_hold_tokens(member, archive, path):
            return data_key
    return None


def _check_without_tokens(
    sample: TarSample,
    archive: Archive,
    path: Path,
    chosen: str | None,
) -> None:
    """Raise FormatError if a sample without the chosen kind of member holds tokens in another one."""
    for member in sample.members.values():
        if _may_hold_tokens(member, archive, path):
            raise FormatError(
                "samples hold their tokens in members of different kinds",
                where=f"{path}, offset {member.offset}",
                found=f"{member.name!r}",
                expected=f"a member ending in .{chosen} in each sample, as in the first",
                remedy=f"shuffle them separately, or take only those with --data-key {chosen}",
            )


def _may_hold_tokens(member: TarMember, archive: Archive, path: Path) -> bool:
    """Return whether a member's name and content allow it to be a context.

    `info.json` and `README.txt` are no lists of numbers. A damaged `npy` or `json.gz` counts as a
    context, so that it is not taken for a description and lost.
    """
    name = member.name.lower()
    if not name.endswith(_PERHAPS_TEXT_ENDINGS):
        return name.endswith(_DATA_ENDINGS)
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


@dataclass(frozen=True, slots=True)
class _FlattenTask:
    """One tar to decode; it pickles."""

    folder: Path
    """Of the token file."""
    number: int
    """Of the tar within its input."""
    tar: TarSource
    first_context: int
    """Contexts of the tars before this one."""
    tar_input: TarInput
    """What all contexts have in common; without the tars, which may be many."""


def flatten_tars(
    tar_input: TarInput,
    folder: Path,
    *,
    workers: int,
    listener: ProgressCallback = silent,
) -> Path:
    """Decode all contexts into `folder/tokens.bin`, in order; tars that an earlier call finished
    are left alone.

    Args:
        tar_input: The tars.
        folder: Where the token file goes.
        workers: Processes.
        listener: Progress callback.

    Returns:
        Path of the token file.

    Raises:
        FormatError: A member does not hold the tokens of a context.
        InputError: Contexts have different lengths, or a token does not fit the vocabulary or the
            dtype.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / _TOKENS
    size = tar_input.tokens * np.dtype(tar_input.dtype).itemsize
    with target.open("ab") as file:
        # Reserved here, so that a full disk is noticed now; workers fill their places in any order.
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
        file.truncate(size)

    tasks: list[_FlattenTask] = []
    first_context = 0
    for number, tar in enumerate(tar_input.tars):
        tasks.append(_FlattenTask(folder, number, tar, first_context, tar_input.common))
        first_context += tar.contexts
    for finished, _ in enumerate(run_tasks(_flatten, tasks, workers), start=1):
        listener(Progress("read", "tars", finished, len(tasks), unit="tars"))
    return target


def _flatten(task: _FlattenTask) -> None:
    """Decode the contexts of one tar to their place in the token file, unless an earlier call has
    done so.
    """
    tar = task.tar
    # A tar that has changed since is decoded again.
    identity = asdict(tar) | {"path": str(tar.path), "mtime_ns": tar.path.stat().st_mtime_ns}
    marker = task.folder / f"done-{task.number}.json"
    if marker.exists() and json.loads(read_regular(marker)) == identity:
        return
    dtype = np.dtype(task.tar_input.dtype)
    context_bytes = task.tar_input.sequence_length * dtype.itemsize

    # Each tar has a place of its own in the token file, so that workers need not wait for others.
    contexts_at_once = max(1, _CHUNK_BYTES // context_bytes)
    contexts = _checked_contexts(tar, task.tar_input)
    with (task.folder / _TOKENS).open("r+b") as file:
        file.seek(task.first_context * context_bytes)
        while chunk := list(islice(contexts, contexts_at_once)):
            file.write(np.array(chunk, dtype).tobytes())
        file.flush()
        os.fsync(file.fileno())
    write_atomic(marker, json.dumps(identity).encode())


def _checked_contexts(tar: TarSource, tar_input: TarInput) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the contexts of a tar, each of shape (sequence_length,)."""
    for number, tokens in enumerate(_contexts(tar)):
        _check_context(tokens, f"{tar.path}, context {number}", tar_input)
        yield tokens


def _check_context(tokens: NDArray[np.integer[Any]], where: str, tar_input: TarInput) -> None:
    """Check the length of a context, and that its tokens are in the vocabulary and fit the dtype."""
    if len(tokens) != tar_input.sequence_length:
        raise InputError(
            "the contexts of the tars must have one length",
            where=where,
            found=f"{len(tokens)} tokens",
            expected=f"{tar_input.sequence_length}, as in the first",
            remedy="shuffle tars of different lengths apart",
        )
    # With a tokenizer the vocabulary is the limit, and without one what the dtype holds.
    limit = int(np.iinfo(tar_input.dtype).max)
    greatest_id = tar_input.greatest_id
    least = int(tokens.min())
    greatest = int(tokens.max())
    if greatest_id is not None and greatest_id < limit and (least < 0 or greatest > greatest_id):
        number = np.flatnonzero((tokens < 0) | (tokens > greatest_id))[0]
        raise InputError(
            "a token is not in the vocabulary",
            where=f"{where}, token {number}",
            found=f"id {tokens[number]}",
            expected=f"0 to {greatest_id}",
            remedy="name the tokenizer that made the tokens, or leave --tokenizer out",
        )
    if least < 0 or greatest > limit:
        raise InputError(
            "a token does not fit the token type",
            where=where,
            found=f"{least} to {greatest}",
            expected=f"0 to {limit} ({tar_input.dtype})",
            remedy="name the tokenizer that made the tokens with --tokenizer",
        )
