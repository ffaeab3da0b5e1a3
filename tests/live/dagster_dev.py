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
_LOCATIONS = """{ workspaceOrError { ... on Workspace { locationEntries {
    loadStatus locationOrLoadError { ... on PythonError { message } } } } } }"""


@contextmanager
def dagster_dev(
    project: Path,
    home: Path,
    log: Path,
    *,
    module: str | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """The address of the UI, once it answers; all processes are ended, and seen to be gone, at the
    end.

    Args:
        project: a nanoset.yaml, or the folder of a project that is loaded from a module of its own.
        home: the history's folder.
        log: what it prints.
        module: that module.
        more: of the environment; to its PYTHONPATH the repository is added.
    """
    (port,) = free_ports(1)
    environment = {
        "NANOSET_CONFIG": str(project),
        "DAGSTER_HOME": str(home),
        "PYTHONUNBUFFERED": "1",
        **more,
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [more.get("PYTHONPATH"), str(REPOSITORY)])
    )
    location = (
        ["--workspace", str(REPOSITORY / "workspace.yaml")]
        if module is None
        else ["--module-name", module]
    )
    command = [
        sys.executable,
        "-m",
        "dagster",
        "dev",
        *location,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    address = f"http://127.0.0.1:{port}"
    folder = project if project.is_dir() else project.parent
    with running(command, log, folder=folder, environment=environment) as process:
        until(
            lambda: process.poll() or loaded(address),
            60,
            lambda: f"no UI came up:\n{log.read_text()}",
        )
        assert process.poll() is None, f"dagster dev ended:\n{log.read_text()}"
        yield address


def loaded(address: str) -> bool:
    """Whether the UI answers, and knows our assets; RuntimeError where it never will."""
    try:
        entries = query(address, _LOCATIONS)["workspaceOrError"]["locationEntries"]
    except OSError:
        return False
    if errors := [
        found["message"]
        for entry in entries
        if "message" in (found := entry["locationOrLoadError"] or {})
    ]:
        raise RuntimeError(f"the definitions cannot be loaded: {errors}")
    return bool(entries) and all(entry["loadStatus"] == "LOADED" for entry in entries)


def query(address: str, graphql: str) -> dict[str, Any]:
    """What the UI's own interface answers."""
    body = json.dumps({"query": graphql}).encode()
    request = urllib.request.Request(
        f"{address}/graphql", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)["data"]
