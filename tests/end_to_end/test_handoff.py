"""A built nanoset hands its trainer the right data, arguments and index files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from helpers.building import (
    build_all,
    make_blend,
    make_dataset,
    make_handoff,
    make_inventory,
    make_mappings,
    make_shards,
)
from helpers.changing import change_web
from helpers.command import invoke_nanoset, json_of, output_of
from helpers.inspecting import verify_output
from helpers.megatron_core import IDENTIFIERS, check_megatron_core
from helpers.sample_project import SPLITS, tree, write_project
from nanoset_core import load_nanoset
from nanoset_core.errors import (
    FormatError,
    InputError,
    MissingError,
    NanosetError,
    StaleError,
)
from nanoset_core.project.project import Project
from nanoset_core.stages.handoff.data_args import read_per_split
from nanoset_core.stages.handoff.settings import UNNAMED
from nanoset_core.stages.mappings import stage as mapping
from nanoset_core.stages.mappings.lookup import cache_folder
from nanoset_core.stages.mappings.planning import NanosetContext

MASKS = (
    "reset_position_ids",
    "reset_attention_mask",
    "eod_mask_loss",
    "create_attention_mask",
    "inter_document_masking",
)
TRAINER = (
    '{megatron_core: "0.16.1", tokenizer_type: HuggingFaceTokenizer, tokenizer_model: '
    "/models/llama}"
)
PLAIN = 'blend: books\n    sequence_length: 16\n    split: "9,1"\n    trainer_path: /lustre/data'
"""Settings of the nanoset `plain` in the sample project."""
PER_SPLIT = {
    PLAIN: (
        "blend_per_split: {train: {web: 0.75, code: 0.25}, valid: books}\n    sequence_length: 16\n"
        "    schedule: {iterations: 50, global_batch_size: 8, eval_interval: 25, eval_iters: 4}\n"
        "    tokenizer_identifiers: " + json.dumps(IDENTIFIERS)
    )
}
"""Replacements that give each split of `plain` its own blend, and `test` none."""
TRAIN_SAMPLES = 50 * 8
VALID_SAMPLES = (50 // 25 + 1) * 4 * 8
"""Samples that the schedule of PER_SPLIT needs: an evaluation every 25 iterations and one more."""
PHASES = {
    PLAIN: (
        "phases: [{blend: {web: 1, code: 1}, until: 30}, {blend: books}]\n    sequence_length: 16\n"
        '    split: "8,1,1"\n    schedule: {iterations: 40, global_batch_size: 4, eval_interval: '
        "20, eval_iters: 1}"
    )
}


def dataset_prefix(project: Project, corpus: str) -> Path:
    """Return the path of a corpus's dataset without its ending."""
    return project.outputs.current("datasets", corpus).path(f"{corpus}_text_document")


def read_handoff(project: Project, nanoset: str, name: str) -> str:
    """Return the text of a file of a nanoset's handoff."""
    return project.outputs.current("nanosets", f"{nanoset}/handoff").path(name).read_text()


def test_each_split_is_read_from_its_own_blend(built_from):
    root = built_from(PER_SPLIT).config.root_folder

    train = load_nanoset(root, "plain", "train")
    valid = load_nanoset(root, "plain", "valid")

    assert len(train.datasets) == 2
    assert len(train) == TRAIN_SAMPLES
    assert len(valid) >= VALID_SAMPLES


def test_a_split_without_a_blend_cannot_be_loaded(built_from):
    root = built_from(PER_SPLIT).config.root_folder

    with pytest.raises(MissingError, match="no blend"):
        load_nanoset(root, "plain", "test")


def test_the_handoff_names_the_blend_of_each_split(built_from):
    project = built_from(PER_SPLIT)
    handoff = project.outputs.current("nanosets", "plain/handoff")

    train_blend, valid_blend, test_blend = read_per_split(handoff.path("per_split_data_args.json"))

    web = str(dataset_prefix(project, "web"))
    code = str(dataset_prefix(project, "code"))
    assert train_blend == {web: 0.75, code: 0.25}
    assert Path(valid_blend).name == "books_text_document"
    assert test_blend is None
    assert handoff.facts["loads_fast"]


def test_a_blend_records_how_many_samples_each_member_contributes(built_from):
    project = built_from(PER_SPLIT)
    train = load_nanoset(project.config.root_folder, "plain", "train")

    facts = project.outputs.current("nanosets", "plain/train/blend").facts

    sample_counts = [member["samples_given"] for member in facts["members"]]
    assert sample_counts == np.bincount(train.dataset_index).tolist()


