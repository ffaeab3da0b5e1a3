"""Large objects of raw text are cut into pieces without being read."""

from __future__ import annotations

import pytest

from helpers.building import make_inventory, make_shards
from helpers.inspecting import inventory_of, state_of_line
from helpers.large_texts import LARGE, PIECE_BYTES, large_text
from helpers.sample_project import jsonl, sentences
from nanoset_core.errors import SourceChangedError
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.corpora import corpus_folder, scan_corpora
from nanoset_core.stages.inventory.make import remembered_inventory, survey_corpus
from nanoset_core.text.fingerprints import fingerprint
from nanoset_core.text.listing import FileStat


def test_an_object_is_not_read_before_it_is_tokenized_and_looked_at_once(unread, unchanged_ranges):
    project = Project.open(unread)
    first = make_inventory(project, "web")
    size = len(large_text())
    assert {name for name, _, _ in unchanged_ranges} == {f"web/{LARGE}"}
    assert sum(end - begin for _, begin, end in unchanged_ranges) < size // 4 + 5 * PIECE_BYTES, (
        "the long line is read as well"
    )
    unchanged_ranges.clear()
    assert make_inventory(project, "web").digest == first.digest
    assert unchanged_ranges == []
    text = unread.read_text()
    unread.write_text(text.replace("etag-pieces", "etag"))
    assert make_inventory(Project.open(unread), "web").digest == first.digest, (
        "what is known stays as it is"
    )


def test_what_was_one_piece_is_cut_once_that_is_asked_for(unread, unchanged_ranges):
    text = unread.read_text()
    unread.write_text(text.replace("etag-pieces", "etag"))
    before = Project.open(unread)
    whole = make_inventory(before, "web")
    assert unchanged_ranges == []
    assert "piece_lines" not in make_shards(before, "web").facts
    unread.write_text(text)
    project = Project.open(unread)
    (found,) = scan_corpora(project).corpora.values()
    assert remembered_inventory(before, found) is not None
    assert remembered_inventory(project, found) is None, "a survey has to look"
    old = inventory_of(project, "web")
    assert make_inventory(project, "web").digest != whole.digest
    assert state_of_line(project, "web", old, LARGE, 10) == "unchanged"
    assert remembered_inventory(project, found) == inventory_of(project, "web")


def test_an_object_that_is_replaced_is_cut_anew(unread):
    project = Project.open(unread)
    folder = corpus_folder(project, "web")
    before = make_inventory(project, "web")
    listed = survey_corpus(project, "web")
    folder.store.put(f"{folder.path}/{LARGE}", large_text() + b"\n" + jsonl(sentences("more", 3)))
    with pytest.raises(SourceChangedError, match="not as the inventory found it"):
        make_shards(project, "web")
    assert make_inventory(project, "web").digest != before.digest
    make_shards(project, "web")
    mark = int(listed.pieces[0].digest.partition(":")[2], 16)
    with pytest.raises(SourceChangedError, match="changed while it was read"):
        fingerprint(folder, FileStat(LARGE, len(large_text()), 1, mark))
