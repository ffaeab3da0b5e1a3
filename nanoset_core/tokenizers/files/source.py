"""Where a tokenizer's files are, and the settings that the files do not contain.

A user names a file or a folder. Some kinds of files need settings in addition, such as the pattern
by which tiktoken's ranks split text; a `TokenizerFile` has both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from nanoset_core.errors import MissingError
from nanoset_core.storage.copies.worker_folders import local_copy_of
from nanoset_core.tokenizers.files import named_tokens
from nanoset_core.wording import alternatives_text

if TYPE_CHECKING:
    from nanoset_core.storage.remote_path import RemotePath

FOLDER_NAMES = ("tokenizer.json", "tekken.json", "tokenizer.model", "vocab.json")
"""Names of files that are looked for in a folder, in this order."""

ACCEPTED_FILES = (
    "a tokenizer.json, SentencePiece .model, tekken.json, .tiktoken, vocab.json "
    "or Megatron-LM's tiktoken JSON; or a folder with "
    + alternatives_text([*FOLDER_NAMES, "one .tiktoken"])
)
"""What a user may name as a tokenizer, for messages."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
"""A name as models have it on the Hugging Face Hub, such as gpt2 or EleutherAI/gpt-neox-20b."""
_SUFFIXES = (".json", ".tiktoken", ".model")
"""Endings of files that may be tokenizers."""
_COMPANIONS = (*named_tokens.FILES, "merges.txt")
"""Names of files that are read next to a tokenizer's own."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer's file, with the settings that the file itself does not contain."""

    path: Path
    """A tokenizer.json, vocab.json, .tiktoken, Megatron-LM's tiktoken JSON, tekken.json or
    SentencePiece model.
    """
    merges: Path | None = None
    """For a vocab.json: the file of its merges; None for the merges.txt next to it."""
    pattern: str | None = None
    """For tiktoken's ranks: the name of a split pattern, or a regular expression."""
    special_tokens: tuple[str, ...] | None = None
    """Names of the special tokens, for kinds of files that do not contain them."""
    num_special_tokens: int | None = None
    """For Megatron-LM's tiktoken JSON: number of ids that are reserved for special tokens."""
    vocab_size: int | None = None
    """For Megatron-LM's tiktoken JSON: number of all ids."""
    legacy: bool = False
    """For a SentencePiece model: split text at the special tokens first."""

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @property
    def parent(self) -> Path:
        """The file's folder."""
        return self.path.parent

    def is_file(self) -> bool:
        """Return whether the file exists."""
        return self.path.is_file()

    @property
    def merges_file(self) -> Path:
        """The file with the merges of a vocab.json."""
        return self.merges or self.path.with_name("merges.txt")

    @property
    def has_merges_file(self) -> bool:
        """Whether the tokenizer has a file of merges, by its settings or by the files' names."""
        if self.merges is not None:
            return True
        return self.name == "vocab.json" and self.merges_file.is_file()

    @property
    def settings(self) -> dict[str, object]:
        """The settings that differ from the defaults, by key of nanoset.yaml's section."""
        values = {name: getattr(self, name) for name in FLAGS}
        # By identity: a 0 is a setting, though it equals False.
        return {
            name: value
            for name, value in values.items()
            if value is not None and value is not False
        }


TokenizerPath: TypeAlias = Path | TokenizerFile
"""A tokenizer's file, with settings or without."""
AnyPath = TypeVar("AnyPath", Path, TokenizerFile, Path | TokenizerFile)

FLAGS = {
    "merges": "--merge-file",
    "pattern": "--tiktoken-pattern",
    "special_tokens": "--tokenizer-special-tokens",
    "num_special_tokens": "--tiktoken-num-special-tokens",
    "vocab_size": "--vocab-size",
    "legacy": "--tokenizer-sentencepiece-legacy",
}
"""Key of nanoset.yaml's section `tokenizer` → flag of the commands that take a tokenizer."""


def as_source(tokenizer: str | os.PathLike[str]) -> TokenizerFile:
    """Return a tokenizer's file as a `TokenizerFile`, which has settings.

    Args:
        tokenizer: The file, or a folder that contains it. A plain path has no settings.
    """
    if isinstance(tokenizer, TokenizerFile):
        source = tokenizer
    else:
        source = TokenizerFile(Path(tokenizer))
    if source.path.is_dir():
        return replace(source, path=file_in(source.path))
    return source


