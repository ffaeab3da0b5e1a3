"""A build that replaces a handoff warns if a run may have begun with it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.sample_project import write_project
from nanoset_core.project.project import Project
from nanoset_core.stages.handoff.stage import TRAINER_FILES

BUILT_SCHEDULE = [50, 8, 25, 1]
"""Iterations, batch size, and settings of evaluation of the handoff that exists."""
TRAINER = (
    'trainer: {megatron_core: "0.16.1", tokenizer_type: HuggingFaceTokenizer, '
    "tokenizer_model: /models/llama}"
)
CONTINUE = (
    "continue_from: "
    "{handoff: data/nanosets/pretrain/handoff/0123456789abcdef0123, consumed_samples: 200}"
)


def replacement_warning(
    folder: Path, tokenizer_file: Path, settings: str, *, changed_input: str = "train"
) -> str | None:
    """Return the warning on the handoff of a nanoset whose settings were changed.

    Args:
        folder: Where the project is written.
        tokenizer_file: Its tokenizer.
        settings: Lines of the nanoset that decide its length.
        changed_input: The input of the handoff that a build would make.
    """
    replacements = {"    samples: {train: 400}\n": f"    {settings}\n"}
    project = Project.open(write_project(folder / "project", tokenizer_file, replacements))
    handoff = SimpleNamespace(
        name="pretrain/handoff", digest="3125", recipe={"options": {"schedule": BUILT_SCHEDULE}}
    )
    return TRAINER_FILES.replacement_warning(project, handoff, [changed_input])


def schedule(iterations: int, batch_size: int) -> str:
    """Return the line of nanoset.yaml with a schedule."""
    return f"schedule: {{iterations: {iterations}, global_batch_size: {batch_size}}}"


@pytest.mark.parametrize("settings", [schedule(50, 16), schedule(60, 8)], ids=["batch", "length"])
def test_a_run_of_another_length_may_get_another_order(tmp_path, tokenizer_file, settings):
    warning = replacement_warning(tmp_path, tokenizer_file, settings)

    assert warning.startswith("its handoff 3125 would be replaced, and the samples may get another")
    assert "Make a run longer or change its batch size" in warning


def test_a_run_with_as_many_samples_has_no_warning(tmp_path, tokenizer_file):
    assert replacement_warning(tmp_path, tokenizer_file, schedule(25, 16)) is None


def test_an_order_that_only_valid_gets_has_no_warning(tmp_path, tokenizer_file):
    settings = schedule(60, 8)

    warning = replacement_warning(tmp_path, tokenizer_file, settings, changed_input="valid")

    assert warning is None


def test_a_run_that_continues_its_order_has_no_warning(tmp_path, tokenizer_file):
    settings = f"{schedule(60, 8)}\n    {TRAINER}\n    {CONTINUE}"

    assert replacement_warning(tmp_path, tokenizer_file, settings) is None
