"""Which of the trainers' index files, in the one cache folder of each nanoset, belong to no split that stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.errors import NanosetError
from nanoset_core.loading import opening
from nanoset_core.outputs.manifest import Manifest, read_manifest
from nanoset_core.outputs.root import CURRENT
from nanoset_core.pipeline.mapping import read_plan
from nanoset_core.storage.listing import Entry, Listing
from nanoset_core.storage.scratch import UNFINISHED
from nanoset_core.versions.garbage import Garbage, LeftAlone, files_below
from nanoset_core.versions.outputs import Output
from nanoset_core.versions.references import Needed, Policy

_SIDECAR_ENDING = "nanoset.json"


@dataclass(frozen=True, slots=True)
class _Cache:
    listing: Listing
    folder: Path
    nanoset: str
    outputs: list[Output]
    """of the nanoset"""


def judge_index_files(
    listing: Listing, outputs: list[Output], needed: Needed, policy: Policy
) -> Iterator[Garbage | LeftAlone]:
    """Every index file that no split lists that stays. What neither a split nor a note of ours lists is left alone."""
    by_name: dict[str, list[Output]] = {}
    for output in outputs:
        if output.stage == opening.STAGE:
            by_name.setdefault(output.subject, []).append(output)
    for name, found in by_name.items():
        folder = listing.folder / opening.STAGE / name / opening.CACHE
        if listing.entries(folder):
            yield from _judge(_Cache(listing, folder, name, found), needed, policy)


def _judge(cache: _Cache, needed: Needed, policy: Policy) -> Iterator[Garbage | LeftAlone]:
    try:
        kept = {name for manifest in _kept(cache, needed) for name in _listed(manifest)}
    except (NanosetError, KeyError, TypeError) as error:
        yield LeftAlone(cache.folder, f"what its splits need cannot be told: {error}".splitlines()[0])
        return
    names = {name: entry for name, entry in files_below(cache.listing, cache.folder) if not name.startswith(UNFINISHED)}
    others = {name: entry for name, entry in names.items() if name not in kept and not _is_fresh(entry, cache, policy)}
    if others and (why := _why_left(cache, needed)):
        yield LeftAlone(cache.folder, f"{_counted(others)} of no split that stays: {why}")
        return
    ours = _ours(cache, names)
    foreign = {name: entry for name, entry in others.items() if name not in ours or entry.is_link}
    if foreign:
        yield LeftAlone(cache.folder, f"{_counted(foreign)} that no note of ours lists, such as {min(foreign)}")
    # The notes last: a collection that is cut short finds the rest by them.
    for name in sorted(
        others.keys() - foreign.keys(), key=lambda name: (_is_sidecar(name), "description" not in name, name)
    ):
        place = f"{opening.STAGE}/{cache.nanoset}/{opening.CACHE}"
        yield Garbage(cache.folder / name, place, cache.nanoset, "cache file", others[name].size)


def _kept(cache: _Cache, needed: Needed) -> list[Manifest]:
    digests = [version.digest for output in cache.outputs for version in output.versions]
    return [needed.manifests[digest] for digest in digests if digest in needed.manifests]


def _listed(manifest: Manifest) -> Iterator[str]:
    """Names of the index files of one split's output, and of our notes on them."""
    yield from manifest.facts.get("cache_files", {})
    plan = (read_plan(manifest) or {}).get("plan") or {}
    for part in (*plan.get("members", ()), plan.get("blend")):
        if part is not None:
            yield from part["files"].values()
            yield part["sidecar"]


def _is_fresh(entry: Entry, cache: _Cache, policy: Policy) -> bool:
    """Whether a file is younger than the nanoset's live versions, and so of a build that has not ended."""
    if policy.newer_than_ns is not None and entry.written_ns > policy.newer_than_ns:
        return True
    since = max((cache.listing.written_ns(output.folder / CURRENT) for output in cache.outputs), default=0)
    return not policy.unfinished and entry.written_ns > since


def _why_left(cache: _Cache, needed: Needed) -> str | None:
    if cache.nanoset in needed.held:
        return f"what it needs cannot be told: {needed.held[cache.nanoset]}"
    if any(map(cache.listing.is_link, (cache.folder, *cache.folder.parents[:2]))):
        return "a symbolic link leads to them"
    return None


def _ours(cache: _Cache, names: dict[str, Entry]) -> set[str]:
    """Names that a manifest of any version lists, or a note that lies beside them."""
    ours: set[str] = set()
    for output in cache.outputs:
        for version in output.versions:
            try:
                manifest = read_manifest(version.folder, cache.listing)
                ours.update(() if manifest is None else _listed(manifest))
            except (NanosetError, OSError, KeyError, TypeError):
                continue  # it is reported where the versions are judged
    for name in filter(_is_sidecar, names):
        try:
            note = json.loads(cache.listing.read_current(cache.folder / name))
            if isinstance(note["made_from"], dict):
                ours.update([name, *note["files"]])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # not ours: it stays
    return ours


def _is_sidecar(name: str) -> bool:
    return name.endswith(_SIDECAR_ENDING)


def _counted(names: dict[str, Entry]) -> str:
    size = sum(entry.size for entry in names.values())
    return f"{len(names):,} file{'s' * (len(names) != 1)} ({size:,} bytes)"
