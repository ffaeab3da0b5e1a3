"""The records of outputs whose last check has found an error."""

from __future__ import annotations

import pytest

from nanoset_core.outputs.failed_checks import (
    FOLDER,
    FailedChecks,
    record_failure,
    record_success,
)
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.storage.access import FileAccess

VERSION = "1" * 64
OTHER_VERSION = "2" * 64


@pytest.fixture
def outputs(tmp_path) -> OutputRoot:
    """The root of outputs, an empty folder."""
    return OutputRoot(FileAccess(tmp_path))


def test_a_root_without_records_has_no_failed_check(outputs):
    assert not FailedChecks.read(outputs).includes("packed", "web", VERSION)


def test_a_failed_check_is_that_of_one_output_and_one_version(outputs):
    record_failure(outputs, "packed", "web", VERSION)

    failed_checks = FailedChecks.read(outputs)
    assert failed_checks.includes("packed", "web", VERSION)
    assert not failed_checks.includes("packed", "web", OTHER_VERSION)
    assert not failed_checks.includes("packed", "code", VERSION)


def test_a_failed_check_of_a_part_is_that_of_any_version(outputs):
    record_failure(outputs, "webdatasets", "shuffled/tars/0", None)

    assert FailedChecks.read(outputs).includes("webdatasets", "shuffled/tars/0", VERSION)


def test_only_the_last_failed_check_of_an_output_is_recorded(outputs):
    record_failure(outputs, "packed", "web", VERSION)
    record_failure(outputs, "packed", "web", OTHER_VERSION)

    failed_checks = FailedChecks.read(outputs)
    assert failed_checks.version_by_output == {("packed", "web"): OTHER_VERSION}


def test_a_check_that_passes_removes_the_record(outputs):
    record_failure(outputs, "packed", "web", VERSION)
    record_failure(outputs, "packed", "code", VERSION)

    record_success(outputs, "packed", "web")

    assert FailedChecks.read(outputs).version_by_output == {("packed", "code"): VERSION}


def test_a_check_that_passes_writes_nothing_if_no_record_exists(outputs):
    record_success(outputs, "packed", "web")

    assert list(outputs.folder.iterdir()) == []


def test_a_damaged_record_is_skipped(outputs, caplog):
    record_failure(outputs, "packed", "web", VERSION)
    (record,) = (outputs.folder / FOLDER).iterdir()
    record.write_text("{")

    assert FailedChecks.read(outputs).version_by_output == {}
    assert "is skipped" in caplog.text
