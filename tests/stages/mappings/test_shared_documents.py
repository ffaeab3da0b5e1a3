"""Tokens of documents that several members of a blend share are counted, shown and limited."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.building import make_corpora, make_packs, make_view
from helpers.command import invoke_nanoset
from helpers.inspecting import current_dataset, dataset_of, lineage_of
from helpers.packs import plan_packs
from helpers.sample_project import SPLITS, write_project
from helpers.slow_corpora import SlowMember, slow_coverage
from nanoset_assets.ui.mappings import split_metadata
from nanoset_core.errors import InputError
from nanoset_core.project.project import Project
from nanoset_core.project.status import StatusRow, project_status
from nanoset_core.stages.mappings import shared_documents
from nanoset_core.stages.mappings.make import write_blended, write_mappings
from nanoset_core.stages.mappings.planning import NanosetContext, PlannedSplit
from nanoset_core.stages.mappings.shared_documents import count_copies
from nanoset_core.stages.mappings.stage import BLENDED, INDEX_MAPPINGS

VIEWS_AND_PACKS = """\
views:
  half: {of: web, split: {keep: [0, 0.5]}}
  rest: {of: web, split: {keep: [0.5, 1]}}
  often: {of: half, repeat: 2.5, order: {seed: 3}}
packs:
  packed: {of: web, length: 32}
  fragments: {of: half, length: 32}
  packed-often: {of: often, length: 32}
  truncated: {of: web, length: 32, long: truncate}
nanosets:
"""
OVERLAPPING = "{web: 0.67, half: 0.33}"
"""A blend whose second member consists of documents of the first."""
BLENDS = [
    OVERLAPPING,
    "{web: 0.5, code: 0.3, often: 0.2}",
    "{half: 0.5, rest: 0.5}",
    "{often: 1}",
    "{packed: 0.5, half: 0.5}",
    "{truncated: 0.6, web: 0.3, often: 0.1}",
    "{fragments: 0.6, half: 0.4}",
    "[web, half]",
    "web",
    "often",
]
SEQUENCE_LENGTH = 32
"""Of the sample project's nanoset."""
TOKEN_FIGURES = ("tokens", "unique_tokens", "repeated_tokens")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Project:
    """A project with views and packs, and without mappings; tests must not write to it."""
    folder = tmp_path_factory.mktemp("built") / "project"
    project = Project.open(write_project(folder, tokenizer_file, {"nanosets:\n": VIEWS_AND_PACKS}))
    make_corpora(project)
    for name in project.config.views:
        make_view(project, name)
    for name in project.config.packs:
        make_packs(project, name)
    return project


def copy_with_blend(
    built: Project, folder: Path, blend: str, samples: int | None = 400, limits: str = ""
) -> Project:
    """Copy the project, and give its nanoset `pretrain` another blend.

    Args:
        built: The project.
        folder: The new folder.
        blend: The blend.
        samples: Samples of train; None for all that there are.
        limits: Further settings of the nanoset.
    """
    shutil.copytree(built.config.file.parent, folder, symlinks=True)
    file = folder / "nanoset.yaml"
    text = file.read_text()
    old_samples = "    samples: {train: 400}\n"
    assert old_samples in text
    new_samples = f"    samples: {{train: {samples}}}\n" if samples else ""
    text = text.replace("{web: 0.7, code: 0.3}", blend)
    file.write_text(text.replace(old_samples, new_samples + limits))
    return Project.open(file)


@pytest.fixture
def blended(built: Project, tmp_path: Path) -> Callable[..., Project]:
    """A function that copies the project with another blend: see `copy_with_blend`."""

    def copy(blend: str, samples: int | None = 400, limits: str = "") -> Project:
        return copy_with_blend(built, tmp_path / "project", blend, samples, limits)

    return copy


def make_train(project: Project) -> None:
    """Make the mappings of train, and its blend if it has one."""
    write_mappings(project, "pretrain", "train")
    if project.nanoset("pretrain").is_blended:
        write_blended(project, "pretrain", "train")


