"""Projects that earlier commits built are up to date, valid, and keep their history in Dagster.

A later commit may add stages. Their outputs, assets and jobs are left out of the comparisons.
Handoffs of Megatron-LM are the exception: preflight.py was added to them, so they are rebuilt once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from golden_outputs.command import run
from golden_outputs.old_project import COMMITS, defined, golden, printed, read, unpack

from helpers.sample_project import tree

# Their nanoset.yaml has the key `packed`, the former name of `pbin`.
pytestmark = pytest.mark.filterwarnings("ignore::nanoset_core.errors.FormerNameWarning")
IS_REBUILT = re.compile(r"nanosets/(?!nemo|nanotron)[^/]+/handoff/").search
"""Matches files of Megatron-LM's handoffs."""


@pytest.fixture(scope="module", params=COMMITS)
def commit(request: pytest.FixtureRequest) -> str:
    """The commit that built the project."""
    return request.param


@pytest.fixture(scope="module")
def expected(commit: str) -> dict[str, Any]:
    """What the commands and readers of that commit returned for the project."""
    return json.loads(golden(commit).read_bytes())


@pytest.fixture(scope="module")
def project(commit: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The project as the current folder, which is not the one where it was built."""
    with pytest.MonkeyPatch.context() as patch:
        folder = unpack(commit, tmp_path_factory.mktemp("old") / "project").resolve()
        patch.chdir(folder)
        patch.setenv("DAGSTER_HOME", str(folder / ".dagster"))
        patch.setenv("NANOSET_CONFIG", str(folder / "nanoset.yaml"))
        yield folder


@pytest.fixture(scope="module")
def instance(project: Path) -> Iterator[dg.DagsterInstance]:
    """The Dagster instance with the history of the project."""
    # Not by DAGSTER_HOME, which is unset before each test.
    with dg.DagsterInstance.from_config(str(project / ".dagster")) as opened:
        yield opened


@dataclass(frozen=True)
class State:
    """The outputs and the history of a project at one moment."""

    files: dict[str, str]
    """File → its digest."""
    times: dict[str, int]
    """File → its modification time in nanoseconds."""
    job_by_run: dict[str, str]
    """Id of each run in the history → its job."""


def state_of(project: Path, instance: dg.DagsterInstance) -> State:
    """Return the present state of a project."""
    data = project / "data"
    files = {name: digest for name, digest in tree(data).items() if not name.startswith(".in-use")}
    times = {}
    for path in data.rglob("*.*"):
        # Hidden files are not outputs: a build may write them again.
        if path.is_file() and not path.name.startswith("."):
            times[path.relative_to(data).as_posix()] = path.stat().st_mtime_ns
    job_by_run = {run.run_id: run.job_name for run in instance.get_runs()}
    return State(files, times, job_by_run)


@dataclass(frozen=True)
class Build:
    """The states of a project before and after a build."""

    before: State
    after: State


@pytest.fixture(scope="module")
def built(project: Path, instance: dg.DagsterInstance) -> Build:
    """The project, built again by the present code."""
    before = state_of(project, instance)
    run(["build"])
    return Build(before, state_of(project, instance))


def without_rebuilt(value_by_file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping without the files of Megatron-LM's handoffs."""
    return {name: value for name, value in value_by_file.items() if not IS_REBUILT(name)}


def of_old_stages(after: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping of files after a build without those of stages that had no files before."""
    old_folders = {first_word(name) for name in before}
    return {name: value for name, value in after.items() if first_word(name) in old_folders}


def first_word(name: str) -> str:
    """Return the kind of an output, such as `datasets` of `datasets/web` or of `datasets web`."""
    return re.split("[ /]", name)[0]


def test_a_build_changes_no_file_but_handoffs_of_megatron(built: Build) -> None:
    files_before = without_rebuilt(built.before.files)
    files_after = without_rebuilt(built.after.files)

    assert files_before
    assert of_old_stages(files_after, files_before) == files_before


def test_a_build_writes_no_file_again_but_handoffs_of_megatron(built: Build) -> None:
    times_before = without_rebuilt(built.before.times)
    times_after = without_rebuilt(built.after.times)

    assert times_before
    assert of_old_stages(times_after, times_before) == times_before


def handoff_files(state: State) -> set[str]:
    """Return the files of Megatron-LM's handoffs."""
    return {name for name in state.files if IS_REBUILT(name)}


def test_each_handoff_of_megatron_is_rebuilt_with_all_its_files(built: Build) -> None:
    files_before = handoff_files(built.before)
    new_files = handoff_files(built.after) - files_before

    assert files_before
    new_names = {name.rpartition("/")[2] for name in new_files}
    # How a handoff names its data depends on the nanoset.
    assert new_names - {"data_args.txt", "per_split_data_args.json"} == {
        "START.md",
        "arguments.txt",
        "manifest.json",
        "preflight.py",
        "run.yaml",
        "sequences_per_dataset.json",
    }


def test_each_handoff_of_megatron_is_rebuilt_by_one_run(
    built: Build, expected: dict[str, Any]
) -> None:
    # Each handoff has a link to its current version.
    handoffs = [name for name in handoff_files(built.before) if name.endswith("/current")]

    new_runs = built.after.job_by_run.keys() - built.before.job_by_run.keys()
    jobs_of_new_runs = [built.after.job_by_run[run_id] for run_id in new_runs]
    old_jobs = set(expected["defined"]["jobs"])

    assert len([job for job in jobs_of_new_runs if job in old_jobs]) == len(handoffs)


@pytest.fixture(scope="module")
def printed_now(commit: str, project: Path, built: Build) -> dict[str, Any]:
    """Command → the JSON that it prints now."""
    return printed(commit, project)


def test_commands_print_what_they_printed_before(
    printed_now: dict[str, Any], expected: dict[str, Any]
) -> None:
    old_kinds = kinds_in(expected["printed"])
    for command, printed_before in expected["printed"].items():
        expected_json = without_handoffs(printed_before)
        present_json = without_handoffs(printed_now[command])
        if command == "status --json":
            present_json = [with_unused_samples(row) for row in present_json]
        if command == "verify --deep --json":
            # The order of its reports may change.
            expected_json = sorted(expected_json, key=itemgetter("output"))
            present_json = sorted(present_json, key=itemgetter("output"))
        present_json = of_old_kinds(present_json, old_kinds)
        assert known_keys(present_json, expected_json) == expected_json, command


def test_all_outputs_are_up_to_date(printed_now: dict[str, Any]) -> None:
    assert {row["state"] for row in printed_now["status --json"]} == {"up to date"}


def test_all_outputs_pass_their_verification(printed_now: dict[str, Any]) -> None:
    for report in printed_now["verify --deep --json"]:
        assert report["passed"]
        assert all(finding["severity"] == "warning" for finding in report["findings"])


def known_keys(present: Any, expected: Any) -> Any:
    """Return what is printed now without the keys that the earlier commit did not print."""
    if isinstance(present, dict) and isinstance(expected, dict):
        return {
            key: known_keys(value, expected[key])
            for key, value in present.items()
            if key in expected
        }
    if isinstance(present, list) and isinstance(expected, list) and len(present) == len(expected):
        return [known_keys(*pair) for pair in zip(present, expected, strict=True)]
    return present


def of_old_kinds(printed: Any, old_kinds: Set[str]) -> Any:
    """Return printed JSON without the rows of outputs of other kinds, which later stages make."""
    if isinstance(printed, dict):
        return {key: of_old_kinds(value, old_kinds) for key, value in printed.items()}
    if isinstance(printed, list):
        rows = [row for row in printed if kind_of_row(row) in (None, *old_kinds)]
        return [of_old_kinds(row, old_kinds) for row in rows]
    return printed


def kinds_in(printed: Any) -> set[str]:
    """Return the kinds of all outputs that rows of printed JSON are about."""
    kinds: set[str] = set()
    if isinstance(printed, dict):
        kind = kind_of_row(printed)
        if kind is not None:
            kinds.add(kind)
        for value in printed.values():
            kinds |= kinds_in(value)
    elif isinstance(printed, list):
        for row in printed:
            kinds |= kinds_in(row)
    return kinds


def kind_of_row(row: Any) -> str | None:
    """Return the kind of the output that a row of printed JSON is about; None if it names none."""
    if not isinstance(row, dict):
        return None
    if "output" in row:
        return first_word(row["output"])
    return row.get("kind")


def with_unused_samples(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a split with the samples that are not read, which earlier commits counted.

    They did so for a split without a blend alone, whose index files hold whole epochs.
    """
    if row["name"] == "phased-phase-2" and row.get("unused_samples"):
        samples = row["samples"] + row["unused_samples"]
        return row | {"samples": samples, "tokens": row["tokens"] // row["samples"] * samples}
    return row


def without_handoffs(printed: Any) -> Any:
    """Return printed JSON without the rows of handoffs, and without them in its sums."""
    if isinstance(printed, list):
        rows = [row for row in printed if not is_handoff_row(row)]
        return [without_handoffs(row) for row in rows]
    if "garbage" not in printed:
        return printed
    garbage = [entry for entry in printed["garbage"] if not IS_REBUILT(entry["path"])]
    return printed | {"garbage": garbage, "bytes": sum(entry["bytes"] for entry in garbage)}


def is_handoff_row(row: Any) -> bool:
    """Return whether a row of printed JSON is about a handoff."""
    return isinstance(row, dict) and row.get("part") == "handoff"


def test_trainers_read_the_same_samples(expected: dict[str, Any], project: Path) -> None:
    assert read(project) == expected["read"]


@pytest.mark.usefixtures("built")
def test_gc_removes_no_current_output(project: Path) -> None:
    garbage = {Path(entry["path"]) for entry in json.loads(run(["gc", "--json"]))["garbage"]}

    current_outputs = {
        path.parent / json.loads(path.read_bytes())["digest"]
        for path in (project / "data").rglob("current.json")
    }
    assert current_outputs
    assert garbage
    assert not garbage & current_outputs


def is_overview(name: str) -> bool:
    """Return whether a name is one of the asset or the sensor that no earlier commit had."""
    return name.endswith("overview")


@pytest.fixture(scope="module")
def definitions(instance: dg.DagsterInstance) -> dict[str, Any]:
    """The present names in Dagster."""
    return defined(instance)


def test_checks_in_dagster_were_only_added(
    expected: dict[str, Any], definitions: dict[str, Any]
) -> None:
    checks_before = set(expected["defined"]["checks"])

    assert checks_before <= set(definitions["checks"])


def test_earlier_assets_in_dagster_are_the_same(
    expected: dict[str, Any], definitions: dict[str, Any]
) -> None:
    assets = definitions["assets"]
    expected_assets = dict(expected["defined"]["assets"])
    for name, asset in expected_assets.items():
        if name.endswith("packed_dataset"):
            # Its partitions are a set of its own now, which holds only the corpora that are packed.
            # The keys of the partitions, under which the history is recorded, are the same.
            partitions = assets[name]["partitions"]
            assert set(partitions) <= set(asset["partitions"])
            set_name = asset["partitions_name"].removesuffix("corpora") + "packed_dataset"
            expected_assets[name] = asset | {
                "partitions": partitions,
                "partitions_name": set_name,
            }
        if name.endswith("/tars"):
            # Arrows lead to the tars from the datasets, too, so that Dagster's backfills find them.
            parents = assets[name]["parents"]
            datasets = set(parents) - set(asset["parents"])
            assert {parent.rpartition("/")[2] for parent in datasets} == {"indexed_dataset"}
            expected_assets[name] = asset | {"parents": sorted({*asset["parents"], *datasets})}

    earlier_assets = {name: assets.get(name) for name in expected_assets}
    assert earlier_assets == expected_assets


def test_jobs_sensors_and_schedules_in_dagster_were_only_added(
    expected: dict[str, Any], definitions: dict[str, Any]
) -> None:
    names_before = expected["defined"]

    for part in ("jobs", "sensors", "schedules"):
        assert set(names_before[part]) <= set(definitions[part]), part


def test_the_history_holds_the_current_version_of_each_partition(
    project: Path, instance: dg.DagsterInstance, definitions: dict[str, Any]
) -> None:
    assets = {name: asset for name, asset in definitions["assets"].items() if not is_overview(name)}
    keys = {key.to_user_string(): key for key in instance.all_asset_keys()}
    packed_corpora = sorted(path.name for path in (project / "data/packed").iterdir())
    current_digests = digests(project)

    assert keys.keys() == assets.keys()
    for name, key in keys.items():
        partitions = assets[name]["partitions"]
        if name.endswith("packed_dataset"):
            expected_partitions = packed_corpora
        else:
            expected_partitions = partitions or []
        assert sorted(instance.get_materialized_partitions(key)) == expected_partitions, name
        for partition in partitions or [None]:
            assert last_version(instance, key, partition) in current_digests, (name, partition)


def last_version(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None
) -> str | None:
    """Return the data version of the last materialization of an asset, or of one partition."""
    partitions = None if partition is None else [partition]
    records_filter = dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions)
    (record,) = instance.fetch_materializations(records_filter, limit=1).records
    return record.asset_materialization.tags.get("dagster/data_version")


def digests(project: Path) -> set[str]:
    """Return the digest of the current version of every output."""
    return {
        json.loads(path.read_bytes())["digest"] for path in (project / "data").rglob("current.json")
    }


def test_every_run_belongs_to_a_job_that_exists(
    definitions: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    job_names = {run.job_name for run in instance.get_runs()}

    assert job_names <= set(definitions["jobs"])
