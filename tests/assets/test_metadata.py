"""The metadata that Dagster's UI shows of a materialisation: sentences, tables and previews."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.building import build_all, make_corpora, make_dataset, make_inventory, make_shards
from helpers.inspecting import (
    current_dataset,
    current_output,
    current_shards,
    explain_sample,
    inventory_of,
    line_numbers,
    plan_of,
    read_dataset,
)
from helpers.sample_project import jsonl, sentences, write_project
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_assets.ui import shards as shards_page
from nanoset_assets.ui.handoff import handoff_metadata
from nanoset_assets.ui.mappings import split_metadata
from nanoset_assets.ui.metadata import INLINE_CHARACTERS, ROWS_SHOWN, code, markdown, table
from nanoset_assets.ui.previews import (
    STEP_SAMPLES,
    first_documents,
    first_rejects,
    first_samples,
    first_step,
)
from nanoset_assets.ui.shards import files_table, length_metadata
from nanoset_assets.ui.webdataset import plan_metadata, webdataset_metadata
from nanoset_core import load_config
from nanoset_core.project.project import Project
from nanoset_core.stages.handoff.steps import Dealer

ONE_SHARD = {"range_mib: 0.02": "range_mib: 8"}
"""Settings that tokenize all files of a corpus into one shard."""
MANY_SHARDS = {"range_mib: 0.02": "range_mib: 0.004"}
"""Settings with which no shard has documents of two files."""
INVALID_LINES = b'{"id": "cut", "text": "never en\n\n'
"""A line that ends too early, and a blank line."""


def rows_of(value: dg.TableMetadataValue) -> list[dict[str, Any]]:
    """Return the rows of a table as dictionaries."""
    return [dict(record.data) for record in value.records]


def column_of(value: dg.TableMetadataValue, name: str) -> list[Any]:
    """Return a column of a table."""
    return [row[name] for row in rows_of(value)]


def number_in(cell: str) -> int:
    """Return the number that a cell shows with separators."""
    return int(cell.replace(",", ""))


def metadata_by_asset(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Return the metadata of the materialisations of a run."""
    metadata = {}
    for event in result.get_asset_materialization_events():
        metadata[event.asset_key.to_user_string()] = event.materialization.metadata
    return metadata


def write_project_with_rejects(
    folder: Path, tokenizer_file: Path, replacements: dict[str, str]
) -> Path:
    """Write the sample project, in which two lines of one file of `web` are no documents."""
    config_file = write_project(folder, tokenizer_file, replacements)
    with (folder / "raw/web/part-0/web-1.jsonl").open("ab") as file:
        file.write(INVALID_LINES)
    return config_file


@pytest.fixture(scope="module")
def project(tmp_path_factory, tokenizer_file) -> Project:
    """A built project with rejected lines, and with one shard of each corpus. Do not change it."""
    folder = tmp_path_factory.mktemp("metadata") / "project"
    return build_all(write_project_with_rejects(folder, tokenizer_file, ONE_SHARD))


@pytest.fixture
def project_copy(project, tmp_path) -> Project:
    """A copy of the built project, which a test may damage."""
    folder = tmp_path / "copy"
    shutil.copytree(project.config.file.parent, folder, symlinks=True)
    return Project.open(folder / "nanoset.yaml")


# Building blocks: tables, Markdown and code


def test_a_table_shows_numbers_with_separators():
    shown = table([{"file": "a", "lines": 1234}, {"file": "b", "lines": 5}])

    assert rows_of(shown) == [{"file": "a", "lines": "1,234"}, {"file": "b", "lines": "5"}]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1_234_567, "1,234,567"),
        (np.int64(1_234_567), "1,234,567"),
        (1_234_567.0, "1,234,567"),
        (12_345.25, "12,345.25"),
        (np.float32(0.5), "0.5"),
        (float("nan"), "nan"),
        (True, True),
        ("1234567", "1234567"),
        (None, None),
    ],
)
def test_a_cell_shows_numbers_with_separators_and_other_values_unchanged(value, expected):
    shown = table([{"name": value}])

    assert rows_of(shown) == [{"name": expected}]


