"""What everything of a project is called in Dagster, and what stands beside it: a host, and its
conditions.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import dagster as dg
import pytest

from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names, names_of
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.tags import CHECK
from nanoset_core import load_config
from nanoset_core.errors import ConfigError
from nanoset_core.project.running import DagsterSpec
from nanoset_core.stages.report import Report


@pytest.fixture
def config(make_project):
    return load_config(make_project())


def everything(definitions: dg.Definitions) -> dict[str, set[str]]:
    """Kind → names of all that a code location holds."""
    repository = definitions.get_repository_def()
    graph = definitions.resolve_asset_graph()
    nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
    return {
        "assets": {key.to_user_string() for key in graph.get_all_asset_keys()},
        "groups": {node.group_name for node in nodes},
        "partitions": {
            node.partitions_def.name for node in nodes if hasattr(node.partitions_def, "name")
        }
        - {None},
        "pools": {pool for node in nodes for pool in node.pools},
        "jobs": {job.name for job in repository.get_all_jobs()} - {"__ASSET_JOB"},
        "sensors": {sensor.name for sensor in repository.sensor_defs},
        "schedules": {schedule.name for schedule in repository.schedule_defs},
        "resources": set(definitions.resources or {}),
    }


def test_a_nanoset_may_have_the_name_of_the_job_for_steps(make_project):
    config = load_config(make_project(replacements={"  plain:": "  explain-step:"}))
    assert "explain_step" in everything(build_definitions(config))["jobs"]


def test_with_a_prefix_no_name_is_shared(config):
    plain, llm, team = (
        everything(build_definitions(config, key_prefix=prefix))
        for prefix in (None, "llm", ["team", "llm"])
    )
    for one, other in ((plain, llm), (plain, team), (llm, team)):
        assert not {kind: one[kind] & other[kind] for kind in one if one[kind] & other[kind]}
    assert all(key.startswith("team/llm/") for key in team["assets"])
    assert "llm_pretrain" in llm["groups"]
    assert everything(build_definitions(config, key_prefix="llm", group_prefix="x_"))["groups"] == {
        "x_corpora",
        "x_pretrain",
        "x_plain",
        "x_shuffled",
    }


def test_nanoset_yaml_may_give_the_prefix(config):
    named = replace_dagster(config, DagsterSpec(("llm",)))
    assert everything(build_definitions(named)) == everything(
        build_definitions(config, key_prefix="llm")
    )
    assert ProjectDefs.of(named, "llm").names == Names(("llm",))
    with pytest.raises(
        ConfigError, match=r"another key prefix already\n  found: llm\n  expected: other"
    ):
        build_definitions(named, key_prefix="other")


def replace_dagster(config, spec):
    named = replace(config, dagster=spec)
    object.__setattr__(named, "file", config.file)
    return named


@pytest.mark.parametrize(
    "prefix", ["a b", "a-b", "a__b", "_a", "a.b", "/a", "a//b", ["é"], ["a/b"], ["", "a"]]
)
def test_a_prefix_that_can_be_no_name_is_refused(prefix):
    with pytest.raises(ConfigError, match="is no valid part of a key prefix"):
        names_of(prefix, None)


def test_a_prefix_that_no_tag_could_hold_is_refused():
    with pytest.raises(ConfigError, match="this key prefix is too long"):
        names_of("x" * 41, None)
    tag = names_of("x" * 40, None).tag(".dagster/nanoset_raw_text")
    assert len(tag.partition("/")[2]) <= 63


def merged(host: dg.Definitions, *ours: dg.Definitions) -> list[str]:
    definitions = dg.Definitions.merge(host, *ours)
    dg.Definitions.validate_loadable(definitions)
    return [key.to_user_string() for key in definitions.resolve_all_asset_keys()]


@dg.asset(automation_condition=dg.AutomationCondition.eager())
def theirs() -> None: ...


@dg.asset
def raw_jsonl() -> None: ...


@dg.job
def corpus() -> None: ...


def over_everything() -> dg.Definitions:
    sensor = dg.AutomationConditionSensorDefinition("everything", target=dg.AssetSelection.all())
    return dg.Definitions(assets=[theirs], sensors=[sensor])


@pytest.mark.parametrize(
    "host",
    [
        dg.Definitions(),
        dg.Definitions(assets=[theirs]),
        dg.Definitions(assets=[theirs], executor=dg.multiprocess_executor),
        dg.Definitions(assets=[theirs], resources={"project": 1, "s3": 2}),
        dg.Definitions(assets=[raw_jsonl], jobs=[corpus]),
        over_everything(),
    ],
    ids=[
        "nothing",
        "an asset",
        "an executor",
        "resources",
        "our names",
        "a sensor over everything",
    ],
)
@pytest.mark.parametrize("automation", ["own", "host", "none"])
def test_whatever_a_host_has_projects_of_equal_corpora_load_beside_it(
    make_project, host, automation
):
    projects = [
        build_definitions(load_config(make_project(name)), key_prefix=name, automation=automation)
        for name in ("one", "two", "three")
    ]
    found = merged(host, *projects)
    assert {"one/raw_jsonl", "two/raw_jsonl", "three/raw_jsonl"} <= set(found)
    if "raw_jsonl" not in found:
        unprefixed = build_definitions(load_config(make_project("other")), automation=automation)
        assert {"raw_jsonl", "one/raw_jsonl"} <= set(merged(host, unprefixed, *projects))


def test_whose_automation_builds_ours(config):
    def conditions(automation):
        graph = build_definitions(config, automation=automation).resolve_asset_graph()
        return {
            key.to_user_string()
            for key in graph.get_all_asset_keys()
            if graph.get(key).automation_condition
        }

    def units(automation):
        repository = build_definitions(config, automation=automation).get_repository_def()
        return {unit.name for unit in (*repository.sensor_defs, *repository.schedule_defs)}

    assert conditions("own") == conditions("none") == set()
    assert "raw_jsonl" not in conditions("host")
    assert {"tokenized_shards", "pretrain/blend", "shuffled/manifest"} <= conditions("host")
    assert units("own") == {"overview", "raw_text", "missing_or_stale", "reconcile"}
    assert units("host") == {"overview", "raw_text", "default_automation_condition_sensor"}
    assert units("none") == {"overview"}


@pytest.mark.parametrize("passed", [True, False])
def test_a_hosts_automation_builds_nothing_on_what_a_check_found_faulty(
    config, tmp_path, monkeypatch, passed
):
    if not passed:
        faulty = Report("datasets/books")
        faulty.error("it is not right")
        verify = "nanoset_core.stages.dataset.stage.DatasetStage.verify"
        monkeypatch.setattr(verify, lambda *_, **__: faulty)
    definitions = build_definitions(config, automation="host")
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        instance.add_dynamic_partitions("corpora", ["web", "code", "books"])
        cursor = dg.evaluate_automation_conditions(definitions, instance).cursor
        job = definitions.resolve_job_def("corpus")
        run = job.execute_in_process(instance=instance, partition_key="books", raise_on_error=False)
        assert run.success == passed
        evaluated = dg.evaluate_automation_conditions(definitions, instance, cursor=cursor)
        asked = evaluated.get_requested_partitions(dg.AssetKey(["plain", "index_mappings"]))
        assert asked == ({"train", "valid", "test"} if passed else set())


class Conditions:
    """A host's automation-condition sensor over a project."""

    def __init__(self, config_file, instance):
        self.definitions = build_definitions(load_config(config_file), automation="host")
        self.instance, self.cursor = instance, None

    def asked(self):
        """Evaluate all conditions once; → assets that are asked for."""
        found = dg.evaluate_automation_conditions(
            self.definitions,
            self.instance,
            asset_selection=dg.AssetSelection.all(),
            cursor=self.cursor,
        )
        self.cursor = found.cursor
        return {
            result.key.to_user_string()
            for result in found.results
            if not result.true_subset.is_empty
        }

    def build_corpora(self, *corpora):
        self.instance.add_dynamic_partitions("corpora", list(corpora))
        for corpus in corpora:
            job = self.definitions.resolve_job_def("corpus")
            done = job.execute_in_process(instance=self.instance, partition_key=corpus)
            assert done.success
        return done


