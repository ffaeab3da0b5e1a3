"""Deep checks that are divided over the tasks of an executor report what one process reports."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.built_project import first_file, overwrite
from nanoset_core.errors import NanosetError
from nanoset_core.project.verify import Target, targets, verify_by
from nanoset_core.stages.report import DividedCheck, Report, group_by_bytes
from nanoset_core.storage.copies.worker_folders import WorkerFolder, working_at


class ShufflingExecutor:
    """Runs tasks in another order, each in its own folder, as if each was on another machine.

    Args:
        folder: The folders of the tasks are made in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.function_names: list[str] = []
        """Names of the functions of the tasks that were run."""

    def run(self, work: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each task, in the order in which they are run."""
        messages = [pickle.dumps((work, task)) for task in tasks]
        order = sorted(range(len(messages)), key=lambda number: (number % 3, -number))
        for number in order:
            received_work, task = pickle.loads(messages[number])
            task_folder = self.folder / str(len(self.function_names))
            with working_at(WorkerFolder(task_folder)):
                self.function_names.append(received_work.__name__)
                result = received_work(task)
                yield number, pickle.loads(pickle.dumps(result))


@pytest.fixture
def small_parts(monkeypatch):
    """Divide checks into so small parts that those of the small project are divided."""
    monkeypatch.setattr("nanoset_core.stages.dataset.token_ranges.PART_BYTES", 2000)
    monkeypatch.setattr("nanoset_core.stages.pbin.verify.PART_BYTES", 2000)
    monkeypatch.setattr(group_by_bytes, "__defaults__", (5000,))


def as_json(reports: Iterable[Report]) -> list[dict[str, Any]]:
    """Return reports as `nanoset verify --json` prints them."""
    return [report.to_json() for report in reports]


def test_the_reports_on_a_healthy_project_equal_those_of_one_process(
    project, tmp_path, small_parts
):
    selected = targets(project)
    executor = ShufflingExecutor(tmp_path)

    reports = as_json(verify_by(executor, selected))

    assert reports == as_json(target.verify(deep=True) for target in selected)
    assert executor.function_names.count("check_part_task") > 50


def test_damage_that_one_process_finds_is_found_by_tasks_too(copy, tmp_path, small_parts):
    project = copy()
    second_shard = sorted(project.outputs.folder.glob("shards/web/*/tokens.bin"))[1]
    last_tar = sorted(project.outputs.folder.glob("webdatasets/*/*/*.tar"))[-1]
    overwrite(first_file(project, "datasets/web/*/*.bin"), 40, b"\xff\xff")
    overwrite(first_file(project, "packed/*/*/*.pbin"), 40, b"\xff\xff")
    overwrite(second_shard, 10, b"\xff\xff")
    overwrite(last_tar, 5000, b"\xff")
    selected = targets(project)
    expected_reports = [target.verify(deep=True) for target in selected]
    assert sum(not report.passed for report in expected_reports) >= 3

    reports = list(verify_by(ShufflingExecutor(tmp_path), selected))

    for report, expected in zip(reports, expected_reports, strict=True):
        assert report.output == expected.output
        assert report.passed == expected.passed
        # One process does some checks only if the ones before found nothing. Tasks do them anyway,
        # and may find more.
        assert set(report.findings) >= set(expected.findings)


def test_a_part_that_cannot_be_read_is_an_error_in_the_report_of_its_output_only(
    copy, tmp_path, small_parts
):
    project = copy()

    class RemovingExecutor(ShufflingExecutor):
        """Removes a shard before the parts are checked."""

        def run(self, work: Callable[[Any], Any], tasks: Any) -> Iterator[tuple[int, Any]]:
            if work.__name__ == "check_part_task":
                third_shard = sorted(project.outputs.folder.glob("shards/web/*"))[2]
                shutil.rmtree(third_shard)
            yield from super().run(work, tasks)

    reports = list(verify_by(RemovingExecutor(tmp_path), targets(project)))

    (failed_report,) = [report for report in reports if report.errors]
    assert failed_report.output == "corpora/web"
    (error,) = failed_report.errors
    assert error.what == "a shard is not whole"


# The order of reports


def check_number(number: int) -> Report:
    """Report a number as a figure, as the check of a part does; a negative number is an error."""
    if number < 0:
        raise NanosetError("it is negative")
    return Report("same", figures={"sum": number})


def verify_numbers(target: Target, deep: bool, run: Callable[..., None]) -> Report:
    """Check the numbers of a target, each as a part, and report their sum."""
    report = Report("numbers", figures={"sum": 0})
    run(report, DividedCheck(parts=target.nodes, check_part=check_number))
    return report


def targets_of_numbers(project: Any, number_lists: Sequence[list[int]]) -> list[Target]:
    """Return a target for each list of numbers."""
    selected: Any = [Target("x", project, numbers) for numbers in number_lists]
    return selected


def test_reports_have_the_order_of_their_outputs_whatever_the_order_of_the_tasks(
    project, tmp_path, monkeypatch
):
    monkeypatch.setattr(Target, "verify", verify_numbers)
    monkeypatch.setattr(Target, "is_bound_to_machine", False)
    selected = targets_of_numbers(project, [[], [1, 2, 3], [], [4, -1, -2], []])

    reports = list(verify_by(ShufflingExecutor(tmp_path), selected))

    assert [report.figures["sum"] for report in reports] == [0, 6, 0, 4, 0]
    # Equal findings of several parts are reported once.
    findings = [finding.what for finding in reports[3].findings]
    assert findings == ["it is negative"]
    for number in (0, 1, 2, 4):
        assert reports[number].findings == []