def damage_handoff(project: Project) -> Path:
    """Cut the manifest of the handoff of `plain` short, and return the handoff's folder."""
    folder = project.outputs.current("nanosets", "plain/handoff").folder
    (folder / "manifest.json").write_text("{")
    return folder


def test_the_masks_cannot_be_read_from_a_damaged_handoff(built_from):
    project = built_from(PER_SPLIT)
    folder = damage_handoff(project)

    with pytest.raises(FormatError) as caught:
        load_nanoset(project.config.root_folder, "plain", "train")

    assert str(folder.parent) in caught.value.where


def test_a_nanoset_with_a_damaged_handoff_loads_with_masks_as_arguments(built_from):
    project = built_from(PER_SPLIT)
    damage_handoff(project)
    masks = dict.fromkeys(MASKS, False)

    train = load_nanoset(project.config.root_folder, "plain", "train", **masks)

    assert len(train) == TRAIN_SAMPLES


PRETRAIN = """blend: {web: 0.7, code: 0.3}
    sequence_length: 32
    split: "80,15,5"
    seed: 7
    samples: {train: 400}
"""
"""Settings of the nanoset `pretrain` in the sample project."""


@dataclass(frozen=True)
class EmptySplit:
    """Settings of `pretrain` that leave one split without a sample."""

    arguments: set[str]
    """Lines that the trainer's arguments must have."""
    blend: str = "{web: 0.7, code: 0.3}"
    sequence_length: int = 32
    shares: str = "99.9,0.1"
    further_settings: str = ""
    split: str = "valid"
    """The split without a sample."""
    too_small: str = "web "
    """Name of the first dataset that the warning blames."""
    arguments_file: str = "arguments.txt"

    @property
    def settings(self) -> str:
        """The settings in nanoset.yaml."""
        return (
            f"blend: {self.blend}\n    sequence_length: {self.sequence_length}\n"
            f'    split: "{self.shares}"\n    {self.further_settings}\n'
        )


NO_EVALUATION = "--eval-iters 0"
WITHOUT_VALID = {"--split 100,0,0", NO_EVALUATION}
"""Megatron-LM's arguments if there is nothing to evaluate."""
EMPTY_SPLITS = {
    "no documents": EmptySplit(WITHOUT_VALID),
    "documents of one corpus": EmptySplit(WITHOUT_VALID, shares="99.7,0.3", too_small="code 0,"),
    "with a schedule": EmptySplit(
        {NO_EVALUATION},
        further_settings="schedule: {iterations: 10, global_batch_size: 4, eval_interval: 5}",
    ),
    "too few tokens": EmptySplit({"--split 99,1"}, sequence_length=2048, shares="99,1"),
    "only the test split": EmptySplit({"--split 90,10,0"}, shares="90,9.9,0.1", split="test"),
    "without weights": EmptySplit(WITHOUT_VALID, blend="[web, code]"),
    "one corpus": EmptySplit(WITHOUT_VALID, blend="web"),
    "nanotron": EmptySplit(
        {"    split: 100,0,0"}, further_settings="preset: nanotron", arguments_file="data.yaml"
    ),
    "nemo": EmptySplit(
        {"    splits_string: 99.9,0.1,0"},
        shares="99.9,0.1,0",
        further_settings="preset: nemo",
        arguments_file="data.yaml",
    ),
}


class EmptySplitProject(NamedTuple):
    """A built project with an empty split."""

    case: EmptySplit
    project: Project
    warning: str
    """The warning of its index files."""


@pytest.fixture(scope="module", params=EMPTY_SPLITS.values(), ids=EMPTY_SPLITS)
def empty_split(request, tmp_path_factory, tokenizer_file) -> EmptySplitProject:
    """A project with an empty split; tests must not write to it."""
    folder = tmp_path_factory.mktemp("empty") / "project"
    config = write_project(folder, tokenizer_file, {PRETRAIN: request.param.settings})
    project = build_all(config)
    mappings = project.outputs.current("nanosets", f"pretrain/{request.param.split}/index_mappings")
    assert mappings.facts["samples"] == 0
    [warning] = mapping.INDEX_MAPPINGS.show(project, mappings).warnings
    return EmptySplitProject(request.param, project, warning)


def test_the_index_files_of_an_empty_split_have_a_warning(empty_split):
    case = empty_split.case

    assert f"tokens of {case.split}: {case.too_small}" in empty_split.warning


def test_an_empty_split_passes_its_verification_with_the_warning(empty_split):
    report = verify_output(empty_split.project, f"pretrain/{empty_split.case.split}")

    assert report.passed
    assert [finding.what for finding in report.warnings] == [empty_split.warning]


