"""Reports of a verification have findings and figures, and include the reports of other outputs."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest

from nanoset_core.errors import FormatError
from nanoset_core.stages.report import Report, group_by_bytes


@pytest.fixture
def report() -> Report:
    """A report without findings."""
    return Report("datasets/web")


# Findings


def test_a_report_with_only_a_warning_passes(report):
    report.warn("older than its files", remedy="build")

    assert report.passed
    assert report.errors == []


def test_a_report_with_an_error_fails(report):
    report.error("cut off", remedy="build again")

    assert not report.passed
    assert [finding.what for finding in report.errors] == ["cut off"]


def test_a_finding_is_printed_with_its_details(report):
    report.error("cut off", where="a.bin", found=3, expected=4, remedy="build again")

    assert str(report.errors[0]) == (
        "error: datasets/web: cut off\n"
        "  where: a.bin\n"
        "  found: 3\n"
        "  expected: 4\n"
        "  remedy: build again"
    )


@pytest.mark.parametrize(
    ("found", "text"),
    [
        pytest.param(4096, "4,096", id="an integer"),
        pytest.param(np.int64(4096), "4,096", id="an integer of numpy"),
        pytest.param(True, "True", id="a boolean"),
        pytest.param("4096", "4096", id="a text"),
    ],
)
def test_only_integers_are_shown_with_commas(found, text, report):
    report.compare("it differs", where="a.bin", found=found, expected="more", remedy="build again")

    assert str(report.errors[0].found) == text


@pytest.mark.parametrize("method", ["error", "warn", "add", "compare"])
def test_details_of_a_finding_are_named_in_the_call(method, report):
    signature = inspect.signature(getattr(report, method))

    first_parameter, *details = signature.parameters.values()

    assert first_parameter.name == "what"
    assert {detail.kind for detail in details} == {inspect.Parameter.KEYWORD_ONLY}


def test_an_expected_error_becomes_a_finding(report):
    with report.catching(remedy="do this"):
        raise FormatError("bad magic", where="a.idx", found="b", expected="c")

    (finding,) = report.findings
    assert finding in report.errors
    assert finding.remedy == "do this"


def test_an_unexpected_error_is_raised(report):
    with pytest.raises(ZeroDivisionError), report.catching():
        _ = 1 // 0

    assert report.findings == []


def test_a_report_as_json_has_the_findings_of_included_reports(report):
    report.figures["tokens"] = 7
    included_report = Report("datasets/web/part")
    included_report.error("bad")

    report.include(included_report)

    values = json.loads(json.dumps(report.to_json()))
    assert values["passed"] is False
    assert values["figures"] == {"tokens": 7}
    assert values["findings"][0]["output"] == "datasets/web/part"


# Files that are verified together


def test_consecutive_files_are_grouped_until_a_group_has_its_least_size():
    sizes = [3, 3, 3, 9, 1]

    groups = [list(run) for run in group_by_bytes(sizes, min_bytes=6)]

    assert groups == [[0, 1], [2, 3], [4]]


def test_without_files_there_are_no_groups():
    assert list(group_by_bytes([])) == []
