"""A large object of raw text is cut into pieces without reading all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.building import make_inventory, make_shards
from helpers.inspecting import inventory_of, state_of_line
from helpers.large_texts import LARGE, PIECE_BYTES, large_text
from helpers.s3_server import total_bytes
from helpers.sample_project import jsonl, sentences
from nanoset_core.errors import SourceChangedError
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.corpora import corpus_folder, scan_corpora
from nanoset_core.stages.inventory.make import remembered_inventory
from nanoset_core.text.files.listing import stat_file
from nanoset_core.text.inventory.fingerprints import fingerprint


def without_pieces(config: Path) -> Project:
    """Change the settings of a project so that objects are not cut, and open it."""
    config.write_text(config.read_text().replace("etag-pieces", "etag"))
    return Project.open(config)


def with_pieces(config: Path) -> Project:
    """Change the settings of a project so that large objects are cut, and open it."""
    config.write_text(config.read_text().replace("fingerprint: etag,", "fingerprint: etag-pieces,"))
    return Project.open(config)


def test_only_the_ends_of_pieces_are_read_to_cut_an_object(unread, unchanged_ranges):
    make_inventory(Project.open(unread), "web")

    assert {name for name, _start, _stop in unchanged_ranges} == {f"web/{LARGE}"}
    # A long line has to be read to its end.
    assert total_bytes(unchanged_ranges) < len(large_text()) // 4 + 5 * PIECE_BYTES


def test_an_object_that_was_cut_is_not_read_again(unread, unchanged_ranges):
    project = Project.open(unread)
    inventory = make_inventory(project, "web")
    unchanged_ranges.clear()

    inventory_again = make_inventory(project, "web")

    assert inventory_again.digest == inventory.digest
    assert unchanged_ranges == []


def test_an_object_stays_cut_if_the_setting_is_removed(unread):
    """Otherwise, its shards would be rebuilt."""
    inventory = make_inventory(Project.open(unread), "web")

    inventory_again = make_inventory(without_pieces(unread), "web")

    assert inventory_again.digest == inventory.digest


def test_an_object_is_not_read_for_its_inventory_without_the_setting(unread, unchanged_ranges):
    project = without_pieces(unread)

    make_inventory(project, "web")

    assert unchanged_ranges == []
    assert "piece_lines" not in make_shards(project, "web").facts


class ProjectWithAddedSetting(NamedTuple):
    """A project whose object was one piece, and has to be cut since the setting was added."""

    project: Project
    corpus: Any
    old_inventory: Any
    """The inventory with the object as one piece."""
    old_digest: str
    """The digest of its output."""


@pytest.fixture
def with_added_setting(unread) -> ProjectWithAddedSetting:
    """A project with shards, to which the setting was added."""
    project_without_pieces = without_pieces(unread)
    output = make_inventory(project_without_pieces, "web")
    make_shards(project_without_pieces, "web")
    [corpus] = scan_corpora(project_without_pieces).corpora.values()
    assert remembered_inventory(project_without_pieces, corpus) is not None
    project = with_pieces(unread)
    return ProjectWithAddedSetting(project, corpus, inventory_of(project, "web"), output.digest)


def test_an_object_that_was_one_piece_is_cut_if_the_setting_is_added(with_added_setting):
    project = with_added_setting.project
    assert remembered_inventory(project, with_added_setting.corpus) is None

    output = make_inventory(project, "web")

    assert output.digest != with_added_setting.old_digest
    new_inventory = inventory_of(project, "web")
    assert remembered_inventory(project, with_added_setting.corpus) == new_inventory


def test_the_lines_of_an_inventory_without_cuts_are_still_known_after_cuts(with_added_setting):
    project = with_added_setting.project
    make_inventory(project, "web")

    state = state_of_line(project, "web", with_added_setting.old_inventory, LARGE, 10)

    assert state == "unchanged"


def replace_large_object(project: Project) -> None:
    """Replace the large object by one with more documents."""
    folder = corpus_folder(project, "web")
    text = large_text() + b"\n" + jsonl(sentences("more", 3))
    folder.store.put(f"{folder.path}/{LARGE}", text)


def test_an_object_that_was_replaced_is_refused_until_it_is_cut_again(unread):
    project = Project.open(unread)
    inventory = make_inventory(project, "web")
    replace_large_object(project)

    with pytest.raises(SourceChangedError, match="not as the inventory found it"):
        make_shards(project, "web")

    assert make_inventory(project, "web").digest != inventory.digest
    make_shards(project, "web")


def test_an_object_that_is_replaced_while_it_is_cut_is_refused(unread):
    project = Project.open(unread)
    folder = corpus_folder(project, "web")
    listed_file = stat_file(folder, LARGE)
    replace_large_object(project)

    with pytest.raises(SourceChangedError, match="changed while it was read"):
        fingerprint(folder, listed_file)
