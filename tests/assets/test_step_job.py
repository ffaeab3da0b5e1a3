"""The job that decodes any step: what its observation of the handoff shows, and what it refuses."""

import dagster as dg
import pytest

from nanoset_core.lineage.run import explain_step
from nanoset_core.lineage.sentences import place_of
from nanoset_core.project.project import Project

RUN = (
    "handoff: data/nanosets/pretrain/handoff/current\ndata_parallel_size: 4\nmicro_batch_size: "
    "2\nglobal_batch_size: 16"
)


def test_a_step_is_observed_on_the_handoff_that_read_it(built_platform):
    file = built_platform.config_file.parent / "run.yaml"
    file.write_text(RUN)
    job, project = (
        built_platform.definitions.resolve_job_def("explain_step"),
        Project.open(built_platform.config_file),
    )

    def shown(**config):
        run_config = {"ops": {"decoded_step": {"config": config}}} if config else None
        done = job.execute_in_process(instance=built_platform.instance, run_config=run_config)
        (observation,) = done.asset_observations_for_node("decoded_step")
        assert observation.asset_key == dg.AssetKey(["pretrain", "handoff"])
        return observation.metadata["summary"].value, [
            dict(row.data) for row in observation.metadata["samples"].records
        ]

    summary, rows = shown(run="run.yaml", step=3, rank=1)
    assert "step 3 read 16 samples after 32 consumed, on 4 ranks in micro-batches of 2" in summary
    expected = explain_step(project, file, 3, 1).samples
    assert [(row["rank"], row["micro_batch"], row["sample"]) for row in rows] == [
        (str(one.rank), str(one.micro_batch), str(one.sample)) for one in expected
    ]
    assert [row["text"] for row in rows] == [one.pieces[0].text for one in expected]
    assert all(
        row["documents"].startswith(place_of(one.pieces[0].origin))
        for row, one in zip(rows, expected, strict=True)
    )
    summary, rows = shown()
    assert "step 1 read 8 samples after 0 consumed, on 1 rank" in summary
    assert [row["sample"] for row in rows] == [str(number) for number in range(8)]
    assert "rank" not in rows[0]
    for wrong, text in (
        ({"run": "other.yaml"}, "cannot be read"),
        ({"nanoset": "other"}, "no such name"),
    ):
        with pytest.raises(dg.Failure, match=text):
            shown(step=2, **wrong)
