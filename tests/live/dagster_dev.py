"""`dagster dev` over a project, on a free port."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from helpers.daemons import free_ports, running, until

REPOSITORY = Path(__file__).parents[2]
START_SECONDS = 180
"""How long to wait for the UI: on a busy machine, it takes a minute."""
LOCATION_STATUS = """
{
  workspaceOrError {
    ... on Workspace {
      locationEntries { loadStatus locationOrLoadError { ... on PythonError { message } } }
    }
  }
}
"""
"""What the UI asks for to show whether the code locations could be loaded."""


@contextmanager
def dagster_dev(
    project: Path,
    home: Path,
    log: Path,
    *,
    module: str | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """Run `dagster dev` until the block ends, and yield the address of its UI once it answers.

    Args:
        project: A nanoset.yaml, or the folder of a project that is loaded from a module of its own.
        home: The folder of the history.
        log: The file of its output.
        module: That module; default: the code location of workspace.yaml.
        environment: Further variables; the repository is added to PYTHONPATH.
    """
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "dagster", "dev", "--host", "127.0.0.1", "--port", str(port)]
    if module is None:
        command += ["--workspace", str(REPOSITORY / "workspace.yaml")]
    else:
        command += ["--module-name", module]

    variables = {
        "NANOSET_CONFIG": str(project),
        "DAGSTER_HOME": str(home),
        "PYTHONUNBUFFERED": "1",
        **environment,
    }
    module_folders = [str(REPOSITORY)]
    if environment.get("PYTHONPATH"):
        module_folders.insert(0, environment["PYTHONPATH"])
    variables["PYTHONPATH"] = os.pathsep.join(module_folders)

    address = f"http://127.0.0.1:{port}"
    folder = project if project.is_dir() else project.parent
    with running(command, log, folder=folder, environment=variables) as process:
        until(
            lambda: process.poll() is not None or has_loaded(address),
            START_SECONDS,
            lambda: f"no UI came up:\n{log.read_text()}",
        )
        assert process.poll() is None, f"dagster dev ended:\n{log.read_text()}"
        yield address


def has_loaded(address: str) -> bool:
    """Return whether a UI answers and has loaded all its code locations.

    Raises:
        RuntimeError: A code location cannot be loaded.
    """
    try:
        entries = query(address, LOCATION_STATUS)["workspaceOrError"]["locationEntries"]
    except OSError:
        return False

    errors = []
    for entry in entries:
        location_or_error = entry["locationOrLoadError"] or {}
        if "message" in location_or_error:
            errors.append(location_or_error["message"])
    if errors:
        raise RuntimeError(f"the definitions cannot be loaded: {errors}")
    return bool(entries) and all(entry["loadStatus"] == "LOADED" for entry in entries)


def query(address: str, graphql: str) -> dict[str, Any]:
    """Return the answer to a query of the UI's own interface."""
    request = urllib.request.Request(
        f"{address}/graphql",
        json.dumps({"query": graphql}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        data: dict[str, Any] = json.load(answer)["data"]
    return data
