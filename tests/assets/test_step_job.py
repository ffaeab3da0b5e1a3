"""The job `explain_step`: it decodes the samples of a training step and records an observation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from helpers.sample_platform import Platform, copy_template
from nanoset_core.lineage.explain import SampleOrigin
from nanoset_core.lineage.run import explain_step
from nanoset_core.lineage.sentences import place_of
from nanoset_core.project.project import Project

RUN_FILE = """\
handoff: data/nanosets/pretrain/handoff/current
data_parallel_size: 4
micro_batch_size: 2
global_batch_size: 16
"""
"""A training run, as its user describes it in a file."""


@pytest.fixture(scope="module")
def platform(template, tmp_path_factory) -> Iterator[Platform]:
    """A built project with `run.yaml`, the description of a training run."""
    folder = tmp_path_factory.mktemp("steps") / "project"
    config_file = copy_template(template, folder)
    (folder / "run.yaml").write_text(RUN_FILE)
    with dg.DagsterInstance.local_temp(str(folder / "home")) as instance:
        yield Platform(config_file, instance)


def observe_step(platform: Platform, **op_config: Any) -> dg.AssetObservation:
    """Run the job with a configuration of its op, and return the observation that it records."""
    run_config = None
    if op_config:
        run_config = {"ops": {"decoded_step": {"config": op_config}}}
    result = platform.definitions.resolve_job_def("explain_step").execute_in_process(
        instance=platform.instance, run_config=run_config
    )
    (observation,) = result.asset_observations_for_node("decoded_step")
    return observation


def sample_rows(observation: dg.AssetObservation) -> list[dict[str, Any]]:
    """Return the rows of the table of samples."""
    return [dict(record.data) for record in observation.metadata["samples"].records]


# A step of a training run that a file describes


@pytest.fixture(scope="module")
def observation(platform) -> dg.AssetObservation:
    """What was observed of the samples that rank 1 of the run read in step 3."""
    return observe_step(platform, run="run.yaml", step=3, rank=1)


@pytest.fixture(scope="module")
def expected_samples(platform) -> list[SampleOrigin]:
    """What `nanoset explain` says of the samples that rank 1 of the run read in step 3."""
    project = Project.open(platform.config_file)
    return explain_step(project, platform.config_file.parent / "run.yaml", 3, 1).samples


def test_the_observation_is_recorded_on_the_handoff_of_the_run(observation):
    assert observation.asset_key == dg.AssetKey(["pretrain", "handoff"])


def test_the_summary_states_the_samples_and_the_batch_sizes_of_the_run(observation):
    summary = observation.metadata["summary"].value

    assert "step 3 read 16 samples after 32 consumed, on 4 ranks in micro-batches of 2" in summary


def test_the_table_lists_the_samples_that_the_rank_read(observation, expected_samples):
    rows = sample_rows(observation)

    for row, sample in zip(rows, expected_samples, strict=True):
        assert row["rank"] == str(sample.rank)
        assert row["micro_batch"] == str(sample.micro_batch)
        assert row["sample"] == str(sample.sample)


def test_the_table_shows_documents_and_text_of_each_sample(observation, expected_samples):
    rows = sample_rows(observation)

    for row, sample in zip(rows, expected_samples, strict=True):
        first_piece = sample.pieces[0]
        assert row["documents"].startswith(place_of(first_piece.origin))
        assert row["text"] == first_piece.text


# Defaults and refusals


def test_without_configuration_the_first_step_on_one_rank_is_decoded(platform):
    observation = observe_step(platform)

    summary = observation.metadata["summary"].value
    rows = sample_rows(observation)
    assert "step 1 read 8 samples after 0 consumed, on 1 rank" in summary
    assert [row["sample"] for row in rows] == ["0", "1", "2", "3", "4", "5", "6", "7"]
    assert "rank" not in rows[0]


def test_a_run_whose_description_is_missing_is_refused(platform):
    with pytest.raises(dg.Failure, match="cannot be read"):
        observe_step(platform, run="other.yaml", step=2)


def test_an_unknown_nanoset_is_refused(platform):
    with pytest.raises(dg.Failure, match="no such name"):
        observe_step(platform, nanoset="other", step=2)


@pytest.mark.parametrize("step", [-5, 0, 10**20])
@pytest.mark.parametrize("run", ["", "run.yaml"], ids=["no run", "a run"])
def test_a_number_that_no_step_has_is_refused(platform, step, run):
    with pytest.raises(dg.Failure, match="no such step") as raised:
        observe_step(platform, nanoset="pretrain", step=step, run=run)

    assert f"found: {step:,}" in raised.value.description


def test_without_a_run_a_step_after_the_end_is_refused_with_the_steps_that_exist(platform):
    last_step = 50  # 400 samples, 8 a step
    observe_step(platform, nanoset="pretrain", step=last_step)

    with pytest.raises(dg.Failure, match="no such step") as raised:
        observe_step(platform, nanoset="pretrain", step=last_step + 1)

    assert "expected: 1 to 50, with 8 samples a step" in raised.value.description
