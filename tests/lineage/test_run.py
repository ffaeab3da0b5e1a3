"""Steps of a run of the built project: samples, ranks, documents; and documents → steps."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from nanoset_core import load_nanoset
from nanoset_core.errors import ConfigError, MissingError, SampleIndexError
from nanoset_core.lineage import run as run_module
from nanoset_core.lineage.documents import InspectionContext
from nanoset_core.lineage.explain import explain_sample
from nanoset_core.lineage.find import find_document
from nanoset_core.lineage.run import Run, RunHandoff, explain_step, find_steps
from nanoset_core.stages.handoff.run import RunSpec
from nanoset_core.stages.handoff.steps import Dealer

RUN = """\
handoff: data/nanosets/{name}/handoff/current
data_parallel_size: 4
micro_batch_size: 2
global_batch_size: 16
rampup_batch_size: [8, 8, 24]
skipped_iterations: [[3, 4]]
resumes: [{{iteration: 5, data_parallel_size: 2}}]
"""


def run_file(tmp_path, name="pretrain", text=RUN):
    file = tmp_path / "run.yaml"
    file.write_text(text.format(name=name))
    return file


def test_a_step_is_the_samples_that_explain_gives(project, tmp_path):
    file, seen = run_file(tmp_path), list[int]()
    for step in range(1, 9):
        found = explain_step(project, file, step)
        ranks = 4 if step <= 5 else 2
        assert (found.skipped, found.data_parallel_size, found.batch_size) == (
            step in (3, 4),
            ranks,
            8 if step < 4 else 16,
        )
        assert found.consumed_samples == len(seen)
        places = [(one.rank, one.micro_batch) for one in found.samples]
        assert places == sorted(places)
        assert {rank for rank, _ in places} == set(range(ranks))
        seen += sorted(one.sample for one in found.samples)
    assert seen == list(range(24 + 5 * 16))
    for sample in found.samples[::5]:
        plain = explain_sample(project, "pretrain", "train", sample.sample)
        pieces = [replace(piece, source=None) for piece in plain.pieces]
        assert list(sample.pieces) == pieces
        assert replace(plain, pieces=()) == type(plain)(
            *(getattr(sample, name) for name in plain.__dataclass_fields__ if name != "pieces"), ()
        )


def test_a_rank_alone_and_the_first_samples(project, tmp_path):
    file = run_file(tmp_path)
    whole = explain_step(project, file, 7)
    for rank in range(2):
        assert explain_step(project, file, 7, rank).samples == tuple(
            one for one in whole.samples if one.rank == rank
        )
    assert explain_step(project, file, 7, most=3).samples == whole.samples[:3]
    with pytest.raises(
        ConfigError, match=r"run.yaml: step 7: no such data-.* rank\n  found: 2\n  expected: 0 to 1"
    ):
        explain_step(project, file, 7, 2)
    assert {
        piece.text
        for one in explain_step(project.outputs.folder, file, 7).samples
        for piece in one.pieces
    } == {None}


@pytest.mark.parametrize("name", ["pretrain", "nemo", "repeated"])
def test_the_steps_of_a_document_are_those_that_show_it(project, tmp_path, name):
    text = RUN.replace("rampup_batch_size: [8, 8, 24]\n", "") if name != "pretrain" else RUN
    file = run_file(tmp_path, name, text)
    run = Run.open(project.outputs, file)
    last_sample = len(run.handoffs[0].loaded) - 1
    last = int(run.steps.that_read(np.array([last_sample]))[0]) - 1
    documents: dict[tuple[str, int], list[tuple[int, int, int, int]]] = {}
    for step in range(1, last + 1):
        for one in explain_step(project.outputs.folder, file, step).samples:
            for key in {(piece.origin.corpus, piece.origin.document) for piece in one.pieces}:
                documents.setdefault(key, []).append((step, one.rank, one.micro_batch, one.sample))
    for (corpus, number), expected in list(documents.items())[::37]:
        (found,) = find_steps(project, file, number=number, corpus=corpus)
        assert [(one.step, one.rank, one.micro_batch, one.sample) for one in found.steps] == sorted(
            expected
        )
        assert [one.skipped for one in found.steps] == [
            step in (3, 4) for step, *_ in sorted(expected)
        ]
        (place,) = find_document(project, name, "train", number=number, corpus=corpus)
        assert found.appearances == place.appearances


def test_handoffs_one_after_another(project):
    first, second = (
        load_nanoset(project.outputs, name, "train") for name in ("pretrain", "several_epochs")
    )
    parts = [
        RunHandoff(None, one, Dealer(len(one)), base, base, end)
        for one, base, end in ((first, 0, 96), (second, 96, None))
    ]
    run = Run(RunSpec("x", 4, 2, 16), parts, "run.yaml")
    assert [run.samples(step).handoff for step in (1, 6, 7, 8)] == [parts[0]] * 2 + [parts[1]] * 2
    assert sorted(run.samples(6).samples.tolist()) == list(range(80, 96))
    assert sorted(run.samples(7).samples.tolist()) == list(range(16))
    # one order for the whole run
    goes_on = Run(run.spec, [parts[0], parts[1]._replace(split_start=0)], "run.yaml")
    assert sorted(goes_on.samples(7).samples.tolist()) == list(range(96, 112))
    for part in (*parts, goes_on.handoffs[1]):
        read = (
            [one.sample for one in run.readings(part, np.arange(3))] if part in run.handoffs else []
        )
        assert read in ([0, 1, 2], [])
    alone = Run(run.spec, parts[1:], "run.yaml")
    with pytest.raises(
        SampleIndexError,
        match=r"run.yaml: step 6: no handoff of the run .*\n.*80 to 95\n.*96 to …\n.*add",
    ):
        alone.samples(6)
    for wrong, expected in (
        (parts[::-1], "one after sample 96"),
        ([parts[0], parts[1]._replace(start=90)], "sample 80"),
    ):
        with pytest.raises(
            ConfigError,
            match=f"a handoff does not begin where a step of the run .*\n.*\n.*: {expected}",
        ):
            Run(run.spec, wrong, "run.yaml")


def test_what_is_no_handoff_or_gone(project, tmp_path):
    for name, error, text in (
        ("other/../x", ConfigError, "not the folder of a handoff"),
        (
            "nothing",
            MissingError,
            r"has not been built\n.*available nanosets: .*pretrain, repeated",
        ),
    ):
        with pytest.raises(error, match=text):
            Run.open(project.outputs, run_file(tmp_path, name))
    file = run_file(tmp_path, text=RUN.replace("current", "0123"))
    with pytest.raises(
        MissingError,
        match=r"what a run was started with is missing\n  expected: one of [0-9a-f]{20}",
    ):
        Run.open(project.outputs, file)
    (handoff,) = {
        one.manifest.digest for one in Run.open(project.outputs, run_file(tmp_path)).handoffs
    }
    by_digest = run_file(
        tmp_path, text=RUN.replace("data/", "/lustre/data/").replace("current", handoff)
    )
    assert len(Run.open(project.outputs, by_digest).handoffs) == 1


def test_a_phase_is_of_the_schedule_alone(project, tmp_path, monkeypatch):
    outputs = InspectionContext.of(project).outputs
    manifest = outputs.current("nanosets", "pretrain/handoff")
    options = {**manifest.recipe["options"], "span": [4, 10], "schedule": [10, 16, 5, 1]}
    phase = replace(manifest, recipe={**manifest.recipe, "options": options})
    opened = run_module.handoff_and_splits(outputs, "pretrain", manifest.digest) | {
        "handoff": phase
    }
    monkeypatch.setattr(run_module, "handoff_and_splits", lambda *_: opened)
    (part,) = Run.open(
        outputs, run_file(tmp_path, text=RUN.replace("rampup_batch_size: [8, 8, 24]\n", ""))
    ).handoffs
    assert (part.split_start, part.start, part.stop) == (64, 64, 160)
    for text in (RUN, RUN.replace("rampup_batch_size: [8, 8, 24]\n", "").replace(": 16", ": 8")):
        with pytest.raises(
            ConfigError,
            match=r"the batch size must stay[^:]*\n.*\n  expected: global_batch_size: 16 alone",
        ):
            Run.open(outputs, run_file(tmp_path, text=text))


def asked(*arguments, code=0):
    outcome = invoke_nanoset(["explain", *arguments])
    assert outcome.exit_code == code, outcome.output
    return outcome.output


def test_the_steps_of_a_range_are_those_of_each_step(project, tmp_path):
    file = run_file(tmp_path)
    config = ["--config", project.config.file]

    several = json.loads(asked("--run", file, "--step", "3..5", "--rank", 1, "--json", *config))

    single = [
        json.loads(asked("--run", file, "--step", step, "--rank", 1, "--json", *config))
        for step in (3, 4, 5)
    ]
    assert several == single


def test_the_command(project, tmp_path):
    file, config = run_file(tmp_path), ["--config", project.config.file]
    step = json.loads(
        asked("--run", file, "--step", 4, "--rank", 1, "--show", 3, "--json", *config)
    )
    assert (step["step"], step["skipped"]) == (4, True)
    assert {(one["rank"], one["micro_batch"]) for one in step["samples"]} == {(1, 0), (1, 1)}
    assert {"sample", "pieces", "corpus"} <= step["samples"][0].keys()
    text = asked("--run", file, "--step", 4, "--show", 3, *config)
    assert "step 4 read 16 samples after 24 consumed, on 4 ranks in micro-batches of 2" in text
    assert "It was skipped" in text
    assert "rank 0, micro-batch 0: pretrain train sample 24, which is" in text
    assert "3 of its 16 samples are shown" in text
    identity = step["samples"][0]["pieces"][0]["origin"]["id"]
    found = json.loads(asked("--run", file, "--document", identity, "--json", *config))
    assert 4 in [one["step"] for one in found[0]["steps"]]
    assert "step 4: sample" in asked("--run", file, "--document", identity, *config)
    for arguments, text in (
        (("--step", 3), "need --run, with the run.yaml"),
        (("pretrain", "--run", file, "--step", 3), "give NAME or --run"),
        (("--run", file), "with --run give one of"),
        (("--run", file, "--document", "x", "--rank", 1), "--rank needs --step"),
        ((), "Missing argument 'NAME'"),
    ):
        assert text in asked(*arguments, *config, code=2)