def test_the_last_row_of_a_table_says_how_many_rows_of_the_total_are_left_out():
    shown = table([{"file": "a", "lines": 1234}, {"file": "b", "lines": 5}], total=1_002)

    assert rows_of(shown)[0] == {"file": "a", "lines": "1,234"}
    assert rows_of(shown)[2] == {"file": "… and 1,000 more", "lines": ""}


def test_a_table_of_all_rows_has_no_row_about_others():
    shown = table([{"file": "a", "lines": 1}], total=1)

    assert rows_of(shown) == [{"file": "a", "lines": "1"}]


def test_a_table_without_rows_is_empty():
    assert rows_of(table([])) == []


@pytest.mark.parametrize("make_rows", [list, iter], ids=["a list of rows", "an iterator of rows"])
def test_a_table_counts_the_rows_that_it_leaves_out_if_no_total_is_passed(make_rows):
    rows = [{"file": str(number), "lines": number} for number in range(ROWS_SHOWN + 1_234)]

    shown = table(make_rows(rows))

    assert rows_of(shown)[-1] == {"file": "… and 1,234 more", "lines": ""}


def test_markdown_leaves_out_paragraphs_that_would_make_dagster_fold_it():
    paragraphs = ["x" * 400, "y" * 400, "z" * 400]

    assert markdown(*paragraphs).value == f"{paragraphs[0]}\n\n{paragraphs[1]}"


def test_markdown_always_contains_the_first_paragraph():
    paragraph = "w" * 2000

    assert markdown(paragraph).value == paragraph


@given(st.text(alphabet="`a <*\n\t[", max_size=30))
def test_a_code_span_keeps_every_word_and_is_not_ended_by_its_text(text):
    span = code(text)

    fence = re.match("`+", span).group()
    inner_text = span[len(fence) : -len(fence)]
    assert span.endswith(fence)
    assert fence not in re.findall("`+", inner_text)
    assert inner_text.split() == text.split()


# The page of `tokenized_shards`: lengths of documents


@pytest.fixture
def length_page() -> dict[str, Any]:
    """The metadata of 4, 5 and 2 documents of increasing length."""
    histogram = [0] * 32
    histogram[5] = 4  # of 16 to 31 tokens
    histogram[6] = 5  # of 32 to 63 tokens
    histogram[10] = 2  # of 512 to 1,023 tokens
    return length_metadata(histogram, 1_234_567)


def test_the_usual_length_is_given_as_mean_and_median(length_page):
    expected = "112,233 tokens on average, the median between 32 and 63"

    assert length_page["usual_length"] == expected


def test_lengths_are_counted_in_ranges_from_the_shortest_to_the_longest(length_page):
    shown = length_page["token_lengths"]

    assert column_of(shown, "tokens") == [
        "16 to 31",
        "32 to 63",
        "64 to 127",
        "128 to 255",
        "256 to 511",
        "512 to 1,023",
    ]
    assert column_of(shown, "documents") == ["4", "5", "0", "0", "0", "2"]


def test_lengths_are_shown_as_bars_of_at_most_24_characters(length_page):
    bars = column_of(length_page["token_lengths"], "share")

    assert [len(bar) for bar in bars] == [20, 24, 0, 0, 0, 10]


def test_without_documents_no_lengths_are_shown():
    assert length_metadata([0] * 32, 0) == {}


def test_documents_without_tokens_have_a_range_of_lengths_of_their_own():
    shown = length_metadata([3, 1], 1)["token_lengths"]

    assert rows_of(shown)[0]["tokens"] == "0 to 0"


# The page of `tokenized_shards`: a table of files


