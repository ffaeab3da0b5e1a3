"""The documentation's code does what it says: Python runs, and nanoset.yaml parses."""

from __future__ import annotations

import re

import pytest
import yaml
from docs.conftest import blocks

from nanoset_core.project.settings import config_from
from nanoset_core.stages.handoff.run import checked_run

BASE = {
    "raw": "raw",
    "root": "data",
    "tokenizer": {"path": "tokenizer.json", "eod": "<|endoftext|>"},
}
PYTHON = {
    page: [block for block in blocks("python") if block.page == page]
    for page in {b.page for b in blocks("python")}
}
COMPONENT = re.compile(r"^attributes:\n  (config|project):", re.MULTILINE)
RUN = re.compile(r"^handoff:", re.MULTILINE)


@pytest.mark.parametrize("page", sorted(PYTHON))
def test_python_runs(page, demo_folder, monkeypatch, capsys):
    """The blocks of a page, one after the other."""
    monkeypatch.chdir(demo_folder)
    names: dict[str, object] = {"__name__": "example"}
    for block in PYTHON[page]:
        exec(compile("\n" * (block.line - 1) + block.code, block.page, "exec"), names)


@pytest.mark.parametrize("block", blocks("py"), ids=str)
def test_python_that_needs_more_compiles(block):
    compile(block.code, str(block), "exec")


@pytest.mark.parametrize(
    "block", [block for block in blocks("yaml") if not COMPONENT.search(block.code)], ids=str
)
def test_yaml_is_a_nanoset_yaml(block, tmp_path):
    """A whole one, or some of its top-level keys; or a run.yaml. (Other YAML has a title.)"""
    value = yaml.safe_load(block.code)
    if RUN.search(block.code):
        assert checked_run(value, block.code, tmp_path / "run.yaml")
        return
    config = config_from(BASE | value, tmp_path / "nanoset.yaml")
    assert value.keys() <= set(type(config).__dataclass_fields__)


@pytest.mark.parametrize(
    "block", [block for block in blocks("yaml") if COMPONENT.search(block.code)], ids=str
)
def test_yaml_is_a_component(block):
    from nanoset_assets import NanosetComponent

    attributes = yaml.safe_load(block.code)["attributes"]
    assert NanosetComponent.get_model_cls().model_validate(attributes)
