"""What people see of a materialisation: sentences, pictures, tables, previews; all without a pass
over the data.
"""

from __future__ import annotations

import json
import re
import shutil

import dagster as dg
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.building import build_all, make_dataset, make_inventory, make_shards
from helpers.inspecting import (
    current_dataset,
    current_output,
    current_shards,
    explain_sample,
    inventory_of,
    line_numbers,
    plan_of,
)
from helpers.sample_project import jsonl, sentences
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_assets.ui import shards as shards_page
from nanoset_assets.ui.handoff import handoff_metadata
from nanoset_assets.ui.mappings import split_metadata
from nanoset_assets.ui.metadata import INLINE_CHARACTERS, ROWS_SHOWN, code, markdown, table
from nanoset_assets.ui.previews import first_documents, first_rejects, first_samples, first_step
from nanoset_assets.ui.shards import files_table, length_metadata
from nanoset_assets.ui.webdataset import plan_metadata, webdataset_metadata
from nanoset_core import MMapIndexedDataset, load_config
from nanoset_core.project.project import Project
from nanoset_core.stages.handoff.steps import Dealer

ONE_RANGE = {"range_mib: 0.02": "range_mib: 8"}
BROKEN = b'{"id": "cut", "text": "never en\n\n'


def rows_of(value):
    return [dict(record.data) for record in value.records]


def test_lengths_are_shown_with_bars_and_the_middle():
    counts = [0] * 32
    counts[5], counts[6], counts[10] = 4, 5, 2  # 16 to 31, 32 to 63, 512 to 1,023 tokens
    shown = length_metadata(counts, 1_234_567)
    assert shown["usual_length"] == "112,233 tokens on average, the median between 32 and 63"
    rows = rows_of(shown["token_lengths"])
    assert [row["tokens"] for row in rows] == [
        f"{1 << n:,} to {(2 << n) - 1:,}" for n in range(4, 10)
    ]
    assert [row["documents"] for row in rows] == ["4", "5", "0", "0", "0", "2"]
    assert [len(row["share"]) for row in rows] == [20, 24, 0, 0, 0, 10]
    assert length_metadata([0] * 32, 0) == {}
    assert rows_of(length_metadata([3, 1], 1)["token_lengths"])[0]["tokens"] == "0 to 0"


def test_a_table_says_what_it_leaves_out():
    shown = rows_of(table([{"file": "a", "lines": 1234}, {"file": "b", "lines": 5}], total=1_002))
    assert shown[0] == {"file": "a", "lines": "1,234"}
    assert shown[2] == {"file": "… and 1,000 more", "lines": ""}
    assert rows_of(table([{"file": "a", "lines": 1}], total=1)) == [{"file": "a", "lines": "1"}]
    assert rows_of(table([])) == []


def test_a_table_says_how_many_rows_it_leaves_out_whether_or_not_it_is_told():
    rows = [{"file": str(number), "lines": number} for number in range(ROWS_SHOWN + 1_234)]

    for source in (rows, iter(rows)):
        last = rows_of(table(source))[-1]
        assert last == {"file": "… and 1,234 more", "lines": ""}


