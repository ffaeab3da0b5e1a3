"""Which versions of outputs are needed: the current ones, what they were made from, and what they point at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nanoset_core.errors import MissingError, NanosetError
from nanoset_core.outputs.manifest import MANIFEST, Manifest
from nanoset_core.outputs.root import CURRENT, OutputRoot
from nanoset_core.pipeline.graph import needed_by
from nanoset_core.pipeline.stage import Stage
from nanoset_core.pipeline.stages import stages
from nanoset_core.storage.listing import Listing
from nanoset_core.versions.outputs import Output, Version, corpus_folders

_DAY_NS = 24 * 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Policy:
    """What is kept though no current version needs it."""

    keep: int = 0
    """older versions of each output"""
    newer_than_ns: int | None = None
    """versions made after this moment, nanoseconds since 1970; None: age does not matter"""
    unfinished: bool = False
    """do not keep what is newer than the current version, which belongs to a build that has not ended"""

    @staticmethod
    def of(keep: int, older_than_days: float | None, *, unfinished: bool, now_ns: int) -> Policy:
        """A policy by days."""
        limit = None if older_than_days is None else now_ns - int(min(older_than_days * _DAY_NS, now_ns))
        return Policy(keep, limit, unfinished)


@dataclass(slots=True)
class Needed:
    """What has to stay."""

    digests: set[str] = field(default_factory=set)
    """of versions"""
    manifests: dict[str, Manifest] = field(default_factory=dict)
    """digest → manifest of those that could be read"""
    held: dict[str, str] = field(default_factory=dict)
    """corpus, nanoset or webdataset → why all of it stays: what it needs cannot be told"""
    unreadable: dict[Path, str] = field(default_factory=dict)
    """folder of an output or version that is needed → what is wrong with it"""

    def holds(self, version: Version) -> bool:
        """Whether a version has to stay."""
        return version.digest in self.digests or version.subject in self.held


def find_needed(listing: Listing, outputs: Iterable[Output], policy: Policy) -> Needed:
    """Follow every current version, and every other that the policy keeps, to all that it needs."""
    outputs = list(outputs)
    search = _Search(listing, outputs)
    for output in outputs:
        if output.problem is not None:
            search.hold(output.stage, output.name, output.folder, output.problem)
        for digest in _roots(listing, output, policy, search.current_since(output)):
            search.follow(digest, output)
    return search.needed


def _roots(listing: Listing, output: Output, policy: Policy, current_since_ns: int | None) -> Iterator[str]:
    if output.current is not None:
        yield output.current
    others = [version for version in output.versions if version.digest != output.current]
    dated = {version.digest: listing.written_ns(version.folder / MANIFEST) for version in others}
    made = {digest: made_ns for digest, made_ns in dated.items() if made_ns}  # the others are not complete
    for digest, made_ns in made.items():
        is_newer = not policy.unfinished and (current_since_ns is None or made_ns > current_since_ns)
        is_young = policy.newer_than_ns is not None and made_ns > policy.newer_than_ns
        if is_newer or is_young:
            yield digest
    if output.stage not in _namers():
        yield from sorted(made, key=lambda digest: (-made[digest], digest))[: policy.keep]


def _namers() -> dict[str, Stage]:
    """Folder of versions that have no current one → the stage that names them."""
    return {stage.folder: stage.named_by for stage in stages() if stage.named_by is not None}


class _Search:
    def __init__(self, listing: Listing, outputs: list[Output]) -> None:
        self._outputs = OutputRoot(listing)
        self._all = outputs
        self._places = {version.digest: version for output in outputs for version in output.versions}
        self._folders = {(output.stage, output.name): output.folder for output in outputs}
        self._namers = _namers()
        self.needed = Needed()

    def current_since(self, output: Output) -> int | None:
        """When the current version of an output became current, nanoseconds since 1970; None where there is none."""
        folder = output.folder
        if (namer := self._namers.get(output.stage)) is not None:
            folder = self._folders.get((namer.folder, output.name), folder)
        return self._outputs.access.written_ns(folder / CURRENT) or None

    def hold(self, stage: str, name: str, folder: Path, why: str) -> None:
        """Keep all that an output may need, since it cannot be read."""
        self.needed.unreadable[folder] = why
        subjects = {name.partition("/")[0]}
        if stage not in corpus_folders():
            subjects |= {output.subject for output in self._all if output.stage in corpus_folders()}
        for subject in subjects:
            self.needed.held.setdefault(subject, f"{folder}: {why}")

    def follow(self, root: str, output: Output) -> None:
        """Mark a version, and all that it needs."""
        if root == output.current and root not in self._places:
            self.hold(output.stage, output.name, output.folder / root, "this is the current version, but it is gone")
        waiting = [root]
        while waiting:
            digest = waiting.pop()
            version = self._places.get(digest)
            if version is None or digest in self.needed.digests:
                continue
            if version.stage in self._namers:  # made from source files alone
                self.needed.digests.add(digest)
                continue
            try:
                manifest = self._read(version)
                waiting += needed_by(self._outputs, manifest)
                self.needed.manifests[digest] = manifest
            except (NanosetError, OSError, KeyError, TypeError, ValueError) as error:
                if digest == root and digest != output.current:
                    return  # nothing needs it: it is left alone, since it cannot be read
                self.hold(version.stage, version.name, version.folder, _what(error))
            self.needed.digests.add(digest)

    def _read(self, version: Version) -> Manifest:
        manifest = self._outputs.manifest_at(version.folder)
        if manifest is None:
            raise MissingError("it has no manifest")
        return manifest


def _what(error: Exception) -> str:
    return error.what if isinstance(error, NanosetError) else repr(error)
