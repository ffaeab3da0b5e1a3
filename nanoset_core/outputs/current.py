"""The current version of an output, and why it is not the one that is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import MANIFEST, Manifest, Recipe
from nanoset_core.outputs.root import CURRENT, OutputRoot, current_digest
from nanoset_core.storage.access import FileAccess, LocalAccess

NOT_BUILT = "not built yet"
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why an output is not the wanted one."""

    text: str
    """In words, such as `seed: 7 → 8`."""
    input: str | None = None
    """Name of the input that it follows from, where it does."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class CurrentVersion:
    """What is there of an output."""

    manifest: Manifest | None
    """Of the current version, whole or not."""
    problem: str | None
    """Why there is none, or what is wrong with it."""
    made_at: float | None
    """When it was made, seconds since 1970."""

    @property
    def exists(self) -> bool:
        """Whether a version was ever made current."""
        return self.problem != NOT_BUILT

    def stale_reasons(self, wanted: Recipe) -> list[Reason]:
        """Why it is not the output of a recipe; [] where it is, and whole."""
        if self.manifest is None or (self.manifest.digest == wanted.digest and self.problem is not None):
            return [Reason(self.problem or NOT_BUILT)]
        return [] if self.manifest.digest == wanted.digest else differences(self.manifest.recipe, wanted)

    def other_settings(self, wanted: Recipe) -> list[str]:
        """Settings, as `name: before → now`, where it differs by these alone from the output of a recipe."""
        if self.manifest is None or not wanted.parents or self.manifest.recipe["parents"] != wanted.parents:
            return []
        return setting_differences(self.manifest.recipe["options"], wanted.to_json()["options"])


def current_version(outputs: OutputRoot, stage: str, name: str) -> CurrentVersion:
    """The current version of an output; whatever is wrong with it is told, not raised."""
    folder = outputs.folder / stage / name
    if (seen := outputs.seen_current(folder)) is not None:
        return _version(seen)
    digest, problem = read_current(folder, outputs.access)
    if digest is None:
        return CurrentVersion(None, problem or NOT_BUILT, None)
    try:
        manifest = outputs.manifest_at(folder / digest)
    except FormatError as error:
        return CurrentVersion(None, f"damaged: {error.where}: {error.what}", None)
    if manifest is None:
        return CurrentVersion(None, f"damaged: {digest}/{MANIFEST} is missing", None)
    if (manifest.stage, manifest.name, manifest.digest) != (stage, name, digest):
        found = f"{manifest.stage}/{manifest.name}/{manifest.digest}"
        return CurrentVersion(None, f"damaged: {digest}/{MANIFEST} is that of {found}", None)
    outputs.note_current(manifest)
    return _version(manifest)


def _version(manifest: Manifest) -> CurrentVersion:
    damage = manifest.damage()
    made_at = (manifest.folder / MANIFEST).stat().st_mtime
    return CurrentVersion(manifest, None if damage is None else f"damaged: {damage}", made_at)


def current_versions(outputs: OutputRoot, stage: str, names: Sequence[str]) -> list[CurrentVersion]:
    """As `current_version`, of many outputs of a stage whose names have one part: a bucket is asked for all at once."""

    def look(access: FileAccess, folder: Path) -> CurrentVersion:
        if (seen := outputs.seen_current(folder)) is not None:
            return _version(seen)
        found = current_version(replace(outputs, access=access, seen=None), stage, folder.name)
        if found.exists and found.problem is not None:  # or it was made anew since they were listed
            return current_version(outputs, stage, folder.name)
        if found.manifest is None:
            return found
        manifest = replace(found.manifest, access=outputs.access)
        outputs.note_current(manifest)
        return replace(found, manifest=manifest)

    return outputs.access.each_folder(look, outputs.folder / stage, names)


def read_current(folder: Path, access: FileAccess | None = None) -> tuple[str | None, str | None]:
    """(digest of an output's current version, what is wrong with the file that names it).

    access: how the folder is reached, where it is no local one.
    """
    try:
        return current_digest(access or LocalAccess(folder), folder), None
    except FormatError as error:
        return None, f"{CURRENT} cannot be read: {error.found}"
    except OSError as error:
        return None, f"{CURRENT} cannot be read: {error!r}"


def differences(found: Mapping[str, Any], wanted: Recipe) -> list[Reason]:
    """What differs between the recipe that made an output and the one that is wanted, inputs first."""
    return [
        *_of_parents(found["parents"], wanted.parents),
        *([Reason(f"algorithm {found['version']} → {wanted.version}")] if found["version"] != wanted.version else []),
        *map(Reason, setting_differences(found["options"], wanted.to_json()["options"])),
    ]


def _of_parents(found: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[Reason]:
    for name in dict.fromkeys([*wanted, *found]):
        if name not in found:
            yield Reason(f"{name} is new", name)
        elif name not in wanted:
            yield Reason(f"{name} is no longer taken")
        elif found[name] != wanted[name]:
            yield Reason(f"{name} changed", name)


def setting_differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Settings that differ, as `name: before → now`."""
    before, now = _flat(found), _flat(wanted)
    return [
        f"{name}: {_told_apart(before.get(name), now.get(name))}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            flat |= _flat(inner, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = list(inner) if isinstance(inner, tuple) else inner
    return flat


def _told_apart(before: Any, now: Any) -> str:
    """Two values, each on one line; of lists that are cut there, what only one of them holds."""
    if isinstance(before, list) and isinstance(now, list) and max(len(str(before)), len(str(now))) > _LONGEST:
        gone, new = ([item for item in one if item not in other] for one, other in ((before, now), (now, before)))
        if gone or new:
            before, now = gone, new
    return f"{_one_line(before)} → {_one_line(now)}"


def _one_line(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
