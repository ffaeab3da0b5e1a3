"""Read the tokens of existing tars, in two steps.

A survey reads the headers of all tars: which members have tokens, and how many contexts there are.
Then the contexts are decoded, once and in parallel, into one file that has nothing but tokens. The
survey determines the place of each tar in this file.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, InputError
from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.tars.members import read_member
from nanoset_core.formats.tars.samples import DATA_KEYS, TarSample, iterate_samples
from nanoset_core.formats.tars.tar import Archive, FileBytes, TarMember
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.regular_files import open_regular, read_regular
from nanoset_core.wording import format_count

_PERHAPS_TEXT = ("json", "txt")
"""Extensions of tokens that other files have as well, such as `info.json` and `README.txt`."""
_PERHAPS_TEXT_ENDINGS = tuple(f".{data_key}" for data_key in _PERHAPS_TEXT)
"""These extensions with their dots."""
_DATA_ENDINGS = tuple(f".{data_key}" for data_key in DATA_KEYS)
"""All extensions of tokens, with their dots."""
_CHUNK_BYTES = 1 << 20
"""Bytes of tokens written at once."""
_TOKENS = "tokens.bin"
"""Name of the file of tokens."""


@dataclass(frozen=True, slots=True)
class TarSource:
    """A tar, and what its survey found."""

    path: Path
    """Path of the tar."""
    data_key: str
    """Extension of the members that have tokens."""
    contexts: int
    """Number of these members."""
    passed_over: int = 0
    """Number of members without tokens, such as `.DS_Store` or `README.md`."""
    passed_over_example: str = ""
    """Name of the first of them."""


@dataclass(frozen=True, slots=True)
class TarInput:
    """Tars whose contexts have one length and one dtype."""

    tars: tuple[TarSource, ...]
    """The tars in order."""
    sequence_length: int
    """Tokens in each context."""
    dtype: str
    """Name of the dtype of the tokens."""
    greatest_id: int | None = None
    """Greatest id that a token may have. None: any id that `dtype` holds."""

    @property
    def common(self) -> TarInput:
        """What all contexts have in common, without the tars, which may be many."""
        return replace(self, tars=())

    @property
    def tokens(self) -> int:
        """Number of tokens of all tars, including padding, which tars do not mark."""
        return sum(tar.contexts for tar in self.tars) * self.sequence_length


def passed_over_text(surveys: Sequence[TarInput]) -> str | None:
    """Return a message about files in tars that have no tokens, or None if there are none.

    For example, "3 members without tokens passed over, such as 'README.md' in a.tar".

    Args:
        surveys: What was found in the tars of each input of a command.
    """
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
    """Find out what some tars of training samples contain, without reading all of their tokens.

    Only the headers of their members are read, and the first sample. They show how many samples
    there are, how long one is, and in which form: for example 10,000 samples of 2,049 tokens as
    `.npy` of type uint16.

    Args:
        paths: Paths of the tars, in order.
        data_key: Extension of the members to read, as OpenLM's `--data-key`. None: the extension in
            which the first sample has its tokens; all other samples must have it, too.
        dtype: Name of the dtype of the tokens. None: the dtype of the first `npy` member, or int32
            for text.
        sequence_length: Length that every context must have. None: the length of the first one.

    Raises:
        ConfigError: Members with the extension `data_key` cannot be read.
        FormatError: A tar is damaged or has no tokens, or some samples have their tokens in members
            with another extension.
    """
    if data_key not in (None, *DATA_KEYS):
        raise ConfigError(
            "members of this kind are not supported",
            where="--data-key",
            found=data_key,
            expected=f"one of {', '.join(DATA_KEYS)}",
            remedy="leave it out",
        )

    # Read the headers. The first tar decides where the others must have their tokens.
    tars: list[TarSource] = []
    for path in paths:
        first_key = tars[0].data_key if tars else None
        tars.append(_survey(path, data_key, first_key))

    first_context = next(_contexts(tars[0]))
    if dtype is None:
        dtype = _dtype_of(first_context, tars[0].data_key)
    return TarInput(tuple(tars), sequence_length or len(first_context), dtype)


def _dtype_of(context: NDArray[np.integer[Any]], data_key: str) -> str:
    """Return the name of the dtype of a context's tokens, without the byte order.

    Only `npy` members have a dtype; the tokens of text are int32.
    """
    if data_key == "npy":
        return context.dtype.newbyteorder("=").name
    return "int32"


def _survey(path: Path, data_key: str | None, first_key: str | None) -> TarSource:
    """Count how many samples of a tar have tokens, and how many files have none.

    A sample is one file or several, which differ in their extension. This tar has three samples:

        0001.npy    0001.info.json    0002.npy    0002.info.json    README.md

    Tokens are read from the files with one extension, here `npy`. Samples without such a file, here
    the README, are passed over. If the user has not named the extension, it is that of the first
    sample that has tokens. Then a sample with tokens in another file, such as `0003.json`, is an
    error, since the user may not know that they would be passed over.

    Args:
        path: Path of the tar.
        data_key: Extension that the user named, or None.
        first_key: Extension of the tars that were counted before, which this one must have, too;
            None if this is the first tar.

    Raises:
        FormatError: The tar is damaged or has no tokens, or samples have their tokens in files with
            different extensions.
    """
    is_named_by_user = data_key is not None
    survey = _Survey(extension=data_key or first_key)
    with open_regular(path) as file:
        archive = FileBytes(file)
        for sample in iterate_samples(archive, path):
            if survey.extension is None:
                # Look into the files of the sample; None if no file has tokens.
                survey.extension = _kind_of_tokens(sample, archive, path)

            # Only an extension that the user has not named may be the wrong one.
            is_passed_over = survey.extension not in sample.members
            if is_passed_over and not is_named_by_user:
                _check_that_no_tokens_are_lost(sample, archive, path, survey.extension)
            survey.add(sample)
    return _source_of(path, survey)


def _source_of(path: Path, survey: _Survey) -> TarSource:
    """Return which files of a tar have tokens, and how many there are, after it was read.

    For example, for a tar with these files, which was searched for arrays of tokens:

        0.npy, 1.npy      each has tokens       2 files with the extension npy
        0.json, 1.json    none has tokens       the only files, so they may be damaged: 2 files with
                                                the extension json
        0.png             never has tokens      an error

    Args:
        path: Path of the tar.
        survey: The files that were counted while the tar was read, by their extensions.

    Raises:
        FormatError: The tar has no tokens.
    """
    extension = survey.extension
    n_contexts = survey.n_contexts
    if extension is None:
        extension = _extension_of_damaged_tokens(survey.counts)
        if extension is not None:
            n_contexts = survey.counts[extension]
    if extension is None or n_contexts == 0:
        raise _no_tokens_error(path, survey.counts, extension)
    return TarSource(
        path,
        extension,
        n_contexts,
        passed_over=survey.n_passed_over,
        passed_over_example=survey.passed_over_example,
    )


def _extension_of_damaged_tokens(counts: Mapping[str, int]) -> str | None:
    """Return which files of a tar may be damaged tokens, if no file could be read as tokens.

    These are text files, such as .json. When they are read, an error says what is wrong with the
    first one, which helps more than "no tokens".

    Args:
        counts: Extension → number of files.

    Returns:
        Their extension; None if there are no text files.
    """
    for extension in _PERHAPS_TEXT:
        if counts.get(extension, 0) > 0:
            return extension
    return None


@dataclass(slots=True)
class _Survey:
    """What was counted in a tar so far."""

    extension: str | None
    """Extension of the files with tokens; None if it is not known yet."""
    counts: Counter[str] = field(default_factory=Counter)
    """Extension → number of files."""
    n_contexts: int = 0
    """Samples with tokens."""
    n_passed_over: int = 0
    """Files of all other samples."""
    passed_over_example: str = ""
    """Name of the first of these samples."""

    def add(self, sample: TarSample) -> None:
        """Count a sample and its files.

        Args:
            sample: One file or several, which differ in their extension. It has tokens if one of
                these extensions is `self.extension`.
        """
        self.counts.update(sample.members.keys())
        if self.extension in sample.members:
            self.n_contexts += 1
            return
        self.n_passed_over += sample.member_count
        if not self.passed_over_example:
            self.passed_over_example = sample.name


def _no_tokens_error(path: Path, counts: Mapping[str, int], extension: str | None) -> FormatError:
    """Return the error for a tar without members with tokens.

    It says what the tar has instead: "found: 12 .jpg, 12 .cls".

    Args:
        path: Path of the tar.
        counts: Extension → number of members, such as {"jpg": 12, "cls": 12}.
        extension: The extension that was looked for; None if any of `DATA_KEYS`.
    """
    members = [f"{count:,} .{ending}" for ending, count in counts.items()]
    return FormatError(
        "the tar has no members with tokens",
        where=f"{path}, offset 0",
        found=", ".join(members) or "no members",
        expected=f"members ending in {extension or ', '.join(DATA_KEYS)}",
        remedy="name their ending with --data-key, or leave the tar out",
    )


def _kind_of_tokens(sample: TarSample, archive: Archive, path: Path) -> str | None:
    """Return the extension of the member in which a sample of a tar has its tokens, or None.

    For a sample of `0001.npy` and `0001.info.json`, this is `npy`.

    Args:
        sample: A sample of the tar.
        archive: Bytes of the tar.
        path: Path of the tar, for messages.
    """
    for data_key in DATA_KEYS:
        member = sample.members.get(data_key)
        if member is not None and _may_hold_tokens(member, archive, path):
            return data_key
    return None


def _check_that_no_tokens_are_lost(
    sample: TarSample,
    archive: Archive,
    path: Path,
    extension: str | None,
) -> None:
    """Check that a sample that is to be skipped does not contain tokens.

    For example, the first sample of a tar had its tokens in a `.npy` file. So later samples without
    such a file are skipped:

        0007.txt     a caption                   is skipped
        0008.json    [5, 17, 2], like tokens     is refused: they would be lost without a message

    Args:
        sample: The sample, which has no member with the extension.
        archive: Bytes of the tar.
        path: Path of the tar, for messages.
        extension: The extension of the members from which tokens are taken, such as `npy`. None: no
            sample had tokens so far.

    Raises:
        FormatError: The sample has tokens.
    """
    for member in sample.members.values():
        if _may_hold_tokens(member, archive, path):
            raise FormatError(
                "samples have their tokens in members of different kinds",
                where=f"{path}, offset {member.offset}",
                found=f"{member.name!r}",
                expected=f"a member ending in .{extension} in each sample, as in the first",
                remedy="shuffle the tars of each kind separately, or take only one kind with "
                f"--data-key {extension}",
            )


def _may_hold_tokens(member: TarMember, archive: Archive, path: Path) -> bool:
    """Return whether a member of a tar may hold the tokens of a sample."""
    name = member.name.lower()
    if name.endswith(_PERHAPS_TEXT_ENDINGS):
        # Files such as `info.json` and `caption.txt` are common, so look at the content.
        return _is_list_of_numbers(member, archive, path)
    # `.npy` and `.json.gz` are used for tokens only. A damaged file counts, too, so that the error
    # is reported when it is decoded.
    return name.endswith(_DATA_ENDINGS)


def _is_list_of_numbers(member: TarMember, archive: Archive, path: Path) -> bool:
    """Return whether the content of a member can be read as tokens."""
    try:
        read_member(archive, member, path)
    except FormatError:
        return False
    return True


def _contexts(tar: TarSource) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the tokens of each context of a tar, without a check of their number and ids."""
    with open_regular(tar.path) as file:
        archive = FileBytes(file)
        for sample in iterate_samples(archive, tar.path):
            member = sample.members.get(tar.data_key)
            if member is not None:
                yield read_member(archive, member, tar.path)


