"""What everything of a project is called in Dagster: one object gives every name, so that no two projects share one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import dagster as dg

from nanoset_core.errors import ConfigError

MOST_CHARACTERS = 40
"""Of a key prefix, its parts joined: it stands in tags of runs, whose names are short."""
_PART = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*")
_GROUP = re.compile(r"[A-Za-z0-9_]*")
_NO_GROUP_CHARACTER = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one project; without a prefix assets `raw_jsonl`, partitions `corpora`, job `corpus`."""

    key_prefix: tuple[str, ...] = ()
    """Before the key of every asset; in the names of all else that is the project's, too."""
    group_prefix: str | None = None
    """Before the name of every group of assets; default: made of the key prefix."""

    def asset(self, path: str | Sequence[str]) -> dg.AssetKey:
        """Return the key of an asset that the pipeline knows by a name, or a path such as ("pretrain", "blend")."""
        return dg.AssetKey([*self.key_prefix, *([path] if isinstance(path, str) else path)])

    def path(self, key: dg.AssetKey) -> tuple[str, ...] | None:
        """Return what the pipeline knows an asset by; None for an asset without this project's prefix."""
        path, length = tuple(key.path), len(self.key_prefix)
        return path[length:] if path[:length] == self.key_prefix else None

    @property
    def corpora(self) -> dg.DynamicPartitionsDefinition:
        """The partitions of the assets that are cut by corpus."""
        return _dynamic(self.corpora_name)

    @property
    def corpora_name(self) -> str:
        """What the instance knows these partitions by."""
        return self.path_name("corpora")

    def partition_set(self, name: str) -> dg.DynamicPartitionsDefinition:
        """Return a set of corpora of its own, for an asset that only some corpora have."""
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
    # One shared object a name: two dynamic definitions of different names would silently not match.
    return dg.DynamicPartitionsDefinition(name=name)


def names_of(
    key_prefix: str | Sequence[str] | None, group_prefix: str | None, where: object = "key_prefix, group_prefix"
) -> Names:
    """Return the names under a prefix: its parts, or these with `/` between them; empty: none. `where` they were given
    is said by the ConfigError for what can be no part of a name."""
    parts = tuple(key_prefix.split("/") if isinstance(key_prefix, str) else key_prefix or ())
    parts = () if parts == ("",) else parts  # as "" splits
    what, remedy = "this is no valid part of a key prefix", "write a prefix such as llm, or [team, llm]"
    for part in parts:
        if _PART.fullmatch(part) is None:
            expected = "letters and digits, with single _ between them"
            raise ConfigError(what, where=where, found=repr(part), expected=expected, remedy=remedy)
    if (length := len(".".join(parts))) > MOST_CHARACTERS:
        what, found = "this key prefix is too long", f"{length} characters"
        expected = f"at most {MOST_CHARACTERS}, with one between two parts"
        raise ConfigError(what, where=where, found=found, expected=expected, remedy="shorten it")
    if _GROUP.fullmatch(group_prefix or "") is None:
        expected, remedy = "letters, digits and _", "remove other characters: for example llm_"
        what = "not valid in the name of a Dagster group"
        raise ConfigError(what, where=where, found=repr(group_prefix), expected=expected, remedy=remedy)
    return Names(parts, group_prefix)
