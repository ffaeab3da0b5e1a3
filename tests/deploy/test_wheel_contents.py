"""The settings of setuptools name every file of the packages.

tests/deploy/test_wheel.py builds and installs a wheel, which takes longer.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
CACHES = {"__pycache__", ".mypy_cache", ".ruff_cache"}
FOR_DEVELOPERS = ("ruff.toml",)
"""Files in the packages that only those who change the code need."""


def test_every_file_of_the_packages_is_packed() -> None:
    setuptools = pytest.importorskip("setuptools", reason="setuptools is not installed")
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["packages"]["find"]["include"]
    packages = setuptools.find_namespace_packages(str(REPOSITORY), include=patterns)

    missing_names: list[str] = []
    for top_package, data_files in settings["package-data"].items():
        for path in (REPOSITORY / top_package).rglob("*"):
            if path.is_dir() or not CACHES.isdisjoint(path.parts) or path.name in FOR_DEVELOPERS:
                continue
            package = ".".join(path.parent.relative_to(REPOSITORY).parts)
            name_in_package = path.relative_to(REPOSITORY / top_package).as_posix()
            is_module = path.suffix == ".py" and package in packages
            if not is_module and name_in_package not in data_files:
                missing_names.append(f"{top_package}/{name_in_package}")

    assert missing_names == []


def test_every_folder_with_modules_is_a_package() -> None:
    setuptools = pytest.importorskip("setuptools", reason="setuptools is not installed")
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["packages"]["find"]["include"]

    with_init = set(setuptools.find_packages(str(REPOSITORY), include=patterns))

    folders: set[str] = set()
    for top_package in settings["package-data"]:
        for module in (REPOSITORY / top_package).rglob("*.py"):
            folders.add(".".join(module.parent.relative_to(REPOSITORY).parts))
    assert folders - with_init == set()
