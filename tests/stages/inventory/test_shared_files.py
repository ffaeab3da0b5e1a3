"""A file that two corpora of a blend or webdataset contain would be read twice, and is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from helpers.building import run_stages
from helpers.keyed_corpora import open_with_corpora, write_keyed_project
from nanoset_core.errors import ConfigError
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.stages.inventory.shared_files import check_all_files

BLEND = "{web: 1, web_title: 1, code: 1}"
"""The blend of the project's settings."""


@pytest.fixture
def folder(tmp_path: Path, tokenizer_file: Path) -> Path:
    """The folder of a project without outputs."""
    (tmp_path / "project").mkdir()
    return write_keyed_project(tmp_path / "project", tokenizer_file)


@pytest.fixture
def blended(folder: Path) -> Callable[..., Project]:
    """A function that opens the project with another blend and other corpora."""

    def open_blended(blend: str, corpora: str = "") -> Project:
        return open_with_corpora(folder, corpora, {BLEND: blend})

    return open_blended


def add_links(raw: Path, links: Mapping[str, str]) -> None:
    """Add symbolic links to a folder of raw text: relative path → target."""
    for name, target in links.items():
        path = raw / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


@pytest.mark.parametrize(
    ("blend", "corpora"),
    [
        pytest.param("[web, again]", "corpora: {again: {folder: web}}\n", id="the same folder"),
        pytest.param(
            "{web: 0.5, again: 0.5}",
            "corpora: {again: {folder: web, id_key: other}}\n",
            id="another key of ids",
        ),
        pytest.param(
            "[web, part]",
            'corpora: {part: {folder: web, files: ["2.*"]}}\n',
            id="some of its files",
        ),
        pytest.param(
            "[view, again]",
            "corpora: {again: {folder: web}}\nviews: {view: {of: web}}\n",
            id="a view of the same folder",
        ),
    ],
)
def test_two_corpora_of_a_blend_with_the_same_file_are_refused(blended, blend, corpora):
    project = blended(blend, corpora)

    with pytest.raises(ConfigError, match="contain the same file") as caught:
        check_all_files(project)

    assert "nanosets.both" in str(caught.value)


@pytest.mark.parametrize(
    "links",
    [
        pytest.param({"linked": "web"}, id="corpus"),
        pytest.param({"linked/a": "../web/a"}, id="folder"),
        pytest.param({"linked/x.jsonl": "../web/a/1.jsonl"}, id="file"),
    ],
)
def test_a_symbolic_link_to_a_file_of_another_corpus_is_refused(folder, blended, links):
    add_links(folder / "raw", links)
    project = blended("[web, linked]")

    with pytest.raises(ConfigError, match="contain the same file") as caught:
        check_all_files(project)

    assert "nanosets.both" in str(caught.value)


def test_a_hard_link_to_a_file_of_another_corpus_is_refused(folder, blended):
    (folder / "raw/linked").mkdir()
    os.link(folder / "raw/web/2.jsonl", folder / "raw/linked/x.jsonl")
    project = blended("[web, linked]")

    with pytest.raises(ConfigError, match=r"web/2\.jsonl of web is linked/x\.jsonl of linked"):
        check_all_files(project)


@pytest.mark.parametrize(
    ("blend", "corpora"),
    [
        pytest.param(
            "[web, title]",
            "corpora: {title: {folder: web, text_key: title}}\n",
            id="another key of the text",
        ),
        pytest.param(
            "[web, rest]",
            'corpora: {web: {exclude: ["2.*"]}, rest: {folder: web, files: ["2.*"]}}\n',
            id="the other files of the folder",
        ),
        pytest.param(
            "[web, code]", "corpora: {again: {folder: web}}\n", id="a corpus that is not read"
        ),
        pytest.param("[web, view]", "views: {view: {of: web}}\n", id="a view of the other corpus"),
    ],
)
def test_corpora_that_do_not_repeat_a_text_are_accepted(blended, blend, corpora):
    check_all_files(blended(blend, corpora))


def test_a_webdataset_of_two_corpora_with_the_same_file_is_refused(blended):
    corpora = "corpora: {again: {folder: web}}\nwebdatasets: {tars: {corpora: [web, again]}}\n"
    project = blended("[web]", corpora)

    with pytest.raises(ConfigError, match=r"webdatasets\.tars"):
        check_all_files(project)


def test_status_reports_that_two_corpora_of_a_blend_have_the_same_file(folder, blended):
    shutil.rmtree(folder / "raw/code")
    add_links(folder / "raw", {"again": "web"})
    run_stages(blended("[web]"))

    rows = project_status(blended("[web, again]"))

    reasons = [" ".join(row.why) for row in rows if row.name == "both"]
    assert any("contain the same file" in reason for reason in reasons)
