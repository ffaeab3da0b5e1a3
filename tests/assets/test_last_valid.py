"""A mistake in nanoset.yaml stops the steps of its project, and neither other assets nor the code
location.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox

from helpers.sample_platform import age
from helpers.sample_project import jsonl, sentences
from nanoset_assets import NanosetComponent, build_definitions
from nanoset_assets.overview import OVERVIEW
from nanoset_core.errors import ConfigError, MissingError, NanosetError
from nanoset_core.project.settings import load_config

REPOSITORY = Path(__file__).parents[2]
BLEND = dg.AssetKey(["pretrain", "blend"])
VALIDATION = "DAGSTER_IS_DEFS_VALIDATION_CLI"
pytestmark = [  # of what Dagster itself uses
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
    pytest.mark.filterwarnings("ignore::dagster.SupersessionWarning"),
]


def cut_off(file):
    file.write_bytes(file.read_bytes()[:200])


def make_unreadable(file):
    file.unlink()
    file.mkdir()


MISTAKES = {
    "an unknown key": lambda file: file.write_text(file.read_text() + "pakced: [web]\n"),
    "no YAML": lambda file: file.write_text(file.read_text() + "nanosets: [\n"),
    "no UTF-8": lambda file: file.write_bytes(file.read_bytes() + b"\xff"),
    "half-written": cut_off,
    "empty": lambda file: file.write_text(""),
    "deleted": lambda file: file.unlink(),
    "unreadable": make_unreadable,
    "a cron line that only definitions check": lambda file: file.write_text(
        file.read_text() + 'automation: {reconcile: "0 0 31 2 *"}\n'
    ),
    "a key prefix that is none": lambda file: file.write_text(
        file.read_text() + "dagster: {key_prefix: [a b]}\n"
    ),
}


@pytest.fixture
def file(make_project, monkeypatch):
    """A nanoset.yaml that was never loaded."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.delenv(VALIDATION, raising=False)
    return make_project()


def asset_keys(definitions: dg.Definitions) -> set[dg.AssetKey]:
    return set(definitions.resolve_all_asset_keys())


@pytest.mark.parametrize("mistake", MISTAKES)
def test_definitions_are_those_of_the_last_file_that_loaded(file, mistake, caplog):
    before = asset_keys(build_definitions(file))
    MISTAKES[mistake](file)
    with caplog.at_level(logging.WARNING):
        assert asset_keys(build_definitions(file)) == before
    assert f"{file} is not loaded" in caplog.text


def test_a_mistake_that_is_corrected_is_forgotten(file):
    build_definitions(file)
    text = file.read_text()
    file.write_text("")
    build_definitions(file)
    file.write_text(text.replace("pretrain:", "other:"))
    assert BLEND not in asset_keys(build_definitions(file))
    file.write_text("")
    assert BLEND not in asset_keys(build_definitions(file)), "the copy follows the file"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_first_load_of_a_file_with_a_mistake_fails(file, mistake):
    MISTAKES[mistake](file)
    with pytest.raises(NanosetError):
        build_definitions(file)


def test_dg_check_defs_reports_the_mistake(file, monkeypatch):
    build_definitions(file)
    file.write_text("")
    monkeypatch.setenv(VALIDATION, "1")
    with pytest.raises(ConfigError, match="the configuration is empty"):
        build_definitions(file)


def test_a_configuration_that_the_host_loads_itself_is_taken_as_it_is(file):
    assert BLEND in asset_keys(build_definitions(load_config(file)))
    assert not (file.parent / ".nanoset").exists()


def test_a_copy_that_no_longer_loads_is_not_used(file):
    build_definitions(file)
    (copy,) = (file.parent / ".nanoset" / "last_valid").glob("*.yaml")
    copy.write_text("raw: [")
    file.unlink()
    with pytest.raises(MissingError, match="no such configuration"):
        build_definitions(file)


def test_where_the_folder_cannot_be_written_the_copy_is_below_dagster_home(
    file, tmp_path, monkeypatch
):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    (file.parent / ".nanoset").write_text("in the way")
    build_definitions(file)
    file.write_text("")
    assert BLEND in asset_keys(build_definitions(file))
    assert list(home.rglob("nanoset-*.yaml"))


def test_without_a_place_for_the_copy_there_is_a_warning(file, caplog):
    (file.parent / ".nanoset").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        build_definitions(file)
    assert f"no copy of {file} could be stored" in caplog.text


