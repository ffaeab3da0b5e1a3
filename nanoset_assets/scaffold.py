"""Write the files of a new component: `dg scaffold defs nanoset_assets.NanosetComponent`.

A component is a folder with a defs.yaml, which adds a nanoset project to a Dagster code location.
With the name `llm` at the end of the command, it writes `defs/llm/defs.yaml` with the key prefix
`llm`, and a nanoset.yaml to start from.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

from nanoset_assets.names import names_of
from nanoset_core.project.settings import load_config


class ScaffoldParams(BaseModel):
    """Options of `dg scaffold defs`."""

    config: str | None = Field(
        default=None, description="Path of an existing nanoset.yaml; default: write a new one."
    )
    key_prefix: str | None = Field(
        default=None,
        description="Prefix of all asset keys; default: that of the project, or the folder's name.",
    )


class NanosetScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes a defs.yaml, and a nanoset.yaml to start from if none is named."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        """Return the model of the command's options."""
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write a defs.yaml, and a nanoset.yaml to start from if no existing one is named.

        Args:
            request: The folder of the new component, and the options of the command.

        Raises:
            ConfigError: The key prefix is not valid.
        """
        component_folder = request.target_path  # of the defs.yaml
        params = request.params
        key_prefix = params.key_prefix or component_folder.name
        names = names_of(
            key_prefix, group_prefix=None, where="the key prefix; by default the folder's name"
        )

        attributes: dict[str, Any] = {}  # of the component, in the defs.yaml
        if params.config is None:
            config = _write_new_config(request, names.key_prefix)  # has the prefix
        else:
            # An existing nanoset.yaml is not changed. So if its prefix is not the right one, the
            # defs.yaml has the prefix.
            config = Path(params.config).absolute()
            has_prefix = bool(load_config(config).dagster.key_prefix)
            overrides_prefix = bool(params.key_prefix)  # an option of the command
            if overrides_prefix or not has_prefix:
                attributes["key_prefix"] = list(names.key_prefix)
        attributes["config"] = _path_for_defs_yaml(config, component_folder, request.project_root)
        dg.scaffold_component(request, attributes)


def _write_new_config(
    request: dg.ScaffoldRequest[ScaffoldParams], key_prefix: Sequence[str]
) -> Path:
    """Write a nanoset.yaml to start from, and return its path.

    Its folder has the name of the component, and is in the folder of the Dagster project if there
    is one.

    Args:
        request: The folder of the new component.
        key_prefix: Prefix of all asset keys, which the file contains.
    """
    from nanoset_core.project.first_config import write_config

    component_folder = request.target_path
    parent = request.project_root or component_folder
    return write_config(parent / component_folder.name, key_prefix=key_prefix).path


def _path_for_defs_yaml(config: Path, folder: Path, project_root: Path | None) -> str:
    """Return the path of a nanoset.yaml as a defs.yaml in `folder` names it.

    In a Dagster project, the path starts with a template for the project's folder.

    Args:
        config: Absolute path of the nanoset.yaml.
        folder: The folder of the defs.yaml.
        project_root: The folder of the Dagster project, or None if there is none.

    Returns:
        Such as `{{ context.project_root }}/llm/nanoset.yaml`, or `../nanoset.yaml`.
    """
    if project_root is not None and config.is_relative_to(project_root):
        path = config.relative_to(project_root).as_posix()
        return f"{{{{ context.project_root }}}}/{path}"
    return Path(os.path.relpath(config, folder)).as_posix()
