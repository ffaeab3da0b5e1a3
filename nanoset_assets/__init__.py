"""nanoset's assets: the pipeline of nanoset_core as Dagster definitions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoset_assets.component import NanosetComponent
    from nanoset_assets.definitions import build_definitions
    from nanoset_assets.downstream import load_materialized

__all__ = ["NanosetComponent", "build_definitions", "load_materialized"]

_PLACES = {"NanosetComponent": "component", "build_definitions": "definitions", "load_materialized": "downstream"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command `nanoset` does not wait for Dagster."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Dagster looks here for components."""
    return sorted({*globals(), *__all__})