def print_plan(project: Project, *arguments: str) -> str:
    """Return what `nanoset map --plan` prints about train."""
    words = ["map", "pretrain", "--plan", "--split-name", "train", *arguments]
    words += ["-c", str(project.config.file)]
    return invoke_nanoset(words, env={"COLUMNS": "300"}).output


def plan_of_train(project: Project) -> Mapping[str, Any]:
    """Return the plan of train as `nanoset map --plan --json` prints it."""
    (plan,) = json.loads(print_plan(project, "--json"))
    return plan


def status_of_train(project: Project) -> StatusRow:
    """Return the row of `nanoset status` about train."""
    rows = project_status(project)
    (row,) = [row for row in rows if row.name == "pretrain" and row.part == "train"]
    return row


# The numbers are those of a look at each token


def copies_of_tokens(
    project: Project, member: str, rows: tuple[int, int]
) -> tuple[str, Counter[tuple[int, int]]]:
    """Count the copies of each token of a corpus in some sequences of a dataset.

    Args:
        project: The project.
        member: The dataset.
        rows: First sequence, and the one after the last.

    Returns:
        (the corpus of the dataset; the copies of each (document, number of the token in it)).
    """
    start, stop = rows
    manifest = current_dataset(project, member)
    dataset = dataset_of(project, manifest)
    lineage = lineage_of(project, manifest)
    origins = lineage.origins(range(dataset.unpacked.manifest.facts["documents"]))
    copies: Counter[tuple[int, int]] = Counter()
    for document, origin in enumerate(origins):
        for piece in dataset.pieces_of(document):
            if start <= piece.sequence < stop:
                length = piece.stop - piece.start
                for token in range(piece.first, piece.first + length):
                    copies[origin.document, token] += 1
    return lineage.corpus, copies


class CountedMember(NamedTuple):
    """A dataset of a blend, with every copy of every token that it contains."""

    name: str
    plan: Any
    """Its `MemberPlan`."""
    coverage: Any
    """Its `MemberCoverage`."""
    copies: Counter[tuple[int, int]]
    """(document, number of the token in it) → copies."""

    @property
    def reads(self) -> SlowMember:
        """What a split reads of it."""
        plan = self.plan
        return SlowMember(
            tokens=plan.tokens,
            samples=self.coverage.samples_given,
            epochs=plan.epochs,
            has_separate_last_epoch=plan.separate_last_epoch,
        )


def members_by_corpus(project: Project, planned: PlannedSplit) -> dict[str, list[CountedMember]]:
    """Return corpus → the datasets of a split that contain its documents, counted token by token."""
    members: dict[str, list[CountedMember]] = {}
    for name, plan, coverage in zip(
        planned.corpora, planned.plan.members, planned.members, strict=True
    ):
        corpus, copies = copies_of_tokens(project, name, plan.rows)
        members.setdefault(corpus, []).append(CountedMember(name, plan, coverage, copies))
    return members


def copies_in_members(members: Iterable[CountedMember]) -> list[list[int]]:
    """Return for each token that a member contains its copies in every member."""
    tokens: set[tuple[int, int]] = set()
    for member in members:
        tokens |= member.copies.keys()
    copies_by_token = []
    for token in tokens:
        copies_by_token.append([member.copies[token] for member in members])
    return copies_by_token