@pytest.fixture(scope="module")
def finely_cut_project(tmp_path_factory, tokenizer_file) -> Project:
    """A project with rejected lines, and with several shards of each file of the corpus `web`."""
    folder = tmp_path_factory.mktemp("tokenized") / "project"
    project = Project.open(write_project_with_rejects(folder, tokenizer_file, MANY_SHARDS))
    make_corpora(project, "web")
    return project


@pytest.fixture(params=["project", "finely_cut_project"])
def tokenized_project(request) -> Project:
    """A project with one shard of all files, and one without a shard of several files."""
    return request.getfixturevalue(request.param)


def files_table_of(project: Project, **options: Any) -> dg.TableMetadataValue:
    """Return the table of the files of the corpus `web`."""
    return files_table(
        inventory_of(project, "web"),
        current_output(project, "tokenized/web"),
        current_shards(project, "web"),
        **options,
    )


def test_every_file_is_shown_with_its_counts(tokenized_project):
    # Tokens of the four files, which have 60 documents each.
    lengths = read_dataset(tokenized_project, "web").sequence_lengths
    tokens_per_file = lengths.reshape(4, 60).sum(axis=1).tolist()

    shown = files_table_of(tokenized_project)

    assert column_of(shown, "lines") == ["60", "62", "60", "60"]
    assert column_of(shown, "documents") == ["60", "60", "60", "60"]
    assert column_of(shown, "rejected") == ["0", "2", "0", "0"]
    assert [number_in(cell) for cell in column_of(shown, "tokens")] == tokens_per_file


def test_the_table_of_files_says_how_many_files_it_leaves_out(tokenized_project, monkeypatch):
    monkeypatch.setattr(shards_page, "ROWS_SHOWN", 2)
    monkeypatch.setattr("nanoset_assets.ui.metadata.ROWS_SHOWN", 2)

    shown = files_table_of(tokenized_project)

    assert rows_of(shown)[-1]["file"] == "… and 2 more"


def test_files_are_left_out_if_counting_them_would_read_too_many_rows(project):
    # To tell the files of a shard of 240 documents apart, its table of documents has to be read.
    shown = files_table_of(project, max_rows_read=100)

    assert rows_of(shown) == []


def test_files_of_their_own_shards_are_counted_without_reading_rows(finely_cut_project):
    shown = files_table_of(finely_cut_project, max_rows_read=100)

    assert len(rows_of(shown)) == 4


def test_there_is_no_table_of_files_if_the_files_of_a_shard_are_unknown(project):
    # There is a shard, although no files are listed that it could have been made from.
    inventory = replace(inventory_of(project, "web"), pieces=())
    manifest = current_output(project, "tokenized/web")

    assert files_table(inventory, manifest, current_shards(project, "web")) is None


# Previews


def test_the_first_documents_are_shown_with_their_place_id_and_text(project):
    preview = first_documents(project, current_dataset(project, "web")).value

    assert len(preview) < INLINE_CHARACTERS
    for line, row in enumerate(sentences("web", 3), start=1):
        assert f"**`web/part-0/web-0.jsonl:{line}`**, id `{row['id']}`" in preview
        assert row["text"][:30] in preview


def test_documents_without_tokens_are_not_shown(make_project):
    project = Project.open(make_project())
    folder = project.config.corpus_folder("web")
    shutil.rmtree(folder)
    folder.mkdir()
    rows = [{"text": ""}, {"text": "the only one"}, {"text": ""}]
    (folder / "web.jsonl").write_bytes(jsonl(rows))
    make_inventory(project, "web")
    make_shards(project, "web")

    preview = first_documents(project, make_dataset(project, "web")).value

    assert re.findall(r"web\.jsonl:\d*", preview) == ["web.jsonl:2"]


def test_the_first_rejected_lines_are_shown_with_place_reason_and_text(project):
    shards = current_shards(project, "web")

    preview = first_rejects(shards, line_numbers(project, "web")).value

    assert "**`web/part-0/web-1.jsonl:61`**: invalid_json" in preview
    assert '{"id": "cut", "text": "never en' in preview
    assert "**`web/part-0/web-1.jsonl:62`**: blank" in preview


