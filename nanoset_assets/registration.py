"""Which partitions of an instance are this project's own: it takes no other away.

A project remembers, beside its inventories, the corpora that it registered. Of one whose memory is lost, or from before
there was one, the inventories tell: it took in the text of those corpora.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path

import dagster as dg

from nanoset_assets.names import Names
from nanoset_core.errors import NanosetError
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.raw import INVENTORY
from nanoset_core.pipeline.stage import Key
from nanoset_core.storage.atomic import write_atomic

_FILE = ".registered.json"


def register(project: Project, names: Names, instance: dg.DagsterInstance, corpora: Collection[str]) -> None:
    """Let an instance know these corpora, those that it does not know, and remember them as this project's."""
    from sqlalchemy.exc import IntegrityError

    registered = instance.get_dynamic_partitions(names.corpora_name)
    new = sorted(set(corpora).difference(registered))
    if not new:
        return
    remember(project, names, [*own(project, names, registered), *new])
    try:
        instance.add_dynamic_partitions(names.corpora_name, new)
    except IntegrityError:  # another build added some at this very moment
        instance.add_dynamic_partitions(names.corpora_name, new)


def remember(project: Project, names: Names, corpora: Iterable[str]) -> None:
    """Note that this project registers some corpora; where its root cannot be written, the next build says so."""
    memory = _remembered(project)
    known = memory.get(names.corpora_name)
    after = sorted({*(known or ()), *corpora})
    if after != known:
        _file(project).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(_file(project), json.dumps(memory | {names.corpora_name: after}).encode())


def own(project: Project, names: Names, registered: Iterable[str], seen: Collection[str] = ()) -> set[str]:
    """Those of the registered corpora that this project registered.

    Args:
        project: the project.
        names: of the project.
        registered: the corpora that the instance knows.
        seen: corpora that the project is known to have seen before it remembered which it registered.
    """
    remembered = _remembered(project).get(names.corpora_name)
    if remembered is None:
        remembered = [corpus for corpus in registered if corpus in seen or _was_taken_in(project, corpus)]
        remember(project, names, remembered)
    return set(remembered).intersection(registered)


def _was_taken_in(project: Project, corpus: str) -> bool:
    try:
        return INVENTORY.current(project, Key(corpus)).manifest is not None
    except (NanosetError, OSError):
        return False


def _remembered(project: Project) -> dict[str, list[str]]:
    """Set of partitions → corpora; nothing where the file is not there, or not one of ours."""
    try:
        value = json.loads(_file(project).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    lists = value.items() if isinstance(value, dict) else ()
    return {name: [str(corpus) for corpus in corpora] for name, corpora in lists if isinstance(corpora, list)}


def _file(project: Project) -> Path:
    return project.outputs.folder / INVENTORY.folder / _FILE
