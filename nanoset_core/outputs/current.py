"""Why the current version of an output is not the wanted one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nanoset_core.outputs.manifest import Manifest, Recipe

NOT_BUILT = "not built yet"
_LONGEST = 40
_WORDS = {
    "trainer_path": "where trainers find the outputs (trainer_path, or else where they lie)",
    "purged": "documents that were erased (nanoset purge)",
    "after.phases": "the phases before (phases)",
    "after.handoff": "the run that it goes on from (continue_from)",
    "after.consumed_samples": "samples that the run has consumed (continue_from)",
    "index_files": "where the index files of train and the others lie",
    "framing.before": "token ids before each document",
    "framing.after": "token ids after each document (EOD)",
}
"""Option of a recipe that may be there without a key of nanoset.yaml → what it is."""
_PARTS = {"schedule": ("iterations", "global_batch_size", "eval_interval", "eval_iters")}
"""Option of a recipe that is a list of several settings → their names."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why an output is not the wanted one."""

    text: str
    """In words, such as `seed: 7 → 8`."""
    input: str | None = None
    """Name of the input that it follows from, where it does."""


@dataclass(frozen=True, slots=True)
class CurrentVersion:
    """The current version of an output, as it was found."""

    manifest: Manifest | None
    """Of the current version, whole or not."""
    problem: str | None
    """Why there is none, or what is wrong with it."""
    error: Exception | None = field(default=None, compare=False)
    """Raised when the pointer to it, or its manifest, was read."""

    @property
    def made_at(self) -> float | None:
        """When it was made, seconds since 1970."""
        return None if self.manifest is None else self.manifest.written_ns / 1e9

    @property
    def exists(self) -> bool:
        """Whether a version was ever made current."""
        return self.problem != NOT_BUILT

    def stale_reasons(self, wanted: Recipe) -> list[Reason]:
        """Return why it is not the output of a recipe; [] where it is, and whole."""
        if self.manifest is None or (
            self.manifest.digest == wanted.digest and self.problem is not None
        ):
            return [Reason(self.problem or NOT_BUILT)]
        return (
            []
            if self.manifest.digest == wanted.digest
            else differences(self.manifest.recipe, wanted)
        )

    def other_settings(self, wanted: Recipe) -> list[str]:
        """Return the settings, as `name: before → now`, where only settings differ from a recipe."""
        if (
            self.manifest is None
            or not wanted.parents
            or self.manifest.recipe["parents"] != wanted.parents
        ):
            return []
        return setting_differences(self.manifest.recipe["options"], wanted.to_json()["options"])


def differences(found: Mapping[str, Any], wanted: Recipe) -> list[Reason]:
    """Return what differs between the recipe that made an output and the wanted one, inputs first."""
    return [
        *_parent_differences(found["parents"], wanted.parents),
        *(
            [Reason(f"algorithm {found['version']} → {wanted.version}")]
            if found["version"] != wanted.version
            else []
        ),
        *map(Reason, setting_differences(found["options"], wanted.to_json()["options"])),
    ]


def _parent_differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[Reason]:
    for name in dict.fromkeys([*wanted, *found]):
        if name not in found:
            yield Reason(f"{name} is new", name)
        elif name not in wanted:
            yield Reason(f"{name} is no longer taken")
        elif found[name] != wanted[name]:
            yield Reason(f"{name} changed", name)


def setting_differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], words: Mapping[str, str] = _WORDS
) -> list[str]:
    """Return the settings that differ, as `name: before → now`; words: option → what to call it."""
    before, now = _flat(found), _flat(wanted)
    return [
        f"{words.get(name, name)}: {_change(before.get(name), now.get(name))}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            flat |= _flat(inner, f"{prefix}{name}.")
        elif inner and name in _PARTS:
            flat |= {f"{name}.{part}": one for part, one in zip(_PARTS[name], inner, strict=False)}
        else:
            flat[f"{prefix}{name}"] = list(inner) if isinstance(inner, tuple) else inner
    return flat


def _change(before: Any, now: Any) -> str:
    """Return both values, each on one short line; of long lists, only the items that one of them
    lacks.
    """
    if (
        isinstance(before, list)
        and isinstance(now, list)
        and max(len(str(before)), len(str(now))) > _LONGEST
    ):
        gone, new = (
            [item for item in one if item not in other]
            for one, other in ((before, now), (now, before))
        )
        if gone or new:
            before, now = gone, new
    return f"{_one_line(before)} → {_one_line(now)}"


def _one_line(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
