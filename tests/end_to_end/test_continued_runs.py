"""A run continues with another blend: in the next phase, or from the handoff of an earlier run."""

from __future__ import annotations

import shlex

import pytest
import yaml

from helpers.building import make_blend, make_corpora, make_handoff, make_mappings, make_nanoset
from helpers.command import json_of, output_of
from helpers.inspecting import explain_sample, verify_output
from helpers.sample_project import SPLITS, jsonl, sentences
from nanoset_core import load_nanoset
from nanoset_core.errors import ConfigError, InputError, NanosetError, SampleIndexError
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.stages.handoff import replaced
from nanoset_core.stages.mappings.planning import NanosetContext

TRAINER = (
    '{megatron_core: "0.16.1", tokenizer_type: HuggingFaceTokenizer, tokenizer_model: '
    "/models/llama}"
)
CONTINUED = {
    'blend: books\n    sequence_length: 16\n    split: "9,1"\n    trainer_path: /lustre/data': (
        "continue: true\n    phases: [{blend: {web: 3, code: 1}, until: 30}, {blend: {web: 1, "
        "books: 1}}]\n"
        f'    sequence_length: 16\n    split: "8,1,1"\n    trainer: {TRAINER}\n'
        "    schedule: {iterations: 60, global_batch_size: 4, eval_interval: 60, eval_iters: 1}\n "
        " later:\n"
        f'    blend: {{books: 2, web: 1}}\n    sequence_length: 16\n    split: "8,1,1"\n    '
        f"trainer: {TRAINER}\n"
        "    samples: {train: 400, valid: 4, test: 4}"
    )
}
"""Replacements in the sample project's settings: a nanoset of two phases, and one called `later`.
"""
CONSUMED = 200
"""Samples that the run had consumed when it stopped in its second phase, of 120 a phase."""


@pytest.fixture
def project(built_from):
    """A built project with the nanosets of CONTINUED."""
    return built_from(CONTINUED)


@pytest.fixture
def block(project) -> str:
    """What `nanoset map` prints after it has let `later` continue the run: lines of nanoset.yaml."""
    printed = output_of(
        *("map", "later", "--continue-from", "plain-phase-2"),
        *("--consumed-samples", CONSUMED, "--config", project.config.file),
    )
    return printed[printed.index("nanosets:") :]


@pytest.fixture
def continuing(project, block) -> Project:
    """The project after the block was copied into its nanoset.yaml."""
    return edited(project, ("  later:\n", f"  later:\n{block.splitlines()[2]}\n"))


def edited(project, *changes):
    """Change nanoset.yaml, and open the project again."""
    text = project.config.file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    project.config.file.write_text(text)
    return Project.open(project.config.file)


def train_of(project, name):
    """Open the training data of a nanoset."""
    return load_nanoset(project.config.root_folder, name, "train")


def read_places(loaded, start, stop):
    """Return the dataset, and the sample of its order, of each of some samples."""
    places = []
    for number in range(start, stop):
        dataset = loaded.datasets[int(loaded.dataset_index[number])]
        sample = int(loaded.dataset_sample_index[number])
        places.append((dataset.member.prefix, int(dataset.shuffle_index[sample])))
    return places


def test_a_phase_reads_no_sample_of_the_phase_before(project):
    first, second = (train_of(project, f"plain-phase-{number}") for number in (1, 2))
    assert first.datasets[0].member.prefix == second.datasets[0].member.prefix

    places = read_places(first, 0, 120) + read_places(second, 0, 120)

    assert len(set(places)) == len(places) == 240


def test_a_run_whose_phases_are_nanosets_is_refused_with_their_names(project):
    with pytest.raises(ConfigError, match="plain has phases") as caught:
        project.nanoset("plain")

    assert caught.value.expected == "one of plain-phase-1, plain-phase-2"


def test_the_handoff_of_a_second_phase_says_that_it_continues(project):
    handoff = project.outputs.current("nanosets", "plain-phase-2/handoff")

    start = handoff.path("START.md").read_text()
    assert "continues where the previous phases stopped" in start
    assert "/cache/goes-on-" in handoff.path("arguments.txt").read_text()


def test_a_continued_run_reads_no_sample_that_the_run_had_consumed(project, block):
    first, second, later = (
        train_of(project, name) for name in ("plain-phase-1", "plain-phase-2", "later")
    )

    places = read_places(first, 0, 120) + read_places(second, 0, CONSUMED - 120)
    places += read_places(later, CONSUMED, 380)

    assert len(set(places)) == len(places)


