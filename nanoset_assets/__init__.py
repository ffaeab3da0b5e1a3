"""nanoset's assets: the pipeline of nanoset_core as Dagster definitions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoset_assets.component import NanosetComponent
    from nanoset_assets.definitions import build_definitions
    from nanoset_assets.downstream import load_materialized

__all__ = ["NanosetComponent", "build_definitions", "load_materialized"]

_MODULES = {
    "NanosetComponent": "component",
    "build_definitions": "definitions",
    "load_materialized": "downstream",
}
"""Public name → the module that defines it."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    Importing Dagster takes seconds, and most commands of `nanoset` do not need it.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, too: Dagster looks for components among them."""
    return sorted({*globals(), *__all__})