def file_in(folder: Path) -> Path:
    """Return the tokenizer's file in a folder, or the folder itself if it contains none.

    A folder with a model often has several: a tokenizer.json is preferred to a vocab.json, for
    example (`FOLDER_NAMES` has the order). Last, a `.tiktoken` is taken, if there is only one.

    Args:
        folder: The folder. Folders within it are not searched.
    """
    candidates = [folder / name for name in FOLDER_NAMES]
    rank_files = sorted(folder.glob("*.tiktoken"))
    if len(rank_files) == 1:
        candidates += rank_files
    return next((file for file in candidates if file.is_file()), folder)


def tokenizer_files(tokenizer: TokenizerPath | None) -> list[Path]:
    """Return all files that a tokenizer is read from.

    For example, vocab.json, merges.txt, and tokenizer_config.json, which names special tokens.

    Args:
        tokenizer: The tokenizer's file; None for no tokenizer.
    """
    if tokenizer is None:
        return []
    source = as_source(tokenizer)
    files = [source.path]
    if source.has_merges_file:
        files.append(source.merges_file)
    return [*files, *named_tokens.files_beside(source.path)]


def local_tokenizer(tokenizer: TokenizerPath) -> TokenizerPath:
    """Return this machine's copy of a tokenizer's file, or the tokenizer itself if there is none.

    A task may be given out by another machine, which names the tokenizer by a path there. A worker
    may have a copy of that file elsewhere: /shared/tok/vocab.json → /local/cache/vocab.json. The
    settings of the tokenizer stay; a file of merges next to a vocab.json has a copy, too.

    Args:
        tokenizer: The tokenizer, as the other machine names it; a path, or a path with settings.
    """
    source = as_source(tokenizer)
    local_path = local_copy_of(source.path)
    if local_path == source.path:
        return tokenizer

    local_source = replace(source, path=local_path)
    if source.has_merges_file:  # its copy need not be next to that of the vocab.json
        local_source = replace(local_source, merges=local_copy_of(source.merges_file))
    has_settings = len(local_source.settings) > 0
    return local_source if has_settings else local_path


def tokenizer_path(tokenizer: AnyPath) -> AnyPath:
    """Return a tokenizer's file, after checking that it exists.

    Args:
        tokenizer: The file, or the folder that contains it.

    Raises:
        MissingError: The file does not exist, or the folder contains no tokenizer.
    """
    if isinstance(tokenizer, TokenizerFile):
        return replace(tokenizer, path=tokenizer_path(tokenizer.path))
    file = tokenizer
    if tokenizer.is_dir():
        file = file_in(tokenizer)
    if not file.is_file():
        raise missing_tokenizer(tokenizer)
    return file


class FileSignature(NamedTuple):
    """What changes if a file is written or replaced."""

    size: int
    modified_ns: int
    inode: int


