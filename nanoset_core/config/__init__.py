"""Settings of a project: the keys of nanoset.yaml, their defaults, ranges and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nanoset_core.serialization.parsing import CONFIG_FILE

if TYPE_CHECKING:
    from nanoset_core.config.project import ProjectConfig, load_config

__all__ = ["CONFIG_FILE", "ProjectConfig", "load_config"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that readers of webdatasets import little."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nanoset_core.config import project

    return getattr(project, name)
