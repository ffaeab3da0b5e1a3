"""Where the work of a build is done, as nanoset.yaml holds it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nanoset_core.errors import ConfigError

_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """Who tokenizes, writes tars and verifies deeply; the same bytes from each."""

    kind: Literal["processes", "dask"] = "processes"
    """processes of this machine, or the workers of a Dask cluster"""
    address: str | None = None
    """the Dask scheduler's, such as tcp://scheduler:8786"""


def check_executor(file: Path, spec: ExecutorSpec) -> None:
    """Raise ConfigError for a kind without its address, an address without its kind, and an address that is none."""
    if spec.kind == "processes" and spec.address is None:
        return
    where, found = f"{file}: executor.address", repr(spec.address)
    if spec.kind == "processes":
        raise ConfigError(
            "processes have no address",
            where=where,
            found=found,
            expected="an address only where executor.kind is dask",
            remedy="set executor.kind to dask, or remove the address",
        )
    if spec.address is None or not _ADDRESS.fullmatch(spec.address):
        raise ConfigError(
            "this is no address of a Dask scheduler",
            where=where,
            found=found,
            expected="tcp://host:port or tls://host:port, as the scheduler prints it when it starts",
            remedy="give it, or set executor.kind to processes",
        )
