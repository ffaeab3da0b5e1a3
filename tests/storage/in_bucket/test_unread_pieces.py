"""Large text in a bucket is cut into pieces without being read.

So the number of a piece's first line is not known beforehand. Reports name the same lines as those
of a local build nevertheless.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.buckets import RawText
from helpers.building import (
    make_columns,
    make_corpora,
    make_inventory,
    make_nanoset,
    make_shards,
    make_view,
)
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
from helpers.large_texts import (
    LARGE,
    PIECE_BYTES,
    large_text,
    small_pieces_of_files,
    write_project_of_large_text,
    write_unread_project,
)
from helpers.s3_server import new_bucket
from helpers.sample_project import jsonl, sentences
from nanoset_assets.ui.previews import first_rejects
from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.project.project import Project
from nanoset_core.project.purge.plan import CurrentDocument, plan_purge
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.shards.line_numbers import PIECE_LINES
from nanoset_core.stages.shards.one_shard import REJECTS
from nanoset_core.stages.shards.reject_list import read_rejects
from nanoset_core.stages.shards.shard_sets import recorded_losses, reject_policy


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Project:
    """A local project, whose text was read to be cut; tests must not write to it."""
    return build(write_project_of_large_text(tmp_path_factory.mktemp("local"), tokenizer_file))


@pytest.fixture(scope="module")
def remote_build(
    endpoint: str, tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path
) -> RawText:
    """A project with the same text in a bucket, where the large file was cut without being read."""
    place = new_bucket(endpoint)
    config = write_unread_project(tmp_path_factory.mktemp("remote"), tokenizer_file, place)
    with small_pieces_of_files():
        build(config)
    return RawText.of(config, place)


@pytest.fixture
def remote(remote_build: RawText, place, tmp_path: Path, small_pieces: None) -> Project:
    """A copy of this project."""
    return Project.open(remote_build.copy_to(tmp_path / "remote", place))


def build(config: Path) -> Project:
    """Build the dataset of the corpus web and a nanoset of it."""
    project = Project.open(config)
    make_corpora(project, "web")
    make_nanoset(project, "plain")
    return project


def tokenized_web(project: Project) -> Any:
    """Return the manifest of the shards of the corpus web."""
    return current_output(project, "tokenized/web")


def rejects_of(project: Project) -> list[Any]:
    """Return the rejected lines of the corpus web."""
    rejects: list[Any] = []
    for shard in current_shards(project, "web"):
        rejects.extend(read_rejects(shard.path(REJECTS), line_numbers(project, "web")))
    return rejects


class Place(NamedTuple):
    """Where a document is in the raw text."""

    document: int
    """Its number in the dataset."""
    file: str
    line: int
    byte_offset: int
    id: str


def places_of_documents(project: Project) -> list[Place]:
    """Return the place of each document of the corpus web."""
    dataset = current_dataset(project, "web")
    origins = lineage_of(project, dataset).origins(range(dataset.facts["documents"]))
    places: list[Place] = []
    for origin in origins:
        place = Place(origin.document, origin.file, origin.line, origin.byte_offset, origin.id)
        places.append(place)
    return places


def test_a_large_file_is_cut_at_ends_of_lines_without_counting_lines(remote):
    pieces = [piece for piece in inventory_of(remote, "web").pieces if piece.path == LARGE]

    assert len(pieces) > 10
    assert {piece.first_line for piece in pieces} == {0}, "nobody has counted lines"
    assert max(piece.size for piece in pieces) > 3 * PIECE_BYTES, "the long line is in one piece"


def test_tokenizing_counts_the_lines_of_each_piece(remote):
    pieces = [piece for piece in inventory_of(remote, "web").pieces if piece.path == LARGE]

    facts = tokenized_web(remote).facts

    assert len(facts["shards"]) > 3
    starts, line_counts = zip(*facts[PIECE_LINES][LARGE], strict=True)
    assert list(starts) == [piece.begin for piece in pieces]
    assert sum(line_counts) == large_text().count(b"\n") + 1


@pytest.mark.parametrize("ending", ["bin", "idx"])
def test_the_dataset_of_unread_pieces_is_that_of_a_local_build(local, remote, ending):
    name = f"web_text_document.{ending}"

    data = current_dataset(remote, "web").path(name).read_bytes()

    assert data == current_dataset(local, "web").path(name).read_bytes()


def remedy_for_rejected_line(project: Project, reject: Any) -> str:
    """Look up a rejected line as a document, and return the remedy of the error."""
    with pytest.raises(MissingError, match="the line was rejected") as caught:
        find_document(project, "plain", "train", file=reject.file, line=reject.line)
    return caught.value.remedy


def documents_to_erase(project: Project, ids: Sequence[str]) -> Sequence[CurrentDocument]:
    """Return the documents of the corpus web that a purge would erase."""
    return plan_purge(project, ids).current["web"]


def test_documents_and_rejected_lines_have_the_same_numbers_as_in_a_local_build(local, remote):
    assert places_of_documents(remote) == places_of_documents(local)
    assert rejects_of(remote) == rejects_of(local)


def test_documents_are_found_by_the_numbers_of_their_lines(local, remote):
    for place in places_of_documents(local)[::23]:
        [by_number] = find_document(remote, "plain", "train", file=place.file, line=place.line)
        assert by_number.origin.document == place.document
        assert by_number.origin.line == place.line
        [by_name] = find_document(remote, "plain", "train", file=f"web/{place.file}:{place.line}")
        assert by_name.origin.id == place.id


def test_a_line_that_does_not_exist_is_not_found(remote):
    with pytest.raises(MissingError, match="no such document"):
        find_document(remote, "plain", "train", file=LARGE, line=10_000)


def test_rejected_lines_are_explained_as_in_a_local_build(local, remote):
    for reject in rejects_of(local)[::7]:
        remedy = remedy_for_rejected_line(local, reject)
        assert remedy_for_rejected_line(remote, reject) == remedy


def test_a_purge_names_the_same_documents_as_in_a_local_build(local, remote):
    ids = [place.id for place in places_of_documents(local)[::23]]

    assert documents_to_erase(remote, ids) == documents_to_erase(local, ids)


def with_view(config: Path, view: str) -> Project:
    """Add the settings of a view to the settings of a project, and open it."""
    config.write_text(f"{config.read_text()}views: {{{view}}}\n")
    return Project.open(config)


def test_a_view_names_the_line_of_a_document_that_does_not_fit(local, remote):
    project = with_view(remote.config.file, "best: {of: web, top: {by: tokens, tokens: 300}}")

    view = make_view(project, "best")

    [gap] = view.facts["budget_gaps"]
    [long_document] = [place for place in places_of_documents(local) if place.id == "long"]
    assert gap["place"] == f"web/{LARGE}:{long_document.line}, id 'long'"


def test_a_text_among_numbers_is_named_with_the_number_of_its_line(unread):
    settings = unread.read_text()
    unread.write_text(settings.replace("documents: {", "documents: {columns: [quality], "))
    project = with_view(unread, "good: {of: web, where: quality >= 3}")
    rows = [{"text": "word", "quality": 4} for _ in range(1000)]
    rows.append({"text": "word", "quality": "n/a"})
    folder = raw_folder_of(project, "web")
    folder.store.put(f"{folder.path}/{LARGE}", jsonl(rows))
    make_corpora(project, "web")
    make_columns(project, "web")

    with pytest.raises(ConfigError) as caught:
        make_view(project, "good")

    assert f"'n/a' in web/{LARGE}:1001" in caught.value.found


class ReportedFinding(NamedTuple):
    """What a verification reports."""

    severity: str
    what: str
    found: str


def findings_of(project: Project) -> list[ReportedFinding]:
    """Return what a deep verification of the corpus web reports."""
    findings: list[ReportedFinding] = []
    for report in verify_project(project, ["web"], deep=True):
        for finding in report.findings:
            findings.append(ReportedFinding(finding.severity, finding.what, finding.found))
    return findings


def preview_of_rejects(project: Project) -> object:
    """Return the rejected lines that Dagster's UI shows."""
    shards = current_shards(project, "web")
    return first_rejects(shards, line_numbers(project, "web")).value


