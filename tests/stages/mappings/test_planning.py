"""How a split is planned from the datasets of a project."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from helpers.building import make_corpora
from helpers.sample_project import SPLITS
from nanoset_core.errors import InputError
from nanoset_core.project.project import Project
from nanoset_core.sampling import split_data
from nanoset_core.stages.mappings.planning import NanosetContext

SAMPLES = "    samples: {train: 400}"
EXPORTS_FOR_NANOTRON = """\
exports:
  web-ds: {of: web, format: datatrove, tokenizer_name: some/name}
  code-ds: {of: code, format: datatrove, tokenizer_name: some/name}
"""


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param("", id="without limits"),
        pytest.param("\n    max_epochs: 50\n    on_exhaustion: redistribute", id="with limits"),
    ],
)
def test_a_plan_reads_each_dataset_once(make_project, monkeypatch, limits):
    project = Project.open(make_project(replacements={SAMPLES: SAMPLES + limits}))
    make_corpora(project)
    read_paths: list[object] = []
    read_idx = split_data.read_idx

    def record_path(path):
        read_paths.append(path)
        return read_idx(path)

    monkeypatch.setattr(split_data, "read_idx", record_path)

    for split in SPLITS:
        read_paths.clear()
        NanosetContext(project, "pretrain").plan(split)

        assert len(read_paths) == 2  # the blend has two members
        assert len(set(read_paths)) == 2


@pytest.fixture
def nanotron_project(make_project) -> Callable[[str, str], Project]:
    """A function that makes a project whose nanoset may read the corpus code once.

    Its trainer is nanotron's main branch, and no number of samples is requested. The function takes
    the blend, and further settings of the nanoset.
    """

    def make(blend: str, settings: str = "") -> Project:
        split = '    split: "80,15,5"\n    seed: 7\n'
        replacements = {
            "    blend: {web: 0.7, code: 0.3}\n": f"    blend: {blend}\n",
            f"{split}{SAMPLES}\n": f"    preset: nanotron-main\n    max_epochs: {{code: 1}}\n{settings}",
            "webdatasets:\n": EXPORTS_FOR_NANOTRON + "webdatasets:\n",
        }
        project = Project.open(make_project(replacements=replacements))
        make_corpora(project)
        return project

    return make


# One epoch has as many samples as both corpora together. So with this weight, code would be read
# several times.
MUCH_CODE = "{web: 0.1, code: 0.9}"


def test_an_epoch_that_repeats_a_corpus_because_of_its_weight_is_refused(nanotron_project):
    project = nanotron_project(MUCH_CODE)

    with pytest.raises(InputError, match="code") as caught:
        NanosetContext(project, "pretrain").plan("train")

    assert "max_epochs" in str(caught.value)


@pytest.mark.parametrize("policy", ["stop", "redistribute"])
def test_an_epoch_that_repeats_a_corpus_is_limited_by_on_exhaustion(nanotron_project, policy):
    project = nanotron_project(MUCH_CODE, f"    on_exhaustion: {policy}\n")
    context = NanosetContext(project, "pretrain")

    corpora = context.corpora(context.plan("train"))

    (code,) = [corpus for corpus in corpora if corpus.corpus == "code"]
    assert 0.9 < code.most_epochs <= 1


@pytest.mark.parametrize(
    ("policy", "change"),
    [
        ("stop", r"on_exhaustion: stop leaves [0-9,]+ of 4,000 samples, since"),
        (
            "redistribute",
            r"changes weights \(web [0-9.]+% instead of 10%, code [0-9.]+% instead of 90%\), since",
        ),
    ],
)
def test_a_changed_length_or_weight_is_a_warning(make_project, policy, change):
    replacements = {
        "blend: {web: 0.7, code: 0.3}": "blend: {web: 0.1, code: 0.9}",
        SAMPLES: f"    samples: {{train: 4000}}\n    max_epochs: {{code: 1}}\n"
        f"    on_exhaustion: {policy}",
    }
    project = Project.open(make_project(replacements=replacements))
    make_corpora(project)
    context = NanosetContext(project, "pretrain")

    warning = context.limit_warnings(context.plan("train"))[0]

    assert re.search(change, warning)
    assert re.search(r"code_text_document [0-9.]+ times in train \(at most 1\)", warning)


def test_an_epoch_that_repeats_no_corpus_has_no_limit(nanotron_project):
    project = nanotron_project("[web, code]")

    assert not NanosetContext(project, "pretrain").plan("train").exceeded


# Limits of mixtures


def test_a_part_too_small_to_keep_max_epochs_has_a_warning(make_project):
    mixture = "mix: {web: {share: 1}, code: {share: 9, max_epochs: 1}}"
    replacements = {
        "blend: {web: 0.7, code: 0.3}": mixture,
        # code has enough tokens for one sample, but not for two.
        "sequence_length: 32\n": "sequence_length: 4000\n",
        SAMPLES: "    samples: {train: 4}",
    }
    project = Project.open(make_project(replacements=replacements))
    make_corpora(project)
    context = NanosetContext(project, "pretrain")

    (warning,) = context.limit_warnings(context.plan("train"))

    assert "some documents of code may be read 2 times" in warning