@dataclass(frozen=True, slots=True)
class _FlattenTask:
    """A tar to decode. It can be pickled."""

    folder: Path
    """Folder of the file of tokens."""
    number: int
    """Number of the tar within its input."""
    tar: TarSource
    first_context: int
    """Number of contexts in all earlier tars."""
    tar_input: TarInput
    """What all contexts have in common, without the tars."""


def flatten_tars(
    tar_input: TarInput,
    folder: Path,
    *,
    workers: int,
    progress: Progress = SILENT,
) -> Path:
    """Decode the training samples of many tars into one file of tokens.

    The tokens of any sample can be read from this file at once, which is not possible with tars.

    After a tar is decoded, a small file marks it as done. So if the work is interrupted, the next
    call continues with the other tars.

    Args:
        tar_input: The tars.
        folder: Where the file of tokens goes, with a marker for each decoded tar.
        workers: Number of processes.
        progress: Shows how far the work has come.

    Returns:
        Path of the file of tokens, `folder/tokens.bin`.

    Raises:
        FormatError: A member does not contain the tokens of a context.
        InputError: Contexts have different lengths, or a token does not fit the vocabulary or the
            dtype.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / _TOKENS
    # Each tar has its place in the file, so that workers can write in any order.
    _reserve(target, tar_input.tokens * np.dtype(tar_input.dtype).itemsize)
    tasks = _flatten_tasks(tar_input, folder)
    tar_work = progress.work("read", "tars", len(tasks), unit="tars")
    for _ in run_tasks(_flatten, tasks, workers):
        tar_work.advance(1)
    return target


def _reserve(path: Path, size: int) -> None:
    """Give a file a size, and reserve the space, so that a full disk is noticed now."""
    with path.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
        file.truncate(size)


def _flatten_tasks(tar_input: TarInput, folder: Path) -> list[_FlattenTask]:
    """Return one task for each tar, with the place of its contexts among those of all tars."""
    tasks: list[_FlattenTask] = []
    first_context = 0
    for number, tar in enumerate(tar_input.tars):
        tasks.append(_FlattenTask(folder, number, tar, first_context, tar_input.common))
        first_context += tar.contexts
    return tasks


def _flatten(task: _FlattenTask) -> None:
    """Decode the training samples of one tar into the common file, unless this was done before.

    After that, a small file such as `done-3.json` marks tar 3 as done. It says what the tar was
    like, so that the tar is decoded again if it is replaced by another one.

    Args:
        task: The tar, and its place in the file.

    Raises:
        FormatError: A member does not contain the tokens of a context.
        InputError: A context has another length, or a token does not fit the vocabulary or the
            dtype.
    """
    # After a tar is decoded, a small file marks it as done.
    done_content = _done_content(task.tar)
    done_file = task.folder / f"done-{task.number}.json"
    if done_file.exists() and read_regular(done_file) == done_content:
        return
    _write_contexts(task)
    write_atomic(done_file, done_content)


def _done_content(tar: TarSource) -> bytes:
    """Return the content of the file that marks a tar as decoded; it is never parsed.

    It says what was decoded, with the tar's time of modification: if the tar is changed, the
    content differs, and the tar is decoded again.
    """
    identity = asdict(tar) | {"path": str(tar.path), "mtime_ns": tar.path.stat().st_mtime_ns}
    return json.dumps(identity).encode()


def _write_contexts(task: _FlattenTask) -> None:
    """Decode all training samples of a tar, and write their tokens into a file that all tars share.

    All samples have the same length. So it is known in advance where those of each tar go, and
    several processes can write at the same time:

        tar 0 has 100 samples    tar 1 has 50    tar 2 …
        samples 0 to 99          100 to 149      150 to …        of the file

    Raises:
        FormatError: A member does not contain the tokens of a context.
        InputError: A context has another length, or a token does not fit the vocabulary or the
            dtype.
    """
    dtype = np.dtype(task.tar_input.dtype)
    context_bytes = task.tar_input.sequence_length * dtype.itemsize
    contexts_at_once = max(1, _CHUNK_BYTES // context_bytes)
    contexts = _checked_contexts(task.tar, task.tar_input)
    file_of_tokens = task.folder / _TOKENS  # with the tokens of all tars
    with file_of_tokens.open("r+b") as file:
        file.seek(task.first_context * context_bytes)
        while chunk := list(islice(contexts, contexts_at_once)):
            file.write(np.array(chunk, dtype).tobytes())
        file.flush()
        os.fsync(file.fileno())


def _checked_contexts(tar: TarSource, tar_input: TarInput) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the checked contexts of a tar, each of shape (sequence_length,)."""
    for number, tokens in enumerate(_contexts(tar)):
        _check_context(tokens, f"{tar.path}, context {number}", tar_input)
        yield tokens


