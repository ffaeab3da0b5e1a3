"""The Dagster instance that holds a project's history."""

from __future__ import annotations

import os
import shutil
from importlib import resources
from pathlib import Path

import dagster as dg

from nanoset_core.config.project import ProjectConfig

HOME_VARIABLE = "DAGSTER_HOME"
HOME_FOLDER = ".dagster"


def dagster_home(config: ProjectConfig) -> Path:
    """DAGSTER_HOME where it is set, else .dagster beside nanoset.yaml; made, with our dagster.yaml, where missing."""
    home = Path(os.environ.get(HOME_VARIABLE) or config.file.parent / HOME_FOLDER).expanduser().resolve()
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "dagster.yaml"
    if not settings.exists():
        with resources.as_file(resources.files("nanoset_assets") / "dagster.yaml") as shipped:
            shutil.copyfile(shipped, settings)
    return home


def open_instance(config: ProjectConfig) -> dg.DagsterInstance:
    """The project's instance; sets DAGSTER_HOME for this process and its children."""
    os.environ[HOME_VARIABLE] = str(dagster_home(config))
    return dg.DagsterInstance.get()
