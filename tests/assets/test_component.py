"""The component that adds a nanoset project to a Dagster code location with a few lines of YAML."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest
import yaml
from dagster.components.core.package_entry import discover_package_objects
from dagster.components.testing import create_defs_folder_sandbox
from dagster_shared.serdes.objects import EnvRegistryKey

import nanoset_assets
from helpers.sample_project import write_project
from nanoset_assets import NanosetComponent, build_definitions
from nanoset_assets.definitions import definitions_of
from nanoset_core.errors import ConfigError
from nanoset_core.project.settings import load_config

TYPE = "nanoset_assets.NanosetComponent"
LISTED_CHARACTERS = 100
"""How many characters of a description `dg list defs` shows."""
EXACTLY_ONE_PROJECT = "a component needs exactly one project"

pytestmark = [  # of what Dagster itself uses
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
    pytest.mark.filterwarnings("ignore::dagster.SupersessionWarning"),
]


def inline_settings(config_file: Path) -> dict[str, Any]:
    """Return the keys of a nanoset.yaml, with absolute paths."""
    settings: dict[str, Any] = yaml.safe_load(config_file.read_text())
    folder = config_file.parent
    settings["raw"] = str(folder / "raw")
    settings["root"] = str(folder / "data")
    settings["tokenizer"]["path"] = str(folder / "tokenizer.json")
    return settings


@pytest.fixture
def sandbox() -> Iterator[Any]:
    """The folder of a Dagster project without definitions."""
    with create_defs_folder_sandbox() as defs_folder:
        yield defs_folder


def add_component(sandbox: Any, name: str, attributes: dict[str, Any], **keys: Any) -> Path:
    """Add a component to a Dagster project, and return its defs.yaml.

    Args:
        sandbox: The Dagster project.
        name: The folder of the component.
        attributes: Its attributes.
        keys: Further keys of the defs.yaml.
    """
    folder: Path = sandbox.defs_folder_path / name
    folder.mkdir(parents=True)
    content = {"type": TYPE, "attributes": attributes, **keys}
    (folder / "defs.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder / "defs.yaml"


def asset_keys(definitions: dg.Definitions) -> set[str]:
    """Return the keys of all assets."""
    return {key.to_user_string() for key in definitions.resolve_all_asset_keys()}


# Where the settings of the project are


def test_a_component_may_name_a_file_relative_to_its_own_folder(sandbox, make_project):
    defs_file = add_component(sandbox, "one", {"config": "conf/nanoset.yaml"})
    shutil.copytree(make_project().parent, defs_file.parent / "conf")

    with sandbox.build_all_defs() as definitions:
        assert "pretrain/blend" in asset_keys(definitions)


def test_inline_settings_may_contain_templates(sandbox, make_project, monkeypatch):
    settings = inline_settings(make_project())
    monkeypatch.setenv("RAW", settings["raw"])
    settings["raw"] = "{{ env.RAW }}"
    settings["tokenization"]["range_mib"] = "{{ 0.02 }}"
    add_component(sandbox, "one", {"project": settings})

    with sandbox.build_all_defs() as definitions:
        assert "pretrain/blend" in asset_keys(definitions)


def test_a_corpus_of_a_project_with_inline_settings_can_be_built(sandbox, make_project, instance):
    config_file = make_project()
    attributes = {"project": inline_settings(config_file), "key_prefix": "llm"}
    add_component(sandbox, "one", attributes)
    instance.add_dynamic_partitions("llm/corpora", ["web"])

    with sandbox.build_all_defs() as definitions:
        job = definitions.resolve_job_def("llm__corpus")
        result = job.execute_in_process(instance=instance, partition_key="web")

    assert result.success
    assert (config_file.parent / "data" / "datasets" / "web" / "current").exists()


# Two projects in one code location


def test_two_projects_are_two_components(sandbox, make_project):
    upstream = {"web": {"deps": ["crm"]}}  # the same asset lands the text of both
    first_attributes = {
        "config": str(make_project("one")),
        "key_prefix": "one",
        "corpora": upstream,
    }
    second_attributes = {
        "project": inline_settings(make_project("two")),
        "key_prefix": ["team", "two"],
        "group_prefix": "t_",
        "corpora": upstream,
    }
    add_component(sandbox, "one", first_attributes)
    add_component(sandbox, "two", second_attributes)

    with sandbox.build_all_defs() as definitions:
        dg.Definitions.validate_loadable(definitions)
        assert asset_keys(definitions) >= {
            "one/raw_jsonl",
            "one/pretrain/blend",
            "team/two/raw_jsonl",
        }
        graph = definitions.resolve_asset_graph()
        blend = graph.get(dg.AssetKey(["team", "two", "pretrain", "blend"]))
        assert blend.group_name == "t_pretrain"
        assert graph.get(dg.AssetKey("crm")).is_external


def test_projects_that_name_the_same_pool_share_its_limit(sandbox, make_project):
    config = str(make_project())
    add_component(sandbox, "one", {"config": config, "key_prefix": "one", "pool": "machines"})
    add_component(sandbox, "two", {"config": config, "key_prefix": "two", "pool": "machines"})
    add_component(sandbox, "three", {"config": config, "key_prefix": "three"})

    with sandbox.build_all_defs() as definitions:
        graph = definitions.resolve_asset_graph()

    pools_by_project = {}
    for name in ("one", "two", "three"):
        shards = graph.get(dg.AssetKey([name, "tokenized_shards"]))
        pools_by_project[name] = shards.pools
    assert pools_by_project == {
        "one": {"machines"},
        "two": {"machines"},
        "three": {"three/workers"},
    }


# What attributes change of assets


@pytest.fixture(scope="module")
def definitions_with_attributes(tmp_path_factory, tokenizer_file) -> Iterator[dg.Definitions]:
    """The definitions of a project, with many attributes."""
    config_file = write_project(tmp_path_factory.mktemp("component") / "project", tokenizer_file)
    attributes = {
        "config": str(config_file),
        "key_prefix": "llm",
        "owners": ["team:data"],
        "tags": {"tier": "gold"},
        "corpora": {"web": {"deps": ["lake/dedup"]}, "code": {"deps": ["crm/export"]}},
        "run_tags": {"team": "data"},
        "op_tags": {"team": "machines"},
        "retries": 2,
    }
    with create_defs_folder_sandbox() as sandbox:
        add_component(sandbox, "one", attributes)
        with sandbox.build_all_defs() as definitions:
            yield definitions


@pytest.fixture
def raw_asset(definitions_with_attributes) -> Any:
    """The asset of raw text."""
    graph = definitions_with_attributes.resolve_asset_graph()
    return graph.get(dg.AssetKey(["llm", "raw_jsonl"]))


def test_owners_and_tags_are_added_to_the_assets(raw_asset):
    assert raw_asset.owners == ["team:data"]
    assert raw_asset.tags["tier"] == "gold"
    assert raw_asset.tags["nanoset/stage"] == "raw"


def test_assets_that_land_text_are_upstream_of_the_raw_text(definitions_with_attributes, raw_asset):
    dedup = dg.AssetKey(["lake", "dedup"])
    export = dg.AssetKey(["crm", "export"])

    graph = definitions_with_attributes.resolve_asset_graph()

    assert raw_asset.parent_keys == {dedup, export}
    assert graph.get(export).is_external


def test_a_sensor_watches_the_assets_that_land_text(definitions_with_attributes):
    sensors = definitions_with_attributes.get_repository_def().sensor_defs

    assert "llm__landed" in {sensor.name for sensor in sensors}


def test_run_tags_are_added_to_the_jobs(definitions_with_attributes):
    job = definitions_with_attributes.resolve_job_def("llm__corpus")

    assert job.run_tags["team"] == "data"


def test_op_tags_and_retries_are_added_to_the_ops_of_assets(definitions_with_attributes):
    job = definitions_with_attributes.resolve_job_def("llm__corpus")
    asset_ops = []
    for node in job.nodes:
        is_check = node.definition.name.endswith(("verified", "losses"))
        if not is_check:
            asset_ops.append(node.definition)

    assert asset_ops
    for op in asset_ops:
        assert op.tags["team"] == "machines"
        assert op.retry_policy.max_retries == 2


def test_attributes_may_be_texts_that_look_like_numbers(sandbox, make_project, monkeypatch):
    monkeypatch.setenv("PRIORITY", "3")
    monkeypatch.setenv("VERSION", "3.10")
    attributes = {
        "config": str(make_project()),
        "key_prefix": ["2026"],
        "tags": {"year": "2026", "version": "{{ env.VERSION }}"},
        "pool": "1",
        "run_tags": {"dagster/priority": "{{ env.PRIORITY }}"},
        "op_tags": {"cpus": "1,2"},
    }
    add_component(sandbox, "one", attributes)

    with sandbox.build_all_defs() as definitions:
        shards = definitions.resolve_asset_graph().get(dg.AssetKey(["2026", "tokenized_shards"]))
        job = definitions.resolve_job_def("2026__corpus")

    assert shards.tags["year"] == "2026"
    assert shards.tags["version"] == "3.10"
    assert shards.pools == {"1"}
    assert job.run_tags["dagster/priority"] == "3"
    assert job.get_node_named("2026__tokenized_shards").definition.tags["cpus"] == "1,2"


def test_post_processing_changes_the_assets_that_it_targets(sandbox, make_project):
    attributes = {"config": str(make_project()), "key_prefix": "llm"}
    change = {"target": "key:llm/pretrain/blend", "attributes": {"group_name": "mine"}}
    add_component(sandbox, "one", attributes, post_processing={"assets": [change]})

    with sandbox.build_all_defs() as definitions:
        graph = definitions.resolve_asset_graph()
        blend = graph.get(dg.AssetKey(["llm", "pretrain", "blend"]))
        raw = graph.get(dg.AssetKey(["llm", "raw_jsonl"]))

    assert blend.group_name == "mine"
    assert raw.group_name == "llm_corpora"


# Translation of asset specs


@pytest.fixture(scope="module")
def translated_definitions(tmp_path_factory, tokenizer_file) -> Iterator[dg.Definitions]:
    """The definitions of a project whose assets get another group, description and metadata."""
    config_file = write_project(tmp_path_factory.mktemp("component") / "project", tokenizer_file)
    attributes = {
        "config": str(config_file),
        "key_prefix": "llm",
        "automation": "host",
        "translation": {
            "group_name": "mine_{{ node.subject or 'all' }}",
            "description": "{{ spec.description }} Of ours.",
            "metadata": {"known_as": "{{ node.name }}"},
        },
    }
    with create_defs_folder_sandbox() as sandbox:
        add_component(sandbox, "one", attributes)
        with sandbox.build_all_defs() as definitions:
            yield definitions


@pytest.mark.parametrize(
    ("asset", "group"),
    [("pretrain/blend", "mine_pretrain"), ("raw_jsonl", "mine_all"), ("overview", "mine_all")],
)
def test_a_translation_knows_name_and_subject_of_each_asset(translated_definitions, asset, group):
    key = dg.AssetKey(["llm", *asset.split("/")])

    translated = translated_definitions.resolve_asset_graph().get(key)

    assert translated.group_name == group
    assert translated.metadata["known_as"] == asset


def test_a_translation_may_extend_the_description(translated_definitions):
    raw = translated_definitions.resolve_asset_graph().get(dg.AssetKey(["llm", "raw_jsonl"]))

    assert raw.description.endswith("edited. Of ours.")


def test_a_translation_keeps_what_it_does_not_mention(translated_definitions):
    graph = translated_definitions.resolve_asset_graph()

    assert graph.get(dg.AssetKey(["llm", "raw_jsonl"])).tags["nanoset/stage"] == "raw"
    assert graph.get(dg.AssetKey(["llm", "pretrain", "blend"])).automation_condition is not None


# Subclasses


def test_a_subclass_may_act_before_and_after_each_output(make_project, instance):
    calls = []

    class WatchingComponent(NanosetComponent):
        """Records when outputs are made."""

        def execute(self, run):
            calls.append(f"before {run.key.subject}")
            yield from super().execute(run)
            calls.append(f"after {run.manifest.name}")

    config_file = make_project()
    component = WatchingComponent(config=str(config_file))
    definitions = definitions_of(component.project_defs(config_file.parent))
    instance.add_dynamic_partitions("corpora", ["web"])

    result = definitions.resolve_job_def("corpus").execute_in_process(
        instance=instance,
        partition_key="web",
        asset_selection=[dg.AssetKey("raw_jsonl"), dg.AssetKey("tokenized_shards")],
    )

    assert result.success
    assert calls == ["before web", "after web", "before web", "after web"]


# Mistakes in a defs.yaml


@dataclass(frozen=True)
class Mistake:
    """A mistake in the attributes of a component."""

    message: str
    """Text of the error."""
    line: str | None
    """Start of the line that the error points to; None if it need not point to one."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Attributes of the component."""
    settings: dict[str, Any] | None = None
    """What replaces keys of valid inline settings; None: the component has no inline settings."""


