"""docs/dagster.md lists every asset, its partitions and its job; and names that can be told apart
in the UI.
"""

from __future__ import annotations

import re
from pathlib import Path

import dagster as dg
import pytest

from nanoset_assets import build_definitions
from nanoset_assets.asset_table import SHAPES
from nanoset_core.project.settings import load_config

PAGE = Path(__file__).parents[2] / "docs" / "dagster.md"
EVERYTHING = """\
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
PLACEHOLDERS = {
    "few": "view",
    "web": "corpus",
    "evals": "contamination",
    "olmo": "export",
    "pretrain": "nanoset",
    "shuffled": "webdataset",
}
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


@pytest.fixture(scope="module")
def definitions(tmp_path_factory, tokenizer_file):
    """A project with assets of every kind."""
    from helpers.sample_project import write_project

    file = write_project(tmp_path_factory.mktemp("everything") / "project", tokenizer_file)
    text = file.read_text().replace("    seed: 7\n", "    seed: 7\n    held_out: warn\n")
    file.write_text(text + EVERYTHING)
    return build_definitions(load_config(file))


@pytest.fixture(scope="module")
def documented() -> dict[str, tuple[str, str]]:
    """Asset, as docs/dagster.md writes it → (partitions, job)."""
    rows = re.findall(
        r"^\| `([^`]+)` \| ([^|]+) \|([^|]*)\|[^|]*\|$", PAGE.read_text(), re.MULTILINE
    )
    return {asset: (partitions.strip(), job.strip().strip("`")) for asset, partitions, job in rows}


def written(text: str) -> str:
    """A name of the project, as docs/dagster.md writes it."""
    for name, placeholder in PLACEHOLDERS.items():
        text = re.sub(rf"^{name}(?=$|/|_)", f"<{placeholder}>", text)
    return text


def jobs_by_asset(definitions: dg.Definitions) -> dict[str, str]:
    jobs = {}
    for job in definitions.get_repository_def().get_all_jobs():
        if not job.name.startswith("__"):
            for key in job.asset_layer.selected_asset_keys:
                jobs[key.to_user_string()] = job.name
    return jobs


def partitions_of(definitions: dg.Definitions, asset: dg.AssetKey) -> object:
    """Name of the set of partitions, or the partitions, or None."""
    partitions = definitions.resolve_asset_graph().get(asset).partitions_def
    if partitions is None:
        return None
    return getattr(partitions, "name", None) or list(partitions.get_partition_keys())


def test_every_asset_is_documented_with_its_partitions_and_its_job(definitions, documented):
    jobs = jobs_by_asset(definitions)
    subjects = {"corpora", *PLACEHOLDERS}
    found = {}
    for key in definitions.resolve_all_asset_keys():
        if len(key.path) > 1 and key.path[0] not in subjects:
            continue  # another corpus, view or nanoset than the one that stands for all
        if key.path == ("full", "packed"):
            continue
        asset = key.to_user_string()
        found[written(asset)] = (partitions_of(definitions, key), written(jobs.get(asset, "")))
    expected = {
        asset: (PARTITIONS[partitions], job) for asset, (partitions, job) in documented.items()
    }
    assert found == expected


def test_every_stage_has_an_asset_in_this_project(definitions):
    assets = {key.path[-1] for key in definitions.resolve_all_asset_keys()}
    assert {shape.asset for stage, shape in SHAPES.items()} <= assets


def test_every_job_is_documented(definitions, documented):
    names = {
        job.name
        for job in definitions.get_repository_def().get_all_jobs()
        if not job.name.startswith("__")
    }
    # of the same kinds
    others = {"plain", "code_views", "part_2_views", "books_packs", "full_packed"}
    assert {written(name) for name in names - others} == {
        job for _, job in documented.values() if job
    } | {"explain_step"}
    assert "`explain_step`" in PAGE.read_text()


def test_boxes_of_one_group_have_different_names(definitions):
    graph = definitions.resolve_asset_graph()
    shown = [(graph.get(key).group_name, key.path[-1]) for key in graph.get_all_asset_keys()]
    assert sorted(set(shown)) == sorted(shown)


def test_a_box_is_framed_by_the_name_before_it(definitions):
    graph = definitions.resolve_asset_graph()
    assert graph.get(dg.AssetKey(["web", "views"])).group_name == "web"
    assert graph.get(dg.AssetKey(["part.2", "views"])).group_name == "part_2"
    assert graph.get(dg.AssetKey(["few", "packed"])).group_name == "few"
    assert graph.get(dg.AssetKey("indexed_dataset")).group_name == "corpora"
