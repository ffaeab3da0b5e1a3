"""A mistake in nanoset.yaml fails the steps of its project, and nothing else.

Other assets of the code location, and the code location itself, keep working: the definitions are
those of the last version of the file that was valid.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox

from helpers.child_processes import forking_context
from helpers.launched_run import execute_job
from helpers.sample_platform import Platform, age
from helpers.sample_project import jsonl, sentences
from nanoset_assets import NanosetComponent, build_definitions
from nanoset_assets.assets.overview import OVERVIEW
from nanoset_assets.definitions import definitions_of
from nanoset_core.errors import ConfigError, MissingError, NanosetError
from nanoset_core.project.settings import load_config

REPOSITORY = Path(__file__).parents[2]
BLEND = dg.AssetKey(["pretrain", "blend"])
VALIDATION_VARIABLE = "DAGSTER_IS_DEFS_VALIDATION_CLI"
"""Environment variable that `dg check defs` sets."""

pytestmark = [  # of what Dagster itself uses
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
    pytest.mark.filterwarnings("ignore::dagster.SupersessionWarning"),
]


@pytest.fixture
def config_file(make_project, monkeypatch) -> Path:
    """A nanoset.yaml that was never loaded."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.delenv(VALIDATION_VARIABLE, raising=False)
    return make_project()


def loaded_keys(config_file: Path) -> set[dg.AssetKey]:
    """Load definitions from a file, and return the keys of their assets."""
    return set(build_definitions(config_file).resolve_all_asset_keys())


# Mistakes


def append(text: bytes) -> Callable[[Path], None]:
    """Return a function that appends a text to a file."""

    def append_to(file: Path) -> None:
        file.write_bytes(file.read_bytes() + text)

    return append_to


def truncate(file: Path) -> None:
    """Cut a file off, as if it was being written."""
    file.write_bytes(file.read_bytes()[:200])


def empty(file: Path) -> None:
    """Delete the content of a file."""
    file.write_text("")


def delete(file: Path) -> None:
    """Delete a file."""
    file.unlink()


def replace_by_folder(file: Path) -> None:
    """Make a folder in place of a file."""
    file.unlink()
    file.mkdir()


MISTAKES = {
    "an unknown key": append(b"pakced: [web]\n"),
    "invalid YAML": append(b"nanosets: [\n"),
    "invalid UTF-8": append(b"\xff"),
    "a truncated file": truncate,
    "an empty file": empty,
    "a deleted file": delete,
    "an unreadable file": replace_by_folder,
    "a cron line that only definitions check": append(b'automation: {reconcile: "0 0 31 2 *"}\n'),
    "an invalid key prefix": append(b"dagster: {key_prefix: [a b]}\n"),
}
"""Functions that make a mistake in a nanoset.yaml."""


@pytest.mark.parametrize("make_mistake", MISTAKES.values(), ids=MISTAKES)
def test_definitions_are_those_of_the_last_valid_file(config_file, make_mistake, caplog):
    keys_before = loaded_keys(config_file)
    make_mistake(config_file)

    with caplog.at_level(logging.WARNING):
        keys = loaded_keys(config_file)

    assert keys == keys_before
    assert f"{config_file} is not loaded" in caplog.text


@pytest.mark.parametrize("make_mistake", MISTAKES.values(), ids=MISTAKES)
def test_the_first_load_of_a_file_with_a_mistake_fails(config_file, make_mistake):
    make_mistake(config_file)

    with pytest.raises(NanosetError):
        build_definitions(config_file)


def test_after_a_correction_the_corrected_file_is_the_last_valid_one(config_file):
    build_definitions(config_file)
    text = config_file.read_text()
    config_file.write_text("")
    build_definitions(config_file)

    config_file.write_text(text.replace("pretrain:", "other:"))
    assert BLEND not in loaded_keys(config_file)

    config_file.write_text("")
    assert BLEND not in loaded_keys(config_file)


def test_dg_check_defs_reports_a_mistake(config_file, monkeypatch):
    build_definitions(config_file)
    config_file.write_text("")
    monkeypatch.setenv(VALIDATION_VARIABLE, "1")

    with pytest.raises(ConfigError, match="the configuration is empty"):
        build_definitions(config_file)


# The copy of the last valid file


def test_settings_that_the_host_has_loaded_itself_are_not_copied(config_file):
    definitions = build_definitions(load_config(config_file))

    assert BLEND in set(definitions.resolve_all_asset_keys())
    assert not (config_file.parent / ".nanoset").exists()


def test_a_copy_that_is_not_valid_any_more_is_not_used(config_file):
    build_definitions(config_file)
    (copy,) = (config_file.parent / ".nanoset" / "last_valid").glob("*.yaml")
    copy.write_text("raw: [")
    config_file.unlink()

    with pytest.raises(MissingError, match="no such configuration"):
        build_definitions(config_file)