def test_reports_name_the_same_lines_as_those_of_a_local_build(local, remote):
    assert preview_of_rejects(remote) == preview_of_rejects(local)

    findings = findings_of(remote)
    assert findings == findings_of(local)
    assert {finding.severity for finding in findings} == {"warning"}, "of damaged lines"


def refusal_of_shards(project: Project) -> InputError:
    """Make the shards of the corpus web, and return the error that refuses too many rejects."""
    with pytest.raises(InputError) as caught:
        make_shards(project, "web")
    return caught.value


def test_a_refusal_names_the_same_lines_as_that_of_a_local_build(local, remote):
    # Allow fewer rejected lines than the text has.
    config = remote.config.file
    config.write_text(config.read_text().replace("0.5", "0.01"))
    strict = Project.open(config)
    policy = reject_policy(strict, "web")
    folder = strict.config.corpus_folder("web")

    local_losses = recorded_losses(local.outputs, tokenized_web(local))
    remote_losses = recorded_losses(remote.outputs, tokenized_web(remote))
    local_error = policy.refusal(local_losses, folder)
    remote_error = policy.refusal(remote_losses, folder)

    assert remote_error.found == local_error.found
    assert "; line " in remote_error.found
    # The build that judges the losses for the first time names them, too.
    assert refusal_of_shards(strict).found == local_error.found


@pytest.mark.parametrize(
    ("n_lines_before", "line"),
    [
        # The number of each line of the first piece is known.
        pytest.param(3, ":4", id="in the first piece"),
        # Of a later piece it is known only after the pieces before it were read.
        pytest.param(200, "", id="in a later piece"),
    ],
)
def test_a_damaged_line_whose_number_is_unknown_is_named_by_its_first_byte(
    unread, n_lines_before, line
):
    unread.write_text(unread.read_text().replace("max_rejected_fraction: 0.5", "on_reject: fail"))
    project = Project.open(unread)
    lines = jsonl(sentences("web", 400)).splitlines(keepends=True)
    text_before = b"".join(lines[:n_lines_before])
    text_after = b"".join(lines[n_lines_before:])
    folder = raw_folder_of(project, "web")
    folder.store.put(f"{folder.path}/{LARGE}", text_before + b"\n" + text_after)
    make_inventory(project, "web")

    error = refusal_of_shards(project)

    assert error.where == f"{folder / LARGE}{line} (byte {len(text_before):,})"