def test_a_rejected_line_is_a_warning_through_which_everything_follows(make_project, instance):
    config = make_project()
    with (config.parent / "raw/web/part-0/web-0.jsonl").open("ab") as lines:
        lines.write(b'{"text": "cut o')
    host = Conditions(config, instance)
    host.asked()
    done = host.build_corpora("books", "code", "web")
    checks = {
        (found.asset_key.to_user_string(), found.check_name): found
        for found in done.get_asset_check_evaluations()
    }
    assert {key for key, found in checks.items() if not found.passed} == {
        ("tokenized_shards", "losses")
    }
    lost = checks["tokenized_shards", "losses"]
    assert (lost.severity, lost.blocking) == (dg.AssetCheckSeverity.WARN, False)
    assert "web-0.jsonl" in lost.description
    assert "rejected" in checks["indexed_dataset", CHECK].description
    assert "pretrain/index_mappings" in host.asked()


def test_what_was_made_again_with_the_same_bytes_asks_for_nothing(make_project, instance):
    host = Conditions(make_project(), instance)
    host.asked()
    host.build_corpora("books", "code", "web")
    assert "pretrain/index_mappings" in host.asked()
    assert host.asked() == set()
    host.build_corpora("web")
    assert host.asked() == set()


def test_a_hosts_automation_makes_only_partitions_of_a_set_of_its_own(make_project, instance):
    file = make_project()
    file.write_text(file.read_text() + "pbin: [code]\n")
    host = Conditions(file, instance)
    instance.add_dynamic_partitions("packed_dataset", ["code"])
    host.asked()
    host.build_corpora("web", "code")
    evaluated = dg.evaluate_automation_conditions(
        host.definitions, instance, asset_selection=dg.AssetSelection.all(), cursor=host.cursor
    )
    assert evaluated.get_requested_partitions(dg.AssetKey("packed_dataset")) == {"code"}
