"""Reports of a verification: findings, figures, and the parts that others look at."""

from __future__ import annotations

import inspect
import json

import pytest

from nanoset_core.errors import FormatError
from nanoset_core.stages.report import Report, runs


def test_runs_of_parts_are_cut_by_their_sizes():
    assert [list(run) for run in runs([3, 3, 3, 9, 1], 6)] == [[0, 1], [2, 3], [4]]
    assert list(runs([])) == []


def test_an_error_fails_and_a_warning_does_not():
    report = Report("datasets/web")
    report.warn("older than its files", remedy="build")
    assert report.passed
    report.error("cut off", where="a.bin", found=3, expected=4, remedy="build again")
    assert not report.passed
    assert [finding.what for finding in report.errors] == ["cut off"]
    assert str(report.errors[0]) == (
        "error: datasets/web: cut off\n  where: a.bin\n  found: 3\n  expected: 4\n  remedy: build "
        "again"
    )


@pytest.mark.parametrize("method", ["error", "warn", "add", "compare"])
def test_details_of_a_finding_are_named_in_the_call(method):
    signature = inspect.signature(getattr(Report("x"), method))
    what, *details = signature.parameters.values()
    assert what.name == "what"
    assert {detail.kind for detail in details} == {inspect.Parameter.KEYWORD_ONLY}


def test_errors_of_ours_become_findings_and_others_do_not():
    report = Report("x")
    with report.catching(remedy="do this"):
        raise FormatError("bad magic", where="a.idx", found="b", expected="c")
    assert report.errors[0].remedy == "do this"
    with pytest.raises(ZeroDivisionError), report.catching():
        _ = 1 // 0
    assert len(report.findings) == 1


def test_a_report_as_json_holds_the_findings_of_its_parts():
    report = Report("x")
    report.figures["tokens"] = 7
    part = Report("x/y")
    part.error("bad")
    report.include(part)
    value = json.loads(json.dumps(report.to_json()))
    assert value["passed"] is False
    assert value["figures"] == {"tokens": 7}
    assert value["findings"][0]["output"] == "x/y"
