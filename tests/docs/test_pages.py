"""The pages of the documentation are up to date.

Their generated parts are what would be generated now, the links, files and names in them exist, and
the site can be built.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from docs.conftest import PAGES, TOP, without_code

from helpers.layers import LAYERS

LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*)$", re.MULTILINE)
FILE = re.compile(r"`((?:nanoset_core|nanoset_assets|tests|docs|deploy|benchmarks)(?:/[\w.]+)*/?)`")
"""A file or folder of this repository, by its path."""
BARE_FILE = re.compile(r"`(\w+\.py)`")
"""A file of Python, by its name alone."""
NAME = re.compile(r"`(nanoset_(?:core|assets)(?:\.\w+)+)`")
"""A module of the packages, or something in a module."""
DRAWING_OF_LAYERS = re.compile(r"```\n(cli\n.*?)```", re.DOTALL)


def page_name(page: Path) -> str:
    """Return the path of a page in the repository, as an id of tests."""
    return page.relative_to(TOP).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=page_name)


@pytest.fixture
def architecture() -> str:
    """The text of docs/architecture.md."""
    return (TOP / "docs" / "architecture.md").read_text()


def load_generator() -> ModuleType:
    """Import docs/generate.py, which is not in a package."""
    spec = importlib.util.spec_from_file_location("generate", TOP / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up the module in which they are defined.
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["configuration.md", "cli.md", "python.md"])
def test_generated_pages_are_up_to_date(name):
    text = (TOP / "docs" / name).read_text()

    generated = load_generator().page(name)

    assert text == generated, "run python docs/generate.py"


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, by GitHub's rules; other files have none."""
    if page.suffix != ".md":
        return set()
    anchors = set()
    for heading in HEADING.findall(page.read_text()):
        words = re.sub(r"[^\w\s-]", "", heading).strip().lower()
        anchors.add(re.sub(r"\s+", "-", words))
    return anchors


@every_page
def test_links_lead_to_files_and_headings_that_exist(page):
    for target in LINK.findall(without_code(page.read_text())):
        is_address = re.match(r"[a-z]+://", target)
        if is_address:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target}: no such file"
        if anchor:
            assert anchor in anchors_of(file), f"{target}: no such heading"


@every_page
def test_files_in_the_text_exist(page):
    text = without_code(page.read_text())

    missing_files = [name for name in FILE.findall(text) if not (TOP / name).exists()]

    assert missing_files == []


@every_page
def test_names_of_the_packages_in_the_text_exist(page):
    text = without_code(page.read_text())

    missing_names = [name for name in NAME.findall(text) if not exists(name)]

    assert missing_names == []


def exists(name: str) -> bool:
    """Return whether a dotted name is an attribute of a module or package, or a module itself."""
    parent, _, attribute = name.rpartition(".")
    module = importlib.import_module(parent)
    if hasattr(module, attribute):
        return True
    is_package = hasattr(module, "__path__")
    return is_package and importlib.util.find_spec(name) is not None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nanoset_core.load_nanoset", True),
        ("nanoset_core.project.status", True),
        ("nanoset_core.project.status.project_status", True),
        ("nanoset_core.no_such_module", False),
        ("nanoset_core.project.status.no_such_function", False),
    ],
)
def test_a_name_that_does_not_exist_is_found(name, expected):
    assert exists(name) is expected


def test_files_in_the_architecture_exist(architecture):
    known_names = set()
    for package in ("nanoset_core", "nanoset_assets", "tests"):
        known_names |= {path.name for path in TOP.glob(f"{package}/**/*.py")}

    names_in_text = set(BARE_FILE.findall(architecture))

    assert names_in_text <= known_names


def test_the_architecture_names_many_files(architecture):
    assert len(set(FILE.findall(architecture))) > 20


@pytest.mark.parametrize(
    "stage", ["nanoset_core/stages/pbin/stage.py", "tests/helpers/toy_stage.py"]
)
def test_the_architecture_prints_the_present_code_of_its_example_stages(architecture, stage):
    code = (TOP / stage).read_text()

    assert f"```py\n{code}```" in architecture


def test_the_architecture_describes_every_folder_of_the_core(architecture):
    folders = []
    for init_file in TOP.glob("nanoset_core/*/__init__.py"):
        folders.append(init_file.parent.relative_to(TOP).as_posix())

    missing_folders = [folder for folder in folders if f"`{folder}/`" not in architecture]

    assert missing_folders == []


def test_the_architecture_draws_the_layers_that_are_enforced(architecture):
    lines = DRAWING_OF_LAYERS.search(architecture)[1].splitlines()
    # The highest layer is drawn at the top.
    drawn_layers = [set(line.split(" · ")) for line in reversed(lines)]

    assert drawn_layers == [set(folders) for folders in LAYERS]


def test_the_readme_is_short():
    lines = (TOP / "README.md").read_text().splitlines()

    assert len(lines) <= 170


def test_the_site_builds_without_a_warning(tmp_path):
    # The same command as in `make docs`.
    options = ["--strict", "--config-file", ".mkdocs.yml", "--site-dir", str(tmp_path)]
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *options],
        cwd=TOP,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert (tmp_path / "architecture" / "index.html").is_file()
