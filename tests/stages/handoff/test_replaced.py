"""A build that replaces a handoff warns if a run may have begun with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.building import build_all
from helpers.sample_project import CONFIG, write_project
from nanoset_core.project.project import Project
from nanoset_core.stages.handoff.stage import TRAINER_FILES

NANOSETS: dict[str, dict[str, Any]] = yaml.safe_load(CONFIG)["nanosets"]
BLENDED = NANOSETS["pretrain"]
"""Settings of a nanoset that reads 400 samples of two corpora."""
SINGLE = NANOSETS["plain"]
"""Settings of a nanoset that reads one corpus once, without a number of samples."""
SCHEDULE = {"iterations": 50, "global_batch_size": 8}
"""Settings of a run that reads 400 samples, too."""
TRAINER = {
    "megatron_core": "0.16.1",
    "tokenizer_type": "HuggingFaceTokenizer",
    "tokenizer_model": "/models/llama",
}
CONTINUE = {
    "handoff": "data/nanosets/pretrain/handoff/0123456789abcdef0123",
    "consumed_samples": 200,
}

Warn = Callable[..., str | None]


def write_settings(config: Path, blended: dict[str, Any], single: dict[str, Any]) -> None:
    """Write the settings of the two nanosets of a project."""
    settings = yaml.safe_load(CONFIG)
    settings["nanosets"] = {"pretrain": blended, "plain": single}
    settings.pop("webdatasets")
    config.write_text(yaml.safe_dump(settings, sort_keys=False))


@pytest.fixture(scope="module")
def built_config(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The nanoset.yaml of a project whose two nanosets were built."""
    config = write_project(tmp_path_factory.mktemp("replaced") / "project", tokenizer_file)
    write_settings(config, BLENDED, SINGLE)
    build_all(config)
    return config


@pytest.fixture
def warn(built_config: Path) -> Warn:
    """A function that returns the warning on a handoff of the project after a change of settings.

    Its arguments are the new settings of one of the two nanosets, and the input of the handoff that
    a build would make.
    """
    changed_config = built_config.with_name("changed.yaml")

    def replacement_warning(
        *,
        blended: dict[str, Any] = BLENDED,
        single: dict[str, Any] = SINGLE,
        changed_input: str = "train",
    ) -> str | None:
        write_settings(changed_config, blended, single)
        project = Project.open(changed_config)
        name = "pretrain" if single is SINGLE else "plain"
        handoff = project.outputs.current("nanosets", f"{name}/handoff")
        assert handoff is not None
        return TRAINER_FILES.replacement_warning(project, handoff, [changed_input])

    return replacement_warning


def with_length(settings: dict[str, Any], **length: Any) -> dict[str, Any]:
    """Return the settings of a nanoset with another length of the run."""
    return {key: value for key, value in settings.items() if key != "samples"} | length


@pytest.mark.parametrize(
    "length",
    [
        {"schedule": SCHEDULE | {"global_batch_size": 16}},
        {"schedule": SCHEDULE | {"iterations": 60}},
        {"samples": {"train": 480}},
        {},
    ],
    ids=["batch", "iterations", "samples", "one epoch"],
)
def test_a_run_of_another_length_may_get_another_order(warn, length):
    warning = warn(blended=with_length(BLENDED, **length))

    assert " would be replaced, and the samples may get another order" in warning
    assert "Make a run longer or change its batch size" in warning


def test_a_run_that_gets_a_number_of_samples_may_get_another_order(warn):
    warning = warn(single=with_length(SINGLE, samples={"train": 480}))

    assert "the samples may get another order" in warning


@pytest.mark.parametrize(
    "length",
    [{"schedule": SCHEDULE}, {"schedule": {"iterations": 25, "global_batch_size": 16}}],
    ids=["batches", "larger batches"],
)
def test_a_run_with_as_many_samples_has_no_warning(warn, length):
    assert warn(blended=with_length(BLENDED, **length)) is None


def test_an_order_that_only_valid_gets_has_no_warning(warn):
    settings = with_length(BLENDED, samples={"train": 480})

    assert warn(blended=settings, changed_input="valid") is None


def test_a_run_that_continues_its_order_has_no_warning(warn):
    settings = with_length(BLENDED, samples={"train": 480}, trainer=TRAINER, continue_from=CONTINUE)

    assert warn(blended=settings) is None