def test_a_failing_preview_shows_its_error(project_copy):
    dataset = current_dataset(project_copy, "web")
    for manifest in project_copy.outputs.folder.glob("shards/web/*/manifest.json"):
        manifest.unlink()

    preview = first_documents(project_copy, dataset).value

    assert "cannot be shown" in preview


@pytest.mark.parametrize("nanoset", ["pretrain", "plain"])
def test_the_first_samples_are_shown_with_the_documents_they_come_from(project, nanoset):
    preview = first_samples(project, nanoset, "train").value

    numbers = re.findall(r"\*\*sample (\d)\*\* of `(?:web|code|books)`", preview)
    assert numbers == ["0", "1", "2"]
    assert re.search(r"`(web|code|books)/[\w/-]+\.jsonl[\w.]*:\d+` tokens \d+–\d+", preview)


@pytest.mark.parametrize("nanoset", ["pretrain", "plain"])
def test_the_samples_of_the_first_step_are_shown_with_their_documents(project, nanoset):
    handoff = current_output(project, f"nanosets/{nanoset}/handoff")

    rows = rows_of(first_step(project, handoff))[:STEP_SAMPLES]

    assert [row["sample"] for row in rows] == ["0", "1", "2", "3", "4", "5", "6", "7"]
    for row in rows:
        sample = explain_sample(project, nanoset, "train", int(row["sample"]))
        first_piece = sample.pieces[0]
        origin = first_piece.origin
        assert row["corpus"] == sample.corpus
        assert row["text"] == first_piece.text
        assert row["documents"].startswith(f"{origin.corpus}/{origin.file}:{origin.line} tokens ")


@pytest.mark.parametrize("nanoset", ["pretrain", "plain"])
def test_the_page_of_a_handoff_contains_the_first_step(project, nanoset):
    handoff = current_output(project, f"nanosets/{nanoset}/handoff")

    page = handoff_metadata(project, handoff, nanoset)

    assert rows_of(page["first_step"]) == rows_of(first_step(project, handoff))


@pytest.mark.parametrize("nanoset", ["pretrain", "plain"])
def test_the_first_step_is_not_shown_if_the_sampler_shuffles_too_many_samples(
    project, nanoset, monkeypatch
):
    handoff = current_output(project, f"nanosets/{nanoset}/handoff")
    dealer = Dealer(1 << 21, "interleaved", 42)
    monkeypatch.setattr(Dealer, "of", lambda *_: dealer)

    preview = first_step(project, handoff).value

    assert "shuffles all 2,097,152 samples" in preview


@pytest.mark.parametrize("nanoset", ["pretrain", "plain"])
def test_a_first_step_that_cannot_be_read_shows_its_error(project_copy, nanoset):
    handoff = current_output(project_copy, f"nanosets/{nanoset}/handoff")
    shutil.rmtree(project_copy.outputs.folder / "nanosets" / nanoset / "train")

    preview = first_step(project_copy, handoff).value

    assert "cannot be shown" in preview


# The page of a split


@pytest.fixture(
    scope="module",
    params=[
        {"nanoset": "pretrain", "stage": "blend"},
        {"nanoset": "plain", "stage": "index_mappings"},
    ],
    ids=lambda split: split["nanoset"],
)
def split_page(request, project) -> dict[str, Any]:
    """The metadata of the split `train` of a nanoset, and the name of the nanoset."""
    nanoset = request.param["nanoset"]
    manifest = current_output(project, f"nanosets/{nanoset}/train/{request.param['stage']}")
    return {"nanoset": nanoset, **split_metadata(project, manifest, nanoset, "train")}


def test_a_split_shows_the_command_that_explains_its_samples(split_page):
    command = f"nanoset explain {split_page['nanoset']} train 0"

    assert split_page["explain"].value == f"`{command}`"


def test_the_plan_of_a_split_has_a_row_for_each_share_of_its_samples(split_page):
    samples = [number_in(cell) for cell in column_of(split_page["plan"], "samples")]

    assert sum(samples) == split_page["samples"]


