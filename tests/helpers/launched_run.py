"""Launch a run of a job as Dagster's daemon does, after the nanoset.yaml of its project was emptied.

Usage: python -m helpers.launched_run MODULE CONFIG_FILE JOB. It prints the status of the run, and the
messages of its log. The history is in DAGSTER_HOME.

The run is created with what a code server has loaded. Then the settings are emptied and the copies
of their last valid version deleted, so that the process of the run finds no valid settings on its
machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import PythonFileTarget

from helpers.child_processes import wait_until

TIMEOUT_SECONDS = 120


def main(module: Path, config_file: Path, job_name: str) -> None:
    """Launch a run, wait for its end, and print what became of it.

    Args:
        module: The Python file of a code location.
        config_file: The nanoset.yaml of a project in it.
        job_name: A job of the code location.
    """
    target = PythonFileTarget(str(module), None, str(module.parent), "host")
    with (
        dg.DagsterInstance.get() as instance,
        WorkspaceProcessContext(instance, target) as process_context,
    ):
        request_context = process_context.create_request_context()
        (code_location,) = request_context.code_locations
        run = create_run(instance, code_location, job_name)

        remove_settings(config_file)
        instance.launch_run(run.run_id, request_context)
        wait_until(lambda: current_run(instance, run).is_finished, TIMEOUT_SECONDS, pause=0.2)

        print(current_run(instance, run).status.value)
        for record in instance.all_logs(run.run_id):
            print(record.user_message or record.get_dagster_event().message)


def execute_job(arguments: list[str], environment: dict[str, str], output: Path) -> None:
    """Run `dagster job execute` in this process, which is forked from one that has Dagster loaded.

    Args:
        arguments: Words after `dagster job execute`.
        environment: The variables of the process.
        output: The file of what it prints.
    """
    from dagster._cli import create_dagster_cli

    os.environ.clear()
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    create_dagster_cli()(["job", "execute", *arguments])


def current_run(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun:
    """Return a run as it is now."""
    stored_run = instance.get_run_by_id(run.run_id)
    assert stored_run is not None
    return stored_run


def create_run(instance: dg.DagsterInstance, code_location: Any, job_name: str) -> dg.DagsterRun:
    """Create a run of a job of a code location, as a click on "Launch" does."""
    repository = code_location.get_repository("__repository__")
    job = repository.get_full_job(job_name)
    plan = code_location.get_execution_plan(job, {}, None, None, instance=instance)
    return instance.create_run(
        job_name=job_name,
        run_id=None,
        run_config={},
        status=None,
        tags={},
        root_run_id=None,
        parent_run_id=None,
        step_keys_to_execute=None,
        execution_plan_snapshot=plan.execution_plan_snapshot,
        job_snapshot=job.job_snapshot,
        parent_job_snapshot=None,
        asset_selection=None,
        asset_check_selection=None,
        resolved_op_selection=None,
        op_selection=None,
        remote_job_origin=job.get_remote_origin(),
        job_code_origin=job.get_python_origin(),
        asset_graph=repository.asset_graph,
    )


def remove_settings(config_file: Path) -> None:
    """Empty a nanoset.yaml, and delete the copies of its last valid version."""
    config_file.write_text("")
    for copy in (config_file.parent / ".nanoset").rglob("*.yaml"):
        copy.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
