"""Large objects that are cut without being read: what is told of their lines is what a local build
tells of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.building import make_corpora, make_inventory, make_nanoset, make_shards
from helpers.inspecting import (
    current_dataset,
    current_output,
    current_shards,
    find_document,
    inventory_of,
    line_numbers,
    lineage_of,
    raw_folder_of,
)
from helpers.large_texts import LARGE, PIECE_BYTES, large_text, write_project_of_large_text
from helpers.sample_project import jsonl, sentences
from nanoset_assets.ui.previews import first_rejects
from nanoset_core.errors import InputError, MissingError, NanosetError
from nanoset_core.project.project import Project
from nanoset_core.project.purge_plan import plan_purge
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.shards.line_numbers import PIECE_LINES
from nanoset_core.stages.shards.make import REJECTS
from nanoset_core.stages.shards.reject_list import read_rejects
from nanoset_core.stages.shards.shard_sets import recorded_losses, reject_policy


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Project:
    """A local project whose files were read to be cut; not to be written to."""
    return built(write_project_of_large_text(tmp_path_factory.mktemp("counted"), tokenizer_file))


def built(config: Path) -> Project:
    project = Project.open(config)
    make_corpora(project, "web")
    make_nanoset(project, "plain")
    return project


def tokenized(project: Project) -> Any:
    return current_output(project, "tokenized/web")


def rejects(project: Project) -> Iterator[Any]:
    """The rejected lines of the corpus."""
    for shard in current_shards(project, "web"):
        yield from read_rejects(shard.path(REJECTS), line_numbers(project, "web"))


def refused(project: Project) -> NanosetError:
    with pytest.raises(InputError) as caught:
        make_shards(project, "web")
    return caught.value


@pytest.fixture
def cut_unread(counted: Project, unread: Path) -> Project:
    """The same text in a bucket, whose large file was cut without being read, built."""
    return built(unread)


def test_pieces_end_at_lines_and_the_dataset_is_that_of_a_local_build(counted, cut_unread):
    large_pieces = [
        piece for piece in inventory_of(cut_unread, "web").pieces if piece.path == LARGE
    ]
    assert len(large_pieces) > 10
    assert {piece.first_line for piece in large_pieces} == {0}, "nobody has counted lines"
    longest = max(piece.size for piece in large_pieces)
    assert longest > 3 * PIECE_BYTES, "the long line is in one piece"

    # Tokenizing counts the lines of each piece.
    facts = tokenized(cut_unread).facts
    assert len(facts["shards"]) > 3
    starts, line_counts = zip(*facts[PIECE_LINES][LARGE], strict=True)
    assert list(starts) == [piece.begin for piece in large_pieces]
    assert sum(line_counts) == large_text().count(b"\n") + 1

    for ending in ("bin", "idx"):
        name = f"web_text_document.{ending}"
        paths = [current_dataset(one, "web").path(name) for one in (cut_unread, counted)]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_lines_have_the_numbers_that_a_local_build_gives_them(counted, cut_unread):
    documents = range(current_dataset(cut_unread, "web").facts["documents"])
    origins, expected = (
        lineage_of(project, current_dataset(project, "web")).origins(documents)
        for project in (cut_unread, counted)
    )
    assert [(one.file, one.line, one.byte_offset, one.id) for one in origins] == [
        (one.file, one.line, one.byte_offset, one.id) for one in expected
    ]
    assert list(rejects(cut_unread)) == list(rejects(counted))

    # Documents are found by their lines.
    some = expected[::23]
    for origin in some:
        line = f"web/{origin.file}:{origin.line}"
        (by_number,) = find_document(
            cut_unread, "plain", "train", file=origin.file, line=origin.line
        )
        (by_name,) = find_document(cut_unread, "plain", "train", file=line)
        assert (by_number.origin.document, by_number.origin.line) == (origin.document, origin.line)
        assert by_name.origin.id == origin.id
    with pytest.raises(MissingError, match="no such document"):
        find_document(cut_unread, "plain", "train", file=LARGE, line=10_000)

    # Rejected lines are explained.
    for reject in list(rejects(counted))[::7]:
        remedies = []
        for project in (cut_unread, counted):
            with pytest.raises(MissingError, match="the line was rejected") as caught:
                find_document(project, "plain", "train", file=reject.file, line=reject.line)
            remedies.append(caught.value.remedy)
        assert remedies[0] == remedies[1]

    # A purge names the same documents, which may be in other shards.
    ids = [origin.id for origin in some]
    erased, expected_erased = (
        [replace(document, row=0) for document in plan_purge(project, ids).current["web"]]
        for project in (cut_unread, counted)
    )
    assert erased == expected_erased


def test_reports_name_the_lines_that_those_of_a_local_build_name(counted, cut_unread):
    both = (cut_unread, counted)

    previews = [
        first_rejects(current_shards(project, "web"), line_numbers(project, "web")).value
        for project in both
    ]
    assert previews[0] == previews[1]

    findings, expected = (
        [
            (finding.severity, finding.what, finding.found)
            for report in verify_project(project, ["web"], deep=True)
            for finding in report.findings
        ]
        for project in both
    )
    assert findings == expected
    assert {severity for severity, _, _ in findings} == {"warning"}, "of damaged lines"


def test_a_refusal_names_the_same_lines_as_one_of_a_local_build(counted, cut_unread):
    config = cut_unread.config.file
    config.write_text(config.read_text().replace("0.5", "0.01"))
    strict = Project.open(config)
    policy = reject_policy(strict, "web")
    folder = strict.config.corpus_folder("web")

    errors = []
    for project in (cut_unread, counted):
        losses = recorded_losses(project.outputs, tokenized(project))
        errors.append(policy.refusal(losses, folder))

    error, expected = errors
    assert error.found == expected.found
    assert "; line " in error.found
    # The build that judges the losses for the first time names them, too.
    assert refused(strict).found == expected.found


@pytest.mark.parametrize("before", [3, 200])
def test_where_no_line_can_be_told_yet_the_byte_is(unread, before):
    unread.write_text(unread.read_text().replace("max_rejected_fraction: 0.5", "on_reject: fail"))
    project = Project.open(unread)
    folder = raw_folder_of(project, "web")
    lines = jsonl(sentences("web", 400)).splitlines(keepends=True)
    folder.store.put(f"{folder.path}/{LARGE}", b"".join([*lines[:before], b"\n", *lines[before:]]))
    make_inventory(project, "web")
    line = f":{before + 1}" if before == 3 else ""  # of the first piece every line is known
    assert (
        refused(project).where == f"{folder / LARGE}{line} (byte {sum(map(len, lines[:before])):,})"
    )
