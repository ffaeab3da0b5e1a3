"""Which documents the members of a blend share, and what plans, status and the UI say of it, in a
project.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.building import make_corpora, make_packs, make_view
from helpers.command import invoke_nanoset
from helpers.inspecting import current_dataset, dataset_of, lineage_of
from helpers.packs import plan_packs
from helpers.sample_project import SPLITS, write_project
from helpers.slow_corpora import slow_coverage
from nanoset_assets.ui.mappings import split_metadata
from nanoset_core.errors import InputError
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.stages.mappings import shared_documents
from nanoset_core.stages.mappings.planning import NanosetContext, PlannedSplit
from nanoset_core.stages.mappings.shared_documents import count_copies
from nanoset_core.stages.mappings.stage import (
    BLENDED,
    INDEX_MAPPINGS,
    write_blended,
    write_mappings,
)

CHANGES = {
    "nanosets:\n": """\
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
""",
}
BLENDS = [
    "{web: 0.67, half: 0.33}",
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


@pytest.fixture(scope="module")
def built(tmp_path_factory, tokenizer_file) -> Project:
    """A project with views and packs, and no nanoset yet; not to be written to."""
    file = write_project(tmp_path_factory.mktemp("parts") / "project", tokenizer_file, CHANGES)
    project = Project.open(file)
    make_corpora(project)
    for name in project.config.views:
        make_view(project, name)
    for name in project.config.packs:
        make_packs(project, name)
    return project


@pytest.fixture
def blended(built, tmp_path):
    """Gives a copy of the project, whose nanoset `pretrain` has another blend and further settings."""

    def make(blend: str, samples: int | None = 400, more: str = "") -> Project:
        shutil.copytree(built.config.file.parent, tmp_path / "project", symlinks=True)
        file = tmp_path / "project" / "nanoset.yaml"
        text = file.read_text().replace("{web: 0.7, code: 0.3}", blend)
        wanted = f"    samples: {{train: {samples}}}\n" if samples else ""
        assert "    samples: {train: 400}\n" in text
        file.write_text(text.replace("    samples: {train: 400}\n", wanted + more))
        return Project.open(file)

    return make


def copies_of_tokens(project, member, rows) -> tuple[str, Counter]:
    """Return the corpus of a dataset, and the copies of each (document, token) in some of its
    sequences.
    """
    manifest = current_dataset(project, member)
    dataset = dataset_of(project, manifest)
    lineage = lineage_of(project, manifest)
    origins = lineage.origins(range(dataset.unpacked.manifest.facts["documents"]))
    copies = Counter()
    for document, origin in enumerate(origins):
        for piece in dataset.pieces_of(document):
            if rows[0] <= piece.sequence < rows[1]:
                stop = piece.first + piece.stop - piece.start
                copies.update((origin.document, token) for token in range(piece.first, stop))
    return lineage.corpus, copies


class CountedMember(NamedTuple):
    """A dataset of a blend, with every copy of every token that it contains."""

    name: str
    plan: Any
    """Its `MemberPlan`."""
    coverage: Any
    """Its `MemberCoverage`."""
    copies: Counter

    @property
    def read(self) -> tuple[int, int, int, bool]:
        """What `slow_coverage` takes: tokens, samples taken, epochs, whether the last one is
        shuffled separately.
        """
        plan = self.plan
        return plan.tokens, self.coverage.samples_given, plan.epochs, plan.separate_last_epoch


def members_by_corpus(project: Project, planned: PlannedSplit) -> dict[str, list[CountedMember]]:
    """Return corpus → the datasets of a split that contain its documents, counted token by token."""
    members: dict[str, list[CountedMember]] = {}
    for name, plan, coverage in zip(
        planned.corpora, planned.plan.members, planned.members, strict=True
    ):
        corpus, copies = copies_of_tokens(project, name, plan.rows)
        members.setdefault(corpus, []).append(CountedMember(name, plan, coverage, copies))
    return members


@pytest.mark.parametrize("blend", BLENDS)
@pytest.mark.parametrize(
    ("cells", "sequences"), [(1 << 24, 1 << 20), (17, 7)], ids=["large ranges", "small ranges"]
)
def test_the_tokens_of_each_corpus_are_those_of_a_look_at_each_token(
    blended, blend, cells, sequences, monkeypatch
):
    monkeypatch.setattr(shared_documents, "_MAX_CELLS", cells)
    monkeypatch.setattr("nanoset_core.stages.dataset.dataset.SEQUENCES_AT_ONCE", sequences)
    project = blended(blend, None if blend.startswith("[") else 400)
    context = NanosetContext(project, "pretrain")

    for split in SPLITS:
        planned = context.plan(split)
        coverage_by_corpus = {corpus.corpus: corpus for corpus in context.corpora(planned)}

        expected = members_by_corpus(project, planned)
        assert coverage_by_corpus.keys() == expected.keys()
        for corpus, members in expected.items():
            coverage = coverage_by_corpus[corpus]
            tokens = set().union(*(member.copies for member in members))
            copies_by_token = [[member.copies[token] for member in members] for token in tokens]
            slow = slow_coverage(
                copies_by_token, [member.read for member in members], planned.config
            )
            assert coverage.members == tuple(member.name for member in members)
            assert coverage.tokens_available == len(tokens)
            assert coverage.tokens == pytest.approx(slow["tokens"], abs=0.51)
            assert coverage.unique_tokens == pytest.approx(slow["unique"], abs=0.51)
            assert coverage.epochs == pytest.approx(slow["epochs"])
            assert coverage.most_epochs == pytest.approx(slow["most_epochs"])
            assert coverage.tokens + coverage.padding == sum(
                member.coverage.tokens_taken for member in members
            )


def test_packs_that_are_not_built_share_the_documents_that_they_will_hold(built, tmp_path):
    shutil.copytree(built.config.file.parent, tmp_path / "project", symlinks=True)
    file = tmp_path / "project" / "nanoset.yaml"
    file.write_text(
        file.read_text().replace(
            "{web: 0.7, code: 0.3}", "{packed: 0.4, packed-often: 0.3, truncated: 0.3}"
        )
    )
    project = Project.open(file)
    context = NanosetContext(project, "pretrain")
    expected = context.corpora(context.plan("train"))
    shutil.rmtree(project.outputs.folder / "packs")
    packs = plan_packs(project)
    unbuilt = NanosetContext(project, "pretrain", packs.reader, packs.manifests)
    assert unbuilt.corpora(unbuilt.plan("train")) == expected


def test_a_token_of_a_truncated_document_has_a_copy_only_where_it_was_kept():
    contained = np.array([[4, 10], [10, 25], [0, 0], [10, 3]])
    tokens = np.array([10, 10, 10, 10])

    tokens_by_copies = Counter()
    for copies, count in count_copies(contained, tokens):
        tokens_by_copies[copies] += count

    assert tokens_by_copies == {(1, 1): 4 + 3, (0, 1): 6, (1, 3): 5, (1, 2): 5, (1, 0): 7}


def run(project: Project, *arguments: str):
    words = [*arguments, "-c", str(project.config.file)]
    return invoke_nanoset(words, env={"COLUMNS": "300"})


def make_train(project: Project) -> None:
    write_mappings(project, "pretrain", "train")
    if project.nanoset("pretrain").is_blended:
        write_blended(project, "pretrain", "train")


def test_plan_status_and_ui_give_the_same_numbers(blended):
    project = blended("{web: 0.67, half: 0.33}")
    (planned,) = json.loads(
        run(project, "map", "pretrain", "--plan", "--json", "--split-name", "train").output
    )
    make_train(project)
    assert planned["tokens"] == 400 * 32
    assert planned["unique_tokens"] + planned["repeated_tokens"] == planned["tokens"]

    (row,) = [
        row for row in project_status(project) if (row.name, row.part) == ("pretrain", "train")
    ]
    metadata = split_metadata(
        project, project.outputs.current("nanosets", "pretrain/train/blend"), "pretrain", "train"
    )
    for name in ("tokens", "unique_tokens", "repeated_tokens"):
        assert row.figures[name] == metadata[name] == planned[name]
    assert row.details["epochs"] == f"{planned['corpora'][0]['epochs']:.2f}"
    text = run(project, "map", "pretrain", "--plan", "--split-name", "train").output
    assert "web, half" in text
    assert f"{planned['unique_tokens']:,}" in text


def test_the_tokens_of_all_corpora_are_shown_in_total(blended):
    project = blended("{web: 0.5, code: 0.3, often: 0.2}")
    (planned,) = json.loads(
        run(project, "map", "pretrain", "--plan", "--json", "--split-name", "train").output
    )
    for name in ("tokens", "unique_tokens", "repeated_tokens"):
        assert planned[name] == sum(corpus[name] for corpus in planned["corpora"])
    lines = run(project, "map", "pretrain", "--plan", "--split-name", "train").output.splitlines()
    (total,) = [
        line
        for line in lines
        if line.startswith("│ all") and f"{planned['repeated_tokens']:,}" in line
    ]
    assert f"{planned['tokens']:,}" in total


@pytest.mark.parametrize("blend", ["web", "{web: 1}", "often"])
def test_samples_are_those_that_the_run_reads(blended, blend):
    project = blended(blend, samples=40)
    (planned,) = json.loads(
        run(project, "map", "pretrain", "--plan", "--json", "--split-name", "train").output
    )
    make_train(project)
    (member,) = planned["members"]
    assert member["samples_given"] == 40
    assert member["surplus"] > 0 or blend == "{web: 1}"

    (row,) = [
        row for row in project_status(project) if (row.name, row.part) == ("pretrain", "train")
    ]
    stage, part = (
        (BLENDED, "blend") if blend.startswith("{") else (INDEX_MAPPINGS, "index_mappings")
    )
    manifest = project.outputs.current("nanosets", f"pretrain/train/{part}")
    assert stage.show(project, manifest).figures["samples"] == 40
    metadata = split_metadata(project, manifest, "pretrain", "train")
    assert (
        row.figures["samples"]
        == metadata["samples"]
        == metadata["dagster/partition_row_count"]
        == 40
    )
    assert row.figures["unused_samples"] == metadata["unused_samples"] == member["surplus"]
    assert row.figures["tokens"] == metadata["tokens"] == 40 * 32


def test_an_output_of_an_earlier_version_has_the_numbers_that_it_knows(blended):
    project = blended("{web: 0.67, half: 0.33}")
    make_train(project)
    manifest = project.outputs.current("nanosets", "pretrain/train/blend")
    members = [
        {name: value for name, value in member.items() if name != "tokens_taken"}
        for member in manifest.facts["members"]
    ]
    facts = {name: value for name, value in manifest.facts.items() if name != "corpora"} | {
        "members": members
    }
    earlier = replace(manifest, facts=facts)
    figures = BLENDED.show(project, earlier).figures
    assert figures["samples"] == 400
    assert "unique_tokens" not in figures
    assert BLENDED.show(project, earlier).details["epochs"]
    metadata = split_metadata(project, earlier, "pretrain", "train")
    assert metadata["samples"] == 400
    assert "by_corpus" not in metadata


def test_max_epochs_counts_documents_of_the_corpus(blended):
    project = blended("{web: 0.67, half: 0.33}", 350, "    max_epochs: 1\n")
    with pytest.raises(InputError, match="documents that web and half share") as caught:
        NanosetContext(project, "pretrain").plan("train")
    assert "in train (at most 1)" in str(caught.value)


def test_one_epoch_of_each_member_is_limited_too(blended):
    project = blended(
        "{web: 0.67, half: 0.33}", None, "    max_epochs: 1\n    on_exhaustion: stop\n"
    )
    context = NanosetContext(project, "pretrain")
    planned = context.plan("train")
    (corpus,) = context.corpora(planned)
    assert 0.9 < corpus.most_epochs <= 1
    assert planned.exceeded


def test_a_list_that_reads_documents_twice_is_refused(blended):
    project = blended("[web, half]", None, "    max_epochs: 1\n")
    with pytest.raises(InputError, match="documents that web and half share"):
        NanosetContext(project, "pretrain").plan("train")


def test_the_parts_of_a_mixture_are_limited_together(blended):
    tree = "{web: {share: 2, max_epochs: 1}, half: {share: 1, max_epochs: 1}}"
    project = blended("{web: 0.7, code: 0.3}", 350)
    file = project.config.file
    file.write_text(file.read_text().replace("blend: {web: 0.7, code: 0.3}", f"mix: {tree}"))
    with pytest.raises(
        InputError, match="together read documents more often than max_epochs allows"
    ):
        NanosetContext(Project.open(file), "pretrain").plan("train")
    file.write_text(file.read_text().replace("train: 350", "train: 150"))
    assert NanosetContext(Project.open(file), "pretrain").plan("train").plan.samples >= 150


def test_only_nanosets_whose_members_may_overlap_have_other_digests(blended):
    def options(blend, more="    max_epochs: 5\n"):
        project = blended(blend, 100, more)
        recipe_options = NanosetContext(project, "pretrain").options("train")
        shutil.rmtree(project.config.file.parent)
        return recipe_options

    assert "epochs_of" not in options("{web: 0.5, code: 0.5}")
    assert "epochs_of" not in options("{half: 0.5, code: 0.5}")
    assert "epochs_of" not in options("{web: 0.5, half: 0.5}", "")
    assert options("{web: 0.5, half: 0.5}")["epochs_of"] == "documents"
    assert options("{often: 0.5, code: 0.5}")["epochs_of"] == "documents"
    assert options("{packed-often: 0.5, code: 0.5}")["epochs_of"] == "documents"