def _check_context(tokens: NDArray[np.integer[Any]], where: str, tar_input: TarInput) -> None:
    """Check that a training sample has the right length, and tokens that can be stored.

    For example, if samples have 2,049 tokens, the vocabulary has 32,000, and tokens are stored as
    uint16:

        2,049 tokens below 32,000     fine
        2,048 tokens                  refused
        a token 40,000                refused: it is not in the vocabulary

    Without a vocabulary, tokens up to 65,535 are fine, the largest number in uint16.

    Args:
        tokens: Tokens of the sample, shape (n_tokens,).
        where: Tar and number of the sample, for messages.
        tar_input: What all samples must have in common.

    Raises:
        InputError: The sample has another length, or a token is negative or too large.
    """
    if len(tokens) != tar_input.sequence_length:
        raise InputError(
            "all contexts of the tars must have the same length",
            where=where,
            found=f"{len(tokens)} tokens",
            expected=f"{tar_input.sequence_length}, as in the first",
            remedy="shuffle tars of different lengths separately",
        )

    # The limit is the greatest id of the vocabulary or of the dtype, whichever is less.
    dtype_limit = int(np.iinfo(tar_input.dtype).max)
    greatest_id = tar_input.greatest_id  # None without a tokenizer
    if greatest_id is not None and greatest_id < dtype_limit:
        _check_vocabulary(tokens, where, greatest_id)
    else:
        _check_dtype(tokens, where, tar_input.dtype)


