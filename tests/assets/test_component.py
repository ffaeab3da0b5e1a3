"""The component that a host adds with a few lines of YAML."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster.components.core.package_entry import discover_package_objects
from dagster.components.testing import create_defs_folder_sandbox
from dagster_shared.serdes.objects import EnvRegistryKey

import nanoset_assets
from nanoset_assets import NanosetComponent, build_definitions
from nanoset_assets.definitions import definitions_of
from nanoset_core.errors import ConfigError
from nanoset_core.project.settings import load_config

TYPE = "nanoset_assets.NanosetComponent"
LISTED = 100
"""Characters of a description that `dg list defs` shows."""
pytestmark = [  # of what Dagster itself uses
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
    pytest.mark.filterwarnings("ignore::dagster.SupersessionWarning"),
]


def inline(config: Path) -> dict:
    """The keys of a nanoset.yaml, with paths that hold everywhere."""
    value = yaml.safe_load(config.read_text())
    folder = config.parent
    value |= {"raw": str(folder / "raw"), "root": str(folder / "data")}
    value["tokenizer"] |= {"path": str(folder / "tokenizer.json")}
    return value


@pytest.fixture
def sandbox():
    with create_defs_folder_sandbox() as made:
        yield made


def add(sandbox, name: str, attributes: dict, **more) -> Path:
    folder = sandbox.defs_folder_path / name
    folder.mkdir(parents=True)
    text = yaml.safe_dump({"type": TYPE, "attributes": attributes} | more, sort_keys=False)
    (folder / "defs.yaml").write_text(text)
    return folder / "defs.yaml"


def keys(definitions: dg.Definitions) -> set[str]:
    return {key.to_user_string() for key in definitions.resolve_all_asset_keys()}


def test_two_projects_are_two_files(sandbox, make_project):
    landed = {"corpora": {"web": {"deps": ["crm"]}}}
    two = {"key_prefix": ["team", "two"], "group_prefix": "t_"}
    add(sandbox, "one", {"config": str(make_project("one")), "key_prefix": "one"} | landed)
    add(sandbox, "two", {"project": inline(make_project("two"))} | two | landed)
    with sandbox.build_all_defs() as definitions:
        dg.Definitions.validate_loadable(definitions)
        assert {"one/raw_jsonl", "one/pretrain/blend", "team/two/raw_jsonl"} <= keys(definitions)
        graph = definitions.resolve_asset_graph()
        assert (
            graph.get(dg.AssetKey(["team", "two", "pretrain", "blend"])).group_name == "t_pretrain"
        )
        assert graph.get(dg.AssetKey("crm")).is_external, "the same asset may land the text of both"


def test_paths_start_in_the_folder_of_the_file(sandbox, make_project):
    file = add(sandbox, "one", {"config": "conf/nanoset.yaml"})
    shutil.copytree(make_project().parent, file.parent / "conf")
    with sandbox.build_all_defs() as definitions:
        assert "pretrain/blend" in keys(definitions)


def test_templates_are_filled_in(sandbox, make_project, monkeypatch):
    value = inline(make_project())
    monkeypatch.setenv("RAW", value["raw"])
    value |= {
        "raw": "{{ env.RAW }}",
        "tokenization": value["tokenization"] | {"range_mib": "{{ 0.02 }}"},
    }
    add(sandbox, "one", {"project": value})
    with sandbox.build_all_defs() as definitions:
        assert "pretrain/blend" in keys(definitions)


def test_owners_tags_and_upstream_are_on_the_assets(sandbox, make_project):
    add(
        sandbox,
        "one",
        {
            "config": str(make_project()),
            "key_prefix": "llm",
            "owners": ["team:data"],
            "tags": {"tier": "gold"},
            "corpora": {"web": {"deps": ["lake/dedup"]}, "code": {"deps": ["crm/export"]}},
            "run_tags": {"team": "data"},
            "op_tags": {"team": "machines"},
            "retries": 2,
        },
    )
    with sandbox.build_all_defs() as definitions:
        graph = definitions.resolve_asset_graph()
        raw = graph.get(dg.AssetKey(["llm", "raw_jsonl"]))
        assert raw.parent_keys == {dg.AssetKey(["lake", "dedup"]), dg.AssetKey(["crm", "export"])}
        assert graph.get(dg.AssetKey(["crm", "export"])).is_external
        assert raw.owners == ["team:data"]
        job = definitions.resolve_job_def("llm__corpus")
        assert job.run_tags["team"] == "data"
        ops = {
            node.definition
            for node in job.nodes
            if not node.definition.name.endswith(("verified", "losses"))
        }
        assert {(op.tags["team"], op.retry_policy.max_retries) for op in ops} == {("machines", 2)}
        assert raw.tags["tier"] == "gold"
        assert raw.tags["nanoset/stage"] == "raw"
        assert "llm__landed" in {
            sensor.name for sensor in definitions.get_repository_def().sensor_defs
        }


def test_post_processing_changes_the_assets(sandbox, make_project):
    processing = {
        "assets": [{"target": "key:llm/pretrain/blend", "attributes": {"group_name": "mine"}}]
    }
    add(
        sandbox,
        "one",
        {"config": str(make_project()), "key_prefix": "llm"},
        post_processing=processing,
    )
    with sandbox.build_all_defs() as definitions:
        graph = definitions.resolve_asset_graph()
        assert graph.get(dg.AssetKey(["llm", "pretrain", "blend"])).group_name == "mine"
        assert graph.get(dg.AssetKey(["llm", "raw_jsonl"])).group_name == "llm_corpora"


def test_a_translation_says_something_else_of_each_asset(sandbox, make_project):
    translation = {
        "group_name": "mine_{{ node.subject or 'all' }}",
        "description": "{{ spec.description }} Of ours.",
        "metadata": {"known_as": "{{ node.name }}"},
    }
    attributes = {"config": str(make_project()), "key_prefix": "llm", "automation": "host"}
    add(sandbox, "one", attributes | {"translation": translation})
    with sandbox.build_all_defs() as definitions:
        graph = definitions.resolve_asset_graph()
        blend, raw, page = (
            graph.get(dg.AssetKey(["llm", *name.split("/")])) for name in TRANSLATED
        )
    assert [asset.group_name for asset in (blend, raw, page)] == [
        "mine_pretrain",
        "mine_all",
        "mine_all",
    ]
    assert [asset.metadata["known_as"] for asset in (blend, raw, page)] == list(TRANSLATED)
    assert raw.tags["nanoset/stage"] == "raw"
    assert raw.description.endswith("edited. Of ours.")
    assert blend.automation_condition is not None


TRANSLATED = ("pretrain/blend", "raw_jsonl", "overview")


def test_every_description_begins_with_a_sentence_that_lists_show_whole(make_project):
    graph = build_definitions(load_config(make_project())).resolve_asset_graph()
    said = [graph.get(key).description for key in graph.get_all_asset_keys()]
    said += [graph.get_check_spec(key).description for key in graph.asset_check_keys]
    assert [text for text in said if len(text.partition("\n\n")[0]) > LISTED] == []


def test_an_override_does_something_before_and_after(make_project, instance):
    done = []

    class Watched(NanosetComponent):
        def execute(self, run):
            done.append(f"before {run.key.subject}")
            yield from super().execute(run)
            done.append(f"after {run.manifest.name}")

    project = make_project()
    definitions = definitions_of(Watched(config=str(project)).project_defs(project.parent))
    instance.add_dynamic_partitions("corpora", ["web"])
    job = definitions.resolve_job_def("corpus")
    selection = [dg.AssetKey("raw_jsonl"), dg.AssetKey("tokenized_shards")]
    assert job.execute_in_process(
        instance=instance, partition_key="web", asset_selection=selection
    ).success
    assert done == ["before web", "after web"] * 2


def test_an_inline_project_is_built(sandbox, make_project, tmp_path):
    value = inline(make_project())
    add(sandbox, "one", {"project": value, "key_prefix": "llm"})
    with (
        sandbox.build_all_defs() as definitions,
        dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance,
    ):
        instance.add_dynamic_partitions("llm/corpora", ["web"])
        job = definitions.resolve_job_def("llm__corpus")
        assert job.execute_in_process(instance=instance, partition_key="web").success
    assert (tmp_path / "project" / "data" / "datasets" / "web" / "current").exists()


def failure(sandbox) -> str:
    with pytest.raises(Exception) as caught, sandbox.build_all_defs():
        pass
    texts, error = [], caught.value
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def number_of(file: Path, begin: str) -> int:
    """The number of the first line that begins so."""
    lines = file.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(begin))


ONE = "a component needs exactly one project"
WRONG = {
    "an unknown key": ({"project": {"rawx": "raw"}}, "rawx: raw", "this key is not known"),
    "a corpus twice": (
        {"project": {"packed": ["web", "web"]}},
        "packed:",
        "packed: a corpus is named twice",
    ),
    "another type": ({"project": {"tokenization": {"workers": "two"}}}, "workers: two", "workers"),
    "no weight": (
        {"project": {"nanosets": {"a": {"blend": {"web": 0.0}, "sequence_length": 8}}}},
        "blend:",
        "blend",
    ),
    "no project": ({"key_prefix": "llm"}, "attributes:", ONE),
    "two projects": ({"config": "nanoset.yaml", "project": {}}, "project:", ONE),
    "a file that is not there": (
        {"key_prefix": "a", "config": "nowhere.yaml"},
        "config",
        "no such configuration",
    ),
    "no automation": (
        {"project": {}, "automation": "eager"},
        "automation",
        "Input should be 'own', 'host' or 'none'",
    ),
    "another key": (
        {"project": {}, "translation": {"key_prefix": ["other"]}},
        None,
        "a translation may not give an asset another key",
    ),
    "no name": (
        {"project": {}, "key_prefix": ["a b"]},
        "key_prefix",
        "is no valid part of a key prefix",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_error_points_to_its_line(sandbox, make_project, wrong):
    attributes, line, text = WRONG[wrong]
    if "project" in attributes:
        attributes = attributes | {"project": inline(make_project()) | attributes["project"]}
    file = add(sandbox, "one", attributes)
    message = failure(sandbox)
    assert line is None or f"defs.yaml:{number_of(file, line)}" in message, message
    assert text in message
    if text == ONE:
        with pytest.raises(ConfigError, match=ONE):
            NanosetComponent(**attributes).project_defs(file.parent)


def test_two_projects_share_the_limit_of_a_pool(sandbox, make_project):
    config = str(make_project())
    add(sandbox, "one", {"config": config, "key_prefix": "one", "pool": "machines"})
    add(sandbox, "two", {"config": config, "key_prefix": "two", "pool": "machines"})
    add(sandbox, "three", {"config": config, "key_prefix": "three"})
    with sandbox.build_all_defs() as definitions:
        graph = definitions.resolve_asset_graph()
        pools = {
            name: graph.get(dg.AssetKey([name, "tokenized_shards"])).pools
            for name in ("one", "two", "three")
        }
    assert pools == {"one": {"machines"}, "two": {"machines"}, "three": {"three/workers"}}


def test_the_scaffold_loads_and_so_does_a_second_one(sandbox):
    for name in ("llm", "code"):
        sandbox.scaffold_component(NanosetComponent, defs_path=name)
    written = yaml.safe_load((sandbox.defs_folder_path / "llm" / "defs.yaml").read_text())
    assert written["attributes"] == {"config": "{{ context.project_root }}/llm/nanoset.yaml"}
    config = load_config(sandbox.project_root / "llm" / "nanoset.yaml")
    assert config.raw_folder == sandbox.project_root.resolve() / "llm" / "raw"
    assert config.dagster.key_prefix == ("llm",)
    with sandbox.build_all_defs() as definitions:
        assert {"llm/raw_jsonl", "code/raw_jsonl"} <= keys(definitions)


@pytest.mark.parametrize(
    ("own", "given", "attributes"),
    [
        ("", "team/llm", {"key_prefix": ["team", "llm"]}),
        ("dagster: {key_prefix: [mine]}\n", None, {}),
    ],
)
def test_the_scaffold_takes_a_project_that_is_there(sandbox, make_project, own, given, attributes):
    config = make_project()
    config.write_text(config.read_text() + own)
    params = {"config": str(config)} | ({"key_prefix": given} if given else {})
    folder = sandbox.scaffold_component(NanosetComponent, defs_path="llm", scaffold_params=params)
    written = yaml.safe_load((folder / "defs.yaml").read_text())["attributes"]
    assert {name: value for name, value in written.items() if name != "config"} == attributes
    with sandbox.build_all_defs() as definitions:
        assert f"{given or 'mine'}/pretrain/blend" in keys(definitions)


def test_a_scaffold_whose_folder_is_no_prefix_is_refused(sandbox):
    with pytest.raises(ConfigError, match="is no valid part of a key prefix"):
        sandbox.scaffold_component(NanosetComponent, defs_path="my.llm")


def test_dagster_finds_the_component():
    assert EnvRegistryKey("nanoset_assets", "NanosetComponent") in discover_package_objects(
        ["nanoset_assets"]
    )
    assert TYPE.rpartition(".")[2] in dir(nanoset_assets)
    schema = NanosetComponent.get_model_cls().model_json_schema()
    json.dumps(schema)
    assert schema["properties"]["automation"]["enum"] == ["own", "host", "none"]
    assert all(found["description"].endswith(".") for found in schema["properties"].values())


def test_the_command_does_not_import_dagster():
    code = "import sys, nanoset_assets, nanoset_core.cli; sys.exit('dagster' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
