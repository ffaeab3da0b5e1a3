"""Which partitions of an instance are this project's own: it takes no other away.

A project remembers, beside its inventories, the corpora that it registered, each as an empty file, so that builds and
sensors of several processes need not wait for each other. What the memory does not know, because it is of another
machine or from before there was one, the inventories tell: the project took in the text of those corpora.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

import dagster as dg

from nanoset_assets.names import Names
from nanoset_core.errors import NanosetError
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.raw import INVENTORY
from nanoset_core.pipeline.stage import Key

FOLDER = ".registered"


def register(project: Project, names: Names, instance: dg.DagsterInstance, corpora: Collection[str]) -> None:
    """Let an instance know these corpora, those that it does not know, and remember them as this project's."""
    from sqlalchemy.exc import IntegrityError

    new = sorted(set(corpora).difference(instance.get_dynamic_partitions(names.corpora_name)))
    if not new:
        return
    remember(project, names, new)
    try:
        instance.add_dynamic_partitions(names.corpora_name, new)
    except IntegrityError:  # another build added some at this very moment
        instance.add_dynamic_partitions(names.corpora_name, new)


def remember(project: Project, names: Names, corpora: Iterable[str]) -> None:
    """Note that this project registers some corpora. Where its root cannot be written, the inventories have to do."""
    folder = _folder(project, names)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for corpus in corpora:
            (folder / corpus).touch()


def forget(project: Project, names: Names, registered: Collection[str]) -> None:
    """Forget the corpora that the instance no longer knows: whoever registers them again may be another."""
    with suppress(OSError):
        for path in _folder(project, names).iterdir():
            if path.name not in registered:
                path.unlink(missing_ok=True)


def own(project: Project, names: Names, registered: Iterable[str], seen: Collection[str] = ()) -> set[str]:
    """Those of some registered corpora that this project registered, or took in.

    Args:
        project: the project.
        names: of the project.
        registered: corpora that the instance knows.
        seen: corpora that the project is known to have seen; they count where it has no memory yet.
    """
    folder = _folder(project, names)
    try:
        remembered = {path.name for path in folder.iterdir()}
    except OSError:
        remembered = set(seen)
    return {corpus for corpus in registered if corpus in remembered or _was_taken_in(project, corpus)}


def _was_taken_in(project: Project, corpus: str) -> bool:
    try:
        return INVENTORY.current(project, Key(corpus)).manifest is not None
    except (NanosetError, OSError):
        return False


def _folder(project: Project, names: Names) -> Path:
    return project.outputs.folder / INVENTORY.folder / FOLDER / names.corpora_name