def _check_vocabulary(tokens: NDArray[np.integer[Any]], where: str, greatest_id: int) -> None:
    """Check that all tokens of a context are in the vocabulary.

    Args:
        tokens: Tokens of the context, shape (n_tokens,).
        where: Tar and number of the context, for the error.
        greatest_id: Greatest id of the vocabulary.
    """
    is_in_vocabulary = int(tokens.min()) >= 0 and int(tokens.max()) <= greatest_id
    if not is_in_vocabulary:
        number = np.flatnonzero((tokens < 0) | (tokens > greatest_id))[0]
        raise InputError(
            "a token is not in the vocabulary",
            where=f"{where}, token {number}",
            found=f"id {tokens[number]}",
            expected=f"0 to {greatest_id}",
            remedy="name the tokenizer that made the tokens, or leave --tokenizer out",
        )


def _check_dtype(tokens: NDArray[np.integer[Any]], where: str, dtype: str) -> None:
    """Check that all tokens of a context fit the dtype of the output.

    Args:
        tokens: Tokens of the context, shape (n_tokens,).
        where: Tar and number of the context, for the error.
        dtype: Name of the dtype.
    """
    least = int(tokens.min())
    greatest = int(tokens.max())
    limit = int(np.iinfo(dtype).max)
    if least < 0 or greatest > limit:
        raise InputError(
            "a token does not fit the token type",
            where=where,
            found=f"{least} to {greatest}",
            expected=f"0 to {limit} ({dtype})",
            remedy="name the tokenizer that made the tokens with --tokenizer",
        )
