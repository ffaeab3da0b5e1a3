"""Find the two versions of a dataset that `nanoset diff` compares.

A version is one build of a dataset or view, in a folder whose name is a digest. Users name a
dataset, such as `web`, whose last two versions are compared; two datasets of one corpus, whose
current versions are compared; or the first digits of two digests, such as `3f9c` and `a01b`.
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
from nanoset_core.stages.dataset.dataset import corpus_of
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.views.stage import VIEW

_COMPARABLE = (DATASET, VIEW)
"""Stages whose versions `nanoset diff` can compare."""
_DIGEST_PREFIX = re.compile(r"[0-9a-f]{4,20}")
"""The first digits of a digest, or all of them."""
_MAX_LISTED = 10
"""How many versions an error lists."""


class OnlyVersionError(MissingError):
    """There is only one version of a dataset, so that there is nothing to compare it with."""


class VersionPair(NamedTuple):
    """Two versions of a corpus's dataset or of a view, or versions of two datasets of a corpus."""

    old: Manifest
    """Manifest of the old version."""
    new: Manifest
    """Manifest of the new version."""

    @property
    def are_whole_corpora(self) -> bool:
        """Whether both are versions of the dataset of a corpus, and none is that of a view."""
        return self.old.stage == self.new.stage == DATASET.layout.folder


def find_versions(project: Project, first: str, second: str | None) -> VersionPair:
    """Return the two builds of a dataset that the arguments of `nanoset diff` name.

        nanoset diff web          the current build of the dataset of `web`, and the one before
        nanoset diff clean best   the current builds of two views, which are selections of
                                  documents of the same corpus
        nanoset diff 3f9c 81aa    the builds whose digests (hashes) begin with these digits

    Args:
        project: The project, whose output folder has all builds, called versions.
        first: The first argument. A name may be that of a corpus, of a view, or of packs, which
            have the documents of what they are made of.
        second: The second argument, or None.

    Raises:
        ConfigError: There is no such version, there are several, or the two are of different
            corpora.
        OnlyVersionError: There is no previous version.
        MissingError: There is no such version any more, since `nanoset purge` erased it.
        FormatError: The file that describes a version cannot be read.
    """
    if second is None:
        name = project.config.unpacked_name(first)
        check_corpus_name(name, "CORPUS")  # an error calls the argument so
        stage_folder = _stage_folder(project, name)
        return _previous_and_current(project, stage_folder, name)

    old = _named_version(project, first)
    new = _named_version(project, second)
    if corpus_of(old) != corpus_of(new):
        raise ConfigError(
            "these are datasets of two corpora",
            found=f"{_with_corpus(old)} and {_with_corpus(new)}",
            remedy="name two datasets of one corpus: the corpus, views of it, or versions of these",
        )
    return VersionPair(old, new)


def _stage_folder(project: Project, name: str) -> str:
    """Return the folder of the versions of a dataset: that of views, or that of corpora.

    Args:
        project: The project, whose settings list the views.
        name: Name of a view or corpus.
    """
    stage = VIEW if name in project.config.views else DATASET
    return stage.layout.folder


def _with_corpus(manifest: Manifest) -> str:
    """Return the name of a dataset for an error, with its corpus if it is a view: best (of web)."""
    corpus = corpus_of(manifest)
    return manifest.name if manifest.name == corpus else f"{manifest.name} (of {corpus})"


def _named_version(project: Project, argument: str) -> Manifest:
    """Return the build of a dataset that one of two arguments of `nanoset diff` names.

        best    the current build of this view; also the name of a corpus, or of packs
        3f9c    the build whose digest begins so

    Args:
        project: The project.
        argument: A name or the first digits of a digest. A name takes precedence.

    Raises:
        ConfigError: There is no such version, or there are several.
        MissingError: `nanoset purge` erased the version.
        FormatError: The file that describes a version cannot be read.
    """
    name = project.config.unpacked_name(argument)
    stage_folder = _stage_folder(project, name)
    is_view = stage_folder == VIEW.layout.folder
    if is_view or name in project.outputs.names(stage_folder):
        return _current(project, stage_folder, name)
    if name in project.config.nanosets:
        raise _nanoset_error(project, name)
    return _version_by_digest(project.outputs, argument)


