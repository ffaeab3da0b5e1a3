"""The documentation's pages: generated parts are up to date, links and named files are there, the
site builds.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.conftest import PAGES, TOP, without_code

from helpers.layers import LAYERS

_LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*)$", re.MULTILINE)
_FILE = re.compile(
    r"`((?:nanoset_core|nanoset_assets|tests|docs|deploy|benchmarks)(?:/[\w.]+)*/?)`"
)
_BARE_FILE = re.compile(r"`(\w+\.py)`")
_NAME = re.compile(r"`(nanoset_(?:core|assets)(?:\.\w+)+)`")


def _generator():
    spec = importlib.util.spec_from_file_location("generate", TOP / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["configuration.md", "cli.md"])
def test_generated_pages_are_up_to_date(name):
    text = (TOP / "docs" / name).read_text()
    assert text == _generator().page(name), "run python docs/generate.py"


def _anchors(page: Path) -> set[str]:
    text = page.read_text() if page.suffix == ".md" else ""
    plain = (
        re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
        for heading in _HEADING.findall(text)
    )
    return {re.sub(r"\s+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(TOP).as_posix())
def test_links_lead_somewhere(page):
    for target in _LINK.findall(without_code(page.read_text())):
        if re.match(r"[a-z]+://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target}: no such file"
        assert not anchor or anchor in _anchors(file), f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(TOP).as_posix())
def test_files_and_names_that_are_mentioned_exist(page):
    text = without_code(page.read_text())
    assert [name for name in _FILE.findall(text) if not (TOP / name).exists()] == []
    for name in _NAME.findall(text):
        place, _, attribute = name.rpartition(".")
        if (
            importlib.util.find_spec(place)
            and not importlib.util.find_spec(place).submodule_search_locations
        ):
            assert hasattr(importlib.import_module(place), attribute), name
        else:
            assert hasattr(importlib.import_module(place), attribute) or importlib.util.find_spec(
                name
            ), name


def test_the_architecture_names_files_that_exist():
    text = (TOP / "docs" / "architecture.md").read_text()
    assert len(set(_FILE.findall(text))) > 20
    known = {
        path.name
        for package in ("nanoset_core", "nanoset_assets", "tests")
        for path in TOP.glob(f"{package}/**/*.py")
    }
    assert set(_BARE_FILE.findall(text)) <= known


def test_the_architecture_prints_the_shortest_stage_as_it_is():
    text = (TOP / "docs" / "architecture.md").read_text()
    stage = (TOP / "nanoset_core" / "stages" / "pbin" / "stage.py").read_text()
    assert f"```py\n{stage}```" in text


def test_the_architecture_prints_the_example_stage_that_the_tests_build():
    text = (TOP / "docs" / "architecture.md").read_text()
    stage = (TOP / "tests" / "helpers" / "toy_stage.py").read_text()
    assert f"```py\n{stage}```" in text


def test_the_architecture_names_every_room():
    text = (TOP / "docs" / "architecture.md").read_text()
    rooms = [
        path.parent.relative_to(TOP).as_posix() for path in TOP.glob("nanoset_core/*/__init__.py")
    ]
    assert [room for room in rooms if f"`{room}/`" not in text] == []


def test_the_layers_drawn_are_those_that_are_tested():
    text = (TOP / "docs" / "architecture.md").read_text()
    drawn = re.search(r"```\n(cli\n.*?)```", text, re.DOTALL)[1].split("\n")[:-1]
    assert [set(line.split(" · ")) for line in reversed(drawn)] == [set(rooms) for rooms in LAYERS]


def test_the_readme_is_short():
    assert len((TOP / "README.md").read_text().splitlines()) <= 160


def test_the_site_builds(tmp_path):
    """As `make docs` builds it; a warning is an error."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--config-file",
            ".mkdocs.yml",
            "--site-dir",
            tmp_path,
        ],
        cwd=TOP,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "architecture" / "index.html").is_file()
