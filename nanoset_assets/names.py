"""Names of the assets, jobs, sensors, partitions and tags of a project in Dagster.

They all come from one object, which adds the project's prefix, so that two projects with different
prefixes never share a name. With the prefix `llm`, for example, the asset `raw_jsonl` becomes
`llm/raw_jsonl`, and the job `corpus` becomes `llm__corpus`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import dagster as dg

from nanoset_core.errors import ConfigError

MAX_CHARACTERS = 40
"""Longest key prefix, its parts joined. It is part of tags of runs, whose length is limited."""
_PREFIX_PART = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*")
"""A valid part of a key prefix. It contains no `__`, by which parts are joined in names of jobs."""
_GROUP_PREFIX = re.compile(r"[A-Za-z0-9_]*")
"""A valid prefix of the names of groups."""
_NO_GROUP_CHARACTER = re.compile(r"[^A-Za-z0-9_]")
"""A character that Dagster does not allow in the name of a group."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one project.

    Without a prefix, assets have names such as `raw_jsonl`, the partitions `corpora`, and the job
    `corpus`.
    """

    key_prefix: tuple[str, ...] = ()
    """Prefix of the key of every asset, and of all other names of the project."""
    group_prefix: str | None = None
    """Prefix of the name of every asset group; default: derived from the key prefix."""

    def asset(self, path: str | Sequence[str]) -> dg.AssetKey:
        """Return the key of an asset in Dagster, with the project's prefix.

        For a project with the prefix `llm`:

            "raw_jsonl"              llm/raw_jsonl
            ("pretrain", "blend")    llm/pretrain/blend

        Args:
            path: The name of the asset, or the parts of its name.
        """
        parts = [path] if isinstance(path, str) else path
        return dg.AssetKey([*self.key_prefix, *parts])

    def path(self, key: dg.AssetKey) -> tuple[str, ...] | None:
        """Return the parts of an asset's name without the project's prefix.

        For a project with the prefix `llm`:

            llm/pretrain/blend    ("pretrain", "blend")
            other/raw_jsonl       None: an asset of another project

        Args:
            key: The key of any asset in Dagster.
        """
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
        """The name under which the instance stores the partitions of `corpora`."""
        return self.path_name("corpora")

    def partition_set(self, name: str) -> dg.DynamicPartitionsDefinition:
        """Return the set of Dagster partitions of an asset that is only made of some corpora.

        Corpora are collections of documents. Assets that are made of all of them share the set
        `corpora`. This asset has a set of its own, so that Dagster does not show the other corpora
        as missing.

        Args:
            name: The name of the asset, without the project's prefix.
        """
        return _dynamic(self.path_name(name))

    def definition(self, name: str) -> str:
        """Return the name of a job, sensor or schedule in Dagster, with the project's prefix.

        Such names may not contain a slash. So with the prefix `llm`, `corpus` becomes
        `llm__corpus`.

        Args:
            name: The name without the prefix.
        """
        return "__".join([*self.key_prefix, name])

    def path_name(self, name: str) -> str:
        """Return the name of a set of partitions, or of a pool of runs, with the project's prefix.

        With the prefix `llm`, `corpora` becomes `llm/corpora`.

        Args:
            name: The name without the prefix.
        """
        return "/".join([*self.key_prefix, name])

    def group(self, name: str) -> str:
        """Return the name of a group of assets in Dagster, which its UI shows as a box.

        Dagster allows only letters, digits and `_`. For a project with the prefix `llm`:

            corpora         llm_corpora
            pretrain-v2     llm_pretrain_v2

        Args:
            name: The name without the project's prefix.
        """
        prefix = self.group_prefix
        if prefix is None:
            prefix = "".join(f"{part}_" for part in self.key_prefix)
        return _NO_GROUP_CHARACTER.sub("_", f"{prefix}{name}")

    def tag(self, name: str) -> str:
        """Return the name of a tag of runs, by which this project finds its own runs.

        Several projects can have runs in the same Dagster. So the prefix of the project is
        appended: with the prefix `llm`, `nanoset/x` becomes `nanoset/x.llm`.

        Args:
            name: The name of the tag without the prefix.
        """
        return ".".join([name, *self.key_prefix])


@lru_cache(maxsize=256)
def _dynamic(name: str) -> dg.DynamicPartitionsDefinition:
    """Return a set of Dagster partitions that can be added while Dagster runs.

    It is the same object for all assets that use the set.

    Args:
        name: The name of the set, such as "llm/corpora".
    """
    return dg.DynamicPartitionsDefinition(name=name)


def names_of(
    key_prefix: str | Sequence[str] | None,
    group_prefix: str | None,
    where: object = "key_prefix, group_prefix",
) -> Names:
    """Return an object that makes the names of a project in Dagster, all with the same prefix.

    The prefix keeps apart the names of several projects. It may have several parts:

        "llm"              llm/raw_jsonl
        "team/llm"         team/llm/raw_jsonl
        ["team", "llm"]    team/llm/raw_jsonl
        "" or None         raw_jsonl

    Args:
        key_prefix: The prefix, in one of these forms.
        group_prefix: Prefix of the names of asset groups, which arrange assets in the UI; None:
            made from `key_prefix`.
        where: Which setting it is, for messages.

    Raises:
        ConfigError: A prefix has characters that are not allowed, or is too long.
    """
    if isinstance(key_prefix, str):
        key_prefix = key_prefix.split("/")
    parts = tuple(key_prefix or ())
    if parts == ("",):
        parts = ()
    _check_key_prefix(parts, where)
    if _GROUP_PREFIX.fullmatch(group_prefix or "") is None:
        raise ConfigError(
            "not valid in the name of a Dagster group",
            where=where,
            found=repr(group_prefix),
            expected="letters, digits and _",
            remedy="remove other characters: for example llm_",
        )
    return Names(parts, group_prefix)


def _check_key_prefix(parts: Sequence[str], where: object) -> None:
    """Check that a prefix can be part of all names of a project in Dagster.

        llm, or [team, llm]    allowed
        my-llm                 not allowed: the names of jobs have no hyphens
        a__b                   not allowed: two underscores separate the parts of a name

    Args:
        parts: The parts of the prefix; empty if the project has none.
        where: Which setting it is, for messages.

    Raises:
        ConfigError: The prefix is not allowed, or is longer than 40 characters (MAX_CHARACTERS).
    """
    for part in parts:
        if _PREFIX_PART.fullmatch(part) is None:
            raise ConfigError(
                "this is no valid part of a key prefix",
                where=where,
                found=repr(part),
                expected="letters and digits, with single _ between them",
                remedy="write a prefix such as llm, or [team, llm]",
            )
    length = len(".".join(parts))  # as in `Names.tag`
    if length > MAX_CHARACTERS:
        raise ConfigError(
            "this key prefix is too long",
            where=where,
            found=f"{length} characters",
            expected=f"at most {MAX_CHARACTERS}, with one between two parts",
            remedy="shorten it",
        )