def test_the_plan_of_a_split_shows_weights_in_percent(split_page):
    weights = column_of(split_page["plan"], "weight")

    assert all(weight.endswith("%") for weight in weights)


def test_the_plan_of_a_split_without_limits_has_no_column_of_limits(split_page):
    assert "limit" not in rows_of(split_page["plan"])[0]


# The pages of a corpus, after a first run and after a second run that had nothing to do


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory, tokenizer_file) -> Path:
    """The folder of a project whose corpus `web` is materialised by the fixture `corpus_runs`."""
    folder = tmp_path_factory.mktemp("corpus") / "project"
    write_project(folder, tokenizer_file)
    return folder


@pytest.fixture(scope="module")
def corpus_runs(corpus_folder, tmp_path_factory) -> list[dict[str, Any]]:
    """The metadata by asset of two runs of the corpus `web`; the second has nothing to do."""
    definitions = build_definitions(load_config(corpus_folder / "nanoset.yaml"))
    job = definitions.resolve_job_def("corpus")
    home = str(tmp_path_factory.mktemp("home"))
    with dg.DagsterInstance.ephemeral(tempdir=home) as instance:
        instance.add_dynamic_partitions(Names().corpora_name, ["web"])
        first_run = job.execute_in_process(instance=instance, partition_key="web")
        second_run = job.execute_in_process(instance=instance, partition_key="web")
        return [metadata_by_asset(first_run), metadata_by_asset(second_run)]


@pytest.fixture
def first_run(corpus_runs) -> dict[str, Any]:
    """The metadata by asset of the run that made all outputs of the corpus."""
    return corpus_runs[0]


@pytest.fixture
def second_run(corpus_runs) -> dict[str, Any]:
    """The metadata by asset of the run that had nothing to do."""
    return corpus_runs[1]


def test_a_run_that_tokenizes_shows_its_speed(first_run):
    page = first_run["tokenized_shards"]

    assert page["tokens_per_second"].value > 0
    assert page["shards_made"].value > 1


def test_a_run_that_has_nothing_to_tokenize_shows_no_speed(second_run):
    page = second_run["tokenized_shards"]

    assert "tokens_per_second" not in page
    assert page["shards_made"].value == 0
    assert "Nothing was tokenized" in page["summary"].value


def test_raw_text_is_summarised_by_its_files(first_run):
    summary = first_run["raw_jsonl"]["summary"].value

    assert summary.startswith("**4 files** (4 .jsonl), ")


def test_raw_text_shows_what_has_changed_since_the_previous_inventory(first_run, second_run):
    assert first_run["raw_jsonl"]["changed_since_the_last"].value == "the first inventory"
    assert second_run["raw_jsonl"]["changed_since_the_last"].value == "nothing"


def test_shards_are_summarised_by_their_documents_and_tokens(first_run):
    page = first_run["tokenized_shards"]
    n_tokens = page["tokens"].value

    assert f"**240 documents, {n_tokens:,} tokens**" in page["summary"].value


def test_shards_without_rejected_lines_have_no_table_of_them(first_run):
    assert "rejects" not in first_run["tokenized_shards"]


def test_a_dataset_is_summarised_by_its_losses_and_readers(first_run):
    summary = first_run["indexed_dataset"]["summary"].value

    assert "every line became a document" in summary
    assert "Read by the nanoset `pretrain`, the webdataset `shuffled`." in summary


def test_every_page_starts_with_the_summary_and_ends_with_path_and_digest(corpus_runs):
    for run in corpus_runs:
        for asset, page in run.items():
            names = list(page)
            assert names[0] == "summary", asset
            assert names[-2:] == ["path", "digest"], asset


def test_no_markdown_of_a_page_is_folded(corpus_runs):
    for run in corpus_runs:
        for asset, page in run.items():
            for name, value in page.items():
                if isinstance(value, dg.MarkdownMetadataValue):
                    assert len(value.value) < INLINE_CHARACTERS, f"{asset}: {name}"