def test_the_status_and_the_handoff_repeat_the_warning_of_an_empty_split(empty_split):
    project = empty_split.project

    status = invoke_nanoset(["status", "--config", project.config.file])

    line = f"warning: nanoset pretrain {empty_split.case.split}: {empty_split.warning}"
    assert line in status.stdout
    assert empty_split.warning in read_handoff(project, "pretrain", "START.md")


def test_the_trainer_is_not_asked_for_samples_of_an_empty_split(empty_split):
    case = empty_split.case

    arguments = read_handoff(empty_split.project, "pretrain", case.arguments_file).splitlines()

    assert case.arguments <= set(arguments)
    if case.arguments_file == "arguments.txt":
        assert (NO_EVALUATION in arguments) == (NO_EVALUATION in case.arguments)


def test_the_training_data_of_a_nanoset_with_an_empty_split_has_samples(empty_split):
    train = load_nanoset(empty_split.project.config.root_folder, "pretrain", "train")

    assert len(train) > 0


@pytest.mark.parametrize(
    "blend", ["blend: {web: 0.7, code: 0.3}", "blend: web", "blend: [web, code]"]
)
def test_a_training_set_without_a_sample_is_an_error(make_project, blend):
    # A sequence is longer than the whole corpus.
    config = make_project(replacements={PRETRAIN: f"{blend}\n    sequence_length: 131072\n"})

    with pytest.raises(NanosetError, match="no sample") as caught:
        build_all(config)

    assert "web" in str(caught.value)


def test_each_phase_has_the_samples_of_its_iterations(built_from):
    root = built_from(PHASES).config.root_folder

    # The first phase lasts 30 iterations of 4 samples, the second one 10.
    assert len(load_nanoset(root, "plain-phase-1", "train")) == 30 * 4
    assert len(load_nanoset(root, "plain-phase-2", "train")) >= 10 * 4


def test_the_arguments_of_a_later_phase_continue_the_run(built_from):
    arguments = read_handoff(built_from(PHASES), "plain-phase-2", "arguments.txt")

    assert "--phase-transition-iterations 30\n" in arguments
    assert "--train-samples 160\n" in arguments


def test_a_handoff_is_not_written_if_an_index_file_is_missing(built_from):
    project = built_from(PER_SPLIT)
    missing_file = next(cache_folder(project, "plain").glob("*dataset_index.npy"))
    missing_file.unlink()

    with pytest.raises(MissingError) as caught:
        make_handoff(project, "plain")

    assert caught.value.where == str(missing_file)
    assert "`nanoset build`" in caught.value.remedy


def replace_dataset(project: Project) -> None:
    """Add documents to the corpus web, and build its dataset again."""
    change_web(project.config.file.parent, "late")
    make_inventory(project, "web")
    make_shards(project, "web")
    make_dataset(project, "web")


def blends_and_handoffs(project: Project) -> dict[str, str]:
    """Return the files of all blends and handoffs of a project: path → digest."""
    digest_by_file = tree(project.config.root_folder / "nanosets")
    return {
        name: digest
        for name, digest in digest_by_file.items()
        if "/blend/" in name or "/handoff/" in name
    }


def test_outputs_of_older_datasets_are_neither_used_nor_replaced(built_from):
    project = built_from()
    folder = project.config.root_folder / "nanosets/pretrain"
    digests_before = blends_and_handoffs(project)
    replace_dataset(project)
    rebuilding = Project.open(project.config.file, rebuild=True)

    # The index files are older than the dataset: no blend is made from them.
    with pytest.raises(StaleError, match="than the present ones") as caught:
        make_blend(rebuilding, "pretrain", "train")
    assert caught.value.where.startswith(str(folder / "train/index_mappings"))

    # With new index files, the blend is what is too old for a handoff.
    for split in SPLITS:
        make_mappings(project, "pretrain", split)
    with pytest.raises(StaleError, match="than the present ones") as caught:
        make_handoff(rebuilding, "pretrain")
    assert caught.value.where.startswith(str(folder / "train/blend"))

    # The old blends and handoffs, which a run may read, are still complete.
    digests_after = blends_and_handoffs(project)
    assert digests_before
    assert digests_before.items() <= digests_after.items()


