"""Views of a built project: what they hold, what is made of them, and when they are made again."""

import json
import os
import shutil
from pathlib import Path

import pytest

from helpers.building import (
    make_columns,
    make_corpora,
    make_derived_pbin,
    make_held_out,
    make_nanoset,
    make_webdataset,
)
from helpers.command import invoke_nanoset
from helpers.inspecting import (
    current_dataset,
    explain_sample,
    find_document,
    graph_of,
    node_at,
    read_dataset,
    verify_at,
)
from helpers.s3_server import root_in
from helpers.sample_project import jsonl, outputs_of, sentences, write_corpus, write_project
from helpers.views import CHANGES, DROPPED, origins, texts_of
from nanoset_core import merge_indexed_datasets
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.project.find_versions import find_versions
from nanoset_core.project.gc import collect
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import check_requested_corpora
from nanoset_core.project.verify import verify_project
from nanoset_core.project.view_diff import diff_views
from nanoset_core.stages.views import stage as views
from nanoset_core.stages.views.choosing import plan_view
from nanoset_core.stages.views.verify import verify_view


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


def test_everything_that_is_made_of_a_view_is_verified_and_explained(project):
    make_nanoset(project, "pretrain")
    make_webdataset(project, "shuffled")
    make_derived_pbin(project, "some")
    make_held_out(project, "pretrain")
    reports = list(
        verify_project(project, ["pretrain/*", "shuffled", "some", "kept", "held"], deep=True)
    )
    handoffs = [node_at(f"nanosets/{name}/handoff") for name in ("pretrain", "plain")]
    options = [node.stage.recipe(project, node.key, {}).options for node in handoffs]
    assert [one.get("views") for one in options] == [["some"], None], (
        "a handoff without views stays as it is"
    )
    wrong = [
        finding
        for report in reports
        for finding in report.findings
        if "handoff" not in report.output
    ]
    assert [(one.severity, one.found) for one in wrong] == [("warning", "train reads it")], (
        "repeats are cut by the split"
    )
    assert len(reports) == 10
    piece = next(
        piece
        for sample in range(400)
        if (found := explain_sample(project, "pretrain", "train", sample)).corpus == "some"
        for piece in found.pieces
    )
    assert piece.origin.corpus == "web"
    assert piece.source.state == "unchanged"
    places = find_document(project, "pretrain", "train", identity=piece.origin.id)
    assert len(places) in (2, 3)
    assert all(place.appearances for place in places)
    line = find_document(project, "shuffled", file=f"web/{piece.origin.file}:{piece.origin.line}")
    assert {place.origin.id for place in line} == {piece.origin.id}


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


def test_two_versions_of_a_view_are_compared(project):
    file, before = project.config.file, current_dataset(project, "kept")
    held = {name: [place.id for place in origins(project, name)] for name in ("kept", "held")}
    with pytest.raises(MissingError, match="no previous version"):
        find_versions(project, "kept", None)
    (file.parent / "drop" / "2.txt").write_text("\n".join(held["kept"][7:9]))
    file.write_text(file.read_text().replace("split: {keep: [0.1, 1]}", "split: {keep: [0, 1]}"))
    views.make_view(Project.open(file), "kept")
    found = diff_views(project, *find_versions(project, "kept", None), show=2)
    assert [place.id for place in found.lost.first] == held["kept"][7:9]
    assert found.lost.tokens == sum(place.tokens for place in found.lost.first)
    gained = [identity for identity in held["held"] if identity not in DROPPED]
    assert (found.lost.documents, found.gained.documents) == (2, len(gained))
    assert [(place.id, place.file) for place in found.gained.first] == [
        (one, f"part-0/web-{int(one[4:]) // 60}.jsonl") for one in gained[:2]
    ]
    assert (
        found.gained.tokens - found.lost.tokens
        == found.new.facts["tokens"] - found.old.facts["tokens"]
    )
    assert [setting.partition(":")[0] for setting in found.settings] == [
        "views.kept.exclude",
        "views.kept.split",
    ]
    # in front of all others
    (file.parent / "raw" / "web" / "a.jsonl").write_bytes(jsonl(sentences("new", 3)))
    make_corpora(Project.open(file), "web")
    views.make_view(Project.open(file), "kept")
    result = invoke_nanoset(
        ["diff", "kept", "--config", str(file), "--json"], catch_exceptions=False
    )
    values = json.loads(result.output)
    assert [one["id"] for one in values["gained"]["first"]] == ["new-0", "new-1", "new-2"]
    assert (values["gained"]["documents"], values["lost"]["documents"]) == (3, 0)
    assert [setting.partition(":")[0] for setting in values["settings"]] == ["dataset"]
    both = diff_views(project, before, current_dataset(Project.open(file), "kept"), show=9)
    assert (both.gained.documents, both.lost.documents) == (len(gained) + 3, 2)
    shown = invoke_nanoset(["diff", before.digest, both.new.digest, "--config", str(file)]).output
    assert (
        f"lost: 2 documents, {both.lost.tokens:,} tokens\n  - {found.lost.first[0].file}:" in shown
    )


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


def test_a_condition_chooses_by_values_of_the_raw_text(tmp_path, tokenizer_file, monkeypatch):
    rows = [
        {
            "text": f"text {n}",
            "id": str(n),
            "quality": n % 5 if n < 90 else n % 5 + 0.5,
            "lang": "de" if n % 3 else "en",
        }
        for n in range(120)
    ]
    rule = {"of": "web", "where": "quality >= 3 and lang = 'en'", "order": {"by": "quality"}}
    settings = {
        "documents": {"columns": ["quality", "lang"]},
        "views": {"good": rule, "plain": {"of": "web"}},
    }
    file = write_corpus(tmp_path / "p", tokenizer_file, settings)
    for path in (file.parent / "raw" / "web").iterdir():
        path.unlink()
    for name, some in (("a", rows[:90]), ("b", rows[90:])):
        (file.parent / "raw" / "web" / f"{name}.jsonl").write_bytes(jsonl(some))
    project = Project.open(file)
    make_corpora(project)
    with pytest.raises(MissingError, match="columns/web has not been built"):
        views.make_view(project, "good")
    made = make_columns(project, "web")
    views.make_view(project, "plain")
    view = current_dataset(project, "good")
    assert view.recipe["parents"] == {
        "dataset": view.recipe["parents"]["dataset"],
        "columns": made.digest,
    }
    assert current_dataset(project, "plain").recipe["parents"].keys() == {"dataset"}
    chosen = sorted(
        (row["quality"], n)
        for n, row in enumerate(rows)
        if row["quality"] >= 3 and row["lang"] == "en"
    )
    stored = texts_of(read_dataset(project, "web"))
    assert texts_of(read_dataset(project, "good")) == [stored[number] for _, number in chosen]
    assert verify_view(project, "web", "good").passed
    assert verify_at(project, "columns/web", deep=True).findings == []
    graph = graph_of(project, "web")
    node = node_at("views/good", of="web")
    assert not graph.stale_reasons(node)
    assert node_at("columns/web") in node.direct_inputs(project.config)
    text = file.read_text()
    file.write_text(text.replace("quality >= 3", "grade >= 3"))
    with pytest.raises(ConfigError, match="no such column"):
        views.make_view(Project.open(file), "good")
    file.write_text(
        text.replace('"columns": ["quality", "lang"]', '"columns": ["lang", "quality", "id2"]')
    )
    monkeypatch.setattr("nanoset_core.stages.shards.stage.tokenize_corpus", None)
    again = make_columns(Project.open(file), "web")
    assert [one["name"] for one in again.facts["columns"]] == ["lang", "quality", "id2"]
