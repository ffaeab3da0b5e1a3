"""What is made of wrong tokens: shards of an engine that is not trusted any more, and all that was made from them.

A shard keeps its digest when it is made again. So before the shards of a corpus are made again, it is noted which bytes
they had; afterwards everything that was made from shards with other bytes is withdrawn, so that it is made again too.
Whoever is cut off in between leaves the note, and the next run does the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import orjson

from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import MANIFEST, Manifest, canonical_json, is_digest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.tokenization import distrust
from nanoset_core.tokenization.distrust import Distrust
from nanoset_core.tokenization.shards import STAGE as SHARDS
from nanoset_core.tokenization.shards import TOKENS

_UNDER_WAY = "mending"
_SETS, _DATASETS = "tokenized", "datasets"  # their stages stand above this module
_DEEPEST = 4


def suspects(outputs: OutputRoot, corpus: str) -> list[tuple[Manifest, Distrust]]:
    """Shards of a corpus whose engine gave wrong tokens for some document, those of older versions included."""
    if not (distrusted := distrust.noted(outputs)):
        return []

    def look(found: OutputRoot, place: Path) -> tuple[Manifest, Distrust] | None:
        try:
            shard = found.manifest_at(place)
        except FormatError:
            return None  # it is made again, as one that is not there
        reason = None if shard is None else distrust.suspicion(shard, distrusted)
        return None if shard is None or reason is None else (replace(shard, access=outputs.access), reason)

    digests = sorted(filter(is_digest, outputs.access.names(outputs.folder / SHARDS / corpus)))
    return [one for one in outputs.each_version(look, SHARDS, corpus, digests) if one is not None]


def suspicion(outputs: OutputRoot, corpus: str) -> str | None:
    """Why the tokens of a corpus, and all that is made from them, may be wrong."""
    if not distrust.is_any(outputs):
        return None
    found = suspects(outputs, corpus)
    if found:
        return f"{len(found):,} shard(s) may hold wrong tokens: {found[0][1]}"
    return "shards with wrong tokens were made again" if _read(outputs, corpus) else None


def begin(outputs: OutputRoot, corpus: str, shards: Iterable[Manifest]) -> None:
    """Note which bytes shards have that are about to be made again."""
    before = _read(outputs, corpus)
    noted = {shard.digest: _bytes_of(shard) for shard in shards} | before
    if noted != before:
        path, data = _path(outputs, corpus), canonical_json(noted)
        write_atomic(path, data)
        outputs.access.send_small(path, data)


def finish(outputs: OutputRoot, corpus: str) -> None:
    """Withdraw what was made from shards that have other bytes now, and suspect shards that nobody made again."""
    before = _read(outputs, corpus)
    if not before:
        return
    left = {shard.digest: shard.folder for shard, _ in suspects(outputs, corpus)}
    changed = {digest for digest in before if digest in left or _now(outputs, corpus, digest) != before[digest]}
    if changed:
        for folder in _made_from(outputs, corpus, changed):
            _withdraw(outputs, folder)
    for folder in left.values():
        _withdraw(outputs, folder)
    outputs.access.remove(_path(outputs, corpus))


def _made_from(outputs: OutputRoot, corpus: str, shards: set[str]) -> list[Path]:
    """Folders of all versions that were made from one of these shards, at first or second hand."""
    from nanoset_core.pipeline.stages import stage_of

    versions = list(_versions(outputs))
    manifests = [manifest for _, manifest in versions if manifest is not None]
    sets = [
        one
        for one in manifests
        if (one.stage, one.name) == (_SETS, corpus) and not shards.isdisjoint(map(str, one.facts[SHARDS]))
    ]
    gone = {one.digest for one in sets}
    gone |= {one.digest for one in manifests if one.stage == _DATASETS and any(_gave(made, one) for made in sets)}
    found: set[str] = set()
    while gone != found:
        found = set(gone)
        for one in manifests:
            if one.digest in gone or not gone.isdisjoint(map(str, one.recipe["parents"].values())):
                stage = stage_of(one.stage, one.name)
                gone |= {one.digest, *(() if stage is None else stage.future_outputs(one))}
    return [folder for folder, _ in versions if folder.name in gone]


def _gave(shards: Manifest, dataset: Manifest) -> bool:
    """Whether a dataset was merged from a set of shards, or from one of the same files and settings."""
    options = {name: value for name, value in shards.recipe["options"].items() if name != "range_bytes"}
    return (
        shards.name == dataset.name
        and shards.recipe["parents"] == dataset.recipe["parents"]
        and {name: dataset.recipe["options"].get(name) for name in options} == options
    )


def _versions(outputs: OutputRoot) -> Iterator[tuple[Path, Manifest | None]]:
    """Every version's folder below a root, with its manifest where it is complete."""
    listing = outputs.access.listing()

    def below(folder: Path, depth: int) -> Iterator[Path]:
        for entry in listing.entries(folder):
            if entry.is_folder and not entry.is_link and not entry.name.startswith("."):
                if is_digest(entry.name):
                    yield folder / entry.name
                elif depth < _DEEPEST:
                    yield from below(folder / entry.name, depth + 1)

    for folder in below(outputs.folder, 0):
        try:
            yield folder, outputs.manifest_at(folder)
        except FormatError:
            yield folder, None


def _withdraw(outputs: OutputRoot, folder: Path) -> None:
    outputs.forget(folder.parent)
    for rest in outputs.access.withdraw(folder, MANIFEST, lambda: False) or ():
        shutil.rmtree(rest, ignore_errors=True)


def _now(outputs: OutputRoot, corpus: str, digest: str) -> list[str] | None:
    """The bytes that a shard has, None where it is not there."""
    try:
        shard = outputs.manifest_at(outputs.folder / SHARDS / corpus / digest)
    except FormatError:
        return None
    return None if shard is None else _bytes_of(shard)


def _bytes_of(shard: Manifest) -> list[str]:
    return [f"{name} {fact.sha256}" for name, fact in sorted(shard.files.items()) if name.startswith(f"{TOKENS}.")]


def _path(outputs: OutputRoot, corpus: str) -> Path:
    return outputs.folder / distrust.FOLDER / _UNDER_WAY / f"{corpus}.json"


def _read(outputs: OutputRoot, corpus: str) -> dict[str, list[str]]:
    """Digest of each shard that is to be made again, or was, → the bytes that it had."""
    try:
        found = orjson.loads(outputs.access.read_current(_path(outputs, corpus)))
    except FileNotFoundError:
        return {}
    return {str(digest): list(had) for digest, had in found.items()}