def error_text(sandbox: Any) -> str:
    """Load the definitions, which must fail, and return the messages of the error and its causes."""
    with pytest.raises(Exception) as caught, sandbox.build_all_defs():
        pass
    messages = []
    error: BaseException | None = caught.value
    while error is not None:
        messages.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(messages)


def line_number(file: Path, start: str) -> int:
    """Return the number of the first line that starts with a text."""
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        if line.strip().startswith(start):
            return number
    raise ValueError(f"{file} has no such line: {start}")


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(
            Mistake(
                message="this key is not known",
                line="rawx: raw",
                settings={"rawx": "raw"},
            ),
            id="an unknown key",
        ),
        pytest.param(
            Mistake(
                message="packed: a corpus is named twice",
                line="packed:",
                settings={"packed": ["web", "web"]},
            ),
            id="a corpus twice",
        ),
        pytest.param(
            Mistake(
                message="workers",
                line="workers: two",
                settings={"tokenization": {"workers": "two"}},
            ),
            id="another type",
        ),
        pytest.param(
            Mistake(
                message="blend",
                line="blend:",
                settings={"nanosets": {"a": {"blend": {"web": 0.0}, "sequence_length": 8}}},
            ),
            id="a weight of zero",
        ),
        pytest.param(
            Mistake(
                message=EXACTLY_ONE_PROJECT,
                line="attributes:",
                attributes={"key_prefix": "llm"},
            ),
            id="no project",
        ),
        pytest.param(
            Mistake(
                message=EXACTLY_ONE_PROJECT,
                line="project:",
                attributes={"config": "nanoset.yaml"},
                settings={},
            ),
            id="two projects",
        ),
        pytest.param(
            Mistake(
                message="no such configuration",
                line="config",
                attributes={"key_prefix": "a", "config": "nowhere.yaml"},
            ),
            id="a missing file",
        ),
        pytest.param(
            Mistake(
                message="Input should be 'own', 'host' or 'none'",
                line="automation",
                attributes={"automation": "eager"},
                settings={},
            ),
            id="an unknown kind of automation",
        ),
        pytest.param(
            Mistake(
                message="a translation may not give an asset another key",
                line=None,
                attributes={"translation": {"key_prefix": ["other"]}},
                settings={},
            ),
            id="a translation of keys",
        ),
        pytest.param(
            Mistake(
                message="is no valid part of a key prefix",
                line="key_prefix",
                attributes={"key_prefix": ["a b"]},
                settings={},
            ),
            id="an invalid key prefix",
        ),
    ],
)
def test_the_error_of_a_mistake_points_to_its_line(sandbox, make_project, mistake):
    attributes = dict(mistake.attributes)
    if mistake.settings is not None:
        attributes["project"] = inline_settings(make_project()) | mistake.settings
    defs_file = add_component(sandbox, "one", attributes)

    error = error_text(sandbox)

    assert mistake.message in error
    if mistake.line is not None:
        assert f"defs.yaml:{line_number(defs_file, mistake.line)}" in error


