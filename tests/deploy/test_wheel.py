"""A wheel of nanoset works without the checkout that it was built from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
"""The tests install the package."""

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("nanoset_core", "nanoset_assets")
CACHES = ("__pycache__", ".mypy_cache", ".ruff_cache")
SETTINGS = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
documents: {max_rejected_fraction: 0.2}
nanosets: {plain: {blend: books, sequence_length: 16}}
"""
"""Settings of a project of one corpus: that all modules are installed is tested by their names."""
FOR_DEVELOPERS = ("ruff.toml",)
"""Files in the packages that only those who change the code need."""


@dataclass(frozen=True)
class Wheel:
    """A wheel, and a folder into which it was installed."""

    file: Path
    folder: Path

    def run(self, *words: str, cwd: Path) -> str:
        """Run a program of the environment with the installed code, and return its output."""
        program, *arguments = words
        installed_program = self.folder / "bin" / program
        if not installed_program.exists():
            installed_program = Path(sys.executable).with_name(program)
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "PYTHONSAFEPATH": "1",  # do not import from the current folder
            "COLUMNS": "200",
        }
        result = subprocess.run(
            [str(installed_program), *arguments],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    """Build a wheel of this checkout, and install it without its dependencies."""
    folder = tmp_path_factory.mktemp("wheel")

    # setuptools writes into the folder that it builds, so build a copy.
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    for package in PACKAGES:
        ignored = shutil.ignore_patterns(*CACHES)
        shutil.copytree(REPOSITORY / package, source / package, ignore=ignored)

    # Without isolation, pip needs no network: setuptools is one of the packages for developers.
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run([*pip, *build], check=True)
    (file,) = folder.glob("*.whl")
    installed = folder / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(installed), file], check=True)
    return Wheel(file, installed)


def test_a_wheel_contains_every_file_of_the_packages(wheel):
    packed_names = zipfile.ZipFile(wheel.file).namelist()

    missing_names = []
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*"):
            is_cached = not set(CACHES).isdisjoint(path.parts)
            if path.is_dir() or is_cached or path.name in FOR_DEVELOPERS:
                continue
            name = path.relative_to(REPOSITORY).as_posix()
            if name not in packed_names:
                missing_names.append(name)

    assert missing_names == []


def test_an_installed_nanoset_reports_its_version(wheel, tmp_path):
    version = wheel.file.name.split("-")[1]

    output = wheel.run("nanoset", "--version", cwd=tmp_path)

    assert output.strip() == f"nanoset, version {version}"


def test_an_installed_nanoset_builds_a_project(wheel, tmp_path, make_project):
    config = make_project()
    config.write_text(SETTINGS)
    for corpus in ("web", "code"):
        shutil.rmtree(config.parent / "raw" / corpus)

    wheel.run("nanoset", "build", "--config", str(config), cwd=tmp_path)
    output = wheel.run("nanoset", "status", "--config", str(config), cwd=tmp_path)

    assert "out of date" not in output
    assert "missing" not in output


def test_dagster_loads_an_installed_nanoset(wheel, tmp_path, make_project, monkeypatch):
    monkeypatch.setenv("NANOSET_CONFIG", str(make_project()))

    definitions = ("definitions", "validate", "-m", "nanoset_assets.definitions")
    output = wheel.run("dagster", *definitions, cwd=tmp_path)

    assert "All code locations passed validation" in output


def test_dg_finds_the_component_of_an_installed_nanoset(wheel, tmp_path):
    output = wheel.run("dg", "list", "components", cwd=tmp_path)

    assert "nanoset_assets.NanosetComponent" in output
