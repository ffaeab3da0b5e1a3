"""Projects that earlier commits built stay what they were: nothing to build, nothing to mend, one
history in the UI.

Handoffs of Megatron-LM are the exception: they got preflight.py, and are made again once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from golden_outputs.command import run
from golden_outputs.old_project import COMMITS, defined, golden, printed, read, unpack

from helpers.sample_project import tree
from nanoset_assets.step_job import STEP_JOB

# Their nanoset.yaml has the key `packed`, the former name of `pbin`.
pytestmark = pytest.mark.filterwarnings("ignore::nanoset_core.errors.FormerNameWarning")
REMADE = re.compile(r"nanosets/(?!nemo|nanotron)[^/]+/handoff/").search


@pytest.fixture(scope="module", params=COMMITS)
def commit(request: pytest.FixtureRequest) -> str:
    """Which commit built it."""
    return request.param


@pytest.fixture(scope="module")
def expected(commit: str) -> dict[str, Any]:
    """What that commit made of it."""
    return json.loads(golden(commit).read_bytes())


@pytest.fixture(scope="module")
def project(commit: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The project, somewhere else than where it was built, as the current folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = unpack(commit, tmp_path_factory.mktemp("old") / "project").resolve()
        patch.chdir(folder)
        patch.setenv("DAGSTER_HOME", str(folder / ".dagster"))
        patch.setenv("NANOSET_CONFIG", str(folder / "nanoset.yaml"))
        yield folder


@pytest.fixture(scope="module")
def instance(project: Path) -> Iterator[dg.DagsterInstance]:
    """Its history."""
    with dg.DagsterInstance.get() as opened:
        yield opened


@pytest.fixture(scope="module")
def built(project: Path, instance: dg.DagsterInstance) -> dict[str, Any]:
    """What `nanoset build` left as it was: (before, after) of each."""

    def state() -> dict[str, Any]:
        times = {
            path.as_posix(): path.stat().st_mtime_ns
            for path in (project / "data").rglob("*.*")
            if path.is_file()
        }
        return {
            "files": {
                name: found
                for name, found in tree(project / "data").items()
                if not name.startswith(".in-use")
            },
            "times": {
                path: time for path, time in times.items() if not Path(path).name.startswith(".")
            },
            "runs": sorted(run.run_id for run in instance.get_runs()),
        }

    before = state()
    run(["build"])
    after = state()
    return {key: (before[key], after[key]) for key in before}


@pytest.mark.parametrize("what", ["files", "times"])
def test_build_makes_nothing_but_handoffs_of_megatron(built: dict[str, Any], what: str) -> None:
    before, after = (
        {name: value for name, value in found.items() if not REMADE(name)} for found in built[what]
    )
    assert before
    assert after == before


def test_each_handoff_of_megatron_is_made_again_once(built: dict[str, Any]) -> None:
    before, after = (set(filter(REMADE, files)) for files in built["files"])
    files = {
        "START.md",
        "arguments.txt",
        "manifest.json",
        "preflight.py",
        "run.yaml",
        "sequences_per_dataset.json",
    }
    assert before
    assert {name.rpartition("/")[2] for name in after - before} - {
        "data_args.txt",
        "per_split_data_args.json",
    } == files
    (runs, more), links = built["runs"], [name for name in before if name.endswith("/current")]
    assert len(more) == len(runs) + len(links)


@pytest.mark.usefixtures("built")
def test_commands_say_the_same_of_it(commit: str, expected: dict[str, Any], project: Path) -> None:
    found = printed(commit, project)
    for command, held in expected["printed"].items():
        printed_now = without_handoffs(found[command])
        printed_then = without_handoffs(held)
        if command == "status --json":
            printed_now = list(map(with_unused_samples, printed_now))
        if command == "verify --deep --json":  # the order of its reports may change
            printed_now, printed_then = (
                sorted(rows, key=itemgetter("output")) for rows in (printed_now, printed_then)
            )
        assert known_keys(printed_now, printed_then) == printed_then, command
    assert {row["state"] for row in found["status --json"]} == {"up to date"}
    reports = found["verify --deep --json"]
    assert all(report["passed"] for report in reports)
    assert all(
        finding["severity"] == "warning" for report in reports for finding in report["findings"]
    )


def known_keys(found: Any, expected: Any) -> Any:
    """Return what is printed now without the keys that the earlier commit did not print."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return {
            key: known_keys(value, expected[key]) for key, value in found.items() if key in expected
        }
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return [known_keys(*pair) for pair in zip(found, expected, strict=True)]
    return found


