"""A nanoset of nanotron's main: it reads the exports of its corpora and views, and is read the same
here.
"""

import re
import shutil

import numpy as np
import pytest
import yaml

from helpers.building import make_blend, make_handoff, make_mappings, make_nanoset
from helpers.exports import CHANGES, build_exports
from helpers.inspecting import graph_of, node_at
from helpers.sample_project import write_project
from nanoset_core import load_config, load_nanoset
from nanoset_core.errors import ConfigError, MissingError, SampleIndexError, StaleError
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.exports.make import make_export

S = 16
NANOSETS = f"""\
nanosets:
  smol:
    blend: {{kept: 0.4, web: 0.6}}
    trainer_path: /lustre
    preset: nanotron-main
    sequence_length: {S}
    reset_position_ids: true
    schedule: {{iterations: 30, global_batch_size: 8}}
  alone: {{blend: web, preset: nanotron-main, sequence_length: {S}}}
  in-order: {{blend: {{kept: 2, web: 1}}, preset: nanotron-main-bytes, sequence_length: {S}, samples: {{train: 9}}}}
"""
CONFIG = {
    "nanosets:\n": CHANGES["nanosets:\n"].replace(
        "{of: kept,", "{of: kept, tokenizer_name: some/name,"
    )
}


@pytest.fixture(scope="module")
def built(tmp_path_factory, tokenizer_file):
    file = write_project(tmp_path_factory.mktemp("smol") / "project", tokenizer_file, CONFIG)
    file.write_text(file.read_text().replace("nanosets:\n", NANOSETS))
    project = Project.open(file)
    build_exports(project)
    for name in ("smol", "alone", "in-order"):
        make_nanoset(project, name)
        make_handoff(project, name)
    return file