@pytest.mark.parametrize(
    ("value", "shown"),
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
def test_numbers_of_tables_have_separators(value, shown):
    assert rows_of(table([{"name": value}])) == [{"name": shown}]


def test_markdown_stops_before_it_would_be_folded():
    blocks = ["x" * 400, "y" * 400, "z" * 400]
    assert markdown(*blocks).value == f"{blocks[0]}\n\n{blocks[1]}"
    assert markdown("w" * 2000).value == "w" * 2000


@given(st.text(alphabet="`a <*\n\t[", max_size=30))
def test_nothing_in_code_is_markup(text):
    shown = code(text)
    fence = re.match("`+", shown).group()
    inner = shown[len(fence) : -len(fence)]
    assert shown.endswith(fence)
    assert fence not in re.findall("`+", inner)
    assert inner.split() == text.split()


@pytest.fixture
def spoilt(make_project):
    """A built project, in which two lines of one file are no documents; all files of a corpus in
    one range.
    """
    file = make_project(replacements=ONE_RANGE)
    with (file.parent / "raw" / "web" / "part-0" / "web-1.jsonl").open("ab") as lines:
        lines.write(BROKEN)
    return build_all(file)


def tokenized(project, corpus):
    """The raw files, the set of shards, and the shards of a corpus."""
    manifest = current_output(project, f"tokenized/{corpus}")
    return inventory_of(project, corpus), manifest, current_shards(project, corpus)


COUNTS = ("lines", "documents", "rejected", "tokens")


@pytest.mark.parametrize(
    "ranges", [ONE_RANGE, {"range_mib: 0.02": "range_mib: 0.004"}], ids=["together", "each alone"]
)
def test_every_file_has_its_counts(make_project, ranges, monkeypatch):
    file = make_project(replacements=ranges)
    with (file.parent / "raw" / "web" / "part-0" / "web-1.jsonl").open("ab") as lines:
        lines.write(BROKEN)
    project = build_all(file)
    prefix = current_dataset(project, "web")
    lengths = (
        MMapIndexedDataset(prefix.path(prefix.facts["prefix"]))
        .sequence_lengths.reshape(4, 60)
        .sum(axis=1)
    )
    expected = [[60, 60, 0], [62, 60, 2], [60, 60, 0], [60, 60, 0]]
    rows = rows_of(files_table(*tokenized(project, "web")))
    assert [[int(row[name].replace(",", "")) for name in COUNTS] for row in rows] == [
        [*counts, tokens] for counts, tokens in zip(expected, lengths.tolist(), strict=True)
    ]
    monkeypatch.setattr(shards_page, "ROWS_SHOWN", 2)
    monkeypatch.setattr("nanoset_assets.ui.metadata.ROWS_SHOWN", 2)
    assert rows_of(files_table(*tokenized(project, "web")))[-1]["file"] == "… and 2 more"
    assert len(rows_of(files_table(*tokenized(project, "web"), max_rows_read=100))) == (
        0 if ranges is ONE_RANGE else 3
    )


def test_shards_that_were_cut_otherwise_have_no_table(spoilt):
    inventory, manifest, shards = tokenized(spoilt, "web")
    assert files_table(inventory, manifest, [*shards, *shards]) is None


def test_a_damaged_inventory_is_replaced_all_the_same(make_project, tmp_path):
    project = Project.open(make_project())
    make_inventory(project, "web")
    pointer = project.outputs.folder / "inventory" / "web" / "current.json"
    pointer.write_bytes(b"{")
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        instance.add_dynamic_partitions(Names().corpora_name, ["web"])
        job = build_definitions(project.config).resolve_job_def("corpus")
        selected = [dg.AssetKey("raw_jsonl")]
        outcome = job.execute_in_process(
            instance=instance, partition_key="web", asset_selection=selected
        )
    assert shown(outcome)["raw_jsonl"]["changed_since_the_last"].value == "the first inventory"
    assert json.loads(pointer.read_bytes())["digest"]


def test_the_first_documents_are_shown_with_their_lines(spoilt):
    shown = first_documents(spoilt, current_dataset(spoilt, "web")).value
    assert len(shown) < INLINE_CHARACTERS
    for number, row in enumerate(sentences("web", 3), start=1):
        assert f"**`web/part-0/web-0.jsonl:{number}`**, id `{row['id']}`" in shown
        assert f"{row['text'][:30]}" in shown


def test_documents_without_tokens_are_not_shown(make_project):
    project = Project.open(make_project())
    rows = [{"text": text} for text in ("", "the only one", "")]
    shutil.rmtree(web := project.config.corpus_folder("web"))
    web.mkdir()
    (web / "web.jsonl").write_bytes(jsonl(rows))
    make_inventory(project, "web")
    make_shards(project, "web")
    shown = first_documents(project, make_dataset(project, "web")).value
    assert shown.count("web.jsonl:") == shown.count("web.jsonl:2") == 1


def test_the_first_rejected_lines_are_shown_with_place_and_reason(spoilt):
    shown = first_rejects(current_shards(spoilt, "web"), line_numbers(spoilt, "web")).value
    assert "**`web/part-0/web-1.jsonl:61`**: invalid_json" in shown
    assert '{"id": "cut", "text": "never en' in shown
    assert "**`web/part-0/web-1.jsonl:62`**: blank" in shown


def test_a_preview_that_cannot_be_made_says_why(spoilt):
    dataset = current_dataset(spoilt, "web")
    for manifest in spoilt.outputs.folder.glob("shards/web/*/manifest.json"):
        manifest.unlink()
    assert "cannot be shown" in first_documents(spoilt, dataset).value


@pytest.mark.parametrize(("name", "stage"), [("pretrain", "blend"), ("plain", "index_mappings")])
def test_samples_lead_to_their_sources(spoilt, name, stage):
    shown = first_samples(spoilt, name, "train").value
    assert re.findall(r"\*\*sample (\d)\*\* of `(?:web|code|books)`", shown) == ["0", "1", "2"]
    assert re.search(r"`(web|code|books)/[\w/-]+\.jsonl[\w.]*:\d+` tokens \d+–\d+", shown)
    manifest = spoilt.outputs.current("nanosets", f"{name}/train/{stage}")
    metadata = split_metadata(spoilt, manifest, name, "train")
    assert metadata["explain"].value == f"`nanoset explain {name} train 0`"
    plan = rows_of(metadata["plan"])
    assert sum(int(row["samples"].replace(",", "")) for row in plan) == metadata["samples"]
    assert "limit" not in plan[0]
    assert all(row["weight"].endswith("%") for row in plan)


@pytest.mark.parametrize(("name", "count"), [("pretrain", 8), ("plain", 8)])
def test_the_first_step_of_a_handoff_is_shown_decoded(spoilt, name, count, monkeypatch):
    handoff = spoilt.outputs.current("nanosets", f"{name}/handoff")
    rows = rows_of(first_step(spoilt, handoff))
    assert [row["sample"] for row in rows[:count]] == [str(number) for number in range(count)]
    for row in rows[:count]:
        plain = explain_sample(spoilt, name, "train", int(row["sample"]))
        assert row["corpus"] == plain.corpus
        assert row["text"] == plain.pieces[0].text
        origin = plain.pieces[0].origin
        assert row["documents"].startswith(f"{origin.corpus}/{origin.file}:{origin.line} tokens ")
    assert rows_of(handoff_metadata(spoilt, handoff, name)["first_step"]) == rows
    with monkeypatch.context() as patch:
        patch.setattr(Dealer, "of", lambda *_: Dealer(1 << 21, "interleaved", 42))
        assert "shuffles all 2,097,152 samples" in first_step(spoilt, handoff).value
    shutil.rmtree(spoilt.outputs.folder / "nanosets" / name / "train")
    assert "cannot be shown" in first_step(spoilt, handoff).value


@pytest.fixture
def twice(make_project, tmp_path):
    """The materialisations of a corpus's assets, of the first run and of a second one that had
    nothing to do.
    """
    definitions = build_definitions(load_config(make_project()))
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        instance.add_dynamic_partitions(Names().corpora_name, ["web"])
        job = definitions.resolve_job_def("corpus")
        outcomes = [
            job.execute_in_process(instance=instance, partition_key="web") for _ in range(2)
        ]
        return [shown(outcome) for outcome in outcomes]


def shown(outcome):
    """asset → its metadata."""
    events = outcome.get_asset_materialization_events()
    return {event.asset_key.to_user_string(): event.materialization.metadata for event in events}


def test_speed_is_only_shown_of_work(twice):
    first, second = (run["tokenized_shards"] for run in twice)
    assert first["tokens_per_second"].value > 0
    assert "tokens_per_second" not in second
    assert first["shards_made"].value > 1
    assert second["shards_made"].value == 0
    assert "Nothing was tokenized" in second["summary"].value


def test_a_corpus_answers_what_it_is_and_who_reads_it(twice):
    run = twice[0]
    assert run["raw_jsonl"]["summary"].value.startswith("**4 files** (4 .jsonl), ")
    assert run["raw_jsonl"]["changed_since_the_last"].value == "the first inventory"
    assert twice[1]["raw_jsonl"]["changed_since_the_last"].value == "nothing"
    tokens = run["tokenized_shards"]["tokens"].value
    assert f"**240 documents, {tokens:,} tokens**" in run["tokenized_shards"]["summary"].value
    assert "rejects" not in run["tokenized_shards"]
    summary = run["indexed_dataset"]["summary"].value
    assert "every line became a document" in summary
    assert "Read by the nanoset `pretrain`, the webdataset `shuffled`." in summary


def test_what_people_read_comes_first_and_unfolded(twice):
    for run in twice:
        for asset, metadata in run.items():
            assert next(iter(metadata)) == "summary", asset
            assert list(metadata)[-2:] == ["path", "digest"], asset
            texts = [
                value.value
                for value in metadata.values()
                if isinstance(value, dg.MarkdownMetadataValue)
            ]
            assert all(len(text) < INLINE_CHARACTERS for text in texts), asset


def test_a_table_of_documents_has_its_columns_declared(twice, make_project):
    import pyarrow.parquet as pq

    project = build_all(make_project("columns"))
    written = pq.read_schema(tokenized(project, "web")[2][0].path("documents.parquet"))
    node = (
        build_definitions(project.config).resolve_asset_graph().get(dg.AssetKey("tokenized_shards"))
    )
    declared = node.metadata["dagster/column_schema"]
    assert [column.name for column in declared.columns] == written.names
    assert [column.type for column in declared.columns][1:] == [
        str(kind) for kind in written.types
    ][1:]


def test_every_asset_has_its_kinds_and_tags(make_project):
    config = load_config(make_project(replacements={"webdatasets:": "pbin: [web]\nwebdatasets:"}))
    graph = build_definitions(config).resolve_asset_graph()
    stages = {}
    for key in graph.get_all_asset_keys() - {dg.AssetKey("overview")}:
        node = graph.get(key)
        assert node.kinds, key
        assert node.code_version, key
        assert node.group_name in {"corpora", "pretrain", "plain", "shuffled"}, key
        assert node.description.endswith("."), key
        stages.setdefault(node.tags["nanoset/stage"], set()).add(key.path[-1])
    assert stages == {
        "raw": {"raw_jsonl"},
        "tokenization": {"tokenized_shards"},
        "indexed": {"indexed_dataset"},
        "packed": {"packed_dataset"},
        "mapping": {"index_mappings", "blend", "handoff"},
        "shuffling": {"shuffle_plan", "tars", "manifest"},
    }


def test_a_webdataset_says_how_it_is_read(spoilt):
    manifest = spoilt.outputs.current("webdatasets", "shuffled")
    read_it = webdataset_metadata(spoilt, manifest)["read_it"].value
    folder = re.search("In `(.+)`:", read_it).group(1)
    assert spoilt.config.file.parent / folder == manifest.folder
    first, last = re.search(r"WebDataset\('shard-\{(\d+)\.\.(\d+)\}\.tar'\)", read_it).groups()
    tars = sorted(path.name for path in manifest.folder.glob("*.tar"))
    assert (tars[0], tars[-1]) == (f"shard-{first}.tar", f"shard-{last}.tar")
    assert len(tars) == manifest.facts["shards"] == int(last) + 1
    assert "`--dataset-manifest manifest.jsonl`" in read_it


def test_paths_hold_when_the_project_is_moved(twice, tmp_path):
    for asset, metadata in twice[0].items():
        for name, value in metadata.items():
            if isinstance(value, dg.PathMetadataValue):
                assert not value.path.startswith("/"), f"{asset}: {name}"
    moved = (tmp_path / "project").rename(tmp_path / "moved")
    run = twice[0]["indexed_dataset"]
    assert (moved / run["path"].value / f"{run['prefix'].value}.bin").is_file()
    graph = build_definitions(load_config(moved / "nanoset.yaml")).resolve_asset_graph()
    for asset, place_now in {
        "raw_jsonl": "raw/<corpus>",
        "indexed_dataset": "data/datasets/<corpus>/current",
        "pretrain/blend": "data/nanosets/pretrain/<split>/blend/current",
        "shuffled/manifest": "data/webdatasets/shuffled/current",
    }.items():
        metadata = graph.get(dg.AssetKey(asset.split("/"))).metadata
        assert metadata["dagster/uri"] == f"{moved}/{place_now}"


def test_the_plan_says_what_becomes_of_each_source_and_how_well_it_mixes(make_project):
    project = build_all(
        make_project(
            replacements={
                "corpora: [web, code, books]": "corpora: {web: 0.5, code: 2, books: 1}\n    even: true"
            }
        )
    )
    metadata = plan_metadata(
        plan_of(project, "shuffled"),
        current_output(project, "shuffle_plans/shuffled").facts["quality"],
    )
    assert metadata["contexts"] == metadata["shards"] * metadata["contexts_in_a_shard"]
    assert metadata["contexts_left_out"] < metadata["shards"]
    rows = {row["source"]: row for row in rows_of(metadata["sources"])}
    assert [rows[name]["frequency"] for name in ("web", "code", "books")] == ["0.5", "2", "1"]
    assert int(rows["web"]["not_chosen"].replace(",", "")) > 0
    assert metadata["tar_bytes"] > metadata["tokens"]
    measures = {row["measure"]: row for row in rows_of(metadata["quality"])}
    assert len(measures) == 5
    found = measures["neighbours from the same source"]
    assert abs(float(found["found"]) - float(found["by chance"])) < 0.2
    assert metadata["evenly_shuffled"] is True