def with_unused_samples(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a split with the samples that are not read, which earlier commits counted.

    They did so for a split without a blend alone, whose index files hold whole epochs.
    """
    if row["name"] == "phased-phase-2" and row.get("unused_samples"):
        samples = row["samples"] + row["unused_samples"]
        return row | {"samples": samples, "tokens": row["tokens"] // row["samples"] * samples}
    return row


def without_handoffs(printed: Any) -> Any:
    """Without the rows of handoffs, and sums that they are part of."""
    if isinstance(printed, list):
        return [
            without_handoffs(row)
            for row in printed
            if not (isinstance(row, dict) and row.get("part") == "handoff")
        ]
    if "garbage" not in printed:
        return printed
    kept = [entry for entry in printed["garbage"] if not REMADE(entry["path"])]
    return printed | {"garbage": kept, "bytes": sum(entry["bytes"] for entry in kept)}


def test_trainers_read_the_same_of_it(expected: dict[str, Any], project: Path) -> None:
    assert read(project) == expected["read"]


@pytest.mark.usefixtures("built")
def test_gc_takes_nothing_that_is_live(project: Path) -> None:
    garbage = {Path(entry["path"]) for entry in json.loads(run(["gc", "--json"]))["garbage"]}
    live = {
        path.parent / json.loads(path.read_bytes())["digest"]
        for path in (project / "data").rglob("current.json")
    }
    assert live
    assert garbage
    assert not garbage & live


def is_overview(name: str) -> bool:
    """Whether a name is of the asset and sensor that no earlier commit had."""
    return name.endswith("overview")


def test_names_in_dagster_are_the_same(
    expected: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    there, now = expected["defined"], defined(instance)
    added = set(now["checks"]) - set(there["checks"])
    verified = {f"{asset}: verified" for asset in ("handoff", "shuffle_plan", "tars")}
    others = {"overview: up_to_date", "tokenized_shards: losses", "handoff: trainer"}
    assert {name.rpartition("/")[2] for name in added} == others | verified
    assets = there["assets"] | {
        name: asset for name, asset in now["assets"].items() if is_overview(name)
    }
    for name, asset in assets.items():
        if name.endswith("packed_dataset"):
            # Its partitions are a set of its own now, which holds only the corpora that are packed.
            # The keys of the partitions, under which the history is recorded, are the same.
            assert set(now["assets"][name]["partitions"]) <= set(asset["partitions"])
            set_name = asset["partitions_name"].removesuffix("corpora") + "packed_dataset"
            own_set = {"partitions": now["assets"][name]["partitions"], "partitions_name": set_name}
            assets[name] = asset | own_set
    assert now == there | {
        "assets": assets,
        "checks": sorted({*there["checks"], *added}),
        "jobs": sorted(
            [*there["jobs"], *(name for name in now["jobs"] if name.endswith(STEP_JOB))]
        ),
        "sensors": sorted([*there["sensors"], *filter(is_overview, now["sensors"])]),
    }


def test_the_history_goes_on(project: Path, instance: dg.DagsterInstance) -> None:
    assets = {
        name: asset for name, asset in defined(instance)["assets"].items() if not is_overview(name)
    }
    keys = {key.to_user_string(): key for key in instance.all_asset_keys()}
    packed = [path.name for path in (project / "data/packed").iterdir()]
    assert keys.keys() == assets.keys()
    for name, key in keys.items():
        partitions = (
            sorted(packed) if name.endswith("packed_dataset") else assets[name]["partitions"]
        )
        assert sorted(instance.get_materialized_partitions(key)) == (partitions or []), name
        for partition in partitions or [None]:
            assert last_version(instance, key, partition) in digests(project), (name, partition)


def last_version(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None
) -> str | None:
    where = dg.AssetRecordsFilter(
        asset_key=key, asset_partitions=None if partition is None else [partition]
    )
    (record,) = instance.fetch_materializations(where, limit=1).records
    return record.asset_materialization.tags.get("dagster/data_version")


def digests(project: Path) -> set[str]:
    """Of the live version of every output."""
    return {
        json.loads(path.read_bytes())["digest"] for path in (project / "data").rglob("current.json")
    }


def test_runs_belong_to_jobs_that_there_are(
    expected: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    jobs = set(expected["defined"]["jobs"])
    found = {run.job_name for run in instance.get_runs()}
    assert found <= jobs
