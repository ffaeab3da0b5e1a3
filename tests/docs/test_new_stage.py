"""An author who follows "Add a stage" of docs/architecture.md gets a stage that works.

The steps of the page are done in a copy of the packages. Child processes then use this copy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.sample_project import EOD, jsonl, sentences

TOP = Path(__file__).parents[2]
CONFIG = f"""\
raw: raw
root: data
tokenizer: {{path: tokenizer.json, eod: "{EOD}"}}
tokenization: {{workers: 1}}
"""
STAGE_CODE = re.compile(r"^```py\n(\"\"\"The example of docs/architecture.md.*?)^```", re.M | re.S)
SHAPE_CODE = re.compile(r"^    COUNTS: AssetShape\(.*?^    \),\n", re.M | re.S)
"""The entry of the stage in the list of assets."""
IMPORT = "from nanoset_core.stages.counts.stage import COUNTS\n"


def replace_in(file: Path, old: str, new: str) -> None:
    """Replace a text that occurs exactly once in a file."""
    text = file.read_text()
    assert text.count(old) == 1, (file, old)
    file.write_text(text.replace(old, new))


def run_in_copy(packages: Path, *arguments: str, cwd: Path) -> str:
    """Run Python with a copy of the packages, check that it succeeds, and return its output."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(packages), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def page() -> str:
    """The page that describes how to add a stage."""
    return (TOP / "docs" / "architecture.md").read_text()


@pytest.fixture(scope="module")
def packages(page: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the packages, after the steps 1 and 2 of the page.

    Tests must not write to it.
    """
    folder = tmp_path_factory.mktemp("packages")
    for package in ("nanoset_core", "nanoset_assets"):
        # Compiled modules are copied, as to compile them again takes several seconds; except those
        # that another process is writing.
        shutil.copytree(TOP / package, folder / package, ignore=shutil.ignore_patterns("*.pyc.*"))

    stages = folder / "nanoset_core" / "stages"
    (stages / "counts").mkdir()
    (stages / "counts" / "__init__.py").write_text('"""The size of each corpus."""\n')
    (stages / "counts" / "stage.py").write_text(STAGE_CODE.search(page)[1])

    registry = stages / "registry.py"
    import_of_dataset = "from nanoset_core.stages.dataset.stage import DATASET\n"
    replace_in(registry, import_of_dataset, IMPORT + import_of_dataset)
    replace_in(registry, "    DATASET,\n", "    DATASET,\n    COUNTS,\n")
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The folder of a project with one small corpus."""
    folder = tmp_path_factory.mktemp("new-stage") / "project"
    (folder / "raw" / "web").mkdir(parents=True)
    (folder / "raw" / "web" / "a.jsonl").write_bytes(jsonl(sentences("web", 20)))
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (folder / "nanoset.yaml").write_text(CONFIG)
    return folder


BUILD_STATUS_AND_ASSET = """
import dagster as dg
from nanoset_core.cli import main

for command in ("build", "status"):
    print("Output of", command)
    try:
        main([command])
    except SystemExit as end:
        assert not end.code, command
from nanoset_assets.definitions import defs
graph = defs().resolve_asset_graph()
key = dg.AssetKey('document_counts')
print(graph.get(key).description)
print([check.name for check in graph.asset_check_keys if check.asset_key == key])
"""
"""Runs two commands, and then prints two lines about the asset of the stage."""


@pytest.fixture(scope="module")
def printed(packages: Path, project: Path) -> str:
    """What BUILD_STATUS_AND_ASSET prints in the project."""
    return run_in_copy(packages, "-c", BUILD_STATUS_AND_ASSET, cwd=project)


@pytest.mark.parametrize(
    "module", ["nanoset_core.stages.counts.stage", "nanoset_core.stages.registry"]
)
def test_the_stage_can_be_imported_before_and_after_the_list_of_stages(packages, tmp_path, module):
    run_in_copy(packages, "-c", f"import {module}", cwd=tmp_path)


def test_commands_know_a_stage_that_is_only_in_the_list_of_stages(printed, project):
    assert (project / "data/document_counts/web/current/counts.json").is_file()
    status = printed.partition("Output of status")[2]
    assert "counts" in status


def test_a_stage_that_is_only_in_the_list_of_stages_has_an_asset(printed):
    assert printed.splitlines()[-2:] == [
        "Writes how many documents and tokens each corpus has to `counts.json`.",
        "['verified']",
    ]


def test_the_entry_in_the_list_of_assets_describes_the_asset(packages, project, page, tmp_path):
    changed_packages = shutil.copytree(packages, tmp_path / "packages")
    asset_table = changed_packages / "nanoset_assets" / "assets" / "table.py"
    first_lines = "SHAPES: dict[Stage, AssetShape] = {\n"
    replace_in(asset_table, first_lines, first_lines + SHAPE_CODE.search(page)[0])
    first_import = "from nanoset_core.stages.dataset.stage import DATASET\n"
    replace_in(asset_table, first_import, IMPORT + first_import)

    program = (
        "import dagster as dg\n"
        "from nanoset_assets.definitions import defs\n"
        "graph = defs().resolve_asset_graph()\n"
        "print(graph.get(dg.AssetKey('document_counts')).description)\n"
    )
    description = run_in_copy(changed_packages, "-c", program, cwd=project)

    assert description == "How many documents and tokens a corpus has.\n"
