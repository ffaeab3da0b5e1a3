"""Which files a tokenizer is, what else has to be said of it, of which kind they are, and what is
made of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import orjson

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.working_copies import local_copy_of
from nanoset_core.tokenizers.files import named_tokens

if TYPE_CHECKING:
    from nanoset_core.storage.location import RemoteFolder

Kind = Literal[
    "tokenizer.json", "vocab.json", "tiktoken", "tiktoken JSON", "tekken.json", "SentencePiece"
]

FOLDER_NAMES = ("tokenizer.json", "tekken.json", "tokenizer.model", "vocab.json")
"""What is looked for in a folder, in this order."""

HELD = (
    "a tokenizer.json, SentencePiece .model, tekken.json, .tiktoken, vocab.json or Megatron-LM's tiktoken JSON; or a "
    f"folder with {', '.join(FOLDER_NAMES[:-1])}, {FOLDER_NAMES[-1]} or one .tiktoken"
)
"""What may be named as a tokenizer."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
"""Such as gpt2 or EleutherAI/gpt-neox-20b."""
_SUFFIXES = (".json", ".tiktoken", ".model")
_HEAD_BYTES = 4096
_LFS_POINTER = b"version https://git-lfs"
_RANKS_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\s*(\n|$)")
_COMPANIONS = (*named_tokens.FILES, "merges.txt")
_TEKKEN_KEYS = (b'"num_vocab_tokens"', b'"token_bytes"', b'"is_control"')
_VOCABULARY = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\d')


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer's file, with what the file itself does not say."""

    path: Path
    """A tokenizer.json, vocab.json, .tiktoken, Megatron-LM's tiktoken JSON, tekken.json or
    SentencePiece model.
    """
    merges: Path | None = None
    """Of a vocab.json; default: the merges.txt beside it."""
    pattern: str | None = None
    """Of tiktoken's ranks: the name of a split pattern, or a regular expression."""
    special_tokens: tuple[str, ...] | None = None
    """Names of the special tokens, for kinds of files that do not hold them."""
    num_special_tokens: int | None = None
    """Of Megatron-LM's tiktoken JSON: ids that are kept for special tokens."""
    vocab_size: int | None = None
    """Of Megatron-LM's tiktoken JSON: ids in all."""
    legacy: bool = False
    """Of a SentencePiece model: split text at the special tokens first."""

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """Return the file's name."""
        return self.path.name

    @property
    def parent(self) -> Path:
        """Return the file's folder."""
        return self.path.parent

    def is_file(self) -> bool:
        """Return whether the file is there."""
        return self.path.is_file()

    @property
    def merges_file(self) -> Path:
        """Return the file with the merges of a vocab.json."""
        return self.merges or self.path.with_name("merges.txt")

    @property
    def settings(self) -> dict[str, object]:
        """Return key of nanoset.yaml's tokenizer section → value, of those that are set."""
        values = {name: getattr(self, name) for name in FLAGS}
        return {
            name: value
            for name, value in values.items()
            if value is not None and value is not False
        }


TokenizerPath: TypeAlias = Path | TokenizerFile
"""A tokenizer's file, where nothing more is to be said of it, or with what is."""
AnyPath = TypeVar("AnyPath", Path, TokenizerFile, Path | TokenizerFile)

FLAGS = {
    "merges": "--merge-file",
    "pattern": "--tiktoken-pattern",
    "special_tokens": "--tokenizer-special-tokens",
    "num_special_tokens": "--tiktoken-num-special-tokens",
    "vocab_size": "--vocab-size",
    "legacy": "--tokenizer-sentencepiece-legacy",
}
"""Key of nanoset.yaml's tokenizer section → flag of the commands that take a tokenizer."""

_TAKEN: dict[Kind, tuple[str, ...]] = {
    "tokenizer.json": (),
    "vocab.json": ("merges",),
    "tiktoken": ("pattern", "special_tokens"),
    "tiktoken JSON": ("pattern", "special_tokens", "num_special_tokens", "vocab_size"),
    "tekken.json": (),
    "SentencePiece": ("special_tokens", "legacy"),
}


def as_source(tokenizer: str | os.PathLike[str]) -> TokenizerFile:
    """Return a tokenizer's file with its settings; the one in it, of a folder that holds a
    tokenizer.
    """
    source = tokenizer if isinstance(tokenizer, TokenizerFile) else TokenizerFile(Path(tokenizer))
    return replace(source, path=file_in(source.path)) if source.path.is_dir() else source


