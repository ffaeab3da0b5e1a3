"""A seeded share of the trials: builds that are killed, starved, raced and misled leave the same
digests.
"""

from __future__ import annotations

import os
import shutil

import pytest

from campaigns.interruptions.subject import differences, outputs, partial, write_subject
from campaigns.runner import run_campaign
from helpers.building import build_all


def test_local_builds_withstand_faults_of_some_kinds(tmp_path):
    words = ["--storage", "local", "--trials", "2", "--others", "1", "--select", "[kds]*"]
    total = run_campaign(tmp_path, "interruptions", "--no-command", *words)[0][-1]
    assert total["trials"] >= 6
    assert total["faults"] >= 4
    assert total["bad"] == 0


@pytest.fixture(scope="module")
def in_buckets(tmp_path_factory):
    """Rows of a trial each: requests fail; kills while shards are joined, and while tokens are
    dropped.
    """
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    words = [
        "--storage",
        "s3",
        "--no-patience",
        "--others",
        "8",
        "--first",
        "5",
        "--only",
        "1",
        "--select",
        "10%*",
        "*joined*",
        "*dropped*",
    ]
    return run_campaign(
        tmp_path_factory.mktemp("buckets"), "interruptions", "--no-command", *words
    )[0]


@pytest.mark.parametrize(
    ("fault", "column", "least"),
    [("requests fail", "faults", 20), ("joined", "killed", 1), ("dropped", "killed", 1)],
)
def test_builds_into_buckets_withstand(in_buckets, fault, column, least):
    found = next(row for row in in_buckets if fault in row["fault"])
    assert found[column] >= least
    assert found["bad"] == 0


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
        (
            "datasets/web/*/*.bin",
            lambda path: path.write_bytes(path.read_bytes()[:-1]),
            "is of no finished run",
        ),
        ("datasets/web/*/*.bin", lambda path: path.unlink(), "is listed but missing"),
        (
            "webdatasets/*/*/shard-00000000.tar",
            lambda path: os.truncate(path, 512),
            "is of no finished run",
        ),
        (
            "datasets/web/*/manifest.json",
            lambda path: path.unlink(),
            "points to an output that is not complete",
        ),
        (
            "nanosets/*/cache/*.npy",
            lambda path: path.rename(path.with_suffix(".tmp")),
            "is of no finished run",
        ),
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
    spoiled = spoil(
        built.root, "datasets/web", lambda path: (path / ".tmp-left").write_bytes(b"half")
    )
    assert partial(spoiled, expected) == []
    assert differences(outputs(spoiled), expected) == ["datasets/web/.tmp-left is left over"]