@pytest.fixture
def obstacle(config_file) -> Path:
    """A file in place of the folder of the copy, which therefore cannot be written."""
    file = config_file.parent / ".nanoset"
    file.write_text("in the way")
    return file


@pytest.fixture
def dagster_home(tmp_path, monkeypatch) -> Path:
    """The folder that DAGSTER_HOME names."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    return folder


@pytest.mark.usefixtures("obstacle")
def test_a_copy_that_cannot_be_stored_next_to_the_file_is_stored_in_dagster_home(
    config_file, dagster_home
):
    build_definitions(config_file)
    config_file.write_text("")

    assert BLEND in loaded_keys(config_file)
    assert list(dagster_home.rglob("nanoset-*.yaml"))


@pytest.mark.usefixtures("obstacle")
def test_a_copy_that_cannot_be_stored_at_all_is_a_warning(config_file, caplog):
    with caplog.at_level(logging.WARNING):
        build_definitions(config_file)

    assert f"no copy of {config_file} could be stored" in caplog.text


@pytest.mark.usefixtures("dagster_home")
def test_a_newer_copy_next_to_the_file_replaces_one_in_dagster_home(config_file, obstacle):
    build_definitions(config_file)
    obstacle.unlink()
    config_file.write_text(config_file.read_text().replace("pretrain:", "other:"))
    build_definitions(config_file)

    config_file.write_text("")

    assert BLEND not in loaded_keys(config_file)


# Components


@pytest.fixture
def sandbox(config_file) -> Iterator[Any]:
    """The folder of a Dagster project with a component that names the file."""
    component = {
        "type": "nanoset_assets.NanosetComponent",
        "attributes": {"config": str(config_file)},
    }
    with create_defs_folder_sandbox() as defs_folder:
        folder = defs_folder.defs_folder_path / "llm"
        folder.mkdir(parents=True)
        (folder / "defs.yaml").write_text(yaml.safe_dump(component))
        yield defs_folder


def misspell_key(config_file: Path) -> None:
    """Misspell the key `sequence_length`."""
    text = config_file.read_text()
    config_file.write_text(text.replace("sequence_length", "sequence_lenght", 1))


def test_the_definitions_of_a_component_are_those_of_the_last_valid_file(config_file, sandbox):
    with sandbox.build_all_defs() as definitions:
        keys_before = set(definitions.resolve_all_asset_keys())
    misspell_key(config_file)

    with sandbox.build_all_defs() as definitions:
        keys = set(definitions.resolve_all_asset_keys())

    assert keys == keys_before


def test_dg_check_defs_reports_a_mistake_in_the_file_of_a_component(
    config_file, sandbox, monkeypatch
):
    with sandbox.build_all_defs():
        pass
    misspell_key(config_file)
    monkeypatch.setenv(VALIDATION_VARIABLE, "1")

    with (
        pytest.raises(Exception, match="Error while loading component") as caught,
        sandbox.build_all_defs(),
    ):
        pass

    messages = []
    error: BaseException | None = caught.value
    while error is not None:
        messages.append(str(error))
        error = error.__cause__ or error.__context__
    text = "\n".join(messages)
    assert "sequence_lenght" in text
    assert "defs.yaml:2" in text


# Runs


@pytest.fixture
def failed_run(config_file, instance) -> dg.ExecuteInProcessResult:
    """A run of a project with retries, in whose nanoset.yaml a mistake was made since."""
    component = NanosetComponent(config=str(config_file), retries=3)
    definitions = definitions_of(component.project_defs(config_file.parent))
    instance.add_dynamic_partitions("corpora", ["web"])
    append(b"pakced: [web]\n")(config_file)
    result = definitions.resolve_job_def("corpus").execute_in_process(
        instance=instance, partition_key="web", raise_on_error=False
    )
    assert not result.success
    return result


def events_of(run: dg.ExecuteInProcessResult, kind: dg.DagsterEventType) -> list[dg.DagsterEvent]:
    """Return the events of a kind."""
    return [event for event in run.all_events if event.event_type is kind]


def test_a_mistake_fails_the_first_step_of_a_run(failed_run):
    [failure] = events_of(failed_run, dg.DagsterEventType.STEP_FAILURE)

    assert failure.step_key == "raw_jsonl"
    description = failure.step_failure_data.user_failure_data.description
    assert "pakced: this key is not known" in description


def test_neither_a_step_nor_a_run_is_retried_after_a_mistake(failed_run, instance):
    # A retry cannot correct the mistake.
    assert events_of(failed_run, dg.DagsterEventType.STEP_UP_FOR_RETRY) == []
    tags = instance.get_run_by_id(failed_run.run_id).tags
    assert tags["dagster/retry_on_asset_or_op_failure"] == "false"


@pytest.fixture
def platform(built_platform) -> Platform:
    """A project in which everything is up to date."""
    built_platform.look()
    return built_platform


def test_outputs_whose_runs_failed_for_a_mistake_are_built_after_its_correction(platform):
    platform.edit_settings("seed: 5", "seed: 6")
    text = platform.config_file.read_text()
    assert platform.automation() == {"shuffled/shuffle_plan": {None}}
    platform.config_file.write_text("")
    platform.carry_out(raises=False)

    platform.config_file.write_text(text)

    assert platform.automation() == {"shuffled/shuffle_plan": {None}}
    platform.carry_out()
    assert "shuffled/shuffle_plan" not in platform.automation()


def test_text_whose_run_failed_for_a_mistake_is_built_after_its_correction(platform):
    (platform.raw / "web" / "new.jsonl").write_bytes(jsonl(sentences("new", 20)))
    age(platform.raw / "web")
    platform.look()
    (request,) = platform.look().run_requests
    text = platform.config_file.read_text()
    platform.config_file.write_text("")
    assert not platform.run(request, raises=False).success

    platform.config_file.write_text(text)

    assert platform.tick() == ["web"]


def test_a_corpus_whose_run_by_hand_failed_for_a_mistake_is_built_after_its_correction(platform):
    text = platform.config_file.read_text()
    platform.config_file.write_text("")
    result = platform.definitions.resolve_job_def("corpus").execute_in_process(
        instance=platform.instance, partition_key="web", raise_on_error=False
    )
    assert not result.success

    platform.config_file.write_text(text)

    # The checks of that run did not end, so nothing may be made of this corpus until they have.
    assert platform.automation() == {
        "raw_jsonl": {"web"},
        "tokenized_shards": {"web"},
        "indexed_dataset": {"web"},
    }
    platform.carry_out()
    assert platform.automation() == {}


def test_the_overview_shows_a_mistake_once_and_until_it_is_corrected(platform):
    text = platform.config_file.read_text()
    first_tick = platform.evaluate(OVERVIEW)

    # The first tick after the mistake shows it.
    platform.config_file.write_text(text + "pakced: [web]\n")
    tick = platform.evaluate(OVERVIEW, first_tick.cursor)
    (check,) = tick.asset_events
    assert not check.passed
    assert "this key is not known" in check.description
    assert "nanoset.yaml:" in check.description

    # The next tick does not show it again.
    assert platform.evaluate(OVERVIEW, tick.cursor).asset_events == []

    # The first tick after the correction shows the project.
    platform.config_file.write_text(text)
    _page, check = platform.evaluate(OVERVIEW, tick.cursor).asset_events
    assert check.passed


# Processes of their own, as a host and Dagster's daemon start them


HOST_MODULE = """
import dagster as dg
from nanoset_assets import build_definitions