@pytest.mark.parametrize("blend", BLENDS)
@pytest.mark.parametrize(
    ("max_cells", "max_sequences"),
    [pytest.param(1 << 24, 1 << 20, id="large ranges"), pytest.param(17, 7, id="small ranges")],
)
def test_the_tokens_of_each_corpus_are_those_of_a_look_at_each_token(
    blended, blend, max_cells, max_sequences, monkeypatch
):
    monkeypatch.setattr(shared_documents, "_MAX_CELLS", max_cells)
    monkeypatch.setattr("nanoset_core.stages.dataset.dataset.SEQUENCES_AT_ONCE", max_sequences)
    # A list of datasets is read to its end; a blend has a number of samples.
    project = blended(blend, None if blend.startswith("[") else 400)
    context = NanosetContext(project, "pretrain")

    for split in SPLITS:
        planned = context.plan(split)
        coverage_by_corpus = {corpus.corpus: corpus for corpus in context.corpora(planned)}

        expected_members = members_by_corpus(project, planned)
        assert coverage_by_corpus.keys() == expected_members.keys()
        for corpus, members in expected_members.items():
            coverage = coverage_by_corpus[corpus]
            copies_by_token = copies_in_members(members)
            reads = [member.reads for member in members]
            expected = slow_coverage(copies_by_token, reads, planned.config)
            tokens_taken = sum(member.coverage.tokens_taken for member in members)
            assert coverage.members == tuple(member.name for member in members)
            assert coverage.tokens_available == len(copies_by_token)
            assert coverage.tokens == pytest.approx(expected.tokens, abs=0.51)
            assert coverage.unique_tokens == pytest.approx(expected.unique_tokens, abs=0.51)
            assert coverage.epochs == pytest.approx(expected.epochs)
            assert coverage.most_epochs == pytest.approx(expected.most_epochs)
            assert coverage.tokens + coverage.padding == tokens_taken


def test_planned_packs_share_the_same_documents_as_built_ones(blended):
    project = blended("{packed: 0.4, packed-often: 0.3, truncated: 0.3}")
    context = NanosetContext(project, "pretrain")
    coverage_of_built_packs = context.corpora(context.plan("train"))
    shutil.rmtree(project.outputs.folder / "packs")

    packs = plan_packs(project)
    planned_context = NanosetContext(project, "pretrain", packs.reader, packs.manifests)

    coverage = planned_context.corpora(planned_context.plan("train"))
    assert coverage == coverage_of_built_packs


def test_the_tokens_that_truncation_removed_have_one_copy_less():
    # (n_documents, n_datasets) tokens that each dataset contains of documents of 10 tokens
    contained = np.array([[4, 10], [10, 25], [0, 0], [10, 3]])
    tokens = np.array([10, 10, 10, 10])

    tokens_by_copies = Counter()
    for copies, count in count_copies(contained, tokens):
        tokens_by_copies[copies] += count

    assert tokens_by_copies == {
        (1, 1): 4 + 3,  # the first 4 tokens of document 0, and the first 3 of document 3
        (0, 1): 6,  # the other tokens of document 0
        (1, 3): 5,  # the first half of document 1
        (1, 2): 5,  # its other half
        (1, 0): 7,  # the other tokens of document 3
    }


# Plan, status and UI give the same numbers


class MappedProject(NamedTuple):
    """A project with the mappings of train, and the plan of before they were made."""

    project: Project
    plan: Mapping[str, Any]


@pytest.fixture(scope="module")
def mapped(built: Project, tmp_path_factory: pytest.TempPathFactory) -> MappedProject:
    """A project whose blend reads the same documents through two members; not to be changed."""
    folder = tmp_path_factory.mktemp("mapped") / "project"
    project = copy_with_blend(built, folder, OVERLAPPING)
    plan = plan_of_train(project)
    make_train(project)
    return MappedProject(project, plan)


def test_a_plan_divides_tokens_into_unique_and_repeated_ones(mapped):
    plan = mapped.plan

    assert plan["tokens"] == 400 * SEQUENCE_LENGTH
    assert plan["unique_tokens"] + plan["repeated_tokens"] == plan["tokens"]


def test_status_has_the_numbers_of_the_plan(mapped):
    row = status_of_train(mapped.project)

    for name in TOKEN_FIGURES:
        assert row.figures[name] == mapped.plan[name]
    assert row.details["epochs"] == f"{mapped.plan['corpora'][0]['epochs']:.2f}"