def test_a_newer_copy_beside_the_file_replaces_one_below_dagster_home(file, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    obstacle = file.parent / ".nanoset"
    obstacle.write_text("in the way")
    build_definitions(file)
    obstacle.unlink()
    file.write_text(file.read_text().replace("pretrain:", "other:"))
    build_definitions(file)
    file.write_text("")
    assert BLEND not in asset_keys(build_definitions(file))


@pytest.fixture
def sandbox(file):
    """The folder of a host with a component over the file."""
    attributes = {"type": "nanoset_assets.NanosetComponent", "attributes": {"config": str(file)}}
    with create_defs_folder_sandbox() as made:
        folder = made.defs_folder_path / "llm"
        folder.mkdir(parents=True)
        (folder / "defs.yaml").write_text(yaml.safe_dump(attributes))
        yield made


def test_a_component_loads_with_the_last_file_that_loaded(file, sandbox):
    with sandbox.build_all_defs() as definitions:
        before = asset_keys(definitions)
    file.write_text(file.read_text().replace("sequence_length", "sequence_lenght", 1))
    with sandbox.build_all_defs() as definitions:
        assert asset_keys(definitions) == before


def test_dg_check_defs_reports_the_mistake_of_a_components_file(file, sandbox, monkeypatch):
    with sandbox.build_all_defs():
        pass
    file.write_text(file.read_text().replace("sequence_length", "sequence_lenght", 1))
    monkeypatch.setenv(VALIDATION, "1")
    with (
        pytest.raises(Exception, match="Error while loading component") as caught,
        sandbox.build_all_defs(),
    ):
        pass
    messages = []
    error = caught.value
    while error is not None:
        messages.append(str(error))
        error = error.__cause__ or error.__context__
    assert "sequence_lenght" in "\n".join(messages)
    assert "defs.yaml:2" in "\n".join(messages)


def test_only_steps_of_the_project_fail_and_are_not_tried_again(file, instance):
    component = NanosetComponent(config=str(file), retries=3)
    from nanoset_assets.definitions import definitions_of

    project_defs = component.project_defs(file.parent)
    instance.add_dynamic_partitions("corpora", ["web"])
    job = definitions_of(project_defs).resolve_job_def("corpus")
    file.write_text(file.read_text() + "pakced: [web]\n")
    result = job.execute_in_process(instance=instance, partition_key="web", raise_on_error=False)
    assert not result.success
    failed = [
        event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_FAILURE
    ]
    assert [event.step_key for event in failed] == ["raw_jsonl"]
    assert (
        "pakced: this key is not known" in failed[0].step_failure_data.user_failure_data.description
    )
    assert not [
        event
        for event in result.all_events
        if event.event_type is dg.DagsterEventType.STEP_UP_FOR_RETRY
    ]
    tags = instance.get_run_by_id(result.run_id).tags
    assert tags["dagster/retry_on_asset_or_op_failure"] == "false"


@pytest.fixture
def built(built_platform):
    """Everything is up to date."""
    built_platform.look()
    assert built_platform.automation() == {}
    return built_platform


def test_what_failed_for_the_mistake_is_built_once_it_is_corrected(built):
    text = built.config_file.read_text()
    built.config_file.write_text(text.replace("seed: 7", "seed: 8"))
    requested = built.automation()
    built.config_file.write_text("")
    built.carry_out(raises=False)
    built.config_file.write_text(text.replace("seed: 7", "seed: 8"))
    assert built.automation() == requested
    built.carry_out()
    built.follow()


def test_text_whose_run_failed_for_the_mistake_is_built_once_it_is_corrected(built):
    (built.raw / "web" / "new.jsonl").write_bytes(jsonl(sentences("new", 20)))
    age(built.raw / "web")
    built.look()
    (request,) = built.look().run_requests
    text = built.config_file.read_text()
    built.config_file.write_text("")
    assert not built.run(request, raises=False).success
    built.config_file.write_text(text)
    assert built.tick() == ["web"]


def test_a_corpus_that_was_materialized_by_hand_meanwhile_is_built_once_it_is_corrected(built):
    text = built.config_file.read_text()
    built.config_file.write_text("")
    job = built.definitions.resolve_job_def("corpus")
    assert not job.execute_in_process(
        instance=built.instance, partition_key="web", raise_on_error=False
    ).success
    built.config_file.write_text(text)
    # The checks of that run did not end, so nothing may be made of this corpus until they have.
    assert built.automation() == {
        name: {"web"} for name in ("raw_jsonl", "tokenized_shards", "indexed_dataset")
    }
    built.carry_out()
    assert built.automation() == {}


def test_the_overview_shows_the_mistake_once(built):
    first = built.evaluate(OVERVIEW)
    built.config_file.write_text(built.config_file.read_text() + "pakced: [web]\n")
    tick = built.evaluate(OVERVIEW, first.cursor)
    (check,) = tick.asset_events
    assert not check.passed
    assert "this key is not known" in check.description
    assert "nanoset.yaml:" in check.description
    assert built.evaluate(OVERVIEW, tick.cursor).asset_events == []
    built.config_file.write_text(built.config_file.read_text().replace("pakced: [web]\n", ""))
    _, check = built.evaluate(OVERVIEW, tick.cursor).asset_events
    assert check.passed


LOCATION = """
import dagster as dg
from nanoset_assets import build_definitions

@dg.asset
def of_the_host():
    return None

@dg.definitions
def everything():
    ours = dg.Definitions(assets=[of_the_host], jobs=[dg.define_asset_job("host_job", [of_the_host])])
    return dg.Definitions.merge(build_definitions({path!r}), ours)
"""


@pytest.fixture
def location(file, tmp_path):
    """A host's module with a project in it → how Dagster's commands are called."""
    module = tmp_path / "host.py"
    module.write_text(LOCATION.format(path=str(file)))
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "DAGSTER_HOME": str(home), "PYTHONPATH": str(REPOSITORY)}

    def call(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dagster", *arguments]
        return subprocess.run(
            command,
            env=environment | more,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    call.module = module
    call.home = home
    return call


def test_a_host_runs_its_own_job_in_a_process_of_its_own(file, location):
    arguments = ("job", "execute", "--python-file", str(location.module), "--job", "host_job")
    assert location(*arguments).returncode == 0
    file.write_text("")
    result = location(*arguments)
    assert result.returncode == 0, result.stderr


def test_a_run_loads_what_its_code_server_had_loaded(file, location, tmp_path):
    """The process of a run finds no copy on its machine, but what Dagster stored with the run."""
    script = textwrap.dedent("""
        import sys, time
        import dagster as dg
        from pathlib import Path
        from dagster._core.test_utils import wait_for_runs_to_finish
        from dagster._core.workspace.context import WorkspaceProcessContext
        from dagster._core.workspace.load_target import PythonFileTarget

        module, file, job_name = sys.argv[1:]
        target = PythonFileTarget(module, None, str(Path(module).parent), "host")
        with dg.DagsterInstance.get() as instance:
            with WorkspaceProcessContext(instance, target) as process_context:
                request = process_context.create_request_context()
                (code_location,) = request.code_locations
                job = code_location.get_repository("__repository__").get_full_job(job_name)
                plan = code_location.get_execution_plan(job, {}, None, None, instance=instance)
                run = instance.create_run(
                    job_name=job_name, run_id=None, run_config={}, status=None, tags={}, root_run_id=None,
                    parent_run_id=None, step_keys_to_execute=None,
                    execution_plan_snapshot=plan.execution_plan_snapshot, job_snapshot=job.job_snapshot,
                    parent_job_snapshot=None, asset_selection=None, asset_check_selection=None,
                    resolved_op_selection=None, op_selection=None, remote_job_origin=job.get_remote_origin(),
                    job_code_origin=job.get_python_origin(), asset_graph=code_location.get_repository(
                        "__repository__").asset_graph)
                Path(file).write_text("")
                for copy in (Path(file).parent / ".nanoset").rglob("*.yaml"):
                    copy.unlink()
                instance.launch_run(run.run_id, request)
                wait_for_runs_to_finish(instance, timeout=120)
                run = instance.get_run_by_id(run.run_id)
                print(run.status.value)
                for record in instance.all_logs(run.run_id):
                    print(record.user_message or record.get_dagster_event().message)
    """)
    (tmp_path / "launch.py").write_text(script)
    environment = {**os.environ, "DAGSTER_HOME": str(location.home), "PYTHONPATH": str(REPOSITORY)}
    command = [
        sys.executable,
        str(tmp_path / "launch.py"),
        str(location.module),
        str(file),
        "host_job",
    ]
    result = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "SUCCESS" in result.stdout.splitlines(), result.stdout + result.stderr
