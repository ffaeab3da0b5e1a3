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
from nanoset_core.stages.shards.shard_sets import losses, refusal


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


def test_whatever_is_told_of_a_line_is_what_a_local_build_tells(counted, unread):
    ours = built(unread)
    for end in ("bin", "idx"):
        mine, theirs = (
            p.outputs.current("datasets", "web").path(f"web_text_document.{end}")
            for p in (ours, counted)
        )
        assert mine.read_bytes() == theirs.read_bytes()

    inventory = inventory_of(ours, "web")
    pieces = [piece for piece in inventory.pieces if piece.path == LARGE]
    assert len(pieces) > 10
    assert {piece.first_line for piece in pieces} == {0}
    assert max(piece.size for piece in pieces) > 3 * PIECE_BYTES, "the long line is in one piece"
    assert len(tokenized(ours).facts["shards"]) > 3
    assert [begin for begin, _ in tokenized(ours).facts[PIECE_LINES][LARGE]] == [
        piece.begin for piece in pieces
    ]
    assert (
        sum(lines for _, lines in tokenized(ours).facts[PIECE_LINES][LARGE])
        == large_text().count(b"\n") + 1
    )

    documents = range(ours.outputs.current("datasets", "web").facts["documents"])
    found, wanted = (
        lineage_of(project, current_dataset(project, "web")).origins(documents)
        for project in (ours, counted)
    )
    assert [(o.file, o.line, o.byte_offset, o.id) for o in found] == [
        (o.file, o.line, o.byte_offset, o.id) for o in wanted
    ]
    assert list(rejects(ours)) == list(rejects(counted))
    for origin in wanted[::23]:
        (places,) = find_document(ours, "plain", "train", file=origin.file, line=origin.line)
        assert (places.origin.document, places.origin.line) == (origin.document, origin.line)
        (places,) = find_document(ours, "plain", "train", file=f"web/{origin.file}:{origin.line}")
        assert places.origin.id == origin.id
    ids = [origin.id for origin in wanted[::23]]
    erased = [plan_purge(project, ids).current["web"] for project in (ours, counted)]
    ours_erased, counted_erased = (
        [replace(document, row=0) for document in documents] for documents in erased
    )
    assert ours_erased == counted_erased, "the same documents, which may be in other shards"
    for reject in list(rejects(counted))[::7]:
        hints = []
        for project in (ours, counted):
            with pytest.raises(MissingError, match="the line was rejected") as caught:
                find_document(project, "plain", "train", file=reject.file, line=reject.line)
            hints.append(caught.value.remedy)
        assert hints[0] == hints[1]
    with pytest.raises(MissingError, match="no such document"):
        find_document(ours, "plain", "train", file=LARGE, line=10_000)

    shown = [
        first_rejects(current_shards(project, "web"), line_numbers(project, "web")).value
        for project in (ours, counted)
    ]
    assert shown[0] == shown[1]
    told = [
        [
            (one.severity, one.what, one.found)
            for report in verify_project(project, ["web"], deep=True)
            for one in report.findings
        ]
        for project in (ours, counted)
    ]
    assert told[0] == told[1]
    assert {severity for severity, _, _ in told[0]} == {"warning"}, "of damaged lines"

    ours.config.file.write_text(ours.config.file.read_text().replace("0.5", "0.01"))
    strict = Project.open(ours.config.file)
    lost = [losses(project.outputs, tokenized(project)) for project in (ours, counted)]
    errors = [refusal(strict, "web", one) for one in lost]
    assert errors[0].found == errors[1].found
    assert "; line " in errors[0].found
    assert refused(strict).found == errors[1].found, "also where it is judged for the first time"


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