def _nanoset_error(project: Project, name: str) -> ConfigError:
    """Return the error for the name of a nanoset, whose versions cannot be compared.

    Args:
        project: The project, whose settings say what the nanoset reads.
        name: Name of the nanoset.
    """
    return ConfigError(
        "this is a nanoset, and `diff` compares the documents of corpora and views",
        where=f"{project.config.file}: nanosets.{name}",
        found=name,
        remedy=(
            "compare two views that nanosets read (`nanoset diff A B`); `nanoset map --plan` shows "
            "what each nanoset reads, and `nanoset build --dry-run` which settings have changed"
        ),
    )


def _current(project: Project, stage_folder: str, name: str) -> Manifest:
    """Return the current build of a dataset or view.

    Args:
        project: The project.
        stage_folder: The folder of datasets, or that of views.
        name: Name of the corpus or view.

    Raises:
        ConfigError: There is no such corpus or view, or it has not been built.
        FormatError: The file that describes a version cannot be read.
    """
    current = project.outputs.current_version(stage_folder, name)
    if current.manifest is None:
        found = current.problem if current.is_built else repr(name)
        raise _not_built_error(project, stage_folder, name, found)
    return current.manifest


def _previous_and_current(project: Project, stage_folder: str, name: str) -> VersionPair:
    """Return the current build of a dataset or view, and the one before it.

    Every build is kept as a version, which is named by a digest. For example, of these versions of
    the dataset of `web`, the second and the third one are returned:

        81aa…    built on Monday
        c04d…    built on Tuesday
        3f9c…    built on Wednesday, current

    Args:
        project: The project.
        stage_folder: The folder of datasets, or that of views.
        name: Name of the text collection (corpus) or of the view, such as web.

    Raises:
        ConfigError: There is no such corpus or view, or it has not been built.
        OnlyVersionError: There is no other version.
        FormatError: The file that describes a version cannot be read.
    """
    outputs = project.outputs
    current = _current(project, stage_folder, name)
    for version in outputs.versions(stage_folder, name, strict=True):  # newest first
        if version.digest != current.digest:
            return VersionPair(version, current)
    raise OnlyVersionError(
        "there is no previous version of it",
        where=outputs.access.url(outputs.folder / stage_folder / name),
        found=f"the current one alone, {current.digest}",
        remedy="name two digests, or build again once its text or settings changed",
    )


def _not_built_error(
    project: Project, stage_folder: str, name: str, found: str | None
) -> ConfigError:
    """Return the error that there is no dataset of the name that the user gave.

    It lists the names that exist. If one is similar, it asks, such as for `wbe`: "did you mean
    web?"

    Args:
        project: The project.
        stage_folder: The folder in which the name was looked for, such as `datasets`.
        name: The name.
        found: What was found instead: the name itself, or what is wrong with the dataset.
    """
    if name in project.config.nanosets:
        return _nanoset_error(project, name)

    if stage_folder == VIEW.layout.folder:  # so nanoset.yaml has this view
        what = "the view has no dataset yet"
        nothing_built = "a built view; there is none yet"
    else:
        what = "no such corpus, or it has no dataset yet"
        nothing_built = "a built corpus; there is none yet"
    outputs = project.outputs
    built_names = outputs.names(stage_folder)
    return ConfigError(
        what,
        where=outputs.access.url(outputs.folder / stage_folder / name),
        found=found,
        expected=one_of(built_names, nothing_built),
        remedy=_remedy_for_dataset(outputs, name, built_names),
    )


def _remedy_for_dataset(outputs: OutputRoot, name: str, built_names: Sequence[str]) -> str:
    """Return what a user can do who has named a dataset that does not exist.

    Args:
        outputs: The outputs of the project. The user may also have meant one of the views
            (selections of documents) among these.
        name: The name that the user gave.
        built_names: The names that are possible.
    """
    remedy = "run `nanoset build` first"
    if built_names:
        remedy = f"name one of these, or two digests; or {remedy}"
    similar_names = [*built_names, *outputs.names(VIEW.layout.folder)]
    return remedy_for_name(name, similar_names, remedy)


