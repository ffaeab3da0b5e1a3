"""`nanoset explain --run`: the samples that a step of a training run read, and their documents."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, astuple, replace
from typing import NamedTuple

import numpy as np
import pytest

from helpers.building import make_handoff, make_nanoset
from helpers.changing import change_setting
from helpers.command import invoke_nanoset, json_of, output_of
from nanoset_core import load_nanoset
from nanoset_core.errors import ConfigError, MissingError, SampleIndexError
from nanoset_core.lineage import run as run_module
from nanoset_core.lineage.documents import InspectionContext
from nanoset_core.lineage.explain import explain_sample
from nanoset_core.lineage.find import find_document
from nanoset_core.lineage.run import Reading, Run, RunHandoff, explain_step, find_steps
from nanoset_core.project.project import Project
from nanoset_core.stages.handoff.run import RunSpec
from nanoset_core.stages.handoff.steps import Dealer

RAMP_UP = "rampup_batch_size: [8, 8, 24]\n"
RUN = f"""\
handoff: data/nanosets/pretrain/handoff/current
data_parallel_size: 4
micro_batch_size: 2
global_batch_size: 16
{RAMP_UP}skipped_iterations: [[3, 4]]
resumes: [{{iteration: 5, data_parallel_size: 2}}]
"""
"""A run.yaml: steps 1 to 3 have 8 samples, later ones 16. Steps 1 to 5 have 4 ranks, later ones 2."""
STEPS = range(1, 9)
"""Steps with every size and number of ranks, and after the resume."""
SKIPPED_STEPS = (3, 4)


class ShortRun(NamedTuple):
    """A run that reads fewer samples than its nanoset has."""

    project: Project
    changes: list[tuple[str, str]]
    """Replacements in RUN that describe it."""


@pytest.fixture
def write_run(tmp_path):
    """A function that writes a run.yaml, with replacements in RUN, and returns its path."""

    def write(*replacements: tuple[str, str]):
        text = RUN
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / "run.yaml"
        file.write_text(text)
        return file

    return write


@pytest.fixture
def run_file(write_run):
    """The run.yaml of RUN."""
    return write_run()


# Steps → samples


def expected_ranks(step: int) -> int:
    """Return how many ranks a step of RUN has: the run was resumed on fewer after step 5."""
    return 4 if step <= 5 else 2


def expected_batch_size(step: int) -> int:
    """Return how many samples a step of RUN has: the batch size ramps up after step 3."""
    return 8 if step <= 3 else 16


def test_a_step_is_shown_with_its_ranks_and_batch_size(project, run_file):
    for step in STEPS:
        explained = explain_step(project, run_file, step)

        assert explained.skipped == (step in SKIPPED_STEPS)
        assert explained.data_parallel_size == expected_ranks(step)
        assert explained.batch_size == expected_batch_size(step)


def test_the_samples_of_a_step_are_ordered_by_rank_and_micro_batch(project, run_file):
    for step in STEPS:
        samples = explain_step(project, run_file, step).samples

        places = [(sample.rank, sample.micro_batch) for sample in samples]
        ranks = {sample.rank for sample in samples}
        assert places == sorted(places)
        assert ranks == set(range(expected_ranks(step)))


def test_the_steps_of_a_run_read_all_samples_in_turn(project, run_file):
    consumed = []
    for step in STEPS:
        explained = explain_step(project, run_file, step)
        assert explained.consumed_samples == len(consumed)
        consumed += sorted(sample.sample for sample in explained.samples)

    assert consumed == list(range(3 * 8 + 5 * 16))


def test_a_sample_of_a_step_is_explained_as_it_is_without_a_run(project, run_file):
    for of_step in explain_step(project, run_file, STEPS[-1]).samples[::5]:
        alone = explain_sample(project, "pretrain", "train", of_step.sample)

        # For many samples, the raw text is not read.
        pieces = tuple(replace(piece, source=None) for piece in alone.pieces)
        expected = asdict(replace(alone, pieces=pieces))
        of_step_fields = asdict(of_step)
        del of_step_fields["rank"]
        del of_step_fields["micro_batch"]
        assert of_step_fields == expected


def test_the_samples_of_one_rank_can_be_requested(project, run_file):
    all_samples = explain_step(project, run_file, 7).samples

    for rank in range(2):
        samples = explain_step(project, run_file, 7, rank).samples
        expected = [sample for sample in all_samples if sample.rank == rank]
        assert list(samples) == expected


def test_the_first_samples_of_a_step_can_be_requested(project, run_file):
    all_samples = explain_step(project, run_file, 7).samples

    assert explain_step(project, run_file, 7, most=3).samples == all_samples[:3]


def test_a_rank_that_the_step_does_not_have_is_refused(project, run_file):
    message = r"run.yaml: step 7: no such data-.* rank\n  found: 2\n  expected: 0 to 1"
    with pytest.raises(ConfigError, match=message):
        explain_step(project, run_file, 7, 2)


def test_without_the_project_no_text_is_shown(project, run_file):
    for sample in explain_step(project.outputs.folder, run_file, 7).samples:
        assert {piece.text for piece in sample.pieces} == {None}


# Documents → steps


@pytest.mark.parametrize(
    ("nanoset", "has_ramp_up"), [("pretrain", True), ("nemo", False), ("repeated", False)]
)
def test_a_document_is_found_in_the_steps_that_read_it(project, write_run, nanoset, has_ramp_up):
    replacements = [("nanosets/pretrain/", f"nanosets/{nanoset}/")]
    if not has_ramp_up:
        replacements.append((RAMP_UP, ""))
    file = write_run(*replacements)

    # Explain all steps but the last one, which may end after the data.
    run = Run.open(project.outputs, file)
    last_sample = len(run.handoffs[0].loaded) - 1
    last_step = int(run.steps.that_read(np.array([last_sample]))[0])
    expected = defaultdict(set)  # (corpus, document) → readings
    for step in range(1, last_step):
        for sample in explain_step(project.outputs.folder, file, step).samples:
            reading = Reading(
                step=step,
                skipped=step in SKIPPED_STEPS,
                rank=sample.rank,
                micro_batch=sample.micro_batch,
                sample=sample.sample,
            )
            for piece in sample.pieces:
                expected[piece.origin.corpus, piece.origin.document].add(reading)

    for (corpus, number), readings in list(expected.items())[::37]:
        (document_steps,) = find_steps(project, file, number=number, corpus=corpus)
        (places,) = find_document(project, nanoset, "train", number=number, corpus=corpus)
        assert list(document_steps.steps) == sorted(readings, key=astuple)
        assert document_steps.appearances == places.appearances


# Runs of several handoffs

N_SAMPLES = 96
"""How many samples of a run of two handoffs were read from the first one: 6 steps of 16."""


@pytest.fixture
def handoffs(project):
    """Two handoffs of a run, the second of which follows the first."""
    first = load_nanoset(project.outputs, "pretrain", "train")
    second = load_nanoset(project.outputs, "several_epochs", "train")
    return [
        RunHandoff(
            manifest=None,
            loaded=first,
            dealer=Dealer(len(first)),
            split_start=0,
            start=0,
            stop=N_SAMPLES,
        ),
        RunHandoff(
            manifest=None,
            loaded=second,
            dealer=Dealer(len(second)),
            split_start=N_SAMPLES,
            start=N_SAMPLES,
            stop=None,
        ),
    ]


def run_of(handoffs):
    """Return a run with steps of 16 samples that reads handoffs."""
    spec = RunSpec("x", data_parallel_size=4, micro_batch_size=2, global_batch_size=16)
    return Run(spec, handoffs, "run.yaml")


def test_each_step_reads_the_handoff_of_its_samples(handoffs):
    run = run_of(handoffs)

    assert run.samples(1).handoff == handoffs[0]
    assert run.samples(6).handoff == handoffs[0]
    assert run.samples(7).handoff == handoffs[1]
    assert run.samples(8).handoff == handoffs[1]


def test_a_second_handoff_is_read_from_its_first_sample(handoffs):
    run = run_of(handoffs)

    assert sorted(run.samples(6).samples) == list(range(80, 96))
    assert sorted(run.samples(7).samples) == list(range(16))


def test_a_second_handoff_may_continue_the_order_of_the_first(handoffs):
    continued = handoffs[1]._replace(split_start=0)

    run = run_of([handoffs[0], continued])

    assert sorted(run.samples(7).samples) == list(range(96, 112))


@pytest.mark.parametrize("index", [0, 1])
def test_the_first_samples_of_each_handoff_are_read_by_the_run(handoffs, index):
    run = run_of(handoffs)

    readings = run.readings(handoffs[index], np.arange(3))

    assert [reading.sample for reading in readings] == [0, 1, 2]


def test_a_step_before_the_first_handoff_is_an_error_with_the_handoffs_that_are_listed(handoffs):
    run = run_of(handoffs[1:])

    message = r"run.yaml: step 6: no handoff of the run .*\n.*80 to 95\n.*96 to …\n.*add"
    with pytest.raises(SampleIndexError, match=message):
        run.samples(6)


def test_handoffs_must_be_in_the_order_of_the_run(handoffs):
    message = (
        f"a handoff does not begin where a step of the run .*\n.*\n.*: one after sample {N_SAMPLES}"
    )
    with pytest.raises(ConfigError, match=message):
        run_of(handoffs[::-1])


def test_a_handoff_must_begin_where_a_step_begins(handoffs):
    within_a_step = handoffs[1]._replace(start=90)

    message = "a handoff does not begin where a step of the run .*\n.*\n.*: sample 80"
    with pytest.raises(ConfigError, match=message):
        run_of([handoffs[0], within_a_step])


# The handoffs that run.yaml names


def test_a_folder_that_is_not_that_of_a_handoff_is_refused(project, write_run):
    file = write_run(("nanosets/pretrain/", "nanosets/other/../x/"))

    with pytest.raises(ConfigError, match="not the folder of a handoff"):
        Run.open(project.outputs, file)


def test_the_handoff_of_an_unknown_nanoset_is_refused_with_the_names_of_all(project, write_run):
    file = write_run(("nanosets/pretrain/", "nanosets/nothing/"))

    message = r"has not been built\n.*available nanosets: .*pretrain, repeated"
    with pytest.raises(MissingError, match=message):
        Run.open(project.outputs, file)


def test_a_version_that_was_deleted_is_refused_with_the_versions_that_exist(project, write_run):
    file = write_run(("handoff/current", "handoff/0123"))

    message = r"what a run was started with is missing\n  expected: one of [0-9a-f]{20}"
    with pytest.raises(MissingError, match=message):
        Run.open(project.outputs, file)


def test_a_handoff_can_be_named_by_its_digest_and_path_on_another_machine(
    project, run_file, write_run
):
    (handoff,) = Run.open(project.outputs, run_file).handoffs
    digest = handoff.manifest.digest
    by_digest = write_run(
        ("data/nanosets", "/lustre/data/nanosets"), ("handoff/current", f"handoff/{digest}")
    )

    (opened,) = Run.open(project.outputs, by_digest).handoffs

    assert opened.manifest.digest == digest


# A run that reads fewer samples than its nanoset has, since index files have whole epochs


@pytest.fixture
def short_run(copy) -> ShortRun:
    """A run of 5 steps of 8 samples, which reads a part of the corpus books."""
    project = change_setting(copy(), "blend: books\n", "blend: books\n    samples: {train: 40}\n")
    make_nanoset(project, "plain")
    make_handoff(project, "plain")
    changes = [("nanosets/pretrain/", "nanosets/plain/"), (RAMP_UP, ""), (": 16", ": 8")]
    return ShortRun(project, changes)


def test_a_step_after_the_end_of_the_run_is_refused(short_run, write_run):
    file = write_run(*short_run.changes)

    assert len(explain_step(short_run.project, file, 5).samples) == 8
    message = "no handoff of the run has the samples of this step\n.*40 to 47\n.*0 to 39"
    with pytest.raises(SampleIndexError, match=message):
        explain_step(short_run.project, file, 6)


def document_of_unread_sample(project) -> dict[str, object]:
    """Return the name of the first document of sample 40 of plain, which the run does not read."""
    origin = explain_sample(project, "plain", "train", 40).pieces[0].origin
    return {"number": origin.document, "corpus": origin.corpus}


def test_samples_that_a_run_does_not_reach_are_not_listed(short_run, write_run):
    document = document_of_unread_sample(short_run.project)

    (places,) = find_document(short_run.project, "plain", "train", **document)
    (document_steps,) = find_steps(short_run.project, write_run(*short_run.changes), **document)

    assert all(appearance.sample < 40 for appearance in places.appearances)
    assert "because the run takes fewer samples of this corpus than were built" in places.reason
    assert all(reading.step <= 5 for reading in document_steps.steps)
    assert document_steps.reason == places.reason


# A phase: a handoff for a part of a run, between two iterations of its schedule


@pytest.fixture
def opened_phase(project, monkeypatch):
    """Let the handoff of pretrain be that of iterations 4 to 10, with steps of 16 samples."""
    outputs = InspectionContext.of(project).outputs
    manifest = outputs.current("nanosets", "pretrain/handoff")
    phase_options = {"span": [4, 10], "schedule": [10, 16, 5, 1]}
    options = {**manifest.recipe["options"], **phase_options}
    phase = replace(manifest, recipe={**manifest.recipe, "options": options})
    opened = dict(run_module.handoff_and_splits(outputs, "pretrain", manifest.digest))
    opened["handoff"] = phase
    monkeypatch.setattr(run_module, "handoff_and_splits", lambda *_: opened)


def test_a_phase_has_the_samples_of_its_iterations(project, write_run, opened_phase):
    outputs = InspectionContext.of(project).outputs
    file = write_run((RAMP_UP, ""))

    (handoff,) = Run.open(outputs, file).handoffs

    assert handoff.split_start == 4 * 16
    assert handoff.start == 4 * 16
    assert handoff.stop == 10 * 16


@pytest.mark.parametrize(
    "replacements",
    [
        pytest.param([], id="a ramp-up"),
        pytest.param([(RAMP_UP, ""), (": 16", ": 8")], id="another batch size"),
    ],
)
def test_the_batch_size_of_a_phase_is_that_of_its_schedule(
    project, write_run, opened_phase, replacements
):
    outputs = InspectionContext.of(project).outputs
    file = write_run(*replacements)

    message = r"the batch size must stay[^:]*\n.*\n  expected: global_batch_size: 16 alone"
    with pytest.raises(ConfigError, match=message):
        Run.open(outputs, file)


# The command


def explain(project, *arguments) -> str:
    """Return what `nanoset explain` prints."""
    return output_of("explain", *arguments, "--config", project.config.file)


def explain_json(project, *arguments):
    """Return the JSON that `nanoset explain` prints."""
    return json_of("explain", *arguments, "--json", "--config", project.config.file)


def test_the_steps_of_a_range_are_those_of_each_step(project, run_file):
    single_steps = [
        explain_json(project, "--run", run_file, "--step", step, "--rank", 1) for step in (3, 4, 5)
    ]

    steps = explain_json(project, "--run", run_file, "--step", "3..5", "--rank", 1)

    assert steps == single_steps


def test_a_step_is_printed_as_json(project, run_file):
    step = explain_json(project, "--run", run_file, "--step", 4, "--rank", 1, "--show", 3)

    places = {(sample["rank"], sample["micro_batch"]) for sample in step["samples"]}
    assert step["step"] == 4
    assert step["skipped"] is True
    assert places == {(1, 0), (1, 1)}
    assert {"sample", "pieces", "corpus"} <= step["samples"][0].keys()


def test_a_step_is_printed_as_text(project, run_file):
    text = explain(project, "--run", run_file, "--step", 4, "--show", 3)

    assert "step 4 read 16 samples after 24 consumed, on 4 ranks in micro-batches of 2" in text
    assert "It was skipped" in text
    assert "rank 0, micro-batch 0: pretrain train sample 24, which is" in text
    assert "3 of its 16 samples are shown" in text


def test_the_steps_of_a_document_are_printed(project, run_file):
    step = explain_json(project, "--run", run_file, "--step", 4, "--rank", 1)
    identity = step["samples"][0]["pieces"][0]["origin"]["id"]

    (document_steps, *_) = explain_json(project, "--run", run_file, "--document", identity)
    text = explain(project, "--run", run_file, "--document", identity)

    assert 4 in [reading["step"] for reading in document_steps["steps"]]
    assert "step 4: sample" in text
    n_samples = len(document_steps["steps"])
    assert f"in {n_samples} sample" in text
    assert f"that steps of {document_steps['handoff']} read" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--step", 3], "need --run, with the run.yaml", id="no run"),
        pytest.param(
            ["pretrain", "--run", "RUN", "--step", 3], "give NAME or --run", id="a name and a run"
        ),
        pytest.param(["--run", "RUN"], "with --run give one of", id="a run alone"),
        pytest.param(
            ["--run", "RUN", "--document", "x", "--rank", 1],
            "--rank needs --step",
            id="a document and a rank",
        ),
        pytest.param([], "Missing argument 'NAME'", id="nothing"),
    ],
)
def test_options_that_do_not_fit_are_refused(project, run_file, arguments, message):
    words = [run_file if word == "RUN" else word for word in arguments]

    outcome = invoke_nanoset(["explain", *words, "--config", project.config.file])

    assert outcome.exit_code == 2
    assert message in outcome.output


# An imagined run


def test_an_imagined_run_ends_with_the_data_that_continue_another_run():
    """Their numbers begin with the samples of the run before."""
    handoff = RunHandoff(
        manifest=None, loaded=None, dealer=Dealer(640), split_start=0, start=200, stop=None
    )

    assert handoff.starting_the_run().data_stop == 440


def test_an_imagined_run_with_fewer_samples_than_one_step_has_no_step(project):
    outputs = InspectionContext.of(project).outputs
    handoff = outputs.current("nanosets", "pretrain/handoff")
    run = Run.example(outputs, handoff, default_batch_size=1000)

    message = "fewer samples than one step\n  found: 400 samples\n  expected: 1,000 or more"
    with pytest.raises(SampleIndexError, match=message):
        run.samples(1)
