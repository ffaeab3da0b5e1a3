"""`check_tokenizer` refuses datasets of every kind whose tokens another tokenizer has made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.building import build_all, open_project
from helpers.sample_project import CONFIG, write_project
from nanoset_core.errors import StaleError
from nanoset_core.project.project import Project
from nanoset_core.stages.datasets import check_tokenizer, current_dataset, dataset_of

DATASETS = {
    CONFIG[CONFIG.index("nanosets:") :]: """\
views: {few: {of: web, documents: 20}}
packs: {full: {of: few, length: 64}}
"""
}
"""Replacements in CONFIG that leave datasets only, of a corpus, a view and packs."""


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The nanoset.yaml of a project whose datasets are built."""
    folder = tmp_path_factory.mktemp("datasets") / "project"
    config_file = write_project(folder, tokenizer_file, DATASETS)
    build_all(config_file)
    return config_file


@pytest.fixture(scope="module")
def project_with_other_tokenizer(config_file: Path) -> Project:
    """The project with a tokenizer in which two ids are swapped, and nothing built with it."""
    folder = config_file.parent
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "other.json").write_text(json.dumps(tokenizer))
    other_config = folder / "other.yaml"
    other_config.write_text(config_file.read_text().replace("tokenizer.json", "other.json"))
    return open_project(other_config)


@pytest.mark.parametrize("name", ["web", "few", "full"])
def test_a_dataset_of_the_present_tokenizer_passes(config_file, name):
    project = open_project(config_file)

    check_tokenizer(project, dataset_of(project.outputs, current_dataset(project, name)))


@pytest.mark.parametrize("name", ["web", "few", "full"])
def test_a_dataset_of_an_old_tokenizer_is_refused(project_with_other_tokenizer, name):
    project = project_with_other_tokenizer
    dataset = dataset_of(project.outputs, current_dataset(project, name))

    with pytest.raises(StaleError, match="another tokenizer has made these tokens"):
        check_tokenizer(project, dataset)
