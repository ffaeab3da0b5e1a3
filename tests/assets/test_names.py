"""The names of a project in Dagster, and how it shares a code location with a host.

A host is a code location of another team, which adds the definitions of projects to its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.sample_project import CONFIG, jsonl, sentences, write_project
from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names, names_of
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.tags import CHECK
from nanoset_core import ProjectConfig, load_config
from nanoset_core.errors import ConfigError
from nanoset_core.project.run_settings import DagsterSpec
from nanoset_core.stages.report import Report

SPLITS = {"train", "valid", "test"}


@pytest.fixture(scope="module")
def config(tmp_path_factory, tokenizer_file) -> ProjectConfig:
    """The settings of a project that is not built. Tests that share it only read."""
    return load_config(write_project(tmp_path_factory.mktemp("names") / "project", tokenizer_file))


def with_prefix_in_settings(config: ProjectConfig, key_prefix: tuple[str, ...]) -> ProjectConfig:
    """Return settings in which nanoset.yaml gives the key prefix."""
    changed = replace(config, dagster=DagsterSpec(key_prefix))
    object.__setattr__(changed, "file", config.file)  # `replace` leaves it out
    return changed


def names_by_kind(definitions: dg.Definitions) -> dict[str, set[str]]:
    """Return the names of everything in a code location, by kind."""
    repository = definitions.get_repository_def()
    graph = definitions.resolve_asset_graph()
    groups: set[str] = set()
    pools: set[str] = set()
    partitions: set[str] = set()
    for key in graph.get_all_asset_keys():
        asset = graph.get(key)
        groups.add(asset.group_name)
        pools.update(asset.pools)
        partitions_name = getattr(asset.partitions_def, "name", None)
        if partitions_name is not None:
            partitions.add(partitions_name)

    return {
        "assets": {key.to_user_string() for key in graph.get_all_asset_keys()},
        "groups": groups,
        "partitions": partitions,
        "pools": pools,
        "jobs": {job.name for job in repository.get_all_jobs()} - {"__ASSET_JOB"},
        "sensors": {sensor.name for sensor in repository.sensor_defs},
        "schedules": {schedule.name for schedule in repository.schedule_defs},
        "resources": set(definitions.resources or {}),
    }


# Prefixes of names


def test_a_nanoset_may_be_called_like_the_job_that_explains_steps(make_project):
    config = load_config(make_project(replacements={"  plain:": "  explain-step:"}))

    assert "explain_step" in names_by_kind(build_definitions(config))["jobs"]


@pytest.mark.parametrize(
    ("prefix", "other_prefix"),
    [
        pytest.param(None, "llm", id="no prefix and one part"),
        pytest.param(None, ["team", "llm"], id="no prefix and two parts"),
        pytest.param("llm", ["team", "llm"], id="one part and two parts"),
    ],
)
def test_projects_with_different_prefixes_share_no_name(config, prefix, other_prefix):
    names = names_by_kind(build_definitions(config, key_prefix=prefix))
    other_names = names_by_kind(build_definitions(config, key_prefix=other_prefix))

    for kind in names:
        assert names[kind].isdisjoint(other_names[kind]), kind


def test_the_keys_of_all_assets_start_with_the_prefix(config):
    names = names_by_kind(build_definitions(config, key_prefix=["team", "llm"]))

    assert all(key.startswith("team/llm/") for key in names["assets"])


def test_groups_start_with_the_key_prefix_by_default(config):
    names = names_by_kind(build_definitions(config, key_prefix="llm"))

    assert "llm_pretrain" in names["groups"]


def test_groups_may_have_a_prefix_of_their_own(config):
    definitions = build_definitions(config, key_prefix="llm", group_prefix="x_")

    groups = names_by_kind(definitions)["groups"]

    assert groups == {"x_corpora", "x_pretrain", "x_plain", "x_shuffled"}


def test_nanoset_yaml_may_give_the_prefix(config):
    prefixed_config = with_prefix_in_settings(config, ("llm",))

    names = names_by_kind(build_definitions(prefixed_config))

    assert names == names_by_kind(build_definitions(config, key_prefix="llm"))


def test_the_host_may_repeat_the_prefix_of_nanoset_yaml(config):
    prefixed_config = with_prefix_in_settings(config, ("llm",))

    assert ProjectDefs.of(prefixed_config, "llm").names == Names(("llm",))


def test_a_prefix_that_contradicts_nanoset_yaml_is_refused(config):
    prefixed_config = with_prefix_in_settings(config, ("llm",))

    message = r"another key prefix already\n  found: llm\n  expected: other"
    with pytest.raises(ConfigError, match=message):
        build_definitions(prefixed_config, key_prefix="other")


@pytest.mark.parametrize(
    "prefix", ["a b", "a-b", "a__b", "_a", "a.b", "/a", "a//b", ["é"], ["a/b"], ["", "a"]]
)
def test_a_prefix_that_is_not_valid_in_names_is_refused(prefix):
    with pytest.raises(ConfigError, match="is no valid part of a key prefix"):
        names_of(prefix, None)


def test_a_prefix_that_is_too_long_for_tags_is_refused():
    with pytest.raises(ConfigError, match="this key prefix is too long"):
        names_of("x" * 41, None)


def test_tags_with_the_longest_prefix_are_valid():
    tag = names_of("x" * 40, None).tag(".dagster/nanoset_raw_text")

    # Dagster allows 63 characters after the namespace.
    assert len(tag.partition("/")[2]) <= 63


# Projects in the code location of a host


@dg.asset(automation_condition=dg.AutomationCondition.eager())
def host_asset() -> None:
    """An asset that the host builds automatically."""


@dg.asset
def raw_jsonl() -> None:
    """An asset of the host with the name of an asset of a project."""


@dg.job
def corpus() -> None:
    """A job of the host with the name of a job of a project."""


HOSTS_WITHOUT_OUR_NAMES = {
    "nothing": dg.Definitions(),
    "an asset": dg.Definitions(assets=[host_asset]),
    "an executor": dg.Definitions(assets=[host_asset], executor=dg.multiprocess_executor),
    "resources": dg.Definitions(assets=[host_asset], resources={"project": 1, "s3": 2}),
    "a sensor over everything": dg.Definitions(
        assets=[host_asset],
        sensors=[
            dg.AutomationConditionSensorDefinition("everything", target=dg.AssetSelection.all())
        ],
    ),
}
"""What a host may have of its own."""
HOSTS = {
    **HOSTS_WITHOUT_OUR_NAMES,
    "our names": dg.Definitions(assets=[raw_jsonl], jobs=[corpus]),
}


@pytest.fixture(scope="module", params=["own", "host", "none"])
def automation(request) -> str:
    """What builds missing and stale outputs of a project."""
    return request.param


@pytest.fixture(scope="module")
def projects(automation, tmp_path_factory, tokenizer_file) -> list[dg.Definitions]:
    """The definitions of three projects with different prefixes and equal corpora."""
    folder = tmp_path_factory.mktemp("projects")
    definitions = []
    for name in ("one", "two", "three"):
        config = load_config(write_project(folder / name, tokenizer_file))
        definitions.append(build_definitions(config, key_prefix=name, automation=automation))
    return definitions


def merged_asset_keys(*definitions: dg.Definitions) -> set[str]:
    """Merge definitions to those of one code location, and return the keys of its assets."""
    merged = dg.Definitions.merge(*definitions)
    dg.Definitions.validate_loadable(merged)
    return {key.to_user_string() for key in merged.resolve_all_asset_keys()}


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_projects_with_prefixes_load_next_to_the_definitions_of_a_host(host, projects):
    keys = merged_asset_keys(host, *projects)

    assert {"one/raw_jsonl", "two/raw_jsonl", "three/raw_jsonl"} <= keys


@pytest.mark.parametrize("host", HOSTS_WITHOUT_OUR_NAMES.values(), ids=HOSTS_WITHOUT_OUR_NAMES)
def test_a_project_without_prefix_loads_next_to_others(host, projects, automation, config):
    unprefixed = build_definitions(config, automation=automation)

    keys = merged_asset_keys(host, unprefixed, *projects)

    assert {"raw_jsonl", "one/raw_jsonl"} <= keys


# Who builds missing and stale outputs


def assets_with_conditions(definitions: dg.Definitions) -> set[str]:
    """Return the keys of the assets that have an automation condition."""
    graph = definitions.resolve_asset_graph()
    keys = set()
    for key in graph.get_all_asset_keys():
        if graph.get(key).automation_condition:
            keys.add(key.to_user_string())
    return keys


def sensors_and_schedules(definitions: dg.Definitions) -> set[str]:
    """Return the names of all sensors and schedules."""
    repository = definitions.get_repository_def()
    return {unit.name for unit in [*repository.sensor_defs, *repository.schedule_defs]}


def test_a_project_builds_its_outputs_by_its_own_sensors(config):
    definitions = build_definitions(config, automation="own")

    assert assets_with_conditions(definitions) == set()
    assert sensors_and_schedules(definitions) == {
        "overview",
        "raw_text",
        "missing_or_stale",
        "reconcile",
    }


def test_a_host_builds_outputs_by_the_conditions_of_the_assets(config):
    definitions = build_definitions(config, automation="host")

    keys = assets_with_conditions(definitions)
    assert {"tokenized_shards", "pretrain/blend", "shuffled/manifest"} <= keys
    assert "raw_jsonl" not in keys  # the sensor over raw text requests it
    assert sensors_and_schedules(definitions) == {
        "overview",
        "raw_text",
        "default_automation_condition_sensor",
    }


def test_nothing_builds_the_outputs_of_a_project_without_automation(config):
    definitions = build_definitions(config, automation="none")

    assert assets_with_conditions(definitions) == set()
    assert sensors_and_schedules(definitions) == {"overview"}


@pytest.mark.parametrize("value", ["Host", None, True])
def test_other_values_of_automation_are_refused(config, value):
    with pytest.raises(ConfigError, match="expected: one of 'own', 'host', 'none'"):
        build_definitions(config, automation=value)


# A host that evaluates the conditions of a project's assets


NANOSETS = CONFIG[CONFIG.index("nanosets:") : CONFIG.index("webdatasets:")]
WEBDATASETS = CONFIG[CONFIG.index("webdatasets:") :]
# An evaluation of the conditions of all nanosets and webdatasets takes about a second.
ONE_NANOSET = {
    NANOSETS[NANOSETS.index("  pretrain:") : NANOSETS.index("  plain:")]: "",
    "blend: books": "blend: web",
    WEBDATASETS: "",
}
"""Replacements in CONFIG that leave a nanoset of one corpus."""
ONE_WEBDATASET = {NANOSETS: "", "corpora: [web, code, books]": "corpora: [web]"}
"""Replacements in CONFIG that leave a webdataset of one corpus."""


class HostAutomation:
    """The automation-condition sensor of a host over a project."""

    def __init__(self, config_file: Path, instance: dg.DagsterInstance) -> None:
        """Evaluate all conditions once, so that the sensor notices what is made later."""
        self.config = load_config(config_file)
        self.definitions = build_definitions(self.config, automation="host")
        self.instance = instance
        self.cursor: Any = None
        self.evaluate()

    def evaluate(self) -> dg.EvaluateAutomationConditionsResult:
        """Evaluate all conditions once."""
        evaluation = dg.evaluate_automation_conditions(
            self.definitions,
            self.instance,
            asset_selection=dg.AssetSelection.all(),
            cursor=self.cursor,
        )
        self.cursor = evaluation.cursor
        return evaluation

    def requested_assets(self) -> set[str]:
        """Evaluate all conditions once, and return the assets that are requested."""
        keys = set()
        for result in self.evaluate().results:
            if not result.true_subset.is_empty:
                keys.add(result.key.to_user_string())
        return keys

    def requested_partitions(self, *path: str) -> set[str | None]:
        """Evaluate all conditions once, and return the requested partitions of an asset."""
        return self.evaluate().get_requested_partitions(dg.AssetKey(path))

    def register(self, *corpora: str) -> None:
        """Add corpora to the partitions."""
        self.instance.add_dynamic_partitions("corpora", list(corpora))

    def build_corpus(self, corpus: str, *, raises: bool = True) -> dg.ExecuteInProcessResult:
        """Run the job that builds a corpus."""
        return self.definitions.resolve_job_def("corpus").execute_in_process(
            instance=self.instance, partition_key=corpus, raise_on_error=raises
        )

    def append_text(self, corpus: str) -> None:
        """Write one more file of a corpus."""
        file = self.config.raw_folder / corpus / "more.jsonl"
        file.write_bytes(jsonl(sentences("more", 40)))

    def build_plan(self) -> None:
        """Run the job of the webdataset for its plan alone."""
        job = self.definitions.resolve_job_def("shuffled")
        plan = dg.AssetKey(["shuffled", "shuffle_plan"])
        result = job.execute_in_process(instance=self.instance, asset_selection=[plan])
        assert result.success

    def build_corpora(self, *corpora: str) -> None:
        """Register corpora and build them."""
        self.register(*corpora)
        for corpus in corpora:
            assert self.build_corpus(corpus).success


@pytest.fixture
def host(make_project, instance) -> HostAutomation:
    """The automation of a host over a project of one nanoset, which is not built."""
    return HostAutomation(make_project(replacements=ONE_NANOSET), instance)


def test_conditions_request_what_is_made_of_a_new_dataset(host):
    host.register("web")
    host.evaluate()

    assert host.build_corpus("web").success

    assert host.requested_partitions("plain", "index_mappings") == SPLITS


def test_conditions_do_not_request_tars_before_their_plan_is_made_again(make_project, instance):
    host = HostAutomation(make_project(replacements=ONE_WEBDATASET), instance)
    host.build_corpora("web")
    host.build_plan()
    host.evaluate()
    # A change in the evaluation right after a request does not count: Dagster sees both at once.
    host.evaluate()

    host.append_text("web")
    host.build_corpora("web")
    requested_first = host.requested_assets()
    host.build_plan()
    requested_next = host.requested_partitions("shuffled", "tars")

    assert "shuffled/shuffle_plan" in requested_first
    assert "shuffled/tars" not in requested_first
    assert requested_next == {"0", "1", "2"}


def test_conditions_request_nothing_of_a_dataset_that_does_not_pass_its_check(host, monkeypatch):
    report = Report("datasets/web")
    report.error("it is not right")
    monkeypatch.setattr(
        "nanoset_core.stages.dataset.stage.DatasetStage.verify", lambda *_, **__: report
    )
    host.register("web")
    host.evaluate()

    assert not host.build_corpus("web", raises=False).success

    assert host.requested_partitions("plain", "index_mappings") == set()


def test_conditions_wait_for_the_check_of_a_dataset(host, call_during_checks):
    host.register("web")
    host.evaluate()
    requested_meanwhile = []

    call_during_checks(
        lambda: requested_meanwhile.append(host.requested_partitions("plain", "index_mappings"))
    )
    assert host.build_corpus("web").success

    assert requested_meanwhile == [set()]
    assert host.requested_partitions("plain", "index_mappings") == SPLITS


def test_conditions_request_what_is_made_of_a_dataset_that_two_runs_have_built(host, monkeypatch):
    """Dagster then assigns the check of the latest dataset to the run that was planned last."""
    host.register("web")
    host.evaluate()
    results = AssetRun.results
    later_runs = []

    def results_after_a_later_run(run: AssetRun) -> Iterator[dg.MaterializeResult[Any]]:
        """Make an output, but let another run, which was planned later, build the corpus before."""
        if not later_runs:
            later_runs.append(run)
            assert host.build_corpus("web").success
        yield from results(run)

    monkeypatch.setattr(AssetRun, "results", results_after_a_later_run)
    assert host.build_corpus("web").success

    assert host.requested_partitions("plain", "index_mappings") == SPLITS


def test_conditions_request_nothing_after_a_run_that_made_the_same_bytes(host):
    host.build_corpora("web")
    assert "plain/index_mappings" in host.requested_assets()
    assert host.requested_assets() == set()

    host.build_corpora("web")

    assert host.requested_assets() == set()


def test_a_rejected_line_is_a_warning_that_does_not_stop_conditions(make_project, instance):
    config_file = make_project(replacements=ONE_NANOSET)
    with (config_file.parent / "raw/web/part-0/web-0.jsonl").open("ab") as file:
        file.write(b'{"text": "cut o')
    host = HostAutomation(config_file, instance)
    host.register("web")
    host.evaluate()

    result = host.build_corpus("web")

    # Only the check of losses warns; the verification of the dataset passes, and mentions them.
    evaluations = {}
    failed_checks = set()
    for evaluation in result.get_asset_check_evaluations():
        name = (evaluation.asset_key.to_user_string(), evaluation.check_name)
        evaluations[name] = evaluation
        if not evaluation.passed:
            failed_checks.add(name)
    assert failed_checks == {("tokenized_shards", "losses")}
    losses = evaluations["tokenized_shards", "losses"]
    assert losses.severity == dg.AssetCheckSeverity.WARN
    assert not losses.blocking
    assert "web-0.jsonl" in losses.description
    assert "rejected" in evaluations["indexed_dataset", CHECK].description

    # What is made of the dataset follows.
    assert "plain/index_mappings" in host.requested_assets()


def test_conditions_request_only_existing_partitions_of_an_asset(make_project, instance):
    replacements = {NANOSETS: "pbin: [code]\n", WEBDATASETS: ""}
    config_file = make_project(replacements=replacements)
    instance.add_dynamic_partitions("packed_dataset", ["code"])
    host = HostAutomation(config_file, instance)

    host.build_corpora("web", "code")

    assert host.requested_partitions("packed_dataset") == {"code"}
