"""Check the names that users give to corpora, nanosets, webdatasets and keys of the raw text.

Names become parts of file names, and keys of partitions and assets in Dagster. For example, the
corpus `web` with the key `text` has a file `web_text_document.bin`: so neither may contain a `/`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated

from nanoset_core.errors import ConfigError
from nanoset_core.records.rules import Check
from nanoset_core.storage.paths import has_control_characters

_CORPUS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ASSET = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_MAX_NAME_CHARACTERS = 128
"""File systems limit a file's name to 255 bytes.

The longest name of a file is that of <corpus>_<key>_document.manifest.json and the like.
"""
MOST_KEY_BYTES = 64
"""Limit for the key of the text in a corpus's raw text, which is part of file names."""
RESERVED = (
    "corpus",
    "corpora",
    "raw_jsonl",
    "tokenized_shards",
    "indexed_dataset",
    "packed_dataset",
    "packed",
)
"""Names of jobs, groups and assets that every project has in Dagster."""

VIEWS_JOB = "{subject}_views"
"""Name of the job in Dagster that makes all views of a corpus."""
PACKS_JOB = "{subject}_packs"
"""Name of the job that makes all packs of a corpus."""
PBIN_JOB = "{subject}_packed"
"""Name of the job that makes the .pbin of a view or of packs.

It ends with `_packed`, because the key `pbin` was named `packed` in earlier versions.
"""


_GIVE_ANOTHER = "give it another name"


class CorpusNameError(ConfigError):
    """A corpus, or a folder of raw text, has a name that no corpus can have."""


def check_corpus_name(name: str, where: object, *, remedy: str = _GIVE_ANOTHER) -> str:
    """Return a name after checking that a corpus, which is a collection of texts, may have it.

    The name becomes part of file names, so it has up to 128 letters, digits, '.', '_' and '-', and
    begins with a letter or digit:

        web, web-2026.1    returned
        .web, web/a, ""    an error

    Args:
        name: The name, which is that of a folder of raw text, or a key or value of nanoset.yaml.
        where: Place of the name, for the error.
        remedy: What the user can do about a wrong name.

    Raises:
        CorpusNameError: It is not such a name.
    """
    if not _CORPUS.fullmatch(name) or len(name) > _MAX_NAME_CHARACTERS:
        raise CorpusNameError(
            "this cannot name a corpus, a view or packs",
            where=where,
            found=repr(name),
            expected=(
                f"up to {_MAX_NAME_CHARACTERS} letters, digits, '.', '_' and '-', "
                "starting with a letter or digit"
            ),
            remedy=remedy,
        )
    return name


def check_text_key(key: str, where: object, most_bytes: int = MOST_KEY_BYTES) -> str:
    """Return a key of the raw text after checking that it can be part of a file's name.

    A document of raw text is a JSON object such as {"text": "The cat sat", "id": 3}. The user says
    which key has the text. For the corpus `web` and the key `text`, files are named
    `web_text_document.bin`.

    Args:
        key: The key, such as "text".
        where: Place of the key, for the error.
        most_bytes: Limit for its length in UTF-8.

    Raises:
        ConfigError: It is empty or too long, is not UTF-8, or contains '/' or a control character.
    """
    reason = _why_not_in_file_name(key, most_bytes)  # such as "is empty"
    if reason is None:
        return key

    # The message shows the beginning of a long key, with control characters as escapes.
    shown_key = ascii(key[:most_bytes])
    if len(key) > most_bytes:
        shown_key += "…"
    raise ConfigError(
        "this key cannot be part of a file's name",
        where=where,
        found=f"{shown_key}, which {reason}",
        expected=(
            f"up to {most_bytes} bytes of text without '/' and control characters, "
            "since files are named <name>_<key>_document"
        ),
        remedy="rename the key in the raw text",
    )


def _why_not_in_file_name(key: str, most_bytes: int) -> str | None:
    """Return why a key cannot be part of a file's name, or None if it can.

    Args:
        key: The key under which the documents of a corpus have their text, such as "text".
        most_bytes: Limit for its length in UTF-8.

    Returns:
        The end of a sentence that begins with the key, such as "is empty" or "has 90 bytes".
    """
    try:
        n_bytes = len(key.encode())
    except UnicodeEncodeError:
        # It contains half of a surrogate pair, or a byte of the command line that is not UTF-8.
        return "is not UTF-8"
    if not key:
        return "is empty"
    if "/" in key or has_control_characters(key):
        return "contains '/' or a control character"
    if n_bytes > most_bytes:
        return f"has {n_bytes:,} bytes"
    return None


def check_asset_name(name: str, where: object) -> str:
    """Return a name after checking that a data set which the user defines may have it.

    The name becomes that of an asset in Dagster, the program that runs the builds. Names such as
    `corpus` (see `RESERVED`) are reserved: every project has assets or jobs of these names.

    Args:
        name: The name, such as `pretrain`.
        where: Place of the name, for the error.

    Returns:
        The name, unchanged.

    Raises:
        ConfigError: It is longer than 128 characters, does not begin with a letter, has other
            characters than letters, digits, '_' and '-', or is reserved.
    """
    if not _ASSET.fullmatch(name) or len(name) > _MAX_NAME_CHARACTERS:
        raise ConfigError(
            "this cannot name an asset",
            where=where,
            found=repr(name),
            expected=(
                f"up to {_MAX_NAME_CHARACTERS} letters, digits, '_' and '-', starting with a letter"
            ),
            remedy="give it another name",
        )
    # Dagster's names contain an underscore in place of a dash.
    if name.replace("-", "_") in RESERVED:
        raise ConfigError(
            "this name is reserved",
            where=where,
            found=repr(name),
            expected=f"none of {', '.join(RESERVED)}",
            remedy="give it another name",
        )
    return name


CorpusName = Annotated[str, Check(check_corpus_name)]
"""Type of a key that names a corpus, or a dataset that is made from one."""
AssetName = Annotated[str, Check(check_asset_name)]
"""Type of the name of a nanoset, webdataset, export or search for evaluation texts."""
TextKey = Annotated[str, Check(check_text_key)]
"""Type of a key that names the key of the text in raw documents."""


def check_corpora(corpora: Collection[str], where: object, *, have_weights: bool = True) -> None:
    """Check that a list of corpora, which are collections of texts, names at least one, and none
    twice.

    For example, ["web", "books"] is right; [] and ["web", "web"] are errors.

    Args:
        corpora: The names.
        where: Place of the list, for errors.
        have_weights: Whether the corpora may have weights, as in a blend.

    Raises:
        ConfigError: There are none, a name is not valid, or a name is repeated.
    """
    if not corpora:
        raise ConfigError(
            "no corpora are named",
            where=where,
            expected="at least one",
            remedy="name a folder of raw text, or a dataset that is made from one",
        )
    for corpus in corpora:
        check_corpus_name(corpus, where)
    if len(set(corpora)) != len(corpora):
        remedy = "remove the repetition"
        if have_weights:
            remedy += "; to see a corpus more often, give it a greater weight"
        raise ConfigError(
            "a corpus is named twice", where=where, found=", ".join(corpora), remedy=remedy
        )