@pytest.mark.parametrize("has_projects", [False, True], ids=["no project", "two projects"])
def test_a_component_that_is_made_in_python_needs_exactly_one_project(
    make_project, tmp_path, has_projects
):
    attributes: dict[str, Any] = {"key_prefix": "llm"}
    if has_projects:
        attributes["config"] = "nanoset.yaml"
        attributes["project"] = inline_settings(make_project())
    component = NanosetComponent(**attributes)

    with pytest.raises(ConfigError, match=EXACTLY_ONE_PROJECT):
        component.project_defs(tmp_path)


# The scaffold


def scaffold_component(sandbox: Any, name: str, params: dict[str, Any] | None = None) -> Any:
    """Scaffold a component as `dg scaffold defs` does, and return the attributes that it wrote."""
    folder = sandbox.scaffold_component(NanosetComponent, defs_path=name, scaffold_params=params)
    return yaml.safe_load((folder / "defs.yaml").read_text())["attributes"]


def test_the_scaffold_writes_a_new_project_next_to_the_definitions(sandbox):
    attributes = scaffold_component(sandbox, "llm")

    config = load_config(sandbox.project_root / "llm" / "nanoset.yaml")
    assert attributes == {"config": "{{ context.project_root }}/llm/nanoset.yaml"}
    assert config.raw_folder == sandbox.project_root.resolve() / "llm" / "raw"
    assert config.dagster.key_prefix == ("llm",)