def windows(project, name):
    tokens = np.fromfile(project.outputs.current("exports", name).path(f"{name}.ds"), np.uint16)
    return tokens[: len(tokens) // (S + 1) * (S + 1)].reshape(-1, S + 1)


def test_samples_are_windows_of_the_ds_files(built):
    project = Project.open(built)
    both = [windows(project, "kept-ds"), windows(project, "web-ds")]
    for name, samples in (("smol", 240), ("in-order", 9)):
        train = load_nanoset(project.outputs, name, "train")
        rows = zip(train.dataset_index.tolist(), train.dataset_sample_index.tolist(), strict=True)
        expected = [both[number][row] for number, row in rows]
        assert len(train) == samples
        assert all(np.array_equal(train[at]["input_ids"], row) for at, row in enumerate(expected))
        assert np.array_equal(train.batch(range(samples)), expected)
    alone = load_nanoset(project.outputs, "alone", "train")
    assert sorted(alone.dataset_sample_index.tolist()) == list(range(len(both[1])))
    assert sorted(alone[0]) == ["input_ids"]


def test_positions_begin_again_after_each_end_of_document(built):
    project = Project.open(built)
    train, eod = load_nanoset(project.outputs, "smol", "train"), project.special("eod")
    sample = next(train[at] for at in range(len(train)) if eod in train[at]["input_ids"][:-1])
    expected, position = [], 0
    for token in sample["input_ids"].tolist():
        expected.append(position)
        position = 0 if token == eod else position + 1
    assert sample["positions"].tolist() == expected
    assert (
        "positions"
        not in load_nanoset(project.outputs, "smol", "train", reset_position_ids=False)[0]
    )
    with pytest.raises(ConfigError, match="without such masks"):
        load_nanoset(project.outputs, "smol", "train", eod_mask_loss=True)


def test_the_handoff_names_the_folders(built):
    project = Project.open(built)
    made = {
        name: project.outputs.current("nanosets", f"{name}/handoff")
        for name in ("smol", "alone", "in-order")
    }
    digest = {
        name: project.outputs.current("exports", name).digest for name in ("kept-ds", "web-ds")
    }
    assert yaml.safe_load(made["smol"].path("data.yaml").read_text()) == {
        "data": {
            "dataset": {
                "dataset_folder": [
                    f"/lustre/exports/{name}/{digest[name]}" for name in ("kept-ds", "web-ds")
                ],
                "dataset_weights": [0.4, 0.6],
                "dataset_max_tokens": None,
                "tokenizer_name": "some/name",
                "vocab_size": project.tokenizer.max_id + 1,
                "token_size_in_bytes": 2,
            },
            "seed": 1234,
        },
        "tokens": {"sequence_length": S, "train_steps": 30},
    }
    alone = yaml.safe_load(made["alone"].path("data.yaml").read_text())["data"]["dataset"]
    assert (alone["dataset_folder"], alone["dataset_weights"]) == (
        [str(project.outputs.current("exports", "web-ds").folder)],
        None,
    )
    starts = {name: one.path("START.md").read_text() for name, one in made.items()}
    for name, order in (
        ("smol", "class Nanoset"),
        ("in-order", "TokenizedBytes, which run_train.py"),
    ):
        assert "huggingface/datatrove@2c895af7" in starts[name]
        assert order in starts[name]
        assert ".idx alone" not in starts[name]
    reports = list(verify_project(project, ["smol", "in-order", "alone"], deep=True))
    assert len(reports) > 9
    assert all(report.passed and not report.findings for report in reports)


def test_a_handoff_follows_its_exports(built, tmp_path):
    project = Project.open(
        shutil.copytree(built.parent, tmp_path / "project", symlinks=True) / built.name
    )
    project.config.file.write_text(built.read_text().replace("some/name", "other/name"))
    project = Project.open(project.config.file)
    with pytest.raises(StaleError, match="tokenizer_name"):
        make_handoff(project, "smol")
    make_export(project, "kept-ds")
    make_export(project, "web-ds")
    made = make_handoff(project, "smol")
    assert "other/name" in made.path("data.yaml").read_text()
    shutil.rmtree(project.outputs.folder / "exports" / "web-ds")
    with pytest.raises(MissingError, match="web-ds"):
        make_handoff(project, "smol")
    nodes = list(graph_of(project, "web", "code").nodes())
    handoff = node_at("nanosets/smol/handoff")
    inputs = handoff.inputs(project.config)
    assert [*inputs][3:] == ["export of kept", "export of web"]
    assert all(nodes.index(one) < nodes.index(handoff) for one in inputs.values())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kept-ds: {", "code-ds: {of: code, format: datatrove}\n  kept: {", None),
        (
            "of: kept, tokenizer_name: some/name, format: datatrove",
            "of: kept, format: olmo-core",
            "kept-ds: {of: kept",
        ),
        (
            "of: kept, tokenizer_name: some/name",
            "of: kept, tokenizer_name: b",
            "several tokenizers",
        ),
        (
            "preset: nanotron-main\n",
            "preset: nanotron-main\n    split: 9,1,0\n",
            "it has no splits",
        ),
        ("samples: {train: 9}", "samples: {valid: 9}", "gets no documents"),
    ],
)
def test_what_it_cannot_read_is_refused(built, tmp_path, old, new, message):
    text = built.read_text()
    assert old in text
    file = (
        shutil.copytree(
            built.parent, tmp_path / "p", symlinks=True, ignore=shutil.ignore_patterns("data")
        )
        / built.name
    )
    file.write_text(text.replace(old, new, 1))
    if message is None:
        assert load_config(file)
        return
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(file)


def test_a_run_that_reads_past_a_folder_is_refused(built):
    project = Project.open(built)
    file = project.config.file
    text = file.read_text()
    file.write_text(text.replace("samples: {train: 9}", "samples: {train: 1000000}"))
    try:
        with pytest.raises(SampleIndexError, match="takes more samples"):
            make_mappings(Project.open(file), "in-order", "train")
            make_blend(Project.open(file), "in-order", "train")
    finally:
        file.write_text(text)