def file_in(folder: Path) -> Path:
    """Return the tokenizer's file in a folder; the folder itself, if it holds none that is known by
    its name.
    """
    files = [folder / name for name in FOLDER_NAMES]
    ranks = sorted(folder.glob("*.tiktoken"))
    if len(ranks) == 1:
        files += ranks
    return next((file for file in files if file.is_file()), folder)


def tokenizer_files(tokenizer: TokenizerPath | None) -> list[Path]:
    """List all files that a tokenizer is read from, those next to it that name special tokens
    included.
    """
    if tokenizer is None:
        return []
    source = as_source(tokenizer)
    merges = [source.merges_file] if _has_merges(source) else []
    return [source.path, *merges, *named_tokens.files_beside(source.path)]


def _has_merges(source: TokenizerFile) -> bool:
    return source.merges is not None or (
        source.name == "vocab.json" and source.merges_file.is_file()
    )


def local_tokenizer(tokenizer: TokenizerPath) -> TokenizerPath:
    """Return the same tokenizer by the paths that its files have in this process; see
    `local_copy_of`.
    """
    source = as_source(tokenizer)
    path = local_copy_of(source.path)
    if path == source.path:
        return tokenizer
    merges = local_copy_of(source.merges_file) if _has_merges(source) else None
    here = replace(source, path=path, merges=merges)
    return here if here.settings else path


def tokenizer_path(given: AnyPath) -> AnyPath:
    """Return a tokenizer's file, from its own path or from the folder that holds it.

    Raises:
        MissingError: neither is there.
    """
    if isinstance(given, TokenizerFile):
        return replace(given, path=tokenizer_path(given.path))
    file = file_in(given) if given.is_dir() else given
    if not file.is_file():
        raise no_tokenizer(given)
    return file


def stat_signature(tokenizer: TokenizerPath) -> tuple[tuple[int, int, int], ...] | None:
    """Return the stat signature of a tokenizer's files: part of the key of what is cached of it."""
    if not tokenizer.is_file():
        return None
    stats = [file.stat() for file in tokenizer_files(tokenizer) if file.is_file()]
    return tuple((stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in stats)


def kind_of(source: TokenizerFile) -> Kind:
    """Return what kind of file it is, by its content; what is nothing that is known counts as a
    tokenizer.json.

    Raises:
        MissingError: there is no such file.
        FormatError: Git LFS keeps it elsewhere.
        ConfigError: something is set that is not for files of this kind.
    """
    if not source.is_file():
        raise no_tokenizer(source.path)
    with open_regular(source.path) as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_LFS_POINTER):
        raise FormatError(
            "this is Git LFS's pointer to a file, not the file itself",
            where=source,
            found=repr(head[:60].decode(errors="replace")),
            expected="the tokenizer that it stands for",
            remedy="fetch it: `git lfs pull` in its repository, or `hf download`",
        )
    kind = _kind_of(head, source.name)
    for key in source.settings:
        if key not in _TAKEN[kind]:
            kinds = [kind for kind, keys in _TAKEN.items() if key in keys]
            raise ConfigError(
                f"this tokenizer setting does not apply to {_article(kind)}",
                where=source,
                found=f"tokenizer.{key} ({FLAGS[key]})",
                expected=f"for {_article(kind)}: {' or '.join(_TAKEN[kind]) or 'no such settings'}",
                remedy=f"remove the setting, or use {' or '.join(map(_article, kinds))} as the tokenizer",
            )
    return kind


def _kind_of(head: bytes, name: str) -> Kind:
    text = head.lstrip()
    if text.startswith(b"[") and b'"token_bytes"' in head:
        return "tiktoken JSON"
    if text.startswith(b"{"):
        if any(key in head for key in _TEKKEN_KEYS):
            return "tekken.json"
        is_vocabulary = _VOCABULARY.match(text) or (name == "vocab.json" and text[1:2] == b"}")
        return "vocab.json" if is_vocabulary else "tokenizer.json"
    if _RANKS_LINE.match(head) or name.endswith(".tiktoken"):
        return "tiktoken"
    return "SentencePiece" if head[:1] == b"\n" or name.endswith(".model") else "tokenizer.json"


def _article(kind: Kind) -> str:
    return {
        "tiktoken": "a file of tiktoken ranks",
        "tiktoken JSON": "Megatron-LM's tiktoken JSON",
        "SentencePiece": "a SentencePiece model",
    }.get(kind, f"a {kind}")