def test_several_scaffolded_components_load_together(sandbox):
    scaffold_component(sandbox, "llm")
    scaffold_component(sandbox, "code")

    with sandbox.build_all_defs() as definitions:
        assert {"llm/raw_jsonl", "code/raw_jsonl"} <= asset_keys(definitions)


def test_the_scaffold_gives_an_existing_project_the_requested_prefix(sandbox, make_project):
    params = {"config": str(make_project()), "key_prefix": "team/llm"}

    attributes = scaffold_component(sandbox, "llm", params)

    assert attributes.keys() == {"config", "key_prefix"}
    assert attributes["key_prefix"] == ["team", "llm"]
    with sandbox.build_all_defs() as definitions:
        assert "team/llm/pretrain/blend" in asset_keys(definitions)


def test_the_scaffold_keeps_the_prefix_of_an_existing_project(sandbox, make_project):
    config_file = make_project()
    with config_file.open("a") as file:
        file.write("dagster: {key_prefix: [mine]}\n")

    attributes = scaffold_component(sandbox, "llm", {"config": str(config_file)})

    assert attributes.keys() == {"config"}
    with sandbox.build_all_defs() as definitions:
        assert "mine/pretrain/blend" in asset_keys(definitions)


def test_a_scaffold_in_a_folder_whose_name_is_no_prefix_is_refused(sandbox):
    with pytest.raises(click.ClickException, match="is no valid part of a key prefix"):
        scaffold_component(sandbox, "my.llm")


