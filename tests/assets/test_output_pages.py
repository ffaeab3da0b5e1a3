"""What the pages of all outputs have in common: the warnings and size that `nanoset status` shows."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from helpers.building import make_corpora, make_view
from helpers.inspecting import current_output, node_at
from helpers.sample_project import write_project
from nanoset_assets.assets.output_names import asset_path, job_of, partition_of
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_core.project.project import Project

DERIVED_DATASETS = """\
views:
  kept: {of: web, where: tokens < 100}
  empty: {of: web, where: tokens < 0}
packs:
  empty-packs: {of: empty, length: 64}
nanosets:
"""
"""A view of some documents, a view of none, and packs of none."""


@pytest.fixture(scope="module")
def project(tmp_path_factory, tokenizer_file) -> Project:
    """A project with the views and packs above, whose corpus `web` has a line that is no JSON."""
    folder = tmp_path_factory.mktemp("pages") / "project"
    config_file = write_project(folder, tokenizer_file, {"nanosets:\n": DERIVED_DATASETS})
    with (folder / "raw/web/part-0/web-1.jsonl").open("ab") as file:
        file.write(b'{"id": "cut", "text": "never en\n')
    project = Project.open(config_file)
    make_corpora(project, "web")
    make_view(project, "empty")
    return project


def materialise(project: Project, address: str) -> dict[str, Any]:
    """Make one output of `web` in a run of Dagster, and return the metadata of its page."""
    node = node_at(address, of="web")
    names = Names()
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(names.corpora_name, ["web"])
        result = (
            build_definitions(project.config)
            .resolve_job_def(names.definition(job_of(node)))
            .execute_in_process(
                instance=instance,
                partition_key=partition_of(node),
                asset_selection=[names.asset(asset_path(node))],
            )
        )
    [event] = result.get_asset_materialization_events()
    return dict(event.materialization.metadata)


@pytest.mark.parametrize(
    ("address", "warning"),
    [
        ("tokenized/web", "1 rejected line that may be damaged"),
        ("views/empty", "it holds no document"),
        ("packs/empty-packs", "they hold no document"),
    ],
)
def test_a_page_shows_the_warnings_of_nanoset_status_after_the_summary(project, address, warning):
    page = materialise(project, address)

    assert list(page)[:2] == ["summary", "warnings"]
    assert warning in page["warnings"].value


def test_the_page_of_an_output_without_warnings_has_no_heading_for_them(project):
    assert "warnings" not in materialise(project, "views/kept")


@pytest.mark.parametrize("address", ["datasets/web", "views/kept"])
def test_a_page_shows_the_size_of_nanoset_status(project, address):
    page = materialise(project, address)

    node = node_at(address, of="web")
    figures = node.stage.show(project, current_output(project, address)).figures
    assert page["size_bytes"].value == figures["bytes"]


def test_the_page_of_a_view_shows_the_size_of_its_index_without_the_tokens_of_the_corpus(project):
    page = materialise(project, "views/kept")

    view = current_output(project, "views/kept")
    sizes = [file.size for name, file in view.files.items() if not name.endswith(".bin")]
    assert page["index_bytes"].value == sum(sizes)
