"""The names of a project's things in Dagster.

One object gives all of them, so that two projects never share a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import dagster as dg

from nanoset_core.errors import ConfigError

MAX_CHARACTERS = 40
"""Of a key prefix, its parts joined: it is part of tags of runs, whose names are short."""
_PART = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*")
_GROUP = re.compile(r"[A-Za-z0-9_]*")
_NO_GROUP_CHARACTER = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one project.

    Without a prefix, assets have names such as `raw_jsonl`, the partitions `corpora`, and the job
    `corpus`.
    """

    key_prefix: tuple[str, ...] = ()
    """Before the key of every asset, and in the names of everything else that belongs to the
    project.
    """
    group_prefix: str | None = None
    """Before the name of every group of assets; default: made of the key prefix."""

    def asset(self, path: str | Sequence[str]) -> dg.AssetKey:
        """Return the Dagster key of an asset, with the project's prefix.

        The asset is given by name, or as a path such as ("pretrain", "blend").
        """
        parts = [path] if isinstance(path, str) else path
        return dg.AssetKey([*self.key_prefix, *parts])

    def path(self, key: dg.AssetKey) -> tuple[str, ...] | None:
        """Return an asset's path without the project's prefix, or None if it has another one."""
        length = len(self.key_prefix)
        parts = tuple(key.path)
        if parts[:length] != self.key_prefix:
            return None
        return parts[length:]

    @property
    def corpora(self) -> dg.DynamicPartitionsDefinition:
        """The partitions of the assets that every corpus has."""
        return _dynamic(self.corpora_name)

    @property
    def corpora_name(self) -> str:
        """What the instance knows these partitions by."""
        return self.path_name("corpora")

    def partition_set(self, name: str) -> dg.DynamicPartitionsDefinition:
        """Return a set of corpora for an asset that only some corpora have."""
        return _dynamic(self.path_name(name))

    def definition(self, name: str) -> str:
        """Return the name of a job, sensor or schedule."""
        return "__".join([*self.key_prefix, name])

    def path_name(self, name: str) -> str:
        """Return the name of a set of partitions, or of a pool of concurrent runs."""
        return "/".join([*self.key_prefix, name])

    def group(self, name: str) -> str:
        """Return the name of a group of assets; Dagster takes letters, digits and `_` only."""
        prefix = self.group_prefix
        if prefix is None:
            prefix = "".join(f"{part}_" for part in self.key_prefix)
        return _NO_GROUP_CHARACTER.sub("_", f"{prefix}{name}")

    def tag(self, name: str) -> str:
        """Return the name of a tag by which this project, and no other, finds its runs."""
        return ".".join([name, *self.key_prefix])


@lru_cache(maxsize=256)
def _dynamic(name: str) -> dg.DynamicPartitionsDefinition:
    # One shared object for each name: two dynamic definitions of different names would silently not
    # match.
    return dg.DynamicPartitionsDefinition(name=name)


def names_of(
    key_prefix: str | Sequence[str] | None,
    group_prefix: str | None,
    where: object = "key_prefix, group_prefix",
) -> Names:
    """Return the names under a prefix.

    Args:
        key_prefix: Its parts, or a text with `/` between them; empty: none.
        group_prefix: See `Names`.
        where: Where they were written, for messages.

    Raises:
        ConfigError: A prefix cannot be part of a name.
    """
    if isinstance(key_prefix, str):
        key_prefix = key_prefix.split("/") if key_prefix else ()
    parts = tuple(key_prefix or ())
    if parts == ("",):
        parts = ()
    for part in parts:
        if _PART.fullmatch(part) is None:
            raise ConfigError(
                "this is no valid part of a key prefix",
                where=where,
                found=repr(part),
                expected="letters and digits, with single _ between them",
                remedy="write a prefix such as llm, or [team, llm]",
            )
    length = len(".".join(parts))
    if length > MAX_CHARACTERS:
        raise ConfigError(
            "this key prefix is too long",
            where=where,
            found=f"{length} characters",
            expected=f"at most {MAX_CHARACTERS}, with one between two parts",
            remedy="shorten it",
        )
    if _GROUP.fullmatch(group_prefix or "") is None:
        raise ConfigError(
            "not valid in the name of a Dagster group",
            where=where,
            found=repr(group_prefix),
            expected="letters, digits and _",
            remedy="remove other characters: for example llm_",
        )
    return Names(parts, group_prefix)
