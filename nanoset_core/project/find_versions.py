"""Find the two versions of a dataset that `nanoset diff` compares.

A version is one build of a dataset or view, in a folder whose name is a digest. Users name a
dataset, such as `web`, whose last two versions are compared; or the first digits of two digests,
such as `3f9c` and `a01b`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import ConfigError, MissingError, one_of, remedy_for_name
from nanoset_core.outputs.erasures import Erasure, erasure_of_digest
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.views.stage import VIEW

_COMPARABLE = (DATASET, VIEW)
"""Stages whose versions `nanoset diff` can compare."""
_DIGEST_PREFIX = re.compile(r"[0-9a-f]{4,20}")
"""The first digits of a digest, or all of them."""
_MAX_LISTED = 10
"""How many versions an error lists."""


class VersionPair(NamedTuple):
    """Two versions of the dataset of one corpus, or of one view."""

    old: Manifest
    """Manifest of the old version."""
    new: Manifest
    """Manifest of the new version."""


def find_versions(project: Project, first: str, second: str | None) -> VersionPair:
    """Return the two versions of a dataset that the arguments of `nanoset diff` name.

    Args:
        project: Its output root has the versions.
        first: The name of a dataset or view, whose last two versions are meant; or with `second`,
            the first digits of the old version's digest.
        second: The first digits of the new version's digest, or None.

    Raises:
        ConfigError: There is no such version, there are several, or the two are of different
            corpora.
        MissingError: There is no previous version, or a purge erased it.
        FormatError: A manifest cannot be read.
    """
    outputs = project.outputs
    if second is None:
        # Packs such as `web-packs-2048` have the documents of the dataset `web`. Compare those.
        name = project.config.unpacked_name(first)
        check_corpus_name(name, "CORPUS")  # the argument of the command, for an error
        stage = VIEW if name in project.config.views else DATASET
        return _previous_and_current(outputs, stage.layout.folder, name)

    old = _version_by_digest(outputs, first)
    new = _version_by_digest(outputs, second)
    if (old.stage, old.name) != (new.stage, new.name):
        raise ConfigError(
            "these are datasets of two corpora",
            found=f"{old.name} and {new.name}",
            remedy="name two versions of one corpus or view",
        )
    return VersionPair(old, new)


def _previous_and_current(outputs: OutputRoot, stage_folder: str, name: str) -> VersionPair:
    """Return the current version of a corpus's dataset or of a view, and the newest of the others.

    Args:
        outputs: The output root.
        stage_folder: Folder of the stage: that of datasets or of views.
        name: Name of the corpus or view.

    Raises:
        ConfigError: There is no such corpus or view, or it has not been built.
        MissingError: There is no other version.
        FormatError: A manifest cannot be read.
    """
    current = outputs.current_version(stage_folder, name)
    if current.manifest is None:
        found = current.problem if current.exists else repr(name)
        raise _not_built_error(outputs, stage_folder, name, found)
    # Versions come with the newest first.
    for version in outputs.versions(stage_folder, name, strict=True):
        if version.digest != current.manifest.digest:
            return VersionPair(version, current.manifest)
    raise MissingError(
        "there is no previous version of it",
        where=outputs.access.url(outputs.folder / stage_folder / name),
        found=f"the current one alone, {current.manifest.digest}",
        remedy="name two digests, or build again once its text or settings changed",
    )


def _not_built_error(
    outputs: OutputRoot, stage_folder: str, name: str, found: str | None
) -> ConfigError:
    """Return the error that there is no corpus or view of a name, or that it was never built.

    Args:
        outputs: The output root, whose corpora and views the error suggests.
        stage_folder: Folder of the stage: that of datasets or of views.
        name: The name that the user gave.
        found: What exists instead, as a clause.
    """
    built_names = sorted(outputs.access.names(outputs.folder / stage_folder))
    built_views = sorted(outputs.access.names(outputs.folder / VIEW.layout.folder))
    similar_names = [*built_names, *built_views]  # the name may be a misspelt one of these
    remedy = "name one of these, or two digests; or run `nanoset build` first"
    return ConfigError(
        "no such corpus, or it has no dataset yet",
        where=outputs.access.url(outputs.folder / stage_folder / name),
        found=found,
        expected=one_of(built_names, "a built corpus; there is none yet"),
        remedy=remedy_for_name(name, similar_names, remedy),
    )


def _version_by_digest(outputs: OutputRoot, digest: str) -> Manifest:
    """Return the version of a dataset or view whose digest begins with these digits.

    Args:
        outputs: The output root.
        digest: At least four hexadecimal digits, such as "3f9c".

    Raises:
        ConfigError: No version has such a digest, or several have.
        MissingError: A purge erased the version.
    """
    stored = _stored_versions(outputs)
    is_prefix = _DIGEST_PREFIX.fullmatch(digest) is not None
    if not is_prefix:
        raise _no_version_error(outputs, digest, stored, matching=[])

    matching = [folder for folder in stored if folder.name.startswith(digest)]
    if len(matching) == 1:
        manifest = outputs.manifest_at(matching[0])
        if manifest is not None:  # None: the version was deleted in the meantime
            return manifest

    if not matching:
        # Its folder may have been erased by a purge, which left a receipt.
        erasure = erasure_of_digest(outputs.access, digest)
        if erasure is not None:
            where = outputs.access.url(outputs.folder / DATASET.layout.folder)
            raise _erased_error(where, digest, erasure)
    raise _no_version_error(outputs, digest, stored, matching)


def _stored_versions(outputs: OutputRoot) -> list[Path]:
    """Return the folders of all versions of all datasets and views.

    Args:
        outputs: The output root, whose folders are listed.
    """
    versions: list[Path] = []
    for stage in _COMPARABLE:
        stage_folder = outputs.folder / stage.layout.folder
        for name in outputs.access.names(stage_folder):
            folder = stage_folder / name
            versions += [folder / digest for digest in outputs.digests_in(folder)]
    return versions


def _no_version_error(
    outputs: OutputRoot, digest: str, stored: Sequence[Path], matching: Sequence[Path]
) -> ConfigError:
    """Return the error for a digest that names no version, or several.

    Args:
        outputs: The output root.
        digest: The digits that the user gave.
        stored: Folders of all versions.
        matching: Folders of those whose digests begin with these digits.
    """
    message = "no such version of a dataset"
    if len(matching) > 1:
        message = "several datasets have digests that begin so"

    # List the versions that the digits may mean, or all versions if they mean none: "the first four
    # digits or more one of web 3f9c…, books 81d0…".
    versions = sorted(f"{folder.parent.name} {folder.name}" for folder in matching or stored)
    choices = "of a built dataset; there is none yet"
    remedy = "run `nanoset build` first"
    if versions:
        choices = f"one of {', '.join(versions[:_MAX_LISTED])}"
        remedy = "name one of these, or a corpus alone"
    return ConfigError(
        message,
        where=outputs.access.url(outputs.folder / DATASET.layout.folder),
        found=repr(digest),
        expected=f"the first four digits or more {choices}",
        remedy=remedy,
    )


def _erased_error(where: object, digest: str, erasure: Erasure) -> MissingError:
    """Return the error that a purge erased a version.

    Args:
        where: Where versions are stored, for the error.
        digest: The digits that the user gave.
        erasure: The purge, with its day and its receipt.
    """
    return MissingError(
        f"this version was erased by the purge of {erasure.day}",
        where=where,
        found=repr(digest),
        remedy=f"compare versions that were made since; {erasure.receipt} lists them",
    )
