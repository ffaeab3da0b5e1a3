"""Why an output is not up to date: what its recipe has that the present one has not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nanoset_core.outputs.manifest import Recipe

_LONGEST = 40


def differences(found: Mapping[str, Any], wanted: Recipe) -> list[str]:
    """What differs between the recipe that made an output and the one that is wanted, in words, inputs first."""
    return [
        *_of_parents(found["parents"], wanted.parents),
        *([f"algorithm {found['version']} → {wanted.version}"] if found["version"] != wanted.version else []),
        *of_options(found["options"], wanted.to_json()["options"]),
    ]


def _of_parents(found: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    for name in dict.fromkeys([*wanted, *found]):
        if name not in found:
            yield f"{name} is new"
        elif name not in wanted:
            yield f"{name} is no longer taken"
        elif found[name] != wanted[name]:
            yield f"{name} changed"


def of_options(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Settings that differ, as `name: before → now`."""
    before, now = _flat(found), _flat(wanted)
    return [
        f"{name}: {_spelled(before.get(name))} → {_spelled(now.get(name))}"
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


def _spelled(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
