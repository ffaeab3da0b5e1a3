"""Two versions of a view are compared: documents that it lost and gained, and changed settings."""

from __future__ import annotations

import pytest

from helpers.building import make_corpora
from helpers.command import json_of, output_of
from helpers.inspecting import current_dataset
from helpers.sample_project import jsonl, sentences
from helpers.views import DROPPED, origins
from nanoset_core.errors import MissingError
from nanoset_core.project.find_versions import find_versions
from nanoset_core.project.project import Project
from nanoset_core.project.view_diff import diff_views
from nanoset_core.stages.views.make import make_view


@pytest.fixture
def ids(project):
    """Ids of the documents of each view before its settings change."""
    return {name: [origin.id for origin in origins(project, name)] for name in ("kept", "held")}


@pytest.fixture
def changed(project, ids):
    """The project after `kept` lost two documents by a list, and gained those of `held`."""
    config = project.config.file
    (config.parent / "drop" / "2.txt").write_text("\n".join(ids["kept"][7:9]))
    config.write_text(
        config.read_text().replace("split: {keep: [0.1, 1]}", "split: {keep: [0, 1]}")
    )
    changed = Project.open(config)
    make_view(changed, "kept")
    return changed


@pytest.fixture
def gained(ids):
    """Ids that `kept` gains."""
    return [identity for identity in ids["held"] if identity not in DROPPED]


def settings_of(diff):
    return [setting.partition(":")[0] for setting in diff]


def add_file(project):
    """Add three documents in front of all others, and make the view again."""
    (project.config.file.parent / "raw" / "web" / "a.jsonl").write_bytes(jsonl(sentences("new", 3)))
    make_corpora(project, "web")
    make_view(Project.open(project.config.file), "kept")


def test_a_view_of_one_version_has_no_previous_one(project):
    with pytest.raises(MissingError, match="no previous version"):
        find_versions(project, "kept", None)


def test_lost_and_gained_documents_are_named(changed, ids, gained):
    diff = diff_views(changed, *find_versions(changed, "kept", None), show=2)

    assert [origin.id for origin in diff.lost.first] == ids["kept"][7:9]
    assert diff.lost.tokens == sum(origin.tokens for origin in diff.lost.first)
    assert (diff.lost.documents, diff.gained.documents) == (2, len(gained))
    assert [(origin.id, origin.file) for origin in diff.gained.first] == [
        (identity, f"part-0/web-{int(identity[4:]) // 60}.jsonl") for identity in gained[:2]
    ]
    grown_by = diff.new.facts["tokens"] - diff.old.facts["tokens"]
    assert diff.gained.tokens - diff.lost.tokens == grown_by


def test_changed_settings_are_named(changed):
    diff = diff_views(changed, *find_versions(changed, "kept", None), show=2)

    assert settings_of(diff.settings) == ["views.kept.exclude", "views.kept.split"]


def test_the_command_compares_the_last_two_versions(changed):
    add_file(changed)

    values = json_of("diff", "kept", "--config", changed.config.file, "--json")

    assert [row["id"] for row in values["gained"]["first"]] == ["new-0", "new-1", "new-2"]
    assert (values["gained"]["documents"], values["lost"]["documents"]) == (3, 0)
    assert settings_of(values["settings"]) == ["dataset"]


def test_any_two_versions_are_compared(project, ids, gained, request):
    before = current_dataset(project, "kept")
    changed = request.getfixturevalue("changed")
    add_file(changed)
    after = current_dataset(Project.open(changed.config.file), "kept")

    diff = diff_views(changed, before, after, show=9)
    shown = output_of("diff", before.digest, after.digest, "--config", changed.config.file)

    assert (diff.gained.documents, diff.lost.documents) == (len(gained) + 3, 2)
    first = diff.lost.first[0]
    assert f"lost: 2 documents, {diff.lost.tokens:,} tokens\n  - {first.file}:" in shown
