"""A handoff that does not say what the trainer has to be started with is named, with file and line."""

from __future__ import annotations

import shutil

import pytest
from built_project import one, whats

from nanoset_core.pipeline import handoff
from nanoset_core.pipeline.project import Project
from nanoset_core.verification.verify import targets, verify_handoff


def file_of(project, name, file):
    return one(project, f"nanosets/{name}/handoff/*/{file}")


@pytest.mark.parametrize("name", ["pretrain", "plain", "several_epochs", "repeated", "nemo"])
def test_a_sound_handoff(project, name):
    assert verify_handoff(project, name).findings == []
    assert f"{name}/handoff" in [target.name for target in targets(project)]


def test_a_line_edited_by_hand(copy):
    project = copy()
    path = file_of(project, "pretrain", "arguments.txt")
    lines = path.read_text().splitlines()
    number = lines.index("--seq-length 32")
    path.write_text("\n".join([*lines[:number], "--seq-length 64", *lines[number + 1 :]]) + "\n")
    (finding,) = verify_handoff(project, "pretrain").errors
    assert finding.what == "a line of the handoff is not what the index mappings and settings give"
    assert finding.where.endswith(f"arguments.txt:{number + 1}")
    assert (finding.found, finding.expected) == ("--seq-length 64", "--seq-length 32")


def test_it_is_right_again_after_what_the_remedy_says(copy):
    project = copy()
    path = file_of(project, "pretrain", "arguments.txt")
    path.write_text(path.read_text() + "--lr 1\n")
    (finding,) = verify_handoff(project, "pretrain").errors
    assert (finding.found, finding.expected) == ("--lr 1", "the end of the file")
    assert finding.remedy.startswith(f"delete {path.parent.resolve()}, and run `nanoset build`")
    shutil.rmtree(path.parent.resolve())
    handoff.write_handoff(project, "pretrain")
    assert verify_handoff(project, "pretrain").findings == []


def test_a_file_cut_emptied_or_gone(copy):
    project = copy()
    for file, name in (("data_args.txt", "pretrain"), ("data.yaml", "nemo"), ("START.md", "plain")):
        path = file_of(project, name, file)
        text = path.read_bytes()
        path.write_bytes(text[:-1])
        (finding,) = verify_handoff(project, name).errors
        assert f"{file}:" in finding.where
        path.write_bytes(b"")
        (finding,) = verify_handoff(project, name).errors
        assert finding.found == "the end of the file"
        path.unlink()
        assert whats(verify_handoff(project, name)) == ["a file is missing"]


def test_one_that_is_stale_is_compared_with_what_was_written(copy):
    project = copy()
    file = project.config.file
    file.write_text(file.read_text().replace("seed: 7", "seed: 8"))
    project = Project.open(file)
    assert whats(verify_handoff(project, "pretrain"), "warning") == ["this output is stale"]
    path = file_of(project, "pretrain", "arguments.txt")
    path.write_text(path.read_text().replace("--seed 7", "--seed 8"))
    assert whats(verify_handoff(project, "pretrain")) == ["a file has other bytes than when it was written"]


def test_none_was_made(copy):
    project = copy()
    shutil.rmtree(project.outputs.folder / "nanosets" / "plain" / "handoff")
    assert whats(verify_handoff(project, "plain")) == ["the output nanosets/plain/handoff has not been built"]
