"""Reports, and deep checks in parts that others do: the reports are those of one process."""

import pickle
import shutil

import pytest

from helpers.built_project import first_file, overwrite
from nanoset_core.errors import NanosetError
from nanoset_core.project.verify import Target, targets, verify_by
from nanoset_core.stages.report import DividedCheck, Report, runs
from nanoset_core.storage.worker_folders import WorkerFolder, working_at


class Elsewhere:
    """An executor whose tasks travel, are done in another order, and each in a folder of its own."""

    def __init__(self, folder):
        self.folder, self.done = folder, []

    def run(self, work, tasks):
        travelling = [pickle.dumps((work, task)) for task in tasks]
        for number in sorted(range(len(travelling)), key=lambda number: (number % 3, -number)):
            work, task = pickle.loads(travelling[number])
            with working_at(WorkerFolder(self.folder / str(len(self.done)))):
                self.done.append(work.__name__)
                yield number, pickle.loads(pickle.dumps(work(task)))


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr("nanoset_core.stages.dataset.token_ranges.PART_BYTES", 2000)
    monkeypatch.setattr("nanoset_core.stages.pbin.verify.PART_BYTES", 2000)
    monkeypatch.setattr(runs, "__defaults__", (5000,))


def said(reports):
    return [report.to_json() for report in reports]


def test_the_reports_are_those_of_one_process(project, tmp_path, small_parts):
    chosen, elsewhere = targets(project), Elsewhere(tmp_path)
    assert said(verify_by(elsewhere, chosen)) == said(target.verify(deep=True) for target in chosen)
    assert elsewhere.done.count("check_part_task") > 50


def test_so_are_findings(copy, tmp_path, small_parts):
    project = copy()
    overwrite(first_file(project, "datasets/web/*/*.bin"), 40, b"\xff\xff")
    overwrite(first_file(project, "packed/*/*/*.pbin"), 40, b"\xff\xff")
    overwrite(sorted(project.outputs.folder.glob("shards/web/*/tokens.bin"))[1], 10, b"\xff\xff")
    overwrite(sorted(project.outputs.folder.glob("webdatasets/*/*/*.tar"))[-1], 5000, b"\xff")
    chosen = targets(project)
    here = [target.verify(deep=True) for target in chosen]
    assert sum(not report.passed for report in here) >= 3
    for found, wanted in zip(verify_by(Elsewhere(tmp_path), chosen), here, strict=True):
        assert (found.output, found.passed) == (wanted.output, wanted.passed)
        # What is looked at where all else is sound is looked at before the parts are.
        assert set(found.findings) >= set(wanted.findings)


def test_what_cannot_be_read_is_a_finding(copy, tmp_path, small_parts):
    """Of the part that found it, in the report of its output alone."""
    project = copy()

    class Thief(Elsewhere):
        def run(self, work, tasks):
            if work.__name__ == "check_part_task":
                shutil.rmtree(sorted(project.outputs.folder.glob("shards/web/*"))[2])
            yield from super().run(work, tasks)

    reports = {report.output: report for report in verify_by(Thief(tmp_path), targets(project))}
    (finding,) = reports["corpora/web"].errors
    assert finding.what == "a shard is not whole"
    assert not [
        report.output
        for report in reports.values()
        if report.errors and report.output != "corpora/web"
    ]


def same(part):
    if part < 0:
        raise NanosetError("it is negative")
    return Report("same", figures={"sum": part})


def verify_numbers(target, deep, run):
    report = Report("numbers", figures={"sum": 0})
    run(report, DividedCheck(parts=target.outputs, check_part=same))
    return report


def test_reports_come_in_their_order_as_soon_as_they_are_whole(project, tmp_path, monkeypatch):
    monkeypatch.setattr(Target, "verify", verify_numbers)
    monkeypatch.setattr(Target, "is_bound_to_machine", False)
    lists = ([], [1, 2, 3], [], [4, -1, -2], [])
    found = list(
        verify_by(Elsewhere(tmp_path), [Target("x", project, numbers) for numbers in lists])
    )
    assert [report.figures["sum"] for report in found] == [0, 6, 0, 4, 0]
    assert [[finding.what for finding in report.findings] for report in found] == [
        [],
        [],
        [],
        ["it is negative"],
        [],
    ]