def test_the_handoffs_of_a_continued_run_name_each_other(project, block):
    earlier = project.outputs.current("nanosets", "plain-phase-2/handoff")
    later = project.outputs.current("nanosets", "later/handoff")

    assert f"handoff: nanosets/plain-phase-2/handoff/{earlier.digest}" in block
    start = later.path("START.md").read_text()
    assert f"has consumed {CONSUMED} samples" in start
    assert f"has to start at sample {CONSUMED}" in start


def test_samples_that_were_consumed_before_are_not_explained(project, block):
    assert explain_sample(project, "later", "train", CONSUMED).tokens == 17
    for number in (CONSUMED - 1, -len(train_of(project, "later"))):
        with pytest.raises(SampleIndexError, match="had consumed this sample"):
            explain_sample(project, "later", "train", number)


def test_the_command_that_a_build_prints_reads_a_sample_that_was_not_consumed(continuing, capsys):
    file = continuing.config.file
    settings = yaml.safe_load(file.read_text())
    settings["nanosets"] = {"later": settings["nanosets"]["later"]}
    file.write_text(yaml.safe_dump(settings))

    printed = output_of("build", "--select", "later", "--config", file)

    [line] = [line for line in printed.splitlines() if line.startswith("Read samples: ")]
    *_, program = shlex.split(line)
    assert f'"later", "train")[{CONSUMED}]' in program
    exec(program, {})
    assert "'tokens'" in capsys.readouterr().out


def test_a_phase_that_ends_early_cannot_be_continued(project):
    changed = edited(
        project,
        ("continue: true", "continue: true\n    max_epochs: 1\n    on_exhaustion: stop"),
        ("iterations: 60", "iterations: 6000"),
    )

    with pytest.raises(InputError, match="its own index files"):
        NanosetContext(changed, "plain-phase-2").plan("train")


def test_a_continued_run_stays_as_it_is_when_the_earlier_one_changes(continuing):
    outputs = continuing.outputs
    earlier = outputs.current("nanosets", "plain-phase-2/handoff")
    later = outputs.current("nanosets", "later/handoff")

    changed = edited(continuing, ("books: 1}}]", "books: 4}}]"))
    make_mappings(changed, "plain-phase-2", "train")
    make_mappings(changed, "later", "train")
    blend = make_blend(changed, "later", "train")

    assert blend.digest == later.recipe["parents"]["train"]
    for split in SPLITS:
        assert verify_output(changed, f"later/{split}", deep=True).passed
    output_of("gc", "--yes", "--config", changed.config.file)
    assert outputs.manifest_at(earlier.folder) is not None


def test_a_run_whose_datasets_have_changed_is_told_what_to_restore(continuing):
    file = continuing.config.raw_folder / "web" / "more.jsonl"
    file.write_bytes(jsonl(sentences("more", 3)))
    make_corpora(continuing, "web")

    with pytest.raises(ConfigError, match="a dataset has changed since the run") as caught:
        make_mappings(continuing, "later", "train")

    assert "restore the text, settings and lists of ids" in caught.value.remedy


# Phases that are planned again


def add_text(project, corpus):
    """Add a file to the raw text of a corpus."""
    file = project.config.raw_folder / corpus / "more.jsonl"
    file.write_bytes(jsonl(sentences("more", 3)))


def build_phases(project):
    """Build both phases, and the corpora that they read."""
    make_corpora(project)
    for name in ("plain-phase-1", "plain-phase-2"):
        make_nanoset(project, name)
        make_handoff(project, name)


def handoff_warnings(project, name):
    """Return the warnings that `nanoset status` prints about a handoff."""
    rows = project_status(project)
    (row,) = [row for row in rows if row.name == name and row.part == "handoff"]
    return list(row.warnings)


def test_phases_that_are_planned_again_have_a_warning(project):
    old_handoff = project.outputs.current("nanosets", "plain-phase-2/handoff")
    assert handoff_warnings(project, "plain-phase-2") == []

    add_text(project, "web")
    build_phases(project)

    for name in ("plain-phase-1", "plain-phase-2"):
        (warning,) = handoff_warnings(project, name)
        assert "another order of samples, since web has changed. If this phase has begun" in warning
    assert f"old handoffs of this phase, such as {old_handoff.digest}" in warning