def test_a_scaffold_can_be_repeated_after_a_mistake(sandbox, make_project):
    with pytest.raises(click.ClickException, match="no such configuration") as caught:
        scaffold_component(sandbox, "llm", {"config": "nowhere/nanoset.yaml"})

    assert "remedy: correct the path" in caught.value.message
    assert not (sandbox.defs_folder_path / "llm").exists()
    assert scaffold_component(sandbox, "llm", {"config": str(make_project())})


# How Dagster's tools list the component and its assets


def test_dagster_finds_the_component():
    objects = discover_package_objects(["nanoset_assets"])

    assert EnvRegistryKey("nanoset_assets", "NanosetComponent") in objects
    assert "NanosetComponent" in dir(nanoset_assets)


def test_the_schema_of_the_attributes_describes_each_of_them():
    schema = NanosetComponent.get_model_cls().model_json_schema()

    json.dumps(schema)  # it can be written as JSON
    assert schema["properties"]["automation"]["enum"] == ["own", "host", "none"]
    for name, properties in schema["properties"].items():
        assert properties["description"].endswith("."), name


def test_lists_show_the_first_paragraph_of_every_description_in_full(make_project):
    graph = build_definitions(load_config(make_project())).resolve_asset_graph()
    descriptions = [graph.get(key).description for key in graph.get_all_asset_keys()]
    descriptions += [graph.get_check_spec(key).description for key in graph.asset_check_keys]

    for description in descriptions:
        first_paragraph = description.partition("\n\n")[0]
        assert len(first_paragraph) <= LISTED_CHARACTERS, first_paragraph


def test_importing_the_command_does_not_import_dagster():
    code = "import sys, nanoset_assets, nanoset_core.cli; sys.exit('dagster' in sys.modules)"

    process = subprocess.run([sys.executable, "-c", code], check=False)

    assert process.returncode == 0
