"""Views of a built project: what they hold, what is made of them, and when they are made again."""

import os
import shutil
from pathlib import Path

import pytest

from helpers.building import (
    make_corpora,
    make_derived_pbin,
    make_held_out,
    make_nanoset,
    make_webdataset,
)
from helpers.inspecting import (
    current_dataset,
    explain_sample,
    find_document,
    graph_of,
    node_at,
    read_dataset,
)
from helpers.s3_server import root_in
from helpers.sample_project import outputs_of, write_project
from helpers.views import CHANGES, origins, texts_of
from nanoset_core import merge_indexed_datasets
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.project.gc import collect
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import check_requested_corpora
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.views import make as views
from nanoset_core.stages.views.choosing import plan_view


def test_a_view_is_an_index_of_twenty_bytes_a_document_over_the_same_tokens(project):
    web, kept = read_dataset(project, "web"), current_dataset(project, "kept")
    idx, binary = (kept.folder / f"{kept.facts['prefix']}.{end}" for end in ("idx", "bin"))
    assert idx.stat().st_size == 34 + 20 * kept.facts["documents"] + 8
    assert binary.read_bytes() == Path(f"{web.prefix}.bin").read_bytes()
    parts = [texts_of(read_dataset(project, name)) for name in ("kept", "held")]
    ids = {text: number for number, text in enumerate(texts_of(web))}
    chosen = [{ids[text] for text in part} for part in parts]
    assert chosen[0].isdisjoint(chosen[1])
    assert len(chosen[0] | chosen[1] | {3, 5, 100}) == 240
    assert {3, 5, 100}.isdisjoint(chosen[0])
    assert kept.facts["missing_ids"] == {"views.kept.exclude: drop/*.txt": 1}
    assert [row[1:] for row in kept.facts["steps"]] == [
        ["all", 240, web.token_count],
        ["exclude drop/*.txt", 237, kept.facts["steps"][1][3]],
        ["split by id, [0.1, 1)", len(chosen[0]), kept.facts["tokens"]],
    ]


def test_a_hard_link_costs_no_tokens_and_where_none_can_be_made_a_link_of_names_does(
    project_with_views, tmp_path, monkeypatch
):
    dataset = current_dataset(Project.open(project_with_views), "kept")
    assert os.stat(dataset.folder / f"{dataset.facts['prefix']}.bin").st_nlink == 4
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(1, "no links here")))
    shutil.copytree(project_with_views.parent, tmp_path / "project", symlinks=True)
    project = Project.open(tmp_path / "project" / "nanoset.yaml")
    shutil.rmtree(project.outputs.folder / "views")
    again = views.make_view(project, "held")
    assert (again.folder / f"{again.facts['prefix']}.bin").is_symlink()
    assert texts_of(read_dataset(project, "held")) == texts_of(
        read_dataset(Project.open(project_with_views), "held")
    )
    assert again.damage() is None


def test_everything_that_is_made_of_a_view_is_verified(project):
    make_nanoset(project, "pretrain")
    make_webdataset(project, "shuffled")
    make_derived_pbin(project, "some")
    make_held_out(project, "pretrain")

    selection = ["pretrain/*", "shuffled", "some", "kept", "held"]
    reports = list(verify_project(project, selection, deep=True))

    findings = [
        finding
        for report in reports
        for finding in report.findings
        if "handoff" not in report.output
    ]
    assert len(reports) == 10
    assert [(finding.severity, finding.found) for finding in findings] == [
        ("warning", "train reads it")
    ], "repeats are cut by the split"


def test_only_a_handoff_with_views_names_them_in_its_recipe(project):
    handoffs = [node_at(f"nanosets/{name}/handoff") for name in ("pretrain", "plain")]

    options = [node.stage.recipe(project, node.key, {}).options for node in handoffs]

    assert [one.get("views") for one in options] == [["some"], None]


def test_samples_and_contexts_of_a_view_lead_to_documents_of_its_corpus(project):
    make_nanoset(project, "pretrain")
    make_webdataset(project, "shuffled")
    samples = (explain_sample(project, "pretrain", "train", number) for number in range(400))
    piece = next(piece for sample in samples if sample.corpus == "some" for piece in sample.pieces)
    assert piece.origin.corpus == "web"
    assert piece.source.state == "unchanged"

    in_samples = find_document(project, "pretrain", "train", identity=piece.origin.id)
    line = f"web/{piece.origin.file}:{piece.origin.line}"
    in_contexts = find_document(project, "shuffled", file=line)

    assert len(in_samples) in (2, 3)
    assert all(place.appearances for place in in_samples)
    assert {place.origin.id for place in in_contexts} == {piece.origin.id}