def test_a_phase_whose_text_has_not_changed_has_no_warning(project):
    add_text(project, "code")  # only phase 1 reads it

    build_phases(project)

    assert "since code has changed" in handoff_warnings(project, "plain-phase-1")[0]
    assert handoff_warnings(project, "plain-phase-2") == []


def test_phases_with_another_seed_have_a_warning(project):
    changed = edited(project, ("    continue: true\n", "    continue: true\n    seed: 99\n"))

    build_phases(changed)

    (warning,) = handoff_warnings(changed, "plain-phase-1")
    assert "since settings of the run have changed" in warning


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("/models/llama}", "/models/other}"), id="another path of the tokenizer"),
        pytest.param(
            ("    continue: true\n", "    continue: true\n    trainer_path: /lustre/data\n"),
            id="another path of the data",
        ),
    ],
)
def test_settings_that_keep_the_order_have_no_warning(project, change):
    changed = edited(project, change)

    build_phases(changed)

    assert handoff_warnings(changed, "plain-phase-1") == []
    assert handoff_warnings(changed, "plain-phase-2") == []


def test_phases_that_were_planned_once_are_not_compared(project, monkeypatch):
    def refuse(*_):
        raise AssertionError("plans of large mixtures take long to read")

    monkeypatch.setattr(replaced, "read_split", refuse)

    assert handoff_warnings(project, "plain-phase-2") == []


def test_a_phase_that_ends_earlier_because_another_one_follows_has_no_warning(project):
    old_handoff = project.outputs.current("nanosets", "plain-phase-2/handoff")
    second_phase = "{blend: {web: 1, books: 1}"
    new_phases = f"{second_phase}, until: 50}}, {{blend: {{web: 1, books: 2}}}}]"
    changed = edited(project, (f"{second_phase}}}]", new_phases))

    build_phases(changed)

    assert changed.outputs.current("nanosets", "plain-phase-2/handoff").digest != old_handoff.digest
    assert handoff_warnings(changed, "plain-phase-1") == []
    assert handoff_warnings(changed, "plain-phase-2") == []


def test_phases_whose_text_was_restored_have_no_warning(project):
    add_text(project, "web")
    build_phases(project)
    (project.config.raw_folder / "web" / "more.jsonl").unlink()

    build_phases(project)

    assert handoff_warnings(project, "plain-phase-2") == []


def test_a_dry_run_warns_that_phases_would_be_planned_again(project):
    old_handoff = project.outputs.current("nanosets", "plain-phase-2/handoff")
    add_text(project, "web")

    printed = output_of("build", "--dry-run", "--config", project.config.file)

    assert f"warning: nanoset plain-phase-2 handoff: its handoff {old_handoff.digest}" in printed
    assert "warning: nanoset later" not in printed


def test_warnings_in_the_json_of_a_dry_run_begin_with_the_output(project):
    add_text(project, "web")

    plan = json_of("build", "--dry-run", "--json", "--config", project.config.file)

    assert plan["warnings"]
    assert all(warning.startswith("nanoset ") for warning in plan["warnings"])


def test_a_dry_run_does_not_warn_of_phases_that_are_rebuilt_as_they_are(project):
    printed = output_of("build", "--dry-run", "--force", "--config", project.config.file)

    assert "plain-phase-2" in printed
    assert "would be replaced" not in printed


FEWER_SAMPLES = ("{train: 400,", "{train: 150,")
MIX = ("blend: {books: 2, web: 1}", "mix: {books: {share: 2, max_epochs: 99}, web: 1}")
SPLIT = ('split: "8,1,1"\n    trainer', 'split: "7,2,1"\n    trainer')


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([SPLIT], "other sequences of a dataset"),
        (
            [("{train: 400,", "{train: 200,")],
            r"none is left to continue with\n  found: 200 of 200",
        ),
        (
            [("consumed_samples: 200", "consumed_samples: 100")],
            "found: 100\n  expected: 120 to 240",
        ),
        ([MIX, FEWER_SAMPLES], "none is left to continue with"),
    ],
    ids=["another split", "no sample left", "consumed in an earlier phase", "none left of a mix"],
)
def test_settings_with_which_a_run_cannot_continue_are_refused(continuing, changes, reason):
    changed = edited(continuing, *changes)

    with pytest.raises(NanosetError, match=reason):
        NanosetContext(changed, "later").plan("train")