def test_status_counts_no_token_as_unused_that_is_read_through_another_dataset(blended):
    file = blended("{web: 0.9, half: 0.1}", 480).config.file  # all of web, and a part of half
    file.write_text(file.read_text().replace('split: "80,15,5"', 'split: "1,0,0"'))
    project = Project.open(file)
    make_train(project)

    assert status_of_train(project).details["unused tokens"] == "0"


def test_the_ui_has_the_numbers_of_the_plan(mapped):
    blend = mapped.project.outputs.current("nanosets", "pretrain/train/blend")

    metadata = split_metadata(mapped.project, blend, "pretrain", "train")

    for name in TOKEN_FIGURES:
        assert metadata[name] == mapped.plan[name]


def test_the_printed_plan_names_the_members_that_share_documents(mapped):
    text = print_plan(mapped.project)

    assert "web, half" in text
    assert f"{mapped.plan['unique_tokens']:,}" in text


def test_an_output_of_an_earlier_version_shows_the_numbers_that_it_has(mapped):
    # Earlier versions counted neither the tokens of members nor those of corpora.
    manifest = mapped.project.outputs.current("nanosets", "pretrain/train/blend")
    facts = dict(manifest.facts)
    del facts["corpora"]
    facts["members"] = [dict(member) for member in facts["members"]]
    for member in facts["members"]:
        del member["tokens_taken"]
    earlier_manifest = replace(manifest, facts=facts)

    shown = BLENDED.show(mapped.project, earlier_manifest)
    metadata = split_metadata(mapped.project, earlier_manifest, "pretrain", "train")

    assert shown.figures["samples"] == 400
    assert "unique_tokens" not in shown.figures
    assert shown.details["epochs"]
    assert metadata["samples"] == 400
    assert "by_corpus" not in metadata


