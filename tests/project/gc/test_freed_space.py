"""`nanoset gc` and `nanoset status` report how much disk space old versions really take.

The tokens of views, and of some exports, are hard links to the file of their dataset.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.building import make_corpora, make_export, make_view
from helpers.changing import change_web
from helpers.command import invoke_nanoset
from helpers.inspecting import current_dataset
from nanoset_core.project.gc.collect import collect, old_versions, plan_gc
from nanoset_core.project.project import Project

LINKED = """\
views:
  long: {of: web, where: tokens > 20}
  short: {of: web, where: tokens < 60}
exports:
  web-ds: {of: web, format: datatrove}
nanosets:
"""


@pytest.fixture
def project(make_project: Callable[..., Path]) -> Project:
    """A project with a corpus, and two views and an export that link to its tokens."""
    project = Project.open(make_project(replacements={"nanosets:\n": LINKED}))
    make_corpora(project, "web")
    make_view(project, "long")
    make_view(project, "short")
    make_export(project, "web-ds")
    return project


def rebuild_with_new_text(project: Project, *, with_view: bool = True) -> None:
    """Add documents to the corpus web, and rebuild it, its views and its export."""
    change_web(project.config.file.parent)
    make_corpora(project, "web")
    make_view(project, "long")
    if with_view:
        make_view(project, "short")
    make_export(project, "web-ds")


def bytes_of_outputs(project: Project) -> int:
    """Return how much the files of all versions take on the disk; those with links count once."""
    size_by_inode = {}
    for path in project.outputs.folder.glob("[a-z]*/**/*"):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            size_by_inode[status.st_ino] = status.st_size
    return sum(size_by_inode.values())


def test_the_size_of_garbage_is_what_its_removal_frees(project):
    rebuild_with_new_text(project)
    bytes_before = bytes_of_outputs(project)
    plan = plan_gc(project)

    collection = collect(project)

    assert plan.size == bytes_before - bytes_of_outputs(project)
    assert collection.size == plan.size


def test_tokens_that_old_versions_share_count_in_the_dataset(project):
    old_dataset = current_dataset(project, "web")
    rebuild_with_new_text(project)

    plan = plan_gc(project)

    size_by_path = {item.path: size for item, size in plan.freed_bytes().items()}
    tokens_path = next(old_dataset.folder.glob("*.bin"))
    assert size_by_path[old_dataset.folder] > tokens_path.stat().st_size
    for path, size in size_by_path.items():
        if path.parent.name in ("long", "short", "web-ds"):
            assert size < tokens_path.stat().st_size


def test_tokens_do_not_count_if_a_version_that_stays_has_them(project):
    # The view `short` is not rebuilt. So it needs the old dataset.
    rebuild_with_new_text(project, with_view=False)
    bytes_before = bytes_of_outputs(project)
    plan = plan_gc(project)

    collect(project)

    assert {"views/long", "exports/web-ds"} <= {item.output for item in plan.garbage}
    assert plan.size == bytes_before - bytes_of_outputs(project)


def test_tokens_do_not_count_if_somebody_has_linked_them(project, tmp_path):
    old_dataset = current_dataset(project, "web")
    rebuild_with_new_text(project)
    size_before = plan_gc(project).size
    tokens_path = next(old_dataset.folder.glob("*.bin"))

    os.link(tokens_path, tmp_path / "backup.bin")

    assert plan_gc(project).size == size_before - tokens_path.stat().st_size


def test_status_names_the_same_size_as_a_collection(project):
    rebuild_with_new_text(project, with_view=False)

    assert old_versions(project).size == plan_gc(project).size


def test_an_unfinished_view_has_no_tokens_of_its_own(project):
    dataset = current_dataset(project, "web")
    tokens_path = next(dataset.folder.glob("*.bin"))
    unfinished = project.outputs.folder / "views/long/.tmp-0a1b-1-x"
    unfinished.mkdir()
    os.link(tokens_path, unfinished / "web.bin")
    (unfinished / "web.idx").write_bytes(b"x" * 100)

    outcome = invoke_nanoset(["gc", "--config", project.config.file])

    assert "1 unfinished output (100 B)" in outcome.output
