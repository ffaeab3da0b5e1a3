"""docs/dagster.md lists every asset with its partitions and its job, and names differ in the UI."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import dagster as dg
import pytest

from helpers.sample_project import write_project
from nanoset_assets import build_definitions
from nanoset_assets.assets.output_names import is_asset
from nanoset_assets.assets.table import shape_of
from nanoset_assets.tags import CHECK
from nanoset_core.project.settings import load_config
from nanoset_core.stages.registry import stages

PAGE = Path(__file__).parents[2] / "docs" / "dagster.md"
MORE_SETTINGS = """\
pbin: [code, few, full]
attributes: {books: scores.jsonl}
corpora: {web: {columns: [source]}}
views:
  few: {of: web, tokens: 500}
  others: {of: code, tokens: 500}
  a-third: {of: part.2, tokens: 500}
packs:
  full: {of: few, length: 32}
  more: {of: books, length: 32}
contamination: {evals: {files: evals.jsonl, of: [web]}}
exports: {olmo: {of: code, format: olmo-core}}
"""
"""Settings that add the assets that the sample project lacks."""
PLACEHOLDERS = {
    "few": "view",
    "web": "corpus",
    "evals": "contamination",
    "olmo": "export",
    "pretrain": "nanoset",
    "shuffled": "webdataset",
}
"""A name in the project, which stands for all of its kind → what docs/dagster.md calls the kind."""
PARTITIONS = {
    "all corpora": "corpora",
    "corpora that have `columns`": "document_columns",
    "corpora under `attributes`": "document_attributes",
    "corpora under `pbin`": "packed_dataset",
    "the corpus's views": ["few"],
    "the corpus's packs": ["full"],
    "the corpora that are searched": ["web"],
    "splits: `train`, `valid`, `test`": ["train", "valid", "test"],
    "groups of tars": ["0", "1", "2"],
    "none": None,
}
"""Partitions in the words of docs/dagster.md → those of an asset of the project."""


class DocumentedAsset(NamedTuple):
    """A row of the table of assets."""

    partitions: object
    """Name of the set of partitions, or the partitions, or None."""
    job: str
    """Name of the job, or "" if the asset has none."""


@pytest.fixture(scope="module")
def definitions(tmp_path_factory, tokenizer_file) -> dg.Definitions:
    """The definitions of a project with assets of every kind."""
    config_file = write_project(tmp_path_factory.mktemp("everything") / "project", tokenizer_file)
    text = config_file.read_text().replace("    seed: 7\n", "    seed: 7\n    held_out: warn\n")
    config_file.write_text(text + MORE_SETTINGS)
    return build_definitions(load_config(config_file))


@pytest.fixture(scope="module")
def documented() -> dict[str, DocumentedAsset]:
    """The assets in docs/dagster.md, by their keys with placeholders."""
    row = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|([^|]*)\|[^|]*\|$", re.MULTILINE)
    assets = {}
    for asset, partitions, job in row.findall(PAGE.read_text()):
        job_name = job.strip().strip("`")
        assets[asset] = DocumentedAsset(PARTITIONS[partitions.strip()], job_name)
    return assets


def with_placeholder(name: str) -> str:
    """Return the name of an asset or job of the project as docs/dagster.md writes it."""
    for subject, kind in PLACEHOLDERS.items():
        name = re.sub(rf"^{subject}(?=$|/|_)", f"<{kind}>", name)
    return name


def job_names(definitions: dg.Definitions) -> set[str]:
    """Return the names of all jobs, except those that Dagster adds."""
    jobs = definitions.get_repository_def().get_all_jobs()
    return {job.name for job in jobs if not job.name.startswith("__")}


def job_by_asset(definitions: dg.Definitions) -> dict[str, str]:
    """Return the name of the job that makes each asset."""
    names = {}
    for job in definitions.get_repository_def().get_all_jobs():
        if not job.name.startswith("__"):
            for key in job.asset_layer.selected_asset_keys:
                names[key.to_user_string()] = job.name
    return names


def partitions_of(definitions: dg.Definitions, asset: dg.AssetKey) -> object:
    """Return the name of an asset's set of partitions, or the partitions, or None."""
    partitions = definitions.resolve_asset_graph().get(asset).partitions_def
    if partitions is None:
        return None
    return getattr(partitions, "name", None) or list(partitions.get_partition_keys())


def asset_names_of_stages() -> set[str]:
    """Return the last part of the key of each stage's assets, also of stages without an entry."""
    return {shape_of(stage).asset for stage in stages() if is_asset(stage)}


def stands_for_others(key: dg.AssetKey) -> bool:
    """Return whether an asset is documented: one corpus, view or nanoset stands for all others."""
    if len(key.path) == 1:
        return True
    subject = key.path[0]
    is_of_packs = key.path == ("full", "packed")
    return subject in {"corpora", *PLACEHOLDERS} and not is_of_packs


# The page


def test_every_asset_is_documented_with_its_partitions_and_its_job(definitions, documented):
    jobs = job_by_asset(definitions)

    assets = {}
    for key in definitions.resolve_all_asset_keys():
        if stands_for_others(key):
            name = key.to_user_string()
            assets[with_placeholder(name)] = DocumentedAsset(
                partitions_of(definitions, key), with_placeholder(jobs.get(name, ""))
            )

    assert assets == documented


def test_every_job_is_documented(definitions, documented):
    # Jobs of another nanoset, corpus, view or packs than the one that stands for all.
    other_jobs = {"plain", "code_views", "part_2_views", "books_packs", "full_packed"}

    names = {with_placeholder(name) for name in job_names(definitions) - other_jobs}

    documented_jobs = {asset.job for asset in documented.values() if asset.job}
    assert names == documented_jobs | {"explain_step"}
    assert "`explain_step`" in PAGE.read_text()


def test_this_project_has_an_asset_of_every_stage(definitions):
    # Otherwise the tests above would not notice a stage that is not documented.
    assets = {key.path[-1] for key in definitions.resolve_all_asset_keys()}

    assert asset_names_of_stages() <= assets


def test_every_output_of_a_stage_is_verified(definitions):
    asset_names = asset_names_of_stages()
    verified = {
        check.asset_key.to_user_string()
        for check in definitions.resolve_asset_graph().asset_check_keys
        if check.name == CHECK
    }

    made_by_stages = {
        key.to_user_string()
        for key in definitions.resolve_all_asset_keys()
        if key.path[-1] in asset_names
    }
    assert made_by_stages == verified


# Names in the UI, which shows an asset as a box with the last part of its key in a frame of its group


def test_assets_of_one_group_have_different_last_parts(definitions):
    graph = definitions.resolve_asset_graph()
    boxes = [(graph.get(key).group_name, key.path[-1]) for key in graph.get_all_asset_keys()]

    assert len(set(boxes)) == len(boxes)


@pytest.mark.parametrize(
    ("path", "group"),
    [
        pytest.param(["web", "views"], "web", id="views of a corpus"),
        pytest.param(["part.2", "views"], "part_2", id="a corpus whose name is no valid group"),
        pytest.param(["few", "packed"], "few", id="a view"),
        pytest.param(["indexed_dataset"], "corpora", id="all corpora"),
    ],
)
def test_the_group_of_an_asset_is_named_by_the_first_part_of_its_key(definitions, path, group):
    asset = definitions.resolve_asset_graph().get(dg.AssetKey(path))

    assert asset.group_name == group