@pytest.fixture(scope="module")
def project_of_two_corpora(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose blend reads two corpora, one of them through two members."""
    folder = tmp_path_factory.mktemp("two-corpora") / "project"
    return copy_with_blend(built, folder, "{web: 0.5, code: 0.3, often: 0.2}")


@pytest.mark.parametrize("figure", TOKEN_FIGURES)
def test_the_tokens_of_a_plan_are_those_of_its_corpora(project_of_two_corpora, figure):
    plan = plan_of_train(project_of_two_corpora)

    assert plan[figure] == sum(corpus[figure] for corpus in plan["corpora"])


def test_the_printed_plan_has_a_row_for_all_corpora(project_of_two_corpora):
    plan = plan_of_train(project_of_two_corpora)

    lines = print_plan(project_of_two_corpora).splitlines()

    total_rows = [line for line in lines if line.startswith("│ all")]
    repeated_tokens = f"{plan['repeated_tokens']:,}"
    (total_row_of_corpora,) = [row for row in total_rows if repeated_tokens in row]
    assert f"{plan['tokens']:,}" in total_row_of_corpora


# Samples of a nanoset with one member


class MappedMember(NamedTuple):
    """A nanoset of 40 samples of one dataset, with the mappings of train."""

    project: Project
    plan: Mapping[str, Any]
    """The plan of its only member."""
    shown_samples: int
    """The samples that its stage shows of the output."""
    metadata: Mapping[str, Any]
    """Metadata of the output in the UI."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("web", INDEX_MAPPINGS, "index_mappings"), id="a corpus"),
        pytest.param(("{web: 1}", BLENDED, "blend"), id="a blend"),
        pytest.param(("often", INDEX_MAPPINGS, "index_mappings"), id="a view"),
    ],
)
def mapped_member(
    built: Project, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> MappedMember:
    """A nanoset of 40 samples: of a corpus, of a blend with one member, or of a view."""
    blend, stage, part = request.param
    folder = tmp_path_factory.mktemp("member") / "project"
    project = copy_with_blend(built, folder, blend, samples=40)
    (plan,) = plan_of_train(project)["members"]
    make_train(project)
    manifest = project.outputs.current("nanosets", f"pretrain/train/{part}")
    shown_samples = stage.show(project, manifest).figures["samples"]
    metadata = split_metadata(project, manifest, "pretrain", "train")
    return MappedMember(project, plan, shown_samples, metadata)


def test_plan_status_and_ui_give_the_samples_that_a_run_reads(mapped_member):
    figures = status_of_train(mapped_member.project).figures

    assert mapped_member.plan["samples_given"] == 40
    assert mapped_member.shown_samples == 40
    assert figures["samples"] == 40
    assert mapped_member.metadata["samples"] == 40
    assert mapped_member.metadata["dagster/partition_row_count"] == 40


def test_plan_status_and_ui_give_the_same_unused_samples(mapped_member):
    figures = status_of_train(mapped_member.project).figures

    assert figures["unused_samples"] == mapped_member.plan["surplus"]
    assert mapped_member.metadata["unused_samples"] == mapped_member.plan["surplus"]


def test_status_and_ui_give_the_tokens_of_the_samples(mapped_member):
    figures = status_of_train(mapped_member.project).figures

    assert figures["tokens"] == 40 * SEQUENCE_LENGTH
    assert mapped_member.metadata["tokens"] == 40 * SEQUENCE_LENGTH


@pytest.mark.parametrize("dataset", ["web", "often"])
def test_the_samples_that_a_single_dataset_has_beyond_the_requested_ones_are_unused(
    blended, dataset
):
    (member,) = plan_of_train(blended(dataset, samples=40))["members"]

    assert member["surplus"] > 0


# Limits of epochs


def test_max_epochs_limits_the_documents_that_members_share(blended):
    project = blended(OVERLAPPING, 350, "    max_epochs: 1\n")

    with pytest.raises(InputError, match="documents that web and half share") as caught:
        NanosetContext(project, "pretrain").plan("train")

    assert "in train (at most 1)" in str(caught.value)


def test_on_exhaustion_stop_ends_a_split_at_one_epoch_of_shared_documents(blended):
    project = blended(OVERLAPPING, None, "    max_epochs: 1\n    on_exhaustion: stop\n")
    context = NanosetContext(project, "pretrain")

    planned = context.plan("train")

    (corpus,) = context.corpora(planned)
    assert 0.9 < corpus.most_epochs <= 1
    assert planned.exceeded


def test_a_list_that_reads_documents_twice_is_refused(blended):
    project = blended("[web, half]", None, "    max_epochs: 1\n")

    with pytest.raises(InputError, match="documents that web and half share"):
        NanosetContext(project, "pretrain").plan("train")


@pytest.fixture
def mixed(blended: Callable[..., Project]) -> Callable[[int], Project]:
    """A function that opens a project with a mixture of two members that share documents.

    Each may be read once. The function takes the number of samples of train.
    """

    def copy(samples: int) -> Project:
        file = blended("{web: 0.7, code: 0.3}", samples).config.file
        mixture = "{web: {share: 2, max_epochs: 1}, half: {share: 1, max_epochs: 1}}"
        text = file.read_text().replace("blend: {web: 0.7, code: 0.3}", f"mix: {mixture}")
        file.write_text(text)
        return Project.open(file)

    return copy


def test_the_parts_of_a_mixture_are_limited_together(mixed):
    project = mixed(samples=350)

    with pytest.raises(
        InputError, match="together read documents more often than max_epochs allows"
    ):
        NanosetContext(project, "pretrain").plan("train")


def test_the_parts_of_a_mixture_may_together_read_documents_once(mixed):
    project = mixed(samples=150)

    planned = NanosetContext(project, "pretrain").plan("train")

    assert planned.plan.samples >= 150


# Limits that hold on average


def limit_warnings_of_train(project: Project) -> list[str]:
    """Return the warnings that documents may be read more often than `max_epochs` says."""
    context = NanosetContext(project, "pretrain")
    return context.limit_warnings(context.plan("train"))


@pytest.mark.parametrize(
    ("blend", "samples", "limit"),
    [
        pytest.param(OVERLAPPING, 150, 1, id="both parts are read less than once"),
        pytest.param("{web: 0.85, half: 0.15}", 450, 2, id="one part is read more than once"),
        pytest.param("{web: 0.5, often: 0.5}", 200, 3, id="a part repeats its documents"),
    ],
)
def test_a_limit_that_holds_only_on_average_has_a_warning(blended, blend, samples, limit):
    project = blended(blend, samples, f"    max_epochs: {limit}\n")

    (warning,) = limit_warnings_of_train(project)

    assert warning.startswith(f"max_epochs ({limit}) limits an average: some of the documents that")
    assert f"may be read {limit + 1} times" in warning


def test_the_plan_and_status_print_the_warning_of_a_limit_on_average(blended):
    project = blended(OVERLAPPING, 150, "    max_epochs: 1\n")

    printed = print_plan(project)
    make_train(project)
    status = status_of_train(project)

    (warning,) = status.warnings
    assert f"warning: pretrain train: {warning}" in printed
    assert "some of the documents that web and half share may be read 2 times" in warning


@pytest.mark.parametrize(
    ("blend", "samples", "limits"),
    [
        pytest.param("{half: 0.5, rest: 0.5}", 250, "max_epochs: 1", id="no common documents"),
        pytest.param("{web: 0.6, code: 0.4}", 200, "max_epochs: 1", id="two corpora"),
        pytest.param("web", 150, "max_epochs: 1.5", id="a limit that is no whole number"),
        pytest.param(OVERLAPPING, 150, "max_epochs: 2", id="each part is read once at most"),
        pytest.param(
            "{web: 0.4, half: 0.4, code: 0.2}",
            150,
            "max_epochs: {code: 1}",
            id="the limit of another corpus",
        ),
        pytest.param(
            OVERLAPPING, 400, "max_epochs: 1\n    on_exhaustion: repeat", id="an ignored limit"
        ),
        pytest.param(OVERLAPPING, 150, None, id="no limit"),
    ],
)
def test_a_limit_that_holds_for_each_document_has_no_warning(blended, blend, samples, limits):
    settings = f"    {limits}\n" if limits else ""
    project = blended(blend, samples, settings)

    assert limit_warnings_of_train(project) == []


def test_the_parts_of_a_mixture_that_keep_a_limit_on_average_have_a_warning(mixed):
    project = mixed(samples=150)

    (warning,) = limit_warnings_of_train(project)

    assert "some of the documents that web and half share may be read 2 times" in warning


# Digests


@pytest.mark.parametrize(
    ("blend", "limits"),
    [
        pytest.param("{web: 0.5, code: 0.5}", "    max_epochs: 5\n", id="two corpora"),
        pytest.param("{half: 0.5, code: 0.5}", "    max_epochs: 5\n", id="a view of one of two"),
        pytest.param("{web: 0.5, half: 0.5}", "", id="without max_epochs"),
    ],
)
def test_the_digest_of_a_nanoset_whose_members_cannot_overlap_is_as_before(blended, blend, limits):
    context = NanosetContext(blended(blend, 100, limits), "pretrain")

    assert "epochs_of" not in context.options("train")


@pytest.mark.parametrize(
    "blend",
    [
        pytest.param("{web: 0.5, half: 0.5}", id="a corpus and its view"),
        pytest.param("{often: 0.5, code: 0.5}", id="a view that repeats documents"),
        pytest.param("{packed-often: 0.5, code: 0.5}", id="packs of such a view"),
    ],
)
def test_the_digest_of_a_nanoset_whose_members_may_overlap_says_that_epochs_are_of_documents(
    blended, blend
):
    context = NanosetContext(blended(blend, 100, "    max_epochs: 5\n"), "pretrain")

    assert context.options("train")["epochs_of"] == "documents"
