"""Nanosets for nanotron's main branch, which reads exports of their corpora and views.

`load_nanoset` returns the samples that nanotron reads from the exports.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from helpers.building import make_blend, make_handoff, make_mappings, make_nanoset
from helpers.changing import change_setting
from helpers.exports import CHANGES, build_exports
from helpers.inspecting import graph_of, node_at
from helpers.sample_project import write_project
from nanoset_core import load_config, load_nanoset
from nanoset_core.errors import ConfigError, MissingError, SampleIndexError, StaleError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.exports.make import make_export

LENGTH = 16
"""Tokens of a sample, without the one after it."""
NAMES = ["smol", "alone", "in-order"]
NANOSETS = f"""\
nanosets:
  smol:
    blend: {{kept: 0.4, web: 0.6}}
    trainer_path: /lustre
    preset: nanotron-main
    sequence_length: {LENGTH}
    reset_position_ids: true
    schedule: {{iterations: 30, global_batch_size: 8}}
  alone: {{blend: web, preset: nanotron-main, sequence_length: {LENGTH}}}
  in-order: {{blend: {{kept: 2, web: 1}}, preset: nanotron-main-bytes, sequence_length: {LENGTH}, samples: {{train: 9}}}}
"""
CONFIG = {
    "nanosets:\n": CHANGES["nanosets:\n"].replace(
        "{of: kept,", "{of: kept, tokenizer_name: some/name,"
    )
}


@pytest.fixture(scope="module")
def built(tmp_path_factory, tokenizer_file) -> Path:
    """The nanoset.yaml of a project with exports and nanosets; not to be written to."""
    file = write_project(tmp_path_factory.mktemp("smol") / "project", tokenizer_file, CONFIG)
    file.write_text(file.read_text().replace("nanosets:\n", NANOSETS))
    project = Project.open(file)
    build_exports(project)
    for name in NAMES:
        make_nanoset(project, name)
        make_handoff(project, name)
    return file


@pytest.fixture
def project(built) -> Project:
    """The built project; not to be written to."""
    return Project.open(built)


@pytest.fixture
def copied_project(built, tmp_path) -> Project:
    """A copy of the built project."""
    shutil.copytree(built.parent, tmp_path / "project", symlinks=True)
    return Project.open(tmp_path / "project" / built.name)


def handoff_of(project: Project, name: str) -> Manifest:
    """Return the manifest of the handoff of a nanoset."""
    return project.outputs.current("nanosets", f"{name}/handoff")


def data_settings(project: Project, name: str) -> dict[str, Any]:
    """Return the settings of nanotron in the handoff of a nanoset."""
    settings: dict[str, Any] = yaml.safe_load(
        handoff_of(project, name).path("data.yaml").read_text()
    )
    return settings


# Samples


def windows_of(project: Project, name: str) -> np.ndarray:
    """Return the windows into which nanotron cuts an export, shape (n_windows, LENGTH + 1)."""
    file = project.outputs.current("exports", name).path(f"{name}.ds")
    tokens = np.fromfile(file, np.uint16)
    n_windows = len(tokens) // (LENGTH + 1)
    return tokens[: n_windows * (LENGTH + 1)].reshape(n_windows, LENGTH + 1)


@pytest.mark.parametrize(
    ("name", "n_samples"), [("smol", 30 * 8), ("in-order", 9)], ids=["smol", "in-order"]
)
def test_samples_of_a_blend_are_windows_of_its_exports(project, name, n_samples):
    windows_by_dataset = [windows_of(project, "kept-ds"), windows_of(project, "web-ds")]

    train = load_nanoset(project.outputs, name, "train")

    expected = [
        windows_by_dataset[dataset][window]
        for dataset, window in zip(train.dataset_index, train.dataset_sample_index, strict=True)
    ]
    assert len(train) == n_samples
    for number in range(n_samples):
        assert np.array_equal(train[number]["input_ids"], expected[number])
    assert np.array_equal(train.batch(range(n_samples)), expected)


@pytest.mark.parametrize(
    ("name", "n_samples"), [("smol", 30 * 8), ("in-order", 9)], ids=["smol", "in-order"]
)
def test_status_counts_all_tokens_of_a_window(project, name, n_samples):
    rows = project_status(project)
    (row,) = [row for row in rows if row.name == name and row.part == "train"]

    n_tokens = n_samples * (LENGTH + 1)
    assert row.figures["tokens"] == n_tokens
    assert row.figures["unique_tokens"] + row.figures["repeated_tokens"] == n_tokens


def test_samples_of_a_corpus_are_all_windows_of_its_export(project):
    n_windows = len(windows_of(project, "web-ds"))

    train = load_nanoset(project.outputs, "alone", "train")

    assert sorted(train.dataset_sample_index.tolist()) == list(range(n_windows))


def test_samples_have_nothing_but_tokens_by_default(project):
    train = load_nanoset(project.outputs, "alone", "train")

    assert set(train[0]) == {"input_ids"}


def test_positions_start_again_after_each_end_of_document(project):
    train = load_nanoset(project.outputs, "smol", "train")
    eod = project.special("eod")
    samples = (train[number] for number in range(len(train)))
    sample = next(sample for sample in samples if eod in sample["input_ids"][:-1])

    expected_positions = []
    position = 0
    for token in sample["input_ids"].tolist():
        expected_positions.append(position)
        position += 1
        if token == eod:
            position = 0
    assert sample["positions"].tolist() == expected_positions


def test_samples_have_no_positions_if_they_are_switched_off(project):
    train = load_nanoset(project.outputs, "smol", "train", reset_position_ids=False)

    assert "positions" not in train[0]


def test_a_mask_that_nanotron_does_not_have_is_refused(project):
    with pytest.raises(ConfigError, match="without such masks"):
        load_nanoset(project.outputs, "smol", "train", eod_mask_loss=True)


def test_a_split_that_nanotron_does_not_have_is_refused_without_a_remedy_in_nanoset_yaml(project):
    with pytest.raises(MissingError, match="reads only train") as caught:
        load_nanoset(project.outputs, "smol", "valid")

    assert "nanoset.yaml" not in str(caught.value)


# Handoffs


def test_the_handoff_of_a_blend_has_the_settings_of_nanotron(project):
    folders = []
    for name in ["kept-ds", "web-ds"]:
        digest = project.outputs.current("exports", name).digest
        folders.append(f"/lustre/exports/{name}/{digest}")

    dataset = {
        "dataset_folder": folders,
        "dataset_weights": [0.4, 0.6],
        "dataset_max_tokens": None,
        "tokenizer_name": "some/name",
        "vocab_size": project.tokenizer.max_id + 1,
        "token_size_in_bytes": 2,
    }
    # nanotron 2411b022 refuses all other keys (dacite with strict=True).
    stage = {
        "name": "smol",
        "start_training_step": 1,
        "data": {"dataset": dataset, "seed": 1234},
    }
    assert data_settings(project, "smol") == {
        "data_stages": [stage],
        "tokens": {"sequence_length": LENGTH, "train_steps": 30},
    }


def test_a_handoff_with_a_data_stage_has_a_new_version(project):
    # Version 2 had a section `data`, which nanotron refuses: such handoffs are built again.
    assert handoff_of(project, "smol").recipe["version"] == 4


def test_the_handoff_of_a_corpus_names_one_folder_without_weight(project):
    (stage,) = data_settings(project, "alone")["data_stages"]
    dataset = stage["data"]["dataset"]

    assert dataset["dataset_folder"] == [str(project.outputs.current("exports", "web-ds").folder)]
    assert dataset["dataset_weights"] is None


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        pytest.param("smol", "class Nanoset", id="nanotron-main"),
        pytest.param("in-order", "TokenizedBytes, which run_train.py", id="nanotron-main-bytes"),
    ],
)
def test_start_md_names_the_reader(project, name, reader):
    text = handoff_of(project, name).path("START.md").read_text()

    assert "huggingface/datatrove@2c895af7" in text
    assert reader in text
    assert "The list `data_stages` of `data.yaml` replaces that of the run." in text
    assert "only the data stage of data.yaml" in text
    assert ".idx alone" not in text


def test_nanosets_of_exports_pass_verification(project):
    reports = list(verify_project(project, NAMES, deep=True))

    assert len(reports) > 9
    for report in reports:
        assert report.passed
        assert report.findings == []


def test_a_handoff_needs_exports_with_the_current_settings(copied_project):
    changed_project = change_setting(copied_project, "some/name", "other/name")

    with pytest.raises(StaleError, match="tokenizer_name"):
        make_handoff(changed_project, "smol")


def test_a_handoff_has_the_settings_of_rebuilt_exports(copied_project):
    changed_project = change_setting(copied_project, "some/name", "other/name")
    make_export(changed_project, "kept-ds")
    make_export(changed_project, "web-ds")

    manifest = make_handoff(changed_project, "smol")

    assert "other/name" in manifest.path("data.yaml").read_text()


def test_a_handoff_needs_all_exports(copied_project):
    shutil.rmtree(copied_project.outputs.folder / "exports" / "web-ds")

    with pytest.raises(MissingError, match="web-ds"):
        make_handoff(copied_project, "smol")


def test_a_handoff_is_built_after_its_exports(project):
    handoff = node_at("nanosets/smol/handoff")

    nodes = list(graph_of(project, "web", "code").nodes())
    inputs = handoff.inputs(project.config)

    assert [*inputs][3:] == ["export of kept", "export of web"]
    for node in inputs.values():
        assert nodes.index(node) < nodes.index(handoff)


# Settings


@pytest.fixture
def copied_settings(built, tmp_path) -> Path:
    """The nanoset.yaml of a copy of the project without outputs."""
    without_outputs = shutil.ignore_patterns("data")
    shutil.copytree(built.parent, tmp_path / "p", symlinks=True, ignore=without_outputs)
    return tmp_path / "p" / built.name


def replace_once(file: Path, old: str, new: str) -> None:
    """Replace the first occurrence of some text in a file."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_exports_are_found_by_what_they_are_of_whatever_their_names(copied_settings):
    replace_once(copied_settings, "kept-ds: {", "code-ds: {of: code, format: datatrove}\n  kept: {")

    assert load_config(copied_settings)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(
            "of: kept, tokenizer_name: some/name, format: datatrove",
            "of: kept, format: olmo-core",
            "kept-ds: {of: kept",
            id="no export in its format",
        ),
        pytest.param(
            "of: kept, tokenizer_name: some/name",
            "of: kept, tokenizer_name: b",
            "several tokenizers",
            id="exports with several tokenizers",
        ),
        pytest.param(
            "preset: nanotron-main\n",
            "preset: nanotron-main\n    split: 9,1,0\n",
            "it has no splits",
            id="splits",
        ),
        pytest.param(
            "samples: {train: 9}",
            "samples: {valid: 9}",
            "gets no documents",
            id="validation samples",
        ),
    ],
)
def test_settings_that_nanotron_does_not_support_are_refused(copied_settings, old, new, message):
    replace_once(copied_settings, old, new)

    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(copied_settings)


def test_more_samples_than_a_folder_has_in_order_are_refused(copied_project):
    changed_project = change_setting(
        copied_project, "samples: {train: 9}", "samples: {train: 1000000}"
    )

    with pytest.raises(SampleIndexError, match="takes more samples"):
        make_mappings(changed_project, "in-order", "train")
        make_blend(changed_project, "in-order", "train")
