"""A seeded share of the trials: builds that are killed, starved, raced and misled leave the same digests."""

from __future__ import annotations

import os
import shutil

import pytest
from faults.interruptions.subject import differences, outputs, partial, write_subject
from faults.interruptions.trials import Kind, Tally, Trial, table
from faults.runner import run_campaign, seeded
from sample_project import build_all


def run(tmp_path, *arguments):
    return run_campaign("interruptions", tmp_path, "--no-command", *arguments)


def test_local_builds_withstand_faults_of_some_kinds(tmp_path):
    rows = run_campaign(
        "interruptions",
        tmp_path,
        "--no-command",
        "--storage",
        "local",
        "--kills",
        "2",
        "--others",
        "1",
        "--select",
        "[kds]*",
    )
    total = rows[-1]
    assert total[0] == "all"
    assert int(total[3]) >= 6
    assert int(total[4]) >= 4, "faults struck"
    assert total[-1] == "0"


def test_builds_into_buckets_withstand_failing_requests(tmp_path):
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    rows = run_campaign(
        "interruptions",
        tmp_path,
        "--no-command",
        "--storage",
        "s3",
        "--select",
        "10%*",
        "--others",
        "1",
        "--no-patience",
    )
    assert int(rows[-1][4]) > 20, "requests failed"
    assert rows[-1][-1] == "0"


def test_nothing_is_left_of_builds_killed_while_a_bucket_joins_shards(tmp_path):
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    once = ["--others", "8", "--first", "5", "--only", "1"]
    rows = run_campaign(
        "interruptions", tmp_path, "--no-command", "--storage", "s3", "--select", "*joined*", "--no-patience", *once
    )
    assert rows[-1][5] == "1", "killed"
    assert rows[-1][-1] == "0"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    subject = write_subject(tmp_path_factory.mktemp("trials") / "project")
    build_all(subject.config)
    return subject


def spoil(root, name, spoiler):
    """A copy of a root in which something was done to one file."""
    copy = root.with_name("spoiled")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy, symlinks=True)
    spoiler(next(copy.glob(name)))
    return copy


@pytest.mark.parametrize(
    ("name", "spoiler", "seen"),
    [
        ("datasets/web/*/*.bin", lambda path: path.write_bytes(path.read_bytes()[:-1]), "is of no finished run"),
        ("datasets/web/*/*.bin", lambda path: path.unlink(), "is listed and not there"),
        ("webdatasets/*/*/shard-00000000.tar", lambda path: os.truncate(path, 512), "is of no finished run"),
        ("datasets/web/*/manifest.json", lambda path: path.unlink(), "points to what is not complete"),
        ("nanosets/*/cache/*.npy", lambda path: path.rename(path.with_suffix(".tmp")), "is of no finished run"),
    ],
)
def test_the_look_sees_what_is_partial(built, name, spoiler, seen):
    expected = outputs(built.root)
    assert partial(built.root, expected) == []
    spoiled = spoil(built.root, name, spoiler)
    assert [wrong for wrong in partial(spoiled, expected) if seen in wrong]
    assert differences(outputs(spoiled), expected)


def test_hidden_files_are_no_outputs_for_readers_but_leftovers_at_the_end(built):
    expected = outputs(built.root)
    spoiled = spoil(built.root, "datasets/web", lambda path: (path / ".tmp-left").write_bytes(b"half"))
    assert partial(spoiled, expected) == []
    assert differences(outputs(spoiled), expected) == ["datasets/web/.tmp-left is left over"]


def test_trials_are_seeded_and_bad_ones_are_counted():
    kind = Kind("a fault", "local", "a build", 2, lambda _rng, _number: "")
    assert seeded("kind", 1).random() == seeded("kind", 1).random() != seeded("kind", 2).random()
    tally = Tally(kind)
    tally.add(0, Trial(ends=["killed"]))
    tally.add(1, Trial(faults=0, ends=["done"], wrong=["lost"]))
    assert table([tally]).splitlines()[-1] == "| all |  |  | 2 | 1 | 1 | 0 | 1 | 1 | 1 |"
