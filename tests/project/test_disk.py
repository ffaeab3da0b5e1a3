"""What a build takes of the disk is told before it starts, and refused where it is clearly not
there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.building import build_all
from nanoset_core.errors import StorageError
from nanoset_core.project import disk
from nanoset_core.project.disk import check_disk, disk_need
from nanoset_core.project.graph import graph_over
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.corpora import corpus_names


def every_node(project):
    return graph_over(project, {}, corpus_names(project)).nodes()


def test_tokens_are_estimated_by_the_text_and_then_by_earlier_shards(make_project):
    project = Project.open(make_project())
    nodes = every_node(project)
    text = sum(path.stat().st_size for path in (project.config.file.parent / "raw").rglob("*.*"))
    first = disk_need(project, nodes)
    assert first["shards"] == pytest.approx(text / 4 * 2, abs=8)
    assert (first["datasets"], first["packed"]) == (pytest.approx(first["shards"], abs=8), 0)
    assert first["tars"] == pytest.approx(first["shards"], abs=8)
    assert disk_need(project, []) == dict.fromkeys(first, 0)
    build_all(project.config.file)
    again = disk_need(project, nodes)
    bins = sum(
        path.stat().st_size
        for path in {*map(Path.resolve, project.outputs.folder.glob("datasets/*/*/*.bin"))}
    )
    assert (again["shards"], again["datasets"]) == (0, pytest.approx(bins, abs=8))
    shutil.rmtree(project.outputs.folder / "tokenized")
    assert disk_need(project, nodes)["shards"] < first["shards"] / 2, (
        "a build that was cut short goes on"
    )


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ("corpora: {web: 0.5, books: 0}", lambda web, books: web / 2),
        ("corpora: {web: 0.5, books: 0.5}\n    mix: weights", lambda web, books: 2 * books),
        (
            "corpora: {web: 1, books: 1}\n    mix: weights\n    contexts: 10",
            lambda web, books: 10 * 33,
        ),
    ],
)
def test_tars_hold_what_is_taken_of_the_corpora(make_project, settings, share):
    config = make_project(replacements={"corpora: [web, code, books]": settings})
    project = Project.open(config)
    web, books = (sum(path.stat().st_size for path in (config.parent / "raw" / name).rglob("*.*")) / 4
                  for name in ("web", "books"))  # fmt: skip
    assert books < web
    assert disk_need(project, every_node(project))["tars"] == pytest.approx(
        2 * share(web, books), abs=8
    )


def test_exports_take_what_they_write_and_nothing_for_links(make_project):
    exports = (
        "views: {few: {of: web, documents: 9}}\nexports:\n  one: {of: web, format: datatrove}\n"
    )
    project = Project.open(make_project(replacements={"nanosets:\n": exports + "nanosets:\n"}))
    need = disk_need(project, every_node(project))
    assert need["exports"] == 0
    more = (
        "  two: {of: web, format: mds, sequence_length: 9}\n  three: {of: few, format: olmo-core}\n"
    )
    file = project.config.file
    file.write_text(file.read_text().replace("format: datatrove}\n", "format: datatrove}\n" + more))
    project = Project.open(file)
    web = sum(path.stat().st_size for path in (file.parent / "raw" / "web").rglob("*.*")) / 4 * 2
    assert disk_need(project, every_node(project))["exports"] == pytest.approx(2 * web, abs=8)


def test_a_build_is_refused_only_where_it_is_clearly_too_large(make_project, monkeypatch):
    project = Project.open(make_project())
    nodes = every_node(project)
    total = sum(disk_need(project, nodes).values())

    def room(free):
        monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
        said = []
        check_disk(project, nodes, said.append)
        return said

    assert room(0) == [], "a small project runs on a full disk"
    monkeypatch.setattr(disk, "LEAST_BYTES", 0)
    (said,) = room(int(0.91 * total))
    assert "of disk (shards" in said
    with pytest.raises(StorageError, match="too little room") as caught:
        room(int(0.89 * total))
    assert "free" in caught.value.found
    assert all(what in caught.value.expected for what in ("shards", "datasets", "tars"))
    assert "nanoset gc" in caught.value.remedy
