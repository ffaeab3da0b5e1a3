"""Two versions of a view are compared: documents that it lost and gained, and changed settings."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from helpers.building import make_corpora
from helpers.changing import change_setting
from helpers.command import json_of, output_of
from helpers.inspecting import current_dataset
from helpers.sample_project import jsonl, sentences
from helpers.views import DROPPED, origins
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.project.diff.versions import find_versions
from nanoset_core.project.diff.views import diff_views
from nanoset_core.project.project import Project
from nanoset_core.stages.views.make import make_view


@pytest.fixture(scope="module")
def first_project(project_with_views: Path) -> Project:
    """The project with the first version of each view; tests must not write to it."""
    return Project.open(project_with_views)


@pytest.fixture(scope="module")
def lost_ids(first_project: Project) -> Sequence[str]:
    """Ids of the documents that `kept` loses: a list excludes them."""
    return [origin.id for origin in origins(first_project, "kept")[7:9]]


@pytest.fixture(scope="module")
def gained_ids(first_project: Project) -> Sequence[str]:
    """Ids that `kept` gains: those of the other side of the split, except the excluded ones."""
    ids_of_other_side = [origin.id for origin in origins(first_project, "held")]
    return [identity for identity in ids_of_other_side if identity not in DROPPED]


def copy_project(project: Project, folder: Path) -> Project:
    """Copy a project with its outputs into a new folder."""
    shutil.copytree(project.config.file.parent, folder, symlinks=True)
    return Project.open(folder / "nanoset.yaml")


@pytest.fixture(scope="module")
def changed_project(
    first_project: Project, lost_ids: Sequence[str], tmp_path_factory: pytest.TempPathFactory
) -> Project:
    """A copy with a second version of `kept`, which lost some documents and gained others."""
    copy = copy_project(first_project, tmp_path_factory.mktemp("changed") / "project")
    (copy.config.file.parent / "drop" / "2.txt").write_text("\n".join(lost_ids))
    project = change_setting(copy, "split: {keep: [0.1, 1]}", "split: {keep: [0, 1]}")
    make_view(project, "kept")
    return project


@pytest.fixture(scope="module")
def grown_project(changed_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy with a third version, after three documents were added in front of all others."""
    project = copy_project(changed_project, tmp_path_factory.mktemp("grown") / "project")
    (project.config.raw_folder / "web" / "a.jsonl").write_bytes(jsonl(sentences("new", 3)))
    make_corpora(project, "web")
    make_view(project, "kept")
    return project


def keys_of(settings: Iterable[str]) -> list[str]:
    """Return the keys of changed settings, which are printed as `key: old → new`."""
    return [setting.partition(":")[0] for setting in settings]


def test_a_view_of_one_version_has_no_previous_one(first_project):
    with pytest.raises(MissingError, match="no previous version"):
        find_versions(first_project, "kept", None)


def test_lost_documents_are_named(changed_project, lost_ids):
    diff = diff_views(changed_project, *find_versions(changed_project, "kept", None), show=2)

    assert diff.lost.documents == 2
    assert [origin.id for origin in diff.lost.first] == lost_ids
    assert diff.lost.tokens == sum(origin.tokens for origin in diff.lost.first)


def test_the_first_gained_documents_are_named_with_their_files(changed_project, gained_ids):
    diff = diff_views(changed_project, *find_versions(changed_project, "kept", None), show=2)

    # The documents web-0 to web-59 are in the first file of the corpus, and so on.
    expected_files = []
    for identity in gained_ids[:2]:
        number = int(identity.removeprefix("web-"))
        expected_files.append(f"part-0/web-{number // 60}.jsonl")
    assert diff.gained.documents == len(gained_ids)
    assert [origin.id for origin in diff.gained.first] == gained_ids[:2]
    assert [origin.file for origin in diff.gained.first] == expected_files


def test_gained_and_lost_tokens_add_up_to_the_growth_of_the_view(changed_project):
    diff = diff_views(changed_project, *find_versions(changed_project, "kept", None), show=2)

    growth = diff.new.facts["tokens"] - diff.old.facts["tokens"]
    assert diff.gained.tokens - diff.lost.tokens == growth


def test_documents_without_tokens_are_only_counted(grown_project, tmp_path):
    project = copy_project(grown_project, tmp_path / "project")
    rows = [*sentences("new", 3), {"id": "empty-1", "text": ""}, {"id": "empty-2", "text": ""}]
    (project.config.raw_folder / "web" / "a.jsonl").write_bytes(jsonl(rows))
    make_corpora(project, "web")
    make_view(project, "kept")

    diff = diff_views(project, *find_versions(project, "kept", None), show=2)
    output = output_of("diff", "kept", "--config", project.config.file)

    assert diff.gained.documents == 0
    assert diff.without_tokens == 2
    assert "documents without tokens, which are not listed: +2" in output


def test_changed_settings_are_named(changed_project):
    diff = diff_views(changed_project, *find_versions(changed_project, "kept", None), show=2)

    assert keys_of(diff.settings) == ["views.kept.exclude", "views.kept.split"]


