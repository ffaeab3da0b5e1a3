"""What `dg scaffold defs nanoset_assets.NanosetComponent` writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

from nanoset_assets.names import names_of
from nanoset_core.project.settings import load_config


class ScaffoldParams(BaseModel):
    """Options of `dg scaffold defs`."""

    config: str | None = Field(
        default=None, description="A nanoset.yaml that is there; default: a new one."
    )
    key_prefix: str | None = Field(
        default=None,
        description="Before all asset keys; default: what the project says, or the folder's name.",
    )


class NanosetScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes a defs.yaml, and a nanoset.yaml to start from if none is named."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        from nanoset_core.project.first_config import write_config

        folder = request.target_path
        params = request.params
        key_prefix = params.key_prefix or folder.name
        names = names_of(key_prefix, None, "the key prefix; by default the folder's name")
        attributes: dict[str, Any] = {}
        if params.config is None:
            project_folder = (request.project_root or folder) / folder.name
            config = write_config(project_folder, key_prefix=names.key_prefix).path
        else:
            config = Path(params.config).absolute()
            if params.key_prefix or not load_config(config).dagster.key_prefix:
                attributes["key_prefix"] = list(names.key_prefix)
        location = _relative(config, folder, request.project_root)
        dg.scaffold_component(request, {"config": location, **attributes})


def _relative(config: Path, folder: Path, project_root: Path | None) -> str:
    """Return the path of a nanoset.yaml as a defs.yaml in `folder` names it.

    If the file is in the Dagster project, the path starts with a template for the project's folder.
    """
    if project_root is not None and config.is_relative_to(project_root):
        path = config.relative_to(project_root).as_posix()
        return f"{{{{ context.project_root }}}}/{path}"
    return Path(os.path.relpath(config, folder)).as_posix()
