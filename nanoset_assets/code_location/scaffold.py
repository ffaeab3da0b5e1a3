"""Write the files of a new component: `dg scaffold defs nanoset_assets.NanosetComponent`.

A component is a folder with a defs.yaml, which adds a nanoset project to a Dagster code location.
With the name `llm` at the end of the command, it writes `defs/llm/defs.yaml` with the key prefix
`llm`, and a nanoset.yaml to start from.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import dagster as dg
from pydantic import BaseModel, Field

from nanoset_assets.names import names_of
from nanoset_core.errors import MissingError, NanosetError
from nanoset_core.project.settings import ProjectConfig, load_config


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
        """Write the files of a new project inside a Dagster project. `dg scaffold defs` calls this.

        Args:
            request: The folder of the new defs.yaml, and the options of the command.

        Raises:
            click.ClickException: The files cannot be written. The command prints the text.
        """
        try:
            self._write_files(request)
        except NanosetError as error:
            # Dagster has created this folder. The command would refuse to use it again.
            with suppress(OSError):  # there may be files in it
                request.target_path.rmdir()
            raise click.ClickException(str(error)) from error

    def _write_files(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write the defs.yaml of a new component, and perhaps a nanoset.yaml.

        For the command `dg scaffold defs nanoset_assets.NanosetComponent llm`, these are:

            defs/llm/defs.yaml     adds the project's assets to the Dagster project
            llm/nanoset.yaml       settings to start from

        The names of all assets get a prefix, here `llm/`, which is written to one of the two files:

            nanoset.yaml               option --key-prefix    the prefix is written to
            is new                     set or not             nanoset.yaml
            exists, has no prefix      set or not             defs.yaml
            exists, has a prefix       set                    defs.yaml, which takes precedence
            exists, has a prefix       not set                neither: that of nanoset.yaml is used

        The option `--config` names a nanoset.yaml that exists. It is never changed.

        Args:
            request: The folder of the new defs.yaml, and the options of the command.

        Raises:
            ConfigError: The prefix contains characters that are not allowed, or the nanoset.yaml
                has mistakes.
            MissingError: There is no nanoset.yaml at the path of `--config`.
        """
        component_folder = request.target_path  # of the defs.yaml
        params = request.params
        key_prefix = params.key_prefix or component_folder.name
        names = names_of(
            key_prefix, group_prefix=None, where="the key prefix; by default the folder's name"
        )

        attributes: dict[str, Any] = {}  # of the component, in the defs.yaml
        if params.config is None:
            config = _write_new_config(request, names.key_prefix)  # with the prefix
        else:
            config = Path(params.config).absolute()
            file_has_prefix = bool(_existing_config(config).dagster.key_prefix)
            user_sets_prefix = bool(params.key_prefix)  # by an option of the command
            if user_sets_prefix or not file_has_prefix:
                attributes["key_prefix"] = list(names.key_prefix)
        attributes["config"] = _path_for_defs_yaml(config, component_folder, request.project_root)
        dg.scaffold_component(request, attributes)


def _existing_config(path: Path) -> ProjectConfig:
    """Return the settings of the file that the option `--config` names.

    Args:
        path: Absolute path of the file.

    Raises:
        ConfigError: The file has mistakes.
        MissingError: The file does not exist.
    """
    try:
        return load_config(path)
    except MissingError as error:
        remedy = "correct the path, or leave out --config, so that a new nanoset.yaml is written"
        raise error.at(path, remedy) from error


def _write_new_config(
    request: dg.ScaffoldRequest[ScaffoldParams], key_prefix: Sequence[str]
) -> Path:
    """Write a file with settings to start from, nanoset.yaml, and return its path.

    Args:
        request: Says in which folder the new defs.yaml is (`target_path`), such as /acme/defs/llm,
            and where the Dagster project is (`project_root`), such as /acme; or None if there is
            none.
        key_prefix: Prefix of the names of all Dagster assets, which is one of the settings.
    """
    from nanoset_core.project.first_config.write import write_config

    name = request.target_path.name  # llm
    if request.project_root is not None:
        folder = request.project_root / name  # /acme/llm
    else:
        folder = request.target_path / name  # /acme/defs/llm/llm
    return write_config(folder, key_prefix=key_prefix).path


def _path_for_defs_yaml(config: Path, folder: Path, project_root: Path | None) -> str:
    """Return how a defs.yaml refers to the settings file nanoset.yaml: by a relative path.

    So both files can be moved together. For a defs.yaml in /acme/defs/llm:

        settings file                path
        /acme/llm/nanoset.yaml       {{ context.project_root }}/llm/nanoset.yaml
        /other/nanoset.yaml          ../../../other/nanoset.yaml

    Dagster replaces the text in braces by the folder of its project, /acme.

    Args:
        config: Absolute path of the nanoset.yaml.
        folder: The folder of the defs.yaml.
        project_root: The folder of the Dagster project, or None if there is none.
    """
    if project_root is not None and config.is_relative_to(project_root):
        path = config.relative_to(project_root).as_posix()
        return "{{ context.project_root }}/" + path
    return Path(os.path.relpath(config, folder)).as_posix()