def no_tokenizer(path: Path, *, name: str | None = None, where: object = None) -> MissingError:
    """Return the error for a tokenizer that is not there; `name`: as the user wrote it; `where`:
    what names it.
    """
    name = name or str(path)
    remedy = "correct the path; tokenizer.json is what save_pretrained and tokenizer.save write"
    found = "no file" if os.path.lexists(path) else "not there"
    if path.is_dir():
        some = sorted(
            file.name
            for file in path.iterdir()
            if file.suffix in _SUFFIXES or ".model" in file.suffixes
        )
        found = f"a folder with {', '.join(some[:12])}" if some else "a folder"
        remedy = "name the file in it that is the tokenizer" if some else remedy
    elif found == "not there" and _HUB_NAME.fullmatch(name) and not name.endswith(".json"):
        remedy = (
            "correct the path; or, where a model of the Hugging Face Hub is meant, fetch its tokenizer: "
            f"`hf download {name} tokenizer.json --local-dir {name}`, and name {name}/tokenizer.json"
        )
    where = path if where is None else where
    return MissingError(
        "no tokenizer there", where=where, found=f"{path} is {found}", expected=HELD, remedy=remedy
    )


def tokenizer_here(location: RemoteFolder, mirror: Path | None = None) -> Path:
    """Copy a tokenizer's file, or its folder, as the bucket has it now, with what is read beside
    it.

    `mirror`: the folder of working copies, if not that in the user's cache folder.

    Raises:
        MissingError: neither is there.
        StorageError: the bucket cannot be reached, or refuses.
    """
    from nanoset_core.storage.access import FileAccess
    from nanoset_core.storage.location import copies_folder

    is_file = location.is_file()
    folder = location.parent if is_file else location
    names = [location.name] if is_file else location.store.level(location.path)[1]
    wanted = [
        name for name in names if is_file or name in FOLDER_NAMES or name.endswith(".tiktoken")
    ]
    if not wanted:
        raise MissingError(
            "no tokenizer there",
            where=location,
            found="no such object, and no folder that holds one",
            expected=HELD,
            remedy="correct the address; tokenizer.json is what save_pretrained and tokenizer.save write",
        )
    access = FileAccess(copies_folder(folder.place, mirror), folder.place)
    for name in dict.fromkeys([*wanted, *([] if is_file else FOLDER_NAMES), *_COMPANIONS]):
        # and remove the copies of what the folder does not hold
        access.revalidate(access.folder / name)
    return access.folder / location.name if is_file else access.folder


NEVER_IN_TEXT = "\u2060"
"""Marks the names of tokens that no text may give: byte-level models never write bytes as this
character.
"""


@dataclass(frozen=True, slots=True)
class Content:
    """What other files than a tokenizer.json define."""

    json: bytes = field(repr=False)
    """The same as a tokenizer.json."""
    meaning: Mapping[str, Any]
    """What else decides the tokens, as plain values."""
    vocab_size: int
    """What the trainer's class says."""
    max_id: int
    """The greatest id of any token."""
    special_tokens: Mapping[str, int] = field(repr=False)
    """Name → id."""
    eod: str | None
    """Ends documents, where files of this kind settle it."""
    notice: str = ""
    """What the user should know and the file cannot say."""


def byte_characters() -> list[str]:
    """Return 256 characters: byte b is written as the b-th of them (`bytes_to_unicode` in GPT-2's
    `encoder.py`).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


_BYTE_OF = {character: byte for byte, character in enumerate(byte_characters())}


def token_bytes(entry: str) -> bytes | None:
    """Return the bytes that an entry of a byte-level vocabulary stands for; None where it holds
    other characters.
    """
    try:
        return bytes(map(_BYTE_OF.__getitem__, entry))
    except KeyError:
        return None


def tokenizer_json(**parts: Any) -> bytes:
    """Return a tokenizer.json of these parts; what is not given is null."""
    empty = dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    return orjson.dumps({"version": "1.0", **empty, "added_tokens": [], **parts})


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    """Return the pre-tokenizer, or decoder, that writes bytes as characters."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def bpe(vocabulary: Mapping[str, int], merges: list[Any], **options: Any) -> dict[str, Any]:
    """Return a BPE model."""
    unused = dict.fromkeys(
        ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    )
    defaults = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", **unused, **defaults, **options, "vocab": vocabulary, "merges": merges}


def added_token(
    name: str, ident: int, *, special: bool = True, normalized: bool = False
) -> dict[str, Any]:
    """Return a token that is looked for in text before anything else; `normalized`: but for the
    text's normal form.
    """
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    return {"id": ident, "content": name, **flags, "normalized": normalized, "special": special}