def test_paths_are_relative_to_the_folder_of_the_project(first_run):
    for asset, page in first_run.items():
        for name, value in page.items():
            if isinstance(value, dg.PathMetadataValue):
                assert not value.path.startswith("/"), f"{asset}: {name}"


def test_paths_of_a_page_hold_in_a_moved_project(corpus_folder, first_run, tmp_path):
    moved_folder = shutil.copytree(corpus_folder, tmp_path / "moved", symlinks=True)
    page = first_run["indexed_dataset"]

    dataset_folder = moved_folder / page["path"].value

    assert dataset_folder.is_relative_to(moved_folder)
    assert (dataset_folder / f"{page['prefix'].value}.bin").is_file()


def test_a_damaged_inventory_counts_as_missing_and_is_replaced(make_project, instance):
    project = Project.open(make_project())
    make_inventory(project, "web")
    pointer = project.outputs.folder / "inventory" / "web" / "current.json"
    pointer.write_bytes(b"{")
    instance.add_dynamic_partitions(Names().corpora_name, ["web"])

    result = (
        build_definitions(project.config)
        .resolve_job_def("corpus")
        .execute_in_process(
            instance=instance,
            partition_key="web",
            asset_selection=[dg.AssetKey("raw_jsonl")],
        )
    )

    page = metadata_by_asset(result)["raw_jsonl"]
    assert page["changed_since_the_last"].value == "the first inventory"
    assert json.loads(pointer.read_bytes())["digest"]


# Metadata of definitions


@pytest.fixture(scope="module")
def asset_graph(tmp_path_factory, tokenizer_file) -> Any:
    """The assets of a project that has outputs of all stages of the sample project, and `.pbin`."""
    replacements = {"webdatasets:": "pbin: [web]\nwebdatasets:"}
    folder = tmp_path_factory.mktemp("definitions") / "project"
    config = load_config(write_project(folder, tokenizer_file, replacements))
    return build_definitions(config).resolve_asset_graph()


def assets_that_make_outputs(asset_graph: Any) -> list[Any]:
    """Return all assets except the overview, which is not an output."""
    keys = asset_graph.get_all_asset_keys() - {dg.AssetKey("overview")}
    return [asset_graph.get(key) for key in sorted(keys)]


def test_every_asset_has_kinds_a_code_version_a_group_and_a_description(asset_graph):
    for asset in assets_that_make_outputs(asset_graph):
        assert asset.kinds, asset.key
        assert asset.code_version, asset.key
        assert asset.group_name in {"corpora", "pretrain", "plain", "shuffled"}, asset.key
        assert asset.description.endswith("."), asset.key


def test_every_asset_has_a_tag_of_its_stage(asset_graph):
    names_by_stage: dict[str, set[str]] = {}
    for asset in assets_that_make_outputs(asset_graph):
        names = names_by_stage.setdefault(asset.tags["nanoset/stage"], set())
        names.add(asset.key.path[-1])

    assert names_by_stage == {
        "raw": {"raw_jsonl"},
        "tokenization": {"tokenized_shards"},
        "indexed": {"indexed_dataset"},
        "packed": {"packed_dataset"},
        "mapping": {"index_mappings", "blend", "handoff"},
        "shuffling": {"shuffle_plan", "tars", "manifest"},
    }


def test_the_columns_of_a_table_of_documents_are_declared(project):
    schema = pq.read_schema(current_shards(project, "web")[0].path("documents.parquet"))
    written_types = [str(column_type) for column_type in schema.types]

    graph = build_definitions(project.config).resolve_asset_graph()
    asset = graph.get(dg.AssetKey("tokenized_shards"))
    columns = asset.metadata["dagster/column_schema"].columns

    assert [column.name for column in columns] == schema.names
    # The type of the first column is written as a dictionary, which nobody needs to know.
    assert [column.type for column in columns][1:] == written_types[1:]


