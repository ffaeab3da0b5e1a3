"""Builds that are disturbed leave the same outputs as others, and the checks notice if not.

Only some trials of the campaign `interruptions` run here. Their random numbers are the same in
every run.
"""

from __future__ import annotations

import os
import shutil

import pytest

from campaigns.interruptions.subject import differences, outputs, partial, write_subject
from helpers.buckets import CLOUDS
from helpers.building import build_all


def test_local_builds_withstand_faults_of_some_kinds(tmp_path, run_campaign):
    options = ["--no-command", "--storage", "local", "--trials", "2", "--others", "1"]
    # Kills, full and read-only disks, and source files that change. Builds with workers, which take
    # long to start, are killed in tests/end_to_end/test_build.py.
    options += ["--select", "kill *, 1 process", "disk *", "source *"]

    rows, _report = run_campaign(tmp_path, "interruptions", *options)

    total = rows[-1]
    assert total["trials"] >= 6
    assert total["faults"] >= 4
    assert total["bad"] == 0


@pytest.mark.parametrize("cloud_name", ["google", "azure"])
def test_builds_into_other_clouds_withstand_failing_requests_and_kills(
    tmp_path, run_campaign, cloud_name
):
    reason = CLOUDS[cloud_name].why_missing()
    if reason is not None:
        pytest.skip(reason)
    options = ["--no-command", "--storage", cloud_name, "--no-patience"]
    # The second of two trials: the first one is killed before the build has done anything.
    options += ["--others", "1", "--first", "1", "--only", "1"]
    options += ["--select", "20%*", "kill -9 at a request, *", "two builds*"]

    rows, _report = run_campaign(tmp_path, "interruptions", *options)

    total = rows[-1]
    assert total["trials"] == 3
    assert total["faults"] >= 20, "requests did not fail often enough to prove anything"
    assert total["killed"] == 1
    assert total["bad"] == 0


@pytest.fixture(scope="module")
def bucket_rows(tmp_path_factory, run_campaign):
    """The table of a campaign with one trial of each of three kinds in buckets.

    In one, requests fail. In the others, a process is killed while shards are joined, or while
    tokens are dropped.
    """
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    options = ["--no-command", "--storage", "s3", "--no-patience"]
    # The sixth of eight trials: the first ones are killed before they have done anything.
    options += ["--others", "8", "--first", "5", "--only", "1"]
    options += ["--select", "10%*", "*joined*", "*dropped*"]
    folder = tmp_path_factory.mktemp("buckets")
    rows, _report = run_campaign(folder, "interruptions", *options)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "column", "minimum"),
    [
        pytest.param("requests fail", "faults", 20, id="requests that fail"),
        pytest.param("joined", "killed", 1, id="a kill while shards are joined"),
        pytest.param("dropped", "killed", 1, id="a kill while tokens are dropped"),
    ],
)
def test_builds_into_buckets_withstand(bucket_rows, fault, column, minimum):
    row = next(row for row in bucket_rows if fault in row["fault"])

    assert row[column] >= minimum, "the fault did not happen often enough to prove anything"
    assert row["bad"] == 0


@pytest.fixture(scope="module")
def built_subject(tmp_path_factory):
    """A project that was built without disturbance."""
    subject = write_subject(tmp_path_factory.mktemp("trials") / "project")
    build_all(subject.config)
    return subject


def copy_with_damage(root, pattern, damage):
    """Copy the outputs, damage a file or folder of the copy, and return the root of the copy.

    Args:
        root: Root of the outputs.
        pattern: Pattern of paths below the root; the first path that matches is damaged.
        damage: Function of the path.
    """
    copy = root.with_name("damaged")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy, symlinks=True)
    damage(next(copy.glob(pattern)))
    return copy


def remove_last_byte(path):
    """Shorten a file by a byte."""
    os.truncate(path, path.stat().st_size - 1)


def keep_first_block(path):
    """Shorten a tar file to the header of its first member."""
    os.truncate(path, 512)


def delete(path):
    """Delete a file."""
    path.unlink()


def rename_to_tmp(path):
    """Give a file the ending `.tmp`."""
    path.rename(path.with_suffix(".tmp"))


@pytest.mark.parametrize(
    ("pattern", "damage", "message"),
    [
        pytest.param(
            "datasets/web/*/*.bin",
            remove_last_byte,
            "is of no finished run",
            id="tokens that are cut",
        ),
        pytest.param(
            "datasets/web/*/*.bin",
            delete,
            "is listed but missing",
            id="tokens that are missing",
        ),
        pytest.param(
            "webdatasets/*/*/shard-00000000.tar",
            keep_first_block,
            "is of no finished run",
            id="a tar that is cut",
        ),
        pytest.param(
            "datasets/web/*/manifest.json",
            delete,
            "points to an output that is not complete",
            id="a manifest that is missing",
        ),
        pytest.param(
            "nanosets/*/cache/*.npy",
            rename_to_tmp,
            "is of no finished run",
            id="an index file under another name",
        ),
    ],
)
def test_outputs_that_are_not_complete_are_reported(built_subject, pattern, damage, message):
    expected = outputs(built_subject.root)
    damaged_root = copy_with_damage(built_subject.root, pattern, damage)

    messages = partial(damaged_root, expected)

    assert any(message in text for text in messages)
    assert differences(outputs(damaged_root), expected)


def test_complete_outputs_are_not_reported(built_subject):
    expected = outputs(built_subject.root)

    assert partial(built_subject.root, expected) == []


@pytest.fixture
def root_with_hidden_file(built_subject):
    """A copy of the outputs with a hidden file that no build has written."""

    def write_hidden_file(folder):
        (folder / ".tmp-left").write_bytes(b"half")

    return copy_with_damage(built_subject.root, "datasets/web", write_hidden_file)


def test_hidden_files_are_not_outputs_that_readers_see(built_subject, root_with_hidden_file):
    expected = outputs(built_subject.root)

    assert partial(root_with_hidden_file, expected) == []


def test_hidden_files_are_left_over_after_the_last_build(built_subject, root_with_hidden_file):
    expected = outputs(built_subject.root)

    messages = differences(outputs(root_with_hidden_file), expected)

    assert messages == ["datasets/web/.tmp-left is left over"]