def test_a_plan_names_the_datasets_that_its_recipe_records(built_from, monkeypatch):
    project = built_from()
    make_plan = NanosetContext.plan
    n_replaced = 0

    def replace_dataset_and_plan(*arguments):
        nonlocal n_replaced
        replace_dataset(project)
        n_replaced += 1
        return make_plan(*arguments)

    # The dataset is replaced while the index files are planned.
    monkeypatch.setattr(NanosetContext, "plan", replace_dataset_and_plan)
    mappings = make_mappings(project, "pretrain", "train")

    assert n_replaced == 1
    plan = json.loads(mappings.path("plan.json").read_bytes())["plan"]
    prefixes = [member["prefix"] for member in plan["members"]]
    digests = mappings.recipe["parents"]
    assert prefixes == [
        f"datasets/web/{digests['web']}/web_text_document",
        f"datasets/code/{digests['code']}/code_text_document",
    ]


MAX_EPOCHS = 1.5
N_LIMITED_SAMPLES = 800
"""More samples than the corpus web has in MAX_EPOCHS epochs."""


def build_with_limit(make_project, policy: str) -> Project:
    """Build a project that needs more than the allowed number of epochs of the corpus web.

    Args:
        make_project: The fixture.
        policy: The setting `on_exhaustion`.
    """
    settings = (
        f"samples: {{train: {N_LIMITED_SAMPLES}}}\n    max_epochs: {{web: {MAX_EPOCHS}}}\n"
        f"    on_exhaustion: {policy}"
    )
    return build_all(make_project(replacements={"samples: {train: 400}": settings}))


def test_a_corpus_that_is_too_small_is_an_error_by_default(make_project):
    with pytest.raises(InputError, match=r"^nanosets\.pretrain: .*max_epochs"):
        build_with_limit(make_project, "raise")


@dataclass(frozen=True)
class LimitEffect:
    """What a policy does about a corpus that is too small."""

    is_within_limit: bool
    has_all_samples: bool
    has_configured_weights: bool


@pytest.mark.parametrize(
    ("policy", "effect"),
    [
        pytest.param(
            "stop",
            LimitEffect(is_within_limit=True, has_all_samples=False, has_configured_weights=True),
            id="stop",
        ),
        pytest.param(
            "redistribute",
            LimitEffect(is_within_limit=True, has_all_samples=True, has_configured_weights=False),
            id="redistribute",
        ),
        pytest.param(
            "repeat",
            LimitEffect(is_within_limit=False, has_all_samples=True, has_configured_weights=True),
            id="repeat",
        ),
    ],
)
def test_a_limit_of_epochs_holds_in_the_outputs(make_project, policy, effect):
    project = build_with_limit(make_project, policy)

    # The samples.
    train = load_nanoset(project.config.root_folder, "pretrain", "train")
    facts = project.outputs.current("nanosets", "pretrain/train/blend").facts
    web_epochs = facts["members"][0]["epochs"]
    assert (web_epochs <= MAX_EPOCHS) is effect.is_within_limit
    assert (len(train) >= N_LIMITED_SAMPLES) is effect.has_all_samples

    # The trainer's blend, in which weights and prefixes alternate.
    words = read_handoff(project, "pretrain", "data_args.txt").split()
    weights = [float(word) for word in words[::2]]
    assert (weights == [0.7, 0.3]) is effect.has_configured_weights

    # The plan.
    plan = NanosetContext(project, "pretrain").plan("train")
    assert plan.exceeded
    assert {member.max_epochs for member in plan.members} == {MAX_EPOCHS, None}


@pytest.fixture
def project_without_nanosets(built_from):
    """A built project whose nanosets were deleted, and its `tree` before that."""
    project = built_from(PER_SPLIT)
    root = project.config.root_folder
    digest_by_file = tree(root)
    for name, digest in digest_by_file.items():
        is_link = digest.startswith("->")
        if name.startswith("nanosets/") and not is_link:
            (root / name).unlink()
    return project, digest_by_file


def test_map_shows_the_plan_of_each_split_of_a_project(project_without_nanosets):
    project, _digest_by_file = project_without_nanosets

    rows = json_of("map", "--config", project.config.file, "--plan", "--json")

    planned_splits = [(row["nanoset"], row["split"]) for row in rows]
    assert planned_splits == [
        *(("pretrain", split) for split in SPLITS),
        *(("plain", split) for split in SPLITS),
    ]
    assert [member["corpus"] for member in rows[0]["members"]] == ["web", "code"]


def test_map_builds_what_the_pipeline_builds(project_without_nanosets):
    project, digest_by_file = project_without_nanosets

    output = output_of("map", "--config", project.config.file)

    assert "START.md says how to start" in output
    assert tree(project.config.root_folder) == digest_by_file


