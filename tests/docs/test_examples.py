"""The code in the documentation works: Python runs, and nanoset.yaml can be read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from docs.conftest import blocks

from nanoset_assets.definitions import definitions_of
from nanoset_core.project.settings import config_from
from nanoset_core.stages.handoff.run import checked_run

BASE = {
    "raw": "raw",
    "root": "data",
    "tokenizer": {"path": "tokenizer.json", "eod": "<|endoftext|>"},
}
PYTHON_PAGES = sorted({block.page for block in blocks("python")})
DEFINITIONS = [block for block in blocks("python") if "dg.Definitions" in block.code]
"""Modules that Dagster loads."""
COMPONENT = re.compile(r"^attributes:\n  (config|project):", re.MULTILINE)
"""Marks YAML that configures the component of Dagster."""
RUN = re.compile(r"^handoff:", re.MULTILINE)
"""Marks YAML that is a run.yaml."""
COMPONENT_YAML = [block for block in blocks("yaml") if COMPONENT.search(block.code)]
OTHER_YAML = [block for block in blocks("yaml") if not COMPONENT.search(block.code)]


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_python_runs(page, demo_folder, monkeypatch, capsys):
    monkeypatch.chdir(demo_folder)
    # The blocks of a page are one program.
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks("python"):
        if block.page != page:
            continue
        # Empty lines before the code, so that tracebacks have the line numbers of the page.
        exec(compile("\n" * (block.line - 1) + block.code, block.page, "exec"), names)


def test_python_that_defines_a_code_location_can_be_loaded_as_a_file(
    demo_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    # Dagster loads all files in one process, and names those that cannot be loaded.
    command = [sys.executable, "-m", "dagster", "definitions", "validate"]
    for block in DEFINITIONS:
        file = tmp_path / f"{Path(block.page).stem}_{block.line}.py"
        file.write_text(block.code)
        command += ["-f", str(file)]

    result = subprocess.run(command, cwd=demo_folder, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr


def test_the_example_of_a_component_makes_outputs(demo_folder):
    (block,) = [block for block in blocks("python") if "(NanosetComponent)" in block.code]
    names: dict[str, Any] = {"__name__": "example"}
    exec(block.code, names)
    component = names["WatchedNanoset"](config="demo/nanoset.yaml")
    job = definitions_of(component.project_defs(demo_folder)).resolve_job_def("corpus")

    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("corpora", ["stdlib"])
        result = job.execute_in_process(instance=instance, partition_key="stdlib")

    assert result.success


@pytest.mark.parametrize("block", blocks("py"), ids=str)
def test_python_that_needs_more_compiles(block):
    compile(block.code, str(block), "exec")


# YAML of other kinds has a title, so it is not in these lists.
@pytest.mark.parametrize("block", OTHER_YAML, ids=str)
def test_yaml_is_a_run_yaml_or_has_keys_of_nanoset_yaml(block, tmp_path):
    value = yaml.safe_load(block.code)
    if RUN.search(block.code):
        assert checked_run(value, block.code, tmp_path / "run.yaml")
        return
    config = config_from(BASE | value, tmp_path / "nanoset.yaml")
    assert value.keys() <= set(type(config).__dataclass_fields__)


@pytest.mark.parametrize("block", COMPONENT_YAML, ids=str)
def test_yaml_is_a_component(block):
    from nanoset_assets import NanosetComponent

    attributes = yaml.safe_load(block.code)["attributes"]
    assert NanosetComponent.get_model_cls().model_validate(attributes)
