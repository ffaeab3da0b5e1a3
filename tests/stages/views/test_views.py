"""Views of a built project: what they contain, what is made of them, and when they are rebuilt."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from helpers.buckets import root_in
from helpers.building import (
    make_corpora,
    make_derived_pbin,
    make_held_out,
    make_nanoset,
    make_view,
    make_webdataset,
)
from helpers.changing import change_setting
from helpers.command import output_of
from helpers.inspecting import (
    current_dataset,
    explain_sample,
    find_document,
    graph_of,
    node_at,
    read_dataset,
)
from helpers.sample_project import outputs_of, write_project
from helpers.views import CHANGES, DROPPED, origins, texts_of
from nanoset_core import merge_indexed_datasets
from nanoset_core.errors import ConfigError, FormatError, InputError, MissingError
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import check_requested_corpora
from nanoset_core.project.status import project_status
from nanoset_core.project.verify import verify_project
from nanoset_core.stages import given_files
from nanoset_core.stages.stage import Key
from nanoset_core.stages.views import make as views
from nanoset_core.stages.views.choosing import trial_choice
from nanoset_core.stages.views.facts import missing_id_warnings
from nanoset_core.stages.views.stage import VIEW

N_WEB = 240
"""Documents of the corpus web."""
NAMES = ["kept", "held", "some"]


@pytest.fixture
def built_project(project_with_views) -> Project:
    """The built project; not to be written to."""
    return Project.open(project_with_views)


def file_of(manifest: Any, ending: str) -> Path:
    """Return the path of the .bin or .idx of a view."""
    path: Path = manifest.folder / f"{manifest.facts['prefix']}{ending}"
    return path


def numbers_in_corpus(project: Project, name: str) -> set[int]:
    """Return which documents of web a view contains."""
    web_texts = texts_of(read_dataset(project, "web"))
    number_of_text = {text: number for number, text in enumerate(web_texts)}
    return {number_of_text[text] for text in texts_of(read_dataset(project, name))}


# What a view contains


def test_a_view_is_an_index_of_twenty_bytes_a_document_over_the_tokens_of_its_corpus(built_project):
    view = current_dataset(built_project, "kept")
    web = read_dataset(built_project, "web")

    assert file_of(view, ".idx").stat().st_size == 34 + 20 * view.facts["documents"] + 8
    assert file_of(view, ".bin").read_bytes() == Path(f"{web.prefix}.bin").read_bytes()


def test_listed_documents_are_excluded_and_a_split_divides_the_others(built_project):
    kept_numbers = numbers_in_corpus(built_project, "kept")
    held_numbers = numbers_in_corpus(built_project, "held")
    excluded_numbers = {int(identity.removeprefix("web-")) for identity in DROPPED}

    assert kept_numbers.isdisjoint(held_numbers)
    assert kept_numbers.isdisjoint(excluded_numbers)
    assert kept_numbers | held_numbers | excluded_numbers == set(range(N_WEB))


def test_listed_ids_of_no_document_are_counted(built_project):
    facts = current_dataset(built_project, "kept").facts

    assert facts["missing_ids"] == {"views.kept.exclude: drop/*.txt": 1}


def warnings_of(project: Project, name: str) -> list[str]:
    """Return the warnings about the ids that a built view lists."""
    return list(missing_id_warnings(current_dataset(project, name).facts, name))


def test_listed_ids_of_no_document_are_reported_of_the_view_that_lists_them(built_project):
    # `some` is a view of `kept`, whose list counts for it, too.
    assert (
        "views.kept.exclude: drop/*.txt"
        in current_dataset(built_project, "some").facts["missing_ids"]
    )

    assert warnings_of(built_project, "kept") == [
        "1 id of views.kept.exclude: drop/*.txt matches no document: `nanoset view kept` names one"
    ]
    assert warnings_of(built_project, "some") == []


def test_the_plan_of_a_view_names_a_listed_id_of_no_document_but_the_build_does_not_record_it(
    built_project,
):
    output = output_of("view", "kept", "--config", built_project.config.file)

    assert "matches no document, such as 'nobody'" in output
    assert "nobody" not in str(current_dataset(built_project, "kept").facts)


@pytest.fixture
def project_with_lists(project) -> Project:
    """A project with two files of ids, each of which lists a document that does not exist."""
    folder = project.config.file.parent / "lists"
    folder.mkdir()
    (folder / "first.txt").write_text("web-3\nweb-5\nnobody\n")
    (folder / "second.txt").write_text("web-5\nweb-100\nno one\n")
    return project


def change_held(project: Project, rules: str) -> Project:
    """Replace the rules of the view `held`."""
    return change_setting(project, "held: {of: web, split: {keep: [0, 0.1]}}", rules)


@pytest.mark.parametrize("files", ["[lists/first.txt, lists/second.txt]", "lists/*.txt", "lists"])
def test_documents_are_included_that_any_of_several_files_lists(project_with_lists, files):
    project = change_held(project_with_lists, f"held: {{of: web, include: {files}}}")

    make_view(project, "held")

    assert numbers_in_corpus(project, "held") == {3, 5, 100}


def test_several_included_files_are_one_step_and_each_has_its_own_warning(project_with_lists):
    files = "[lists/first.txt, lists/second.txt]"
    project = change_held(project_with_lists, f"held: {{of: web, include: {files}}}")

    with trial_choice(project, "held") as chosen:
        facts = chosen.facts

    assert [step[1:3] for step in facts["steps"]] == [
        ["all", N_WEB],
        ["include lists/first.txt, lists/second.txt", 3],
    ]
    assert facts["missing_ids"] == {
        "views.held.include: lists/first.txt": 1,
        "views.held.include: lists/second.txt": 1,
    }


@pytest.mark.parametrize(
    ("rules", "is_combined"),
    [
        ("include: [lists/first.txt, lists/second.txt]", True),
        ("include: [lists/first.txt]", False),
        ("include: lists/*.txt", False),
        ("exclude: [lists/first.txt, lists/second.txt]", False),
    ],
)
def test_only_recipes_of_views_with_several_entries_of_include_have_changed(
    project_with_lists, rules, is_combined
):
    project = change_held(project_with_lists, f"held: {{of: web, {rules}}}")

    options = VIEW.recipe(project, Key("web", "held"), {}).options

    assert ("views.held.include.combined" in options) == is_combined


def test_a_view_with_a_list_that_may_not_be_read_is_failing(project_with_lists, monkeypatch):
    def refuse(folder, stat):
        raise InputError("a file cannot be read", where=folder / stat.path)

    project = change_held(project_with_lists, "held: {of: web, exclude: lists/first.txt}")
    monkeypatch.setattr(given_files, "fingerprint", refuse)

    rows = {row.label: row for row in project_status(project)}

    assert rows["view web held"].state == "failing"
    assert rows["view web held"].why[0].startswith("a file cannot be read")


def test_documents_and_tokens_after_each_step_are_counted(built_project):
    facts = current_dataset(built_project, "kept").facts
    n_web_tokens = read_dataset(built_project, "web").token_count
    n_kept = len(numbers_in_corpus(built_project, "kept"))

    [all_documents, exclude, split] = [step[1:] for step in facts["steps"]]

    assert all_documents == ["all", N_WEB, n_web_tokens]
    assert exclude[:2] == ["exclude drop/*.txt", N_WEB - len(DROPPED)]
    assert split == ["split by id, [0.1, 1)", n_kept, facts["tokens"]]


def test_the_tokens_of_a_corpus_and_its_views_are_one_file(built_project):
    view = current_dataset(built_project, "kept")

    assert os.stat(file_of(view, ".bin")).st_nlink == 1 + len(NAMES)


def test_tokens_are_linked_by_name_if_hard_links_are_refused(project, built_project, monkeypatch):
    def refuse(*_: object) -> NoReturn:
        raise OSError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    shutil.rmtree(project.outputs.folder / "views")

    view = views.make_view(project, "held")

    assert file_of(view, ".bin").is_symlink()
    expected_texts = texts_of(read_dataset(built_project, "held"))
    assert texts_of(read_dataset(project, "held")) == expected_texts
    assert view.damage() is None


def test_a_view_can_be_ordered_by_the_names_of_files(project):
    order = "order: {by: file, descending: true}"
    changed_project = change_setting(project, "order: {seed: 3}", order)

    views.make_view(changed_project, "some")

    files = [origin.file for origin in origins(changed_project, "some")]
    assert files == sorted(files, reverse=True)


def test_a_trial_shows_what_a_view_will_choose(project):
    shutil.rmtree(project.outputs.folder / "views")

    with trial_choice(project, "some") as chosen:
        steps = chosen.facts["steps"]

    assert views.make_view(project, "some").facts["steps"] == steps


# What is made of views


def test_views_and_what_is_made_of_them_pass_verification(project):
    make_nanoset(project, "pretrain")
    make_webdataset(project, "shuffled")
    make_derived_pbin(project, "some")
    make_held_out(project, "pretrain")

    names = ["pretrain/*", "shuffled", "some", "kept", "held"]
    reports = list(verify_project(project, names, deep=True))

    assert len(reports) == 10
    findings = []
    for report in reports:
        if "handoff" not in report.output:  # it is not built
            findings += report.findings
    # A repeated document is on both sides of a split.
    [finding] = findings
    assert finding.severity == "warning"
    assert finding.found == "train reads it"


@pytest.mark.parametrize(
    ("nanoset", "view_names"),
    [pytest.param("pretrain", ["some"], id="view"), pytest.param("plain", None, id="corpus")],
)
def test_the_recipe_of_a_handoff_names_its_views(built_project, nanoset, view_names):
    handoff = node_at(f"nanosets/{nanoset}/handoff")

    options = handoff.stage.recipe(built_project, handoff.key, {}).options

    assert options.get("views") == view_names


def test_a_sample_of_a_view_leads_to_documents_of_its_corpus(project):
    make_nanoset(project, "pretrain")
    make_webdataset(project, "shuffled")

    # A sample of the view consists of documents of the corpus.
    samples = (explain_sample(project, "pretrain", "train", number) for number in range(400))
    sample = next(sample for sample in samples if sample.corpus == "some")
    origin = sample.pieces[0].origin
    assert origin.corpus == "web"
    assert sample.pieces[0].source.state == "unchanged"

    # The document is found in samples, two or three times as the view repeats documents.
    in_samples = find_document(project, "pretrain", "train", identity=origin.id)
    assert len(in_samples) in (2, 3)
    for places in in_samples:
        assert places.appearances

    # It is found in contexts by its line.
    in_contexts = find_document(project, "shuffled", file=f"web/{origin.file}:{origin.line}")
    assert {places.origin.id for places in in_contexts} == {origin.id}


def test_datasets_cannot_be_merged_with_a_view(built_project, tmp_path):
    """Only sequences that are stored back to back can be merged."""
    prefix = read_dataset(built_project, "some").prefix

    with pytest.raises(FormatError, match=r"back to back"):
        merge_indexed_datasets([prefix], tmp_path / "merged")


def test_a_sequence_that_the_corpus_does_not_have_is_reported(project):
    idx = file_of(current_dataset(project, "kept"), ".idx")
    data = bytearray(idx.read_bytes())
    data[34:38] = data[38:42]  # the length of the first sequence becomes that of the second
    idx.write_bytes(data)

    [report] = verify_project(project, ["kept"])

    assert [finding.what for finding in report.findings] == [
        "a view has a sequence of tokens that its dataset does not have"
    ]


# When views are rebuilt


def stale_views(project: Project) -> set[str]:
    """Return the names of the views that a build would rebuild."""
    graph = graph_of(project)
    stale = set()
    for name in NAMES:
        if graph.stale_reasons(node_at(f"views/{name}", of="web")):
            stale.add(name)
    return stale


def test_views_of_unchanged_data_are_up_to_date(built_project):
    assert set(built_project.config.views) == set(NAMES)
    assert stale_views(built_project) == set()


def exclude_another_document(project: Project) -> None:
    """Add an id to the lists of ids that the view `kept` excludes."""
    (project.config.file.parent / "drop" / "2.txt").write_text("web-7\n")


def test_a_changed_list_of_ids_makes_the_views_stale_that_depend_on_it(project):
    exclude_another_document(project)

    assert stale_views(project) == {"kept", "some"}


def test_all_stale_views_of_a_corpus_are_rebuilt_in_one_pass(project):
    held_digest = current_dataset(project, "held").digest
    exclude_another_document(project)

    views.make_view(project, "some")

    assert stale_views(project) == set()
    assert current_dataset(project, "held").digest == held_digest


def test_a_list_of_ids_that_was_deleted_is_reported(project):
    shutil.rmtree(project.config.file.parent / "drop")

    assert stale_views(project) == {"kept", "some"}
    with pytest.raises(MissingError, match=r"views.kept.exclude"):
        views.make_view(project, "kept")


def append_documents(project: Project) -> None:
    """Append a file of other documents to web, and build its dataset."""
    folder = project.config.file.parent / "raw" / "web"
    text = (folder / "part-0" / "web-0.jsonl").read_text()
    other_text = text.replace("web ", "more ").replace('"web-', '"more-')
    (folder / "web-9.jsonl").write_text(other_text)
    make_corpora(project, "web")


@pytest.mark.parametrize("name", ["kept", "held"])
def test_appended_documents_do_not_change_the_side_of_others(project, name):
    texts_before = set(texts_of(read_dataset(project, name)))
    append_documents(project)

    views.make_view(project, name)

    assert texts_before < set(texts_of(read_dataset(project, name)))


def test_garbage_collection_keeps_the_tokens_of_stale_views(project):
    texts_before = {name: texts_of(read_dataset(project, name)) for name in ["kept", "held"]}
    append_documents(project)

    collect(project)

    for name, texts in texts_before.items():
        assert texts_of(read_dataset(project, name)) == texts


def test_a_view_that_is_rebuilt_on_request_is_the_same(project):
    before = current_dataset(project, "kept")

    rebuilt = views.make_view(Project.open(project.config.file, rebuild=True), "kept")

    assert rebuilt.digest == before.digest
    assert rebuilt.facts == before.facts
    assert rebuilt.files == before.files


def test_the_size_of_a_view_has_its_tokens_only_in_a_bucket(built_project, bucket):
    manifest = current_dataset(built_project, "kept")
    access = replace(built_project.outputs.access, origin=bucket)
    project_in_bucket = SimpleNamespace(outputs=SimpleNamespace(access=access))

    figures = VIEW.show(built_project, manifest).figures
    figures_in_bucket = VIEW.show(project_in_bucket, manifest).figures

    token_bytes = file_of(manifest, ".bin").stat().st_size
    assert figures_in_bucket["bytes"] == figures["bytes"] + token_bytes


def test_views_in_a_bucket_are_those_of_a_local_root(
    built_project, project_with_views, tmp_path, bucket
):
    # Build the views in the bucket.
    tokenizer = project_with_views.parent / "tokenizer.json"
    file = write_project(tmp_path / "project", tokenizer, root_in(bucket) | CHANGES)
    shutil.copytree(project_with_views.parent / "drop", file.parent / "drop")
    stored_project = Project.open(file)
    make_corpora(stored_project, "web")
    for name in NAMES:
        views.make_view(stored_project, name)

    # The bucket has the local .idx and .bin files.
    sha256_by_local_file = outputs_of(project_with_views)
    local_names = {
        name
        for name in sha256_by_local_file
        if name.startswith("views/") and name.endswith((".idx", ".bin"))
    }
    stored_names = {
        stored.name for stored in bucket.list("views") if stored.name.endswith((".idx", ".bin"))
    }
    assert stored_names >= local_names
    for name in stored_names:
        assert bucket.sha256(name) == sha256_by_local_file[name], name

    # They are read the same.
    local_texts = texts_of(read_dataset(built_project, "some"))
    assert texts_of(read_dataset(stored_project, "some")) == local_texts


# Settings that are refused


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("held: {of: web", "code: {of: web", "share a name", id="the name of a corpus"),
        pytest.param(
            "some: {of: kept",
            "some: {of: some",
            "this view is of itself, by way of others",
            id="of itself",
        ),
        pytest.param(
            "keep: [0, 0.1]",
            "keep: [0.1, 0.1]",
            "the start of a share must be below its end",
            id="empty share",
        ),
        pytest.param(
            "tokens: 5e3",
            "tokens: 5e3, documents: 3",
            "a budget is of tokens or of documents",
            id="two budgets",
        ),
        pytest.param(
            'exclude: "drop/*.txt"',
            "include: []",
            r"views\.kept\.include: include and exclude are lists of files of ids",
            id="list of no files",
        ),
        pytest.param(
            "order: {seed: 3}",
            "order: {}",
            "an order is by a column or by a seed",
            id="order of nothing",
        ),
        pytest.param(
            "tokens: 5e3",
            "where: 'a b'",
            "this is not a condition on documents",
            id="condition",
        ),
        pytest.param(
            "pretrain:", "web_views:", "two things share a name", id="the name of an asset"
        ),
    ],
)
def test_impossible_views_are_refused(project, old, new, message):
    text = project.config.file.read_text()
    assert old in text
    project.config.file.write_text(text.replace(old, new))

    with pytest.raises(ConfigError, match=message):
        check_requested_corpora(Project.open(project.config.file).config, ["web", "code", "books"])
