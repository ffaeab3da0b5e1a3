"""`nanoset verify` records errors of outputs, and removes the records of outputs that pass now."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from helpers.built_project import first_file, overwrite
from nanoset_core.errors import StorageError
from nanoset_core.outputs.failed_checks import FOLDER, FailedChecks, record_failure
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.webdataset.make import group_facts


@pytest.fixture
def project_with_failed_checks(copy: Callable[[], Project]) -> Project:
    """A healthy project, in which builds have recorded failed checks of three outputs."""
    project = copy()
    record_failure(project.outputs, "datasets", "web", "0" * 20)
    record_failure(project.outputs, "datasets", "code", "0" * 20)
    record_failure(project.outputs, "webdatasets", "shuffled/tars/0", None)
    return project


def recorded_outputs(project: Project) -> set[tuple[str, str]]:
    """Return the outputs of a project for which a failed check is recorded."""
    return set(FailedChecks.read(project.outputs).version_by_output)


def test_an_output_that_passes_has_no_record_of_an_earlier_failure(project_with_failed_checks):
    assert all(report.passed for report in verify_project(project_with_failed_checks))

    assert recorded_outputs(project_with_failed_checks) == set()


def test_records_of_outputs_that_are_not_verified_are_kept(project_with_failed_checks):
    list(verify_project(project_with_failed_checks, select=["web"]))

    assert ("datasets", "web") not in recorded_outputs(project_with_failed_checks)
    assert ("datasets", "code") in recorded_outputs(project_with_failed_checks)


def test_the_record_of_an_output_that_fails_again_is_kept(project_with_failed_checks):
    tokens = first_file(project_with_failed_checks, "datasets/web/*/*.bin")
    overwrite(tokens, 0, b"\xff" * 100)

    reports = list(verify_project(project_with_failed_checks, select=["web"]))

    assert not reports[0].passed
    assert ("datasets", "web") in recorded_outputs(project_with_failed_checks)


def test_a_group_of_tars_that_has_failed_is_checked_again(copy, monkeypatch):
    # A quick check opens only some tars. Let the damaged one not be among these.
    monkeypatch.setattr("nanoset_core.stages.webdataset.verify._TARS_OPENED", 1)
    project = copy()
    damaged_tar = min(group_facts(project, "shuffled", 1))
    overwrite(damaged_tar, 512, b"\xff" * 100)
    record_failure(project.outputs, "webdatasets", "shuffled/tars/1", None)

    (report,) = verify_project(project, select=["shuffled"])

    assert not report.passed
    assert damaged_tar.name in str(report.findings[0].where)
    assert recorded_outputs(project) == {("webdatasets", "shuffled/tars/1")}


def test_a_record_that_cannot_be_removed_is_a_warning(project_with_failed_checks, monkeypatch):
    def refuse(*_arguments: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("nanoset_core.outputs.failed_checks.record_success", refuse)

    report = next(verify_project(project_with_failed_checks, select=["web"]))

    assert report.passed
    assert "this result cannot be recorded" in report.warnings[-1].what


def test_an_error_in_an_output_is_recorded(copy):
    project = copy()
    overwrite(first_file(project, "datasets/web/*/*.bin"), 0, b"\xff" * 100)

    list(verify_project(project))

    assert recorded_outputs(project) == {("datasets", "web")}


def test_only_a_deep_check_removes_the_record_of_a_deep_check(copy):
    project = copy()
    web = project.outputs.current("datasets", "web")
    record_failure(project.outputs, "datasets", "web", web.digest, is_deep=True)

    quick_report = next(verify_project(project, select=["web"]))

    assert quick_report.passed
    assert "an earlier deep check has found an error" in quick_report.warnings[-1].what
    assert recorded_outputs(project) == {("datasets", "web")}

    deep_report = next(verify_project(project, select=["web"], deep=True))

    assert deep_report.passed
    assert recorded_outputs(project) == set()


def test_an_unreachable_store_is_no_error_of_the_output(copy, monkeypatch):
    project = copy()

    def refuse(*_arguments: object, **_options: object) -> None:
        raise StorageError("the server does not answer", remedy="try again")

    monkeypatch.setattr("nanoset_core.stages.dataset.verify.current_manifest", refuse)

    report = next(verify_project(project, select=["web"]))

    assert not report.passed
    assert recorded_outputs(project) == set()


def test_an_output_that_was_not_built_is_not_recorded(copy):
    project = copy()
    shutil.rmtree(project.outputs.folder / "datasets/web")

    report = next(verify_project(project, select=["web"]))

    assert not report.passed
    assert recorded_outputs(project) == set()


def test_a_damaged_group_of_tars_is_recorded(copy):
    project = copy()
    damaged_tar = min(group_facts(project, "shuffled", 1))
    overwrite(damaged_tar, 512, b"\xff" * 100)

    list(verify_project(project, select=["shuffled"]))

    assert recorded_outputs(project) == {
        ("webdatasets", "shuffled"),
        ("webdatasets", "shuffled/tars/1"),
    }


def test_an_error_that_cannot_be_recorded_is_reported_with_a_warning(copy, monkeypatch):
    project = copy()
    overwrite(first_file(project, "datasets/web/*/*.bin"), 0, b"\xff" * 100)
    (project.outputs.folder / FOLDER).touch()  # as on a root that is read-only

    report = next(verify_project(project, select=["web"]))

    assert not report.passed
    assert "cannot be recorded" in report.warnings[-1].what


@pytest.mark.parametrize("deep", [True, False])
def test_outputs_that_differ_from_a_damaged_dataset_are_not_recorded(copy, monkeypatch, deep):
    # A quick check does not read large datasets to find out whether they are damaged.
    monkeypatch.setattr("nanoset_core.stages.dataset.differences._QUICK_BYTES", 0)
    project = copy()
    overwrite(first_file(project, "datasets/web/*/*.bin"), 0, b"\xff" * 100)

    failed = {report.output for report in verify_project(project, deep=deep) if not report.passed}

    assert "packed/web" in failed  # the .pbin file
    assert recorded_outputs(project) == {("datasets", "web")}
