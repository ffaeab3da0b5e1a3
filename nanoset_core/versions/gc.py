"""`nanoset gc`: old versions of outputs, and index files, that nothing needs any more.

A version goes in two steps: while no build can begin it is renamed to an unfinished name, which every reader takes for
gone and every sweep for litter; then its files are removed. So a collection that is killed leaves nothing half there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nanoset_core.loading import opening
from nanoset_core.outputs.current import read_current
from nanoset_core.outputs.manifest import MANIFEST
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.pipeline.graph import asked_nodes
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stages import stages
from nanoset_core.storage.locks import busy_names, collecting
from nanoset_core.storage.scratch import UNFINISHED
from nanoset_core.versions.garbage import Garbage, LeftAlone, files_below, foretold, judge
from nanoset_core.versions.in_bucket import remove_from_bucket, skeleton_of
from nanoset_core.versions.index_files import judge_index_files
from nanoset_core.versions.outputs import Output, find_outputs
from nanoset_core.versions.references import Policy, find_needed


@dataclass(frozen=True, slots=True)
class Collection:
    """What a collection found, and did."""

    garbage: tuple[Garbage, ...]
    """what nothing needs: removed, or to be removed"""
    left: tuple[LeftAlone, ...]
    """what stays although nothing is known to need it"""
    unfinished: tuple[Path, ...]
    """unfinished names that were there (plan), or that a sweep removed; a living process may own one"""

    @property
    def size(self) -> int:
        """Bytes of the garbage."""
        return sum(item.size for item in self.garbage)

    def by_output(self) -> dict[str, list[Garbage]]:
        """Output → its garbage."""
        found: dict[str, list[Garbage]] = {}
        for item in self.garbage:
            found.setdefault(item.output, []).append(item)
        return found


def plan_gc(
    project: Project,
    *,
    keep: int = 0,
    older_than_days: float | None = None,
    unfinished: bool = False,
) -> Collection:
    """What `collect` would remove; nothing is written.

    Args:
        project: the project.
        keep: how many versions before the current one stay, of each output.
        older_than_days: younger versions stay.
        unfinished: take also what is newer than the current version: shards of a build that was cut short.

    Raises:
        StorageError: a folder of outputs cannot be read.
    """
    policy = Policy.of(keep, older_than_days, unfinished=unfinished, now_ns=time.time_ns())
    return _plan(project, policy, busy_names(project.outputs.folder))


def collect(
    project: Project,
    *,
    keep: int = 0,
    older_than_days: float | None = None,
    unfinished: bool = False,
    locks: bool = True,
) -> Collection:
    """Remove what nothing needs; → what was removed. Arguments as for `plan_gc`.

    What a running build works on stays, and what is made current meanwhile. locks: False where the file system has no
    locks and nothing is built. In a bucket no lock tells of builds on other machines: one that takes up an old version
    in that very moment finds it gone, and makes it again.

    Raises:
        StorageError: the file system has no locks, or a folder of outputs cannot be read.
    """
    policy = Policy.of(keep, older_than_days, unfinished=unfinished, now_ns=time.time_ns())
    outputs = project.outputs
    if not outputs.access.has_copies and not outputs.folder.is_dir():
        return Collection((), (), ())
    aside: list[tuple[Garbage, Path]] = []
    removed: set[Path] = set()
    with collecting(outputs.folder, locks=locks) as busy:
        planned = _plan(project, policy, busy)
        left = list(planned.left)
        if outputs.access.has_copies:
            removed = remove_from_bucket(outputs.access, planned.garbage)
            gone = tuple(item for item in planned.garbage if item.path in removed)
            return Collection(gone, planned.left, _sweep(outputs, planned.unfinished))
        for item in planned.garbage:
            try:
                if item.kind == "cache file":
                    item.path.unlink()
                    removed.add(item.path)
                    with contextlib.suppress(OSError):  # others are still in it, or other folders
                        if item.path.parent.name != opening.CACHE:
                            item.path.parent.rmdir()
                elif (moved := _set_aside(item.path)) is not None:
                    aside.append((item, moved))
            except OSError as error:
                left.append(LeftAlone(item.path, f"it cannot be removed: {error.strerror}"))
    for item, moved in aside:
        shutil.rmtree(moved, ignore_errors=True)
        if moved.exists():
            left.append(LeftAlone(moved, "it could not be removed"))
        else:
            removed.add(item.path)
    gone = tuple(item for item in planned.garbage if item.path in removed)
    return Collection(gone, tuple(left), _sweep(outputs, planned.unfinished))


def _plan(project: Project, policy: Policy, busy: frozenset[str]) -> Collection:
    access = project.outputs.access
    if not access.has_copies:
        return _plan_at(project.outputs.folder, project, policy, busy)
    with skeleton_of(access) as root:
        found = _plan_at(root, project, policy, busy)

    def here(path: Path) -> Path:
        return access.folder / path.relative_to(root)

    return Collection(
        tuple(replace(item, path=here(item.path)) for item in found.garbage),
        tuple(replace(item, path=here(item.path)) for item in found.left),
        tuple(_unfinished(access.folder)),
    )


def _plan_at(root: Path, project: Project, policy: Policy, busy: frozenset[str]) -> Collection:
    """root: the outputs, or a likeness of them."""
    outputs = find_outputs(root)
    needed = find_needed(root, outputs, policy)
    planned = foretold(list(needed.manifests.values()))
    judged = [judge(version, needed, planned) for output in outputs for version in output.versions]
    found = [item for item in [*judged, *judge_index_files(root, outputs, needed, policy)] if item is not None]
    garbage = [item for item in found if isinstance(item, Garbage)]
    left = [LeftAlone(path, f"it is needed, but {why}") for path, why in needed.unreadable.items()]
    left += [item for item in found if isinstance(item, LeftAlone)]
    left += [LeftAlone(item.path, "a running build works on it") for item in garbage if item.subject in busy]
    left += _unasked(root, project, outputs)
    idle = tuple(item for item in garbage if item.subject not in busy)
    return Collection(idle, tuple(left), tuple(_unfinished(root)))


def _unasked(root: Path, project: Project, outputs: list[Output]) -> Iterator[LeftAlone]:
    """Outputs that nanoset.yaml, or the raw folder, no longer asks for; they may be the only copy of something."""
    places = {(output.stage, output.subject) for output in outputs if output.current is not None}
    here = {subject for _, subject in places if (project.config.raw_folder / subject).is_dir()}
    asked = {(node.stage.folder, node.key.subject) for node in asked_nodes(project.config, here)}
    asking = {stage.folder: stage.asked_by for stage in stages()}
    for folder, subject in sorted(places - asked):
        if (by := asking[folder]) is not None:
            yield LeftAlone(root / folder / subject, f"{by} no longer asks for it; delete it if you do not need it")


def _set_aside(folder: Path) -> Path | None:
    """Rename a version to an unfinished name; None where it was made current meanwhile, and so put back.

    Builds that hold what they work on cannot do that. This is for whoever writes here without.
    """
    aside = folder.with_name(f"{UNFINISHED}{folder.name}-{secrets.token_hex(4)}")
    folder.rename(aside)
    if read_current(folder.parent)[0] != folder.name:
        return aside
    with contextlib.suppress(OSError):  # it was made again: then that one stays
        aside.rename(folder)
        return None
    shutil.rmtree(aside, ignore_errors=True)
    return None


def _unfinished(root: Path) -> Iterator[Path]:
    """Unfinished names anywhere below the root, but not within complete outputs nor behind links."""
    for place, folders, files in os.walk(root):
        folder = Path(place)
        yield from (folder / name for name in (*folders, *files) if name.startswith(UNFINISHED))
        folders[:] = [
            name for name in folders if not name.startswith(UNFINISHED) and not (folder / name / MANIFEST).exists()
        ]


def _sweep(outputs: OutputRoot, before: tuple[Path, ...]) -> tuple[Path, ...]:
    outputs.sweep()
    return tuple(path for path in before if not path.exists())


def folder_size(folder: Path) -> int:
    """Bytes of a file, or of all files in a folder; links are not followed."""
    if not folder.is_dir() or folder.is_symlink():
        return folder.lstat().st_size
    return sum(entry.stat(follow_symlinks=False).st_size for _, entry in files_below(folder))