def test_map_without_a_project_builds_the_index_files_of_the_project(built_from, tmp_path):
    project = built_from({"trainer_path: /lustre/data\n": f"trainer: {TRAINER}\n"})
    handoff = project.outputs.current("nanosets", "pretrain/handoff")
    context = NanosetContext(project, "pretrain")
    cache = tmp_path / "cache"
    arguments = [
        "map", "--data-args-path", handoff.path("data_args.txt"), "--split", "80,15,5", "--seq-length", 32, "--seed", 7,
        "--data-cache-path", cache,
        "--train-samples", context.plan("train").config.samples("train"),
        "--valid-samples", context.plan("valid").config.samples("valid"),
        "--test-samples", context.plan("test").config.samples("test"),
    ]  # fmt: skip

    # A plan writes nothing.
    assert "web_text_document" in output_of(*arguments, "--plan")
    assert not cache.exists()

    # The command builds the same files as the project.
    output = output_of(*arguments, "--trainer", TRAINER)
    n_train_samples = len(load_nanoset(project.config.root_folder, "pretrain", "train"))
    assert f"train: {n_train_samples:,} samples" in output
    assert "warning" not in output
    project_files = read_files(cache_folder(project, "pretrain"))
    assert read_files(cache) == project_files

    # The two descriptions of train name the trainer's tokenizer.
    descriptions = [
        json.loads(content)
        for name, content in project_files.items()
        if name.endswith("GPTDataset-train-description.txt")
    ]
    tokenizer_paths = [description["tokenizer"]["tokenizer_path"] for description in descriptions]
    assert tokenizer_paths == ["/models/llama"] * 2


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder: name → content."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def map_arguments(built_from, tmp_path):
    """Arguments of a `nanoset map` that names no tokenizer."""
    return [
        "map", "--data-path", dataset_prefix(built_from(), "web"), "--seq-length", 8,
        "--split", "9,1", "--data-cache-path", tmp_path / "cache",
    ]  # fmt: skip


def test_map_without_a_tokenizer_warns_and_says_what_to_add(map_arguments, tmp_path):
    cache = tmp_path / "cache"

    output = output_of(*map_arguments)
    names_without_tokenizer = set(read_files(cache))

    assert UNNAMED.format(place="--trainer") in output

    # With the argument that the warning names, other index files are built.
    suggested_trainer = output.partition("add --trainer '")[2].partition("'")[0]
    assert "warning" not in output_of(*map_arguments, "--trainer", suggested_trainer)
    added_names = set(read_files(cache)) - names_without_tokenizer
    assert len(added_names) == len(names_without_tokenizer)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--tokenizer-identifiers", json.dumps(IDENTIFIERS)], id="identifiers"),
        # Nanotron's names of index files do not depend on the tokenizer.
        pytest.param(["--preset", "nanotron"], id="nanotron"),
    ],
)
def test_map_does_not_warn_if_the_tokenizer_is_known_or_irrelevant(map_arguments, options):
    assert "warning" not in output_of(*map_arguments, *options)


def test_map_takes_weights_on_the_command_line(built_from, tmp_path):
    project = built_from()
    web = dataset_prefix(project, "web")
    code = dataset_prefix(project, "code")
    cache = tmp_path / "c"

    output_of(
        "map", "--data-path", 0.5, web, 0.5, code, "--seq-length", 8, "--train-iters", 5, "--global-batch-size", 4,
        "--eval-iters", 1, "--split", "8,1,1", "--data-cache-path", cache,
        "--trainer-path", f"{web}=/lustre/web", "--tokenizer-identifiers", json.dumps(IDENTIFIERS),
    )  # fmt: skip

    descriptions = [
        json.loads(path.read_text()) for path in cache.glob("*GPTDataset-train-description.txt")
    ]
    dataset_paths = [description["dataset_path"] for description in descriptions]
    assert sorted(dataset_paths) == sorted([str(code), "/lustre/web"])
    assert {description["tokenizer"]["class"] for description in descriptions} == {"Stub"}


def test_megatron_core_starts_from_the_handoff(built_from):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from megatron.core.datasets.utils import get_blend_from_list

    project = built_from(PER_SPLIT)
    data_args = json.loads(read_handoff(project, "plain", "per_split_data_args.json"))
    sequence_counts = json.loads(read_handoff(project, "plain", "sequences_per_dataset.json"))

    train, valid, test = check_megatron_core(
        project,
        "plain",
        cache_folder(project, "plain"),
        sizes=[TRAIN_SAMPLES, VALID_SAMPLES, 32],
        step=5,
        random_seed=1234,
        sequence_length=16,
        blend_per_split=[get_blend_from_list(data_args[split]) for split in SPLITS],
        fast_cache_load=True,
        defer_npy_index_mmap=True,
        sequences_per_dataset=sequence_counts,
    )

    assert train is not None
    assert valid is not None
    assert test is None