def test_the_command_compares_the_last_two_versions(grown_project):
    values = json_of("diff", "kept", "--config", grown_project.config.file, "--json")

    first_ids = [document["id"] for document in values["gained"]["first"]]
    assert first_ids == ["new-0", "new-1", "new-2"]
    assert values["gained"]["documents"] == 3
    assert values["lost"]["documents"] == 0
    assert keys_of(values["settings"]) == ["dataset"]


def test_any_two_versions_are_compared(first_project, grown_project, gained_ids):
    first_version = current_dataset(first_project, "kept")
    third_version = current_dataset(grown_project, "kept")

    diff = diff_views(grown_project, first_version, third_version, show=9)

    assert diff.gained.documents == len(gained_ids) + 3
    assert diff.lost.documents == 2


def test_the_command_compares_versions_that_are_named_by_their_digests(
    first_project, grown_project
):
    first_version = current_dataset(first_project, "kept")
    third_version = current_dataset(grown_project, "kept")

    output = output_of(
        "diff",
        first_version.digest,
        third_version.digest,
        "--config",
        grown_project.config.file,
    )

    diff = diff_views(grown_project, first_version, third_version, show=9)
    first_lost = diff.lost.first[0]
    assert f"lost: 2 documents, {diff.lost.tokens:,} tokens\n  - {first_lost.file}:" in output


# Two datasets of one corpus


def test_two_views_of_a_corpus_are_compared_by_their_names(first_project):
    file = first_project.config.file
    ids_by_view = {}
    for name in ("kept", "held"):
        ids_by_view[name] = {origin.id for origin in origins(first_project, name)}

    values = json_of("diff", "kept", "held", "--json", "--show", 1000, "--config", file)

    assert [values["old"]["name"], values["new"]["name"]] == ["kept", "held"]
    gained_ids = {document["id"] for document in values["gained"]["first"]}
    assert gained_ids == ids_by_view["held"] - ids_by_view["kept"]
    lost_ids = {document["id"] for document in values["lost"]["first"]}
    assert lost_ids == ids_by_view["kept"] - ids_by_view["held"]


def test_a_view_is_compared_with_its_corpus(first_project):
    corpus = {origin.id for origin in origins(first_project, "web")}
    view = {origin.id for origin in origins(first_project, "kept")}

    diff = diff_views(first_project, *find_versions(first_project, "kept", "web"), show=1000)

    assert {origin.id for origin in diff.gained.first} == corpus - view
    assert diff.gained.documents == len(corpus - view)
    assert diff.lost.documents == 0


def test_documents_that_one_view_repeats_are_named(first_project):
    diff = diff_views(first_project, *find_versions(first_project, "kept", "some"), show=1000)

    # `some` has 2 or 3 copies of some of the documents of `kept`.
    copies = [origin.id for origin in origins(first_project, "some")]
    assert diff.gained.documents == len(copies) - len(set(copies))
    assert {origin.id for origin in diff.gained.first} == set(copies)


def test_views_of_different_versions_of_a_corpus_are_compared_by_the_ids(grown_project):
    # `kept` was rebuilt after documents were added to the corpus, and `held` was not.
    ids_of_held = {origin.id for origin in origins(grown_project, "held")}
    ids_of_kept = {origin.id for origin in origins(grown_project, "kept")}

    diff = diff_views(grown_project, *find_versions(grown_project, "held", "kept"), show=1000)

    assert {origin.id for origin in diff.gained.first} == ids_of_kept - ids_of_held


def test_a_view_without_documents_is_compared(first_project, tmp_path):
    project = copy_project(first_project, tmp_path / "project")
    rule = '  none: {of: web, where: "tokens < 0"}\n'
    project = change_setting(project, "views:\n", f"views:\n{rule}")
    make_view(project, "none")

    diff = diff_views(project, *find_versions(project, "held", "none"), show=0)

    assert diff.gained.documents == 0
    assert diff.lost.documents == diff.old.facts["documents"]


def test_the_command_says_which_of_two_views_has_the_documents(first_project):
    output = output_of("diff", "kept", "held", "--config", first_project.config.file)

    held_digest = current_dataset(first_project, "held").digest
    assert f"held: {held_digest}" in output
    assert "only in held, or more often than in kept: " in output
    assert "setting: " not in output


def test_a_view_can_be_compared_with_a_version_of_another_one(first_project):
    digest = current_dataset(first_project, "held").digest

    versions = find_versions(first_project, "kept", digest[:8])

    assert [versions.old.name, versions.new.name] == ["kept", "held"]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        pytest.param("kept", "code", "two corpora", id="two corpora"),
        pytest.param("kept", "nothing", "no such version", id="unknown name"),
        pytest.param("kept", "pretrain", "this is a nanoset", id="nanoset"),
        pytest.param("pretrain", None, "this is a nanoset", id="nanoset alone"),
    ],
)
def test_what_cannot_be_compared_with_a_view_is_an_error(first_project, first, second, message):
    with pytest.raises(ConfigError, match=message):
        find_versions(first_project, first, second)
