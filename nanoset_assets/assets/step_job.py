"""The job `explain_step`: decode the samples that one training step of a run reads.

The user starts it in Dagster's Launchpad, for example with `step: 120`. The result, a table of the
samples with their documents and text, is recorded as an observation of the asset of the handoff.
"""

# There is no `from __future__ import annotations` here: Dagster reads the annotations of functions
# that it calls, and does not understand them as texts.

from typing import Any

import dagster as dg
from pydantic import Field

from nanoset_assets.assets.output_names import asset_path
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.ui.metadata import ROWS_SHOWN, failure, markdown, table
from nanoset_assets.ui.previews import STEP_SAMPLES, sample_row
from nanoset_core.errors import NanosetError
from nanoset_core.lineage.documents import InspectionContext
from nanoset_core.lineage.run import Run, StepOrigin, StepSample, explain_step
from nanoset_core.lineage.sentences import step_sentence
from nanoset_core.project.project import Project
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.stage import Key, Node, require
from nanoset_core.untrusted import markdown_text

STEP_JOB = "explain_step"
"""Name of the job."""
STEP_OP = "decoded_step"
"""Name of the op of the job."""


class StepOptions(dg.Config):
    """Options of the job, which the user sets in the Launchpad."""

    # Without `ge=1`: Dagster's Launchpad would not check it, and pydantic's error is no help.
    step: int = Field(default=1, description="Number of the step, from 1.")
    nanoset: str = Field(
        default="",
        description="Without `run`: the nanoset with whose handoff the training run was started.",
    )
    run: str = Field(
        default="",
        description="Path of a run.yaml; a relative path starts in the folder of nanoset.yaml.",
    )
    rank: int | None = Field(default=None, description="With `run`: only this data-parallel rank.")


def step_job(project_defs: ProjectDefs) -> dg.JobDefinition:
    """Make a Dagster job that shows which samples a trainer reads in one step.

    A user starts it in Dagster's UI, for example with the option `step: 120`, when the loss jumps
    in step 120 of a training run. The result is a table with the text of the samples.

    Args:
        project_defs: The names and settings of the project in Dagster. It has at least one data
            mixture (a nanoset); the options name the first one unless the user changes that.
    """
    op_name = project_defs.names.definition(STEP_OP)
    first_nanoset = next(iter(project_defs.config.nanosets))

    # In Dagster, a job consists of functions, called ops. This is the only one. (Its docstring
    # would be shown to users.)
    @dg.op(name=op_name, tags=dict(project_defs.op_tags), out=dg.Out(dg.Nothing))
    def op(context: dg.OpExecutionContext, config: StepOptions) -> None:
        project = project_defs.load_in_step(context)
        try:
            context.log_event(step_observation(project_defs, project, config))
        except NanosetError as error:
            raise failure(error) from error

    @dg.job(
        name=project_defs.names.definition(STEP_JOB),
        description="Decodes the samples that one training step reads, and shows them as an "
        "observation of the nanoset's handoff.",
        config={"ops": {op_name: {"config": {"nanoset": first_nanoset, "step": 1}}}},
        run_tags=project_defs.run_tags,
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        op()

    return job


def step_observation(
    project_defs: ProjectDefs, project: Project, options: StepOptions
) -> dg.AssetObservation:
    """Return a table of the samples that a trainer read in one step, for Dagster to show.

    Dagster records it as an observation: an event that belongs to an asset without changing it.

    Args:
        project_defs: Knows the names of the project in Dagster.
        project: Gives access to the samples.
        options: Which step of which training run to show.

    Raises:
        NanosetError: It cannot be found out what the step read; see `explain_step`.
    """
    run = _run_of(project, options)
    step = explain_step(project, run, options.step, options.rank, most=ROWS_SHOWN)
    metadata = _step_metadata(step, options)

    # Show it on the page of the asset with the files that started the training (the handoff).
    mixture_name = step.samples[0].name  # all samples of a step are from one data mixture
    handoff = Node(TRAINER_FILES, Key(mixture_name))
    asset = project_defs.names.asset(asset_path(handoff))
    return dg.AssetObservation(asset, metadata=metadata)


def _step_metadata(step: StepOrigin, options: StepOptions) -> dict[str, Any]:
    """Return what Dagster's UI shows of one step of a trainer: a sentence, and a table of samples.

    For example:

        rank    micro_batch    sample    corpus    documents                          text
        0       0              17        web       web/part-0.jsonl:5 tokens 0–300    It was a …
        1       0              4         books     books/part-2.jsonl:1 tokens …      Chapter one …

    Args:
        step: The step, with its first samples.
        options: What the user asked for. If it names a file that describes the training run, it is
            known which GPU (rank) reads a sample. Otherwise, the first two columns are left out.

    Returns:
        Heading → value.
    """
    has_ranks = bool(options.run)
    rows = [_row(sample, has_rank=has_ranks) for sample in step.samples]
    n_samples = _sample_count(step, options.rank)  # of the whole step
    return {
        "summary": markdown(markdown_text(step_sentence(step))),
        "step": step.step,
        "samples": table(rows, n_samples),  # says how many samples it does not show
    }


def _row(sample: StepSample, *, has_rank: bool) -> dict[str, object]:
    """Return the row of a training sample in the table of a step.

    Args:
        sample: The sample, the documents that its tokens come from, and which GPU reads it.
        has_rank: Whether it is known how the samples are divided among the GPUs. If so, the row
            starts with the number of the GPU (`rank`) and the micro-batch.
    """
    row = sample_row(sample)
    if has_rank:
        return {"rank": sample.rank, "micro_batch": sample.micro_batch, **row}
    return row


def _sample_count(step: StepOrigin, rank: int | None) -> int:
    """Return how many samples a trainer reads in one step: on one GPU, or on all of them.

    For example, a batch of 8 samples on 2 GPUs: 4 on each.

    Args:
        step: The step. Its batch is divided evenly among the data-parallel ranks (GPUs, or groups
            of GPUs that hold one copy of the model).
        rank: Number of the rank; None for all.
    """
    if rank is None:
        return step.batch_size
    return step.batch_size // step.data_parallel_size  # the ranks share a batch evenly


def _run_of(project: Project, options: StepOptions) -> Run:
    """Return the training run whose samples a user wants to see.

    There are two cases:

    - The user names a file `run.yaml`, which records how the training was started, and how often it
      was resumed with other settings.
    - The user names only a data mixture. Then suppose that the training is started now, with the
      files that were made for it, and reads all samples on one GPU.

    Args:
        project: Gives access to these files.
        options: What the user asked for.

    Raises:
        NanosetError: The file cannot be read, there is no such mixture, or its files are not made
            yet.
    """
    outputs = InspectionContext.of(project).outputs
    if options.run:
        return Run.open(outputs, project.config.file.parent / options.run)

    # No run is named: suppose that one started with the current handoff, and reads it on one rank.
    project.nanoset(options.nanoset)  # checks the name: the error lists those that exist
    handoff_manifest = require(project, TRAINER_FILES, Key(options.nanoset))
    return Run.example(outputs, handoff_manifest, default_batch_size=STEP_SAMPLES)