def _version_by_digest(outputs: OutputRoot, digest_start: str) -> Manifest:
    """Return the build of a dataset that the user names by the first digits of its digest.

    Every build is a version, in a folder such as datasets/web/3f9c41d0…. For example:

        3f9c     one version begins so: return it
        3f       too short
        zzzz     no version begins so
        81aa     two versions begin so: the error lists both

    Args:
        outputs: The outputs of the project, with all versions of datasets and views.
        digest_start: At least four hexadecimal digits.

    Returns:
        The manifest of the version, which describes it.

    Raises:
        ConfigError: No version has such a digest, or several have.
        MissingError: `nanoset purge` erased the version.
    """
    all_folders = _stored_versions(outputs)
    is_valid = _DIGEST_PREFIX.fullmatch(digest_start) is not None
    if not is_valid:
        raise _no_version_error(outputs, digest_start, all_folders, matching=[])

    matching = [folder for folder in all_folders if folder.name.startswith(digest_start)]
    if len(matching) == 1:
        manifest = outputs.manifest_at(matching[0])
        if manifest is not None:  # None: the version was deleted in the meantime
            return manifest

    if not matching:
        # If a purge erased the version, it left a receipt that says so.
        erasure = erasure_of_digest(outputs.access, digest_start)
        if erasure is not None:
            where = outputs.access.url(outputs.folder / DATASET.layout.folder)
            raise _erased_error(where, digest_start, erasure)
    raise _no_version_error(outputs, digest_start, all_folders, matching)


def _stored_versions(outputs: OutputRoot) -> list[Path]:
    """Return the folders of all builds of datasets and of views, which are selections of documents.

    Every build is a version, in a folder that is named by a digest, such as datasets/web/3f9c….

    Args:
        outputs: The outputs of the project, whose folders are listed.
    """
    versions: list[Path] = []
    for stage in _COMPARABLE:
        for name in outputs.names(stage.layout.folder):
            folder = outputs.folder / stage.layout.folder / name
            versions += [folder / digest for digest in outputs.digests_in(folder)]
    return versions


def _no_version_error(
    outputs: OutputRoot, digest_start: str, all_versions: Sequence[Path], matching: Sequence[Path]
) -> ConfigError:
    """Return the error that the digits of the user do not name exactly one build of a dataset.

    Every build is a version, in a folder such as datasets/web/3f9c…. The error lists those that the
    user may have meant, such as "web 3f9c…".

    Args:
        outputs: The outputs of the project.
        digest_start: The digits.
        all_versions: Folders of all versions.
        matching: Folders of those that begin with these digits: none, or several; or a single one
            that was deleted at this moment.
    """
    message = "no such version of a dataset"
    if len(matching) > 1:
        message = "several datasets have digests that begin so"
    folders = matching or all_versions

    labels = sorted(f"{folder.parent.name} {folder.name}" for folder in folders)
    if labels:
        expected = f"four digits or more of one of these: {', '.join(labels[:_MAX_LISTED])}"
        remedy = "name one of these, or a corpus or view"
    else:
        expected = "the digest of a built dataset; there is none yet"
        remedy = "run `nanoset build` first"
    return ConfigError(
        message,
        where=outputs.access.url(outputs.folder / DATASET.layout.folder),
        found=repr(digest_start),
        expected=expected,
        remedy=remedy,
    )


def _erased_error(where: object, digest: str, erasure: Erasure) -> MissingError:
    """Return the error that a build was erased, so that it cannot be compared.

    A purge erases documents from all outputs: it builds versions without the documents, and deletes
    the old ones. Its receipt lists both, so the error refers users to it.

    Args:
        where: Where builds are stored, for the error.
        digest: The first digits of the build's digest, which the user gave.
        erasure: The purge, with its day and its receipt.
    """
    return MissingError(
        f"this version was erased by the purge of {erasure.day}",
        where=where,
        found=repr(digest),
        remedy=f"compare versions that were made since; {erasure.receipt} lists them",
    )
