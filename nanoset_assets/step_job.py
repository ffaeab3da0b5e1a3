"""The job that decodes any step of a run, from the Launchpad: the handoff's asset gets an observation that shows it."""

from dataclasses import asdict
from typing import Any

import dagster as dg
from pydantic import Field

from nanoset_assets.asset_table import asset_path
from nanoset_assets.hosted import ProjectDefs
from nanoset_assets.ui.metadata import ROWS_SHOWN, failure, markdown, table
from nanoset_assets.ui.previews import STEP_SAMPLES, sample_row
from nanoset_core.cli.explained import step_line
from nanoset_core.errors import NanosetError
from nanoset_core.lineage.documents import InspectionContext
from nanoset_core.lineage.run import Run, explain_step
from nanoset_core.project.project import Project
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.stage import Key, Node, require
from nanoset_core.untrusted import markdown_text

STEP_JOB, STEP_OP = "explain_step", "decoded_step"
"""Names of the job and of its op."""


class StepOptions(dg.Config):
    """What the Launchpad asks for."""

    step: int = Field(default=1, ge=1, description="From 1, as trainers log it.")
    nanoset: str = Field(default="", description="Without `run`: whose handoff the run was started with, on any ranks.")
    run: str = Field(default="", description="Path of a run.yaml; relative ones start in the folder of nanoset.yaml.")
    rank: int | None = Field(default=None, description="With `run`: one data-parallel rank alone.")


def step_job(hosted: ProjectDefs) -> dg.JobDefinition:
    """Make the job; its Launchpad names the first nanoset."""
    name, config = hosted.names.definition(STEP_OP), {"nanoset": next(iter(hosted.config.nanosets)), "step": 1}

    @dg.op(name=name, tags=dict(hosted.op_tags), out=dg.Out(dg.Nothing))
    def op(context: dg.OpExecutionContext, config: StepOptions) -> None:
        project = hosted.load_in_step(context)
        try:
            context.log_event(observed(hosted, project, config))
        except NanosetError as error:
            raise failure(error) from error

    @dg.job(
        name=hosted.names.definition(STEP_JOB),
        description="What a step of a run read, decoded: an observation of the nanoset's handoff shows it.",
        config={"ops": {name: {"config": config}}},
        run_tags=hosted.run_tags,
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        op()

    return job


def observed(hosted: ProjectDefs, project: Project, asked: StepOptions) -> dg.AssetObservation:
    """Return what a handoff's asset shows of a step; errors as of `explain_step`."""
    outputs = InspectionContext.of(project).outputs
    if asked.run:
        run = Run.open(outputs, project.config.file.parent / asked.run)
    else:
        project.nanoset(asked.nanoset)
        run = Run.begun(outputs, require(project, TRAINER_FILES, Key(asked.nanoset)), STEP_SAMPLES)
    step = explain_step(project, run, asked.step, asked.rank, ROWS_SHOWN)
    places = ("rank", "micro_batch") if asked.run else ()
    rows = ({name: getattr(one, name) for name in places} | sample_row(one) for one in step.samples)
    total = step.batch_size if asked.rank is None else step.batch_size // step.data_parallel_size
    metadata: dict[str, Any] = {
        "summary": markdown(markdown_text(step_line(asdict(step)))),
        "step": step.step,
        "samples": table(rows, total),
    }
    asset = asset_path(Node(TRAINER_FILES, Key(step.samples[0].name)))
    return dg.AssetObservation(hosted.names.asset(asset), metadata=metadata)