@pytest.mark.parametrize(
    ("asset", "folder"),
    [
        ("raw_jsonl", "raw/<corpus>"),
        ("indexed_dataset", "data/datasets/<corpus>/current"),
        ("pretrain/blend", "data/nanosets/pretrain/<split>/blend/current"),
        ("shuffled/manifest", "data/webdatasets/shuffled/current"),
    ],
)
def test_an_asset_links_to_its_folder_in_a_moved_project(make_project, tmp_path, asset, folder):
    moved_folder = make_project().parent.rename(tmp_path / "moved")

    graph = build_definitions(load_config(moved_folder / "nanoset.yaml")).resolve_asset_graph()

    metadata = graph.get(dg.AssetKey(asset.split("/"))).metadata
    assert metadata["dagster/uri"] == f"{moved_folder}/{folder}"


# Webdatasets


@pytest.fixture
def reading_instructions(project) -> str:
    """The text on the page of a webdataset that says how it is read."""
    manifest = current_output(project, "webdatasets/shuffled")
    return webdataset_metadata(project, manifest)["read_it"].value


def test_a_webdataset_shows_the_folder_in_which_it_is_read(project, reading_instructions):
    manifest = current_output(project, "webdatasets/shuffled")

    folder = re.search("In `(.+)`:", reading_instructions).group(1)

    assert project.config.file.parent / folder == manifest.folder


def test_a_webdataset_shows_the_expression_that_names_all_its_tars(project, reading_instructions):
    manifest = current_output(project, "webdatasets/shuffled")
    tar_names = sorted(path.name for path in manifest.folder.glob("*.tar"))

    pattern = r"WebDataset\('shard-\{(\d+)\.\.(\d+)\}\.tar'\)"
    first, last = re.search(pattern, reading_instructions).groups()

    assert tar_names[0] == f"shard-{first}.tar"
    assert tar_names[-1] == f"shard-{last}.tar"
    assert len(tar_names) == int(last) + 1
    assert len(tar_names) == manifest.facts["shards"]


def test_a_webdataset_shows_the_argument_of_its_manifest(reading_instructions):
    assert "`--dataset-manifest manifest.jsonl`" in reading_instructions


@pytest.fixture(scope="module")
def plan_page(tmp_path_factory, tokenizer_file) -> dict[str, Any]:
    """The metadata of the shuffle plan of an even webdataset whose corpora have frequencies."""
    replacements = {
        "corpora: [web, code, books]": "corpora: {web: 0.5, code: 2, books: 1}\n    even: true"
    }
    folder = tmp_path_factory.mktemp("plan") / "project"
    project = build_all(write_project(folder, tokenizer_file, replacements))
    facts = current_output(project, "shuffle_plans/shuffled").facts
    return plan_metadata(plan_of(project, "shuffled"), facts["quality"])


def test_a_shuffle_plan_shows_how_many_contexts_are_written(plan_page):
    assert plan_page["contexts"] == plan_page["shards"] * plan_page["contexts_in_a_shard"]
    assert plan_page["contexts_left_out"] < plan_page["shards"]
    assert plan_page["tar_bytes"] > plan_page["tokens"]


def test_a_shuffle_plan_shows_what_is_chosen_of_each_source(plan_page):
    rows = {row["source"]: row for row in rows_of(plan_page["sources"])}

    assert rows["web"]["frequency"] == "0.5"
    assert rows["code"]["frequency"] == "2"
    assert rows["books"]["frequency"] == "1"
    assert number_in(rows["web"]["not_chosen"]) > 0


def test_a_shuffle_plan_shows_how_well_the_sources_are_mixed(plan_page):
    rows = {row["measure"]: row for row in rows_of(plan_page["quality"])}
    same_source = rows["neighbours from the same source"]

    assert len(rows) == 5
    assert float(same_source["found"]) == pytest.approx(float(same_source["by chance"]), abs=0.2)
    assert plan_page["evenly_shuffled"] is True
