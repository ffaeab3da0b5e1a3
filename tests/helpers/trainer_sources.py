"""Source files of trainers, which tests run without importing their packages."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest


def source_file(package: str, *path: str) -> Path:
    """Return a file of a package; the test is skipped if the package is not installed.

    Megatron-LM is not installed as a package: the environment variable MEGATRON_LM names its
    folder.
    """
    folders: list[Path] = []
    if package == "megatron":
        if "MEGATRON_LM" in os.environ:
            folders.append(Path(os.environ["MEGATRON_LM"], package))
    else:
        spec = importlib.util.find_spec(package)
        if spec is not None:
            folders += map(Path, spec.submodule_search_locations or ())
    for folder in folders:
        file = folder.joinpath(*path)
        if file.is_file():
            return file
    pytest.skip(f"{package} is not installed")