def stat_signature(tokenizer: TokenizerPath) -> tuple[FileSignature, ...] | None:
    """Return values that change if a file of a tokenizer is written or replaced.

    Tokenizers are kept in memory after they have been read. These values are part of the key, so
    that a changed file is read again.

    Args:
        tokenizer: The tokenizer's file.

    Returns:
        Size, time and inode of each file; None if the tokenizer does not exist.
    """
    if not tokenizer.is_file():
        return None
    stats = [file.stat() for file in tokenizer_files(tokenizer) if file.is_file()]
    return tuple(FileSignature(stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in stats)


def missing_tokenizer(path: Path, *, name: str | None = None, where: object = None) -> MissingError:
    """Return the error for a tokenizer that does not exist.

    It says what there is instead, and what the user can do:

        "/tok is a folder with a.model, b.model"    name the file in it that is the tokenizer
        "openai/gpt2 does not exist"                download it from the Hugging Face Hub
        "/tok.json does not exist"                  correct the path

    Args:
        path: Path of the missing file or folder.
        name: The name that the user wrote; by default, the path.
        where: The setting or option with this name; by default, the path.
    """
    remedy = "correct the path; tokenizer.json is what save_pretrained and tokenizer.save write"
    if path.is_dir():
        file_names = _possible_tokenizers(path)
        found = f"{path} is a folder"
        if file_names:
            found += f" with {', '.join(file_names[:12])}"
            remedy = "name the file in it that is the tokenizer"
    elif os.path.lexists(path):  # a pipe, for example, or a link to nothing
        found = f"{path} is no file"
    else:
        found = f"{path} does not exist"
        hub_remedy = _remedy_for_hub_name(name or str(path))
        if hub_remedy:
            remedy = hub_remedy

    return MissingError(
        "there is no tokenizer",
        where=path if where is None else where,
        found=found,
        expected=ACCEPTED_FILES,
        remedy=remedy,
    )


def _remedy_for_hub_name(name: str) -> str:
    """Return how to get a tokenizer, if its name looks like a model of the Hugging Face Hub.

    A user may expect that "EleutherAI/gpt-neox-20b" is downloaded, as other programs do. This one
    reads files only.

    Args:
        name: What the user wrote in place of a path.

    Returns:
        The remedy, with the command `hf download EleutherAI/gpt-neox-20b tokenizer.json …`; empty
        for other names.
    """
    if not _HUB_NAME.fullmatch(name) or name.endswith(".json"):
        return ""
    return (
        "correct the path; or, to use a model of the Hugging Face Hub, download its "
        f"tokenizer: `hf download {name} tokenizer.json --local-dir {name}`, "
        f"and name {name}/tokenizer.json"
    )


def _possible_tokenizers(folder: Path) -> list[str]:
    """Return the names of files in a folder that may be tokenizers, by their endings."""
    names = []
    for file in folder.iterdir():
        # Some models are called tokenizer.model.v3.
        if file.suffix in _SUFFIXES or ".model" in file.suffixes:
            names.append(file.name)
    return sorted(names)


def tokenizer_here(location: RemotePath, mirror: Path | None = None) -> Path:
    """Copy a tokenizer from a bucket (such as S3) to this machine.

    Copies of an earlier call are updated. The files next to the tokenizer that are read together
    with it are copied, too, such as tokenizer_config.json.

    Args:
        location: The tokenizer's file, or its folder.
        mirror: Folder for working copies; None for the one in the user's cache folder.

    Returns:
        Path of the local copy, which is a file or a folder as `location` is.

    Raises:
        MissingError: There is neither such a file nor such a folder.
        StorageError: The bucket cannot be reached, or refuses access.
    """
    if location.is_file():
        names = [location.name, *_COMPANIONS]
        return _copy_files(location.parent, names, mirror) / location.name
    names = [*_tokenizers_in(location), *FOLDER_NAMES, *_COMPANIONS]
    return _copy_files(location, names, mirror)


def _copy_files(folder: RemotePath, names: Iterable[str], mirror: Path | None) -> Path:
    """Copy files of a folder in a bucket to this machine, and return the folder of the copies.

    A file is only downloaded if its copy is missing or outdated. If there is no such file, its
    copy, if any, is deleted.

    Args:
        folder: The folder in the bucket.
        names: Names of the files that may be in it. Some may be repeated.
        mirror: Folder for working copies; None for the one in the user's cache folder.
    """
    from nanoset_core.storage.access import FileAccess
    from nanoset_core.storage.location import copies_folder

    access = FileAccess(copies_folder(folder.place, mirror), folder.place)
    for name in dict.fromkeys(names):
        access.revalidate(access.folder / name)
    return access.folder


def _tokenizers_in(folder: RemotePath) -> list[str]:
    """Return the names of the tokenizers' files in a folder of a bucket (such as S3), at least one.

    Args:
        folder: The folder. Its own files are listed, in one request, and none of folders within it.

    Raises:
        MissingError: There is none.
    """
    _, file_names = folder.store.level(folder.path)
    tokenizer_names = [
        name for name in file_names if name in FOLDER_NAMES or name.endswith(".tiktoken")
    ]
    if not tokenizer_names:
        raise MissingError(
            "there is no tokenizer",
            where=folder,
            found="no such object, and no folder that contains one",
            expected=ACCEPTED_FILES,
            remedy="correct the address; "
            "tokenizer.json is what save_pretrained and tokenizer.save write",
        )
    return tokenizer_names
