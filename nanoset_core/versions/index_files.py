"""Which of the trainers' index files, in the one cache folder of each nanoset, belong to no split that stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from nanoset_core.errors import NanosetError
from nanoset_core.loading import opening
from nanoset_core.outputs.root import CURRENT
from nanoset_core.pipeline.mapping import index_files
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.listing import Entry
from nanoset_core.storage.scratch import UNFINISHED
from nanoset_core.versions.gc import Garbage, LeftAlone, files_below
from nanoset_core.versions.outputs import Needed, Output, Policy, readable_manifests

_SIDECAR_ENDING = "nanoset.json"


def judge_index_files(
    listing: FileAccess, outputs: list[Output], needed: Needed, policy: Policy
) -> Iterator[Garbage | LeftAlone]:
    """Yield every index file that no split lists that stays; files that no note of ours lists are left alone."""
    by_nanoset: dict[str, list[Output]] = {}
    for output in outputs:
        if output.stage == opening.STAGE:
            by_nanoset.setdefault(output.subject, []).append(output)
    for name, found in by_nanoset.items():
        folder = listing.folder / opening.STAGE / name / opening.CACHE
        since = max((listing.written_ns(output.folder / CURRENT) for output in found), default=0)
        kept = needed.index_files.get(name, set())
        files = {one: entry for one, entry in files_below(listing, folder) if not one.startswith(UNFINISHED)}
        others = {
            one: entry for one, entry in files.items() if one not in kept and not policy.keeps(entry.written_ns, since)
        }
        if others:
            yield from _judge(listing, folder, name, others, _ours(listing, folder, found, files))


def _judge(
    listing: FileAccess, folder: Path, nanoset: str, others: dict[str, Entry], ours: set[str]
) -> Iterator[Garbage | LeftAlone]:
    if any(map(listing.is_link, (folder, *folder.parents[:2]))):
        yield LeftAlone(folder, f"{_counted(others)} of no split that stays: a symbolic link leads to them")
        return
    foreign = {name: entry for name, entry in others.items() if name not in ours or entry.is_link}
    if foreign:
        yield LeftAlone(folder, f"{_counted(foreign)} that no note of ours lists, such as {min(foreign)}")
    # The notes go last: a collection that is cut short finds the rest by them.
    order = sorted(
        others.keys() - foreign.keys(), key=lambda name: (_is_sidecar(name), "description" not in name, name)
    )
    for name in order:
        place = f"{opening.STAGE}/{nanoset}/{opening.CACHE}"
        yield Garbage(folder / name, place, nanoset, "cache file", others[name].size)


def _ours(listing: FileAccess, folder: Path, outputs: list[Output], files: dict[str, Entry]) -> set[str]:
    """Return names that a manifest of any version lists, or a note that lies beside them."""
    ours: set[str] = set()
    for manifest in readable_manifests(listing, (version for output in outputs for version in output.versions)):
        try:
            ours |= index_files(manifest)
        except (NanosetError, OSError, KeyError, TypeError):
            continue
    for name in filter(_is_sidecar, files):
        try:
            note = json.loads(listing.read_current(folder / name))
            if isinstance(note["made_from"], dict):
                ours.update([name, *note["files"]])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return ours


def _is_sidecar(name: str) -> bool:
    return name.endswith(_SIDECAR_ENDING)


def _counted(files: dict[str, Entry]) -> str:
    size = sum(entry.size for entry in files.values())
    return f"{len(files):,} file{'s' * (len(files) != 1)} ({size:,} bytes)"
