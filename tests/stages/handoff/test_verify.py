"""Every kind of damage to the files of a handoff is found and named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.built_project import first_file, problems
from nanoset_core.project.project import Project
from nanoset_core.project.verify import targets
from nanoset_core.stages.handoff.make import write_handoff
from nanoset_core.stages.handoff.verify import verify_handoff


def file_of(project: Project, name: str, file: str) -> Path:
    """Return the path of a file in the handoff of a nanoset."""
    return first_file(project, f"nanosets/{name}/handoff/*/{file}")


@pytest.mark.parametrize("name", ["pretrain", "plain", "several_epochs", "repeated", "nemo"])
def test_a_handoff_as_it_was_written_has_no_findings(project, name):
    report = verify_handoff(project, name)

    assert report.findings == []


def test_every_handoff_is_verified_with_its_project(project):
    names = [target.name for target in targets(project)]

    assert {"pretrain/handoff", "nemo/handoff"} <= set(names)


def test_a_line_edited_by_hand_is_an_error(copy):
    project = copy()
    path = file_of(project, "pretrain", "arguments.txt")
    path.write_text(path.read_text().replace("--seq-length 32", "--seq-length 64"))

    (finding,) = verify_handoff(project, "pretrain").errors

    assert finding.what == "a file has other bytes than when it was written"
    assert finding.where.endswith("arguments.txt")
    assert finding.remedy.startswith(f"delete {path.parent.resolve()}, and run `nanoset build`")


def test_an_edited_handoff_is_right_again_after_its_remedy(copy):
    project = copy()
    path = file_of(project, "pretrain", "arguments.txt")
    path.write_text("--seq-length 64")

    shutil.rmtree(path.parent.resolve())
    write_handoff(project, "pretrain")

    assert verify_handoff(project, "pretrain").findings == []


@pytest.mark.parametrize(
    ("file", "name"), [("data_args.txt", "pretrain"), ("data.yaml", "nemo"), ("START.md", "plain")]
)
def test_a_file_that_was_cut_is_an_error(copy, file, name):
    project = copy()
    path = file_of(project, name, file)
    content = path.read_bytes()

    for shorter_content in (content[:-1], b""):
        path.write_bytes(shorter_content)
        (finding,) = verify_handoff(project, name).errors
        assert finding.where.endswith(file)


def test_a_file_that_was_deleted_is_an_error(copy):
    project = copy()
    file_of(project, "nemo", "data.yaml").unlink()

    assert problems(verify_handoff(project, "nemo")) == ["a file is missing"]


def test_a_stale_handoff_is_a_warning_and_still_compared_with_what_was_written(copy):
    project = copy()
    config = project.config.file
    config.write_text(config.read_text().replace("seed: 7", "seed: 8"))
    project = Project.open(config)
    path = file_of(project, "pretrain", "arguments.txt")
    path.write_text(path.read_text().replace("--seed 7", "--seed 8"))

    report = verify_handoff(project, "pretrain")

    assert problems(report, "warning") == ["this output is stale"]
    assert problems(report) == ["a file has other bytes than when it was written"]