@dg.asset
def of_the_host():
    return None

@dg.definitions
def everything():
    job = dg.define_asset_job("host_job", [of_the_host])
    # Its steps run in the process of the run: another process takes seconds to start.
    job_in_process = dg.define_asset_job(
        "host_job_in_process", [of_the_host], executor_def=dg.in_process_executor
    )
    host = dg.Definitions(assets=[of_the_host], jobs=[job, job_in_process])
    return dg.Definitions.merge(build_definitions({path!r}), host)
"""
"""A code location of another team with a project in it."""


@dataclass(frozen=True)
class HostLocation:
    """A code location of another team with a project in it."""

    module: Path
    environment: dict[str, str]

    def run_python(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run Python in a new process."""
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=self.environment,
            cwd=self.module.parent,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def host(config_file, tmp_path) -> HostLocation:
    """A code location with a project, and with a history of its own."""
    module = tmp_path / "host.py"
    module.write_text(HOST_MODULE.format(path=str(config_file)))
    home = tmp_path / "home"
    home.mkdir()
    environment = dict(os.environ)
    environment["DAGSTER_HOME"] = str(home)
    environment["PYTHONPATH"] = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}"
    return HostLocation(module, environment)


def test_a_host_executes_its_own_jobs_in_spite_of_a_mistake(config_file, host, tmp_path):
    build_definitions(config_file)
    config_file.write_text("")

    options = ["--python-file", str(host.module), "--job", "host_job_in_process"]
    output = tmp_path / "output.txt"
    arguments = (options, host.environment, output)
    process = forking_context().Process(target=execute_job, args=arguments)
    process.start()
    process.join()

    assert process.exitcode == 0, output.read_text()
    assert 'Finished execution of run for "host_job_in_process"' in output.read_text()


def test_a_run_loads_the_settings_that_its_code_server_had_loaded(config_file, host):
    # The process of the run finds no valid settings on its machine, but those that Dagster stored
    # with the run.
    process = host.run_python("-m", "helpers.launched_run", host.module, config_file, "host_job")

    assert "SUCCESS" in process.stdout.splitlines(), process.stdout + process.stderr