def test_a_changed_list_of_ids_renews_just_the_views_that_name_it(project):
    def stale() -> set[str]:
        graph = graph_of(project)
        return {
            name
            for name in project.config.views
            if graph.stale_reasons(node_at(f"views/{name}", of="web"))
        }

    assert stale() == set()
    before = current_dataset(project, "held").digest
    (project.config.file.parent / "drop" / "2.txt").write_text("web-7\n")
    assert stale() == {"kept", "some"}
    views.make_view(project, "some")
    # both, in one pass
    assert (stale(), current_dataset(project, "held").digest) == (set(), before)
    shutil.rmtree(project.config.file.parent / "drop")
    assert stale() == {"kept", "some"}
    with pytest.raises(MissingError, match=r"views.kept.exclude"):
        views.make_view(project, "kept")


def test_an_append_keeps_documents_on_their_sides_and_gc_keeps_what_views_point_at(project):
    before = [set(texts_of(read_dataset(project, name))) for name in ("kept", "held")]
    folder = project.config.file.parent / "raw" / "web"
    shutil.copy(folder / "part-0" / "web-0.jsonl", folder / "web-9.jsonl")
    data = (folder / "web-9.jsonl").read_text().replace("web ", "more ").replace('"web-', '"more-')
    (folder / "web-9.jsonl").write_text(data)
    make_corpora(project, "web")
    collect(project)
    assert [set(texts_of(read_dataset(project, name))) for name in ("kept", "held")] == before
    for name, texts in zip(("kept", "held"), before, strict=True):
        views.make_view(project, name)
        assert texts < set(texts_of(read_dataset(project, name)))


def test_a_view_is_refused_where_sequences_must_lie_back_to_back(project, tmp_path):
    with pytest.raises(FormatError, match=r"back to back"):
        merge_indexed_datasets([read_dataset(project, "some").prefix], tmp_path / "merged")


def test_a_damaged_view_is_found(project):
    view = current_dataset(project, "kept")
    path = view.folder / f"{view.facts['prefix']}.idx"
    data = bytearray(path.read_bytes())
    data[34:38] = data[38:42]
    path.write_bytes(data)
    (report,) = verify_project(project, ["kept"])
    assert [finding.what for finding in report.findings] == [
        "a sequence of a view is none of its dataset"
    ]


def test_the_same_bytes_in_a_bucket(project_with_views, tmp_path, bucket):
    here = outputs_of(project_with_views)
    tokenizer = project_with_views.parent / "tokenizer.json"
    file = write_project(tmp_path / "project", tokenizer, root_in(bucket) | CHANGES)
    shutil.copytree(project_with_views.parent / "drop", file.parent / "drop")
    project = Project.open(file)
    make_corpora(project, "web")
    for name in ("kept", "held", "some"):
        views.make_view(project, name)
    found = {stored.name for stored in bucket.list("views")}
    assert found >= {
        name for name in here if name.startswith("views/") and name.endswith((".idx", ".bin"))
    }
    for name in (name for name in found if name.endswith((".idx", ".bin"))):
        assert bucket.sha256(name) == here[name], name
    assert texts_of(read_dataset(project, "some")) == texts_of(
        read_dataset(Project.open(project_with_views), "some")
    )


def test_a_view_is_made_again_when_that_is_asked_for_and_ordered_by_a_name_of_files(project):
    before = current_dataset(project, "kept")
    made = views.make_view(Project.open(project.config.file, rebuild=True), "kept")
    assert (made.digest, made.facts, made.files) == (before.digest, before.facts, before.files)
    text = project.config.file.read_text()
    project.config.file.write_text(
        text.replace("order: {seed: 3}", "order: {by: file, descending: true}")
    )
    again = Project.open(project.config.file)
    views.make_view(again, "some")
    lines = [place.file for place in origins(again, "some")]
    assert lines == sorted(lines, reverse=True)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("held: {of: web", "code: {of: web", "share a name"),
        ("some: {of: kept", "some: {of: some", "this view is of itself, by way of others"),
        ("keep: [0, 0.1]", "keep: [0.1, 0.1]", "the start of a share must be below its end"),
        ("tokens: 5e3", "tokens: 5e3, documents: 3", "a budget is of tokens or of documents"),
        ("order: {seed: 3}", "order: {}", "an order is by a column or by a seed"),
        ("tokens: 5e3", "where: 'a b'", "this is not a condition on documents"),
        ("pretrain:", "web_views:", "two things share a name"),
    ],
)
def test_views_that_cannot_be_are_refused(project, old, new, what):
    text = project.config.file.read_text()
    assert old in text
    project.config.file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=what):
        check_requested_corpora(Project.open(project.config.file).config, ["web", "code", "books"])


def test_what_a_view_would_choose_is_told_before_it_is_built(project):
    shutil.rmtree(project.outputs.folder / "views")
    planned = plan_view(project, "some").facts
    assert views.make_view(project, "some").facts["steps"] == planned["steps"]
    assert "tokenized" in os.listdir(project.outputs.folder)
