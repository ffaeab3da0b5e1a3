"""Deprecated: import `load_config` and `ProjectConfig` from `nanoset_core`."""

from __future__ import annotations

import warnings

from nanoset_core.project.settings import ProjectConfig, load_config

__all__ = ["ProjectConfig", "load_config"]

warnings.warn(
    "nanoset_core.config has moved: import from nanoset_core", DeprecationWarning, stacklevel=2
)
