"""Webdatasets of a project: what their settings mean, what is in their recipes, and interruptions."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from helpers.building import make_corpora, make_dataset, make_inventory, make_shards, open_project
from helpers.command import invoke_nanoset
from helpers.inspecting import current_dataset, node_at
from helpers.sample_project import write_project
from nanoset_core import MMapIndexedDataset, iterate_shards
from nanoset_core.errors import ConfigError, MissingError, StaleError
from nanoset_core.stages.registry import sweep
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.stages.webdataset.show import webdataset_summary
from nanoset_core.stages.webdataset.stage import WEBDATASET
from nanoset_core.storage.atomic import discard, open_unfinished

LENGTH = 33
COMMON = {"sequence_length": LENGTH, "samples_per_shard": 16, "member": "npy", "groups": 2}
"""Settings of every webdataset, unless a test changes them."""
BOS = 1
"""Id of `<|pad|>`, which takes the place of a BOS token."""
TOKENIZER_WITH_BOS = {"path": "tokenizer.json", "eod": "<|endoftext|>", "bos": "<|pad|>"}
Context = tuple[int, ...]


class ChangingProject:
    """A project whose webdatasets are replaced by a test."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.base_settings = yaml.safe_load(file.read_text()) | {"nanosets": {}}
        self.tokenized_with: list[dict[str, Any]] = []

    def open(self, changes: dict[str, Any] | None = None, **webdatasets: dict[str, Any]) -> Any:
        """Open the project with other settings, after its corpora are tokenized with them.

        Args:
            changes: Settings of the project, without webdatasets.
            webdatasets: Settings of each webdataset by its name, in addition to the common ones.
        """
        changes = changes or {}
        specs = {name: COMMON | spec for name, spec in webdatasets.items()}
        settings = self.base_settings | {"webdatasets": specs} | changes
        self.file.write_text(yaml.safe_dump(settings, sort_keys=False))
        project = open_project(self.file)
        if changes not in self.tokenized_with:
            make_corpora(project)
            self.tokenized_with.append(changes)
        return project


@pytest.fixture
def changing(make_project: Callable[..., Path]) -> ChangingProject:
    """The sample project, for a single test."""
    return ChangingProject(make_project())


def build(project: Any, name: str) -> Any:
    """Build a webdataset, and return its manifest."""
    shuffling.make_plan(project, name)
    for group in range(project.webdataset(name).groups):
        shuffling.write_group(project, name, group)
    return shuffling.finish(project, name)


def contexts_of(manifest: Any) -> list[Context]:
    """Return the contexts of a webdataset, in order."""
    return [tuple(context.tolist()) for context in iterate_shards(manifest.folder)]


def cut(project: Any, *corpora: str) -> list[Context]:
    """Return the contexts that the concatenated tokens of some corpora fill."""
    tokens: list[int] = []
    for corpus in corpora:
        manifest = current_dataset(project, corpus)
        tokens += MMapIndexedDataset(manifest.path(manifest.facts["prefix"])).tokens.tolist()
    n_tokens_in_contexts = len(tokens) // LENGTH * LENGTH
    starts = range(0, n_tokens_in_contexts, LENGTH)
    return [tuple(tokens[start : start + LENGTH]) for start in starts]


def sha256_by_tar(folder: Path) -> dict[str, str]:
    """Return the sha256 of each tar in a folder, by its name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*.tar"))
    }


def content_by_file(folder: Path) -> dict[str, bytes]:
    """Return the content of each file in a folder, by its name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# What the settings mean


class BuiltForms(NamedTuple):
    """A project with a webdataset for each form of the settings."""

    project: Any
    manifests: dict[str, Any]
    """By the name of the webdataset."""


@pytest.fixture(scope="module")
def forms(tmp_path_factory, tokenizer_file) -> BuiltForms:
    """Webdatasets that are built together; not to be written to."""
    file = write_project(tmp_path_factory.mktemp("forms") / "project", tokenizer_file)
    weights = {"corpora": {"web": 3, "code": 1}, "mix": "weights"}
    project = ChangingProject(file).open(
        {"tokenizer": TOKENIZER_WITH_BOS},
        carried={"corpora": ["web", "code", "books"], "tail": "carry"},
        mixed={"corpora": {"web": 0.5, "code": 2.0, "books": 0}},
        shares=weights | {"contexts": 40},
        scarce=weights,
        even={"corpora": ["web"], "even": True, "bos": True, "sequence_length": LENGTH + 1},
    )
    manifests = {name: build(project, name) for name in project.config.webdatasets}
    return BuiltForms(project, manifests)


def test_with_carry_contexts_are_cut_from_all_corpora_in_sequence(forms):
    manifest = forms.manifests["carried"]

    assert sorted(contexts_of(manifest)) == sorted(cut(forms.project, "web", "code", "books"))
    assert manifest.facts["tokens_dropped"] < LENGTH


def test_a_plan_measures_the_quality_of_its_order(forms):
    plan_manifest, _ = shuffling.current_plan(forms.project, "carried")

    quality = plan_manifest.facts["quality"]

    assert quality["contexts"] == forms.manifests["carried"].facts["sequences"]
    assert quality["even"] is True


def test_frequencies_say_how_often_the_contexts_of_a_corpus_occur(forms):
    web = cut(forms.project, "web")
    twice_code = Counter(cut(forms.project, "code") * 2)

    contexts = Counter(contexts_of(forms.manifests["mixed"]))

    assert twice_code <= contexts
    others = contexts - twice_code
    assert others <= Counter(web)
    assert others.total() == int(len(web) * 0.5 + 0.5)


def test_weights_divide_the_number_of_contexts(forms):
    sources = forms.manifests["shares"].facts["sources"]

    assert [source["contexts"] for source in sources] == [30, 10]


def test_without_a_number_of_contexts_weights_repeat_no_corpus(forms):
    [web, code] = forms.manifests["scarce"].facts["sources"]

    assert max(web["frequency"], code["frequency"]) == 1
    assert abs(web["contexts"] - 3 * code["contexts"]) <= 2


def test_even_tars_have_one_size(forms):
    manifest = forms.manifests["even"]
    lines = (manifest.folder / "manifest.jsonl").read_bytes().splitlines()
    sizes = {json.loads(line)["num_sequences"] for line in lines}

    assert len(sizes) == 1
    n_contexts = manifest.facts["sequences"] + manifest.facts["contexts_left_out"]
    assert n_contexts == len(cut(forms.project, "web"))


def test_status_shows_contexts_that_are_in_no_tar(forms):
    even = forms.manifests["even"]
    mixed = forms.manifests["mixed"]

    assert even.facts["contexts_left_out"] > 0
    details = webdataset_summary(even).details
    assert details["contexts left out"] == str(even.facts["contexts_left_out"])
    assert "contexts left out" not in webdataset_summary(mixed).details


def test_with_bos_each_context_starts_with_it(forms):
    with_bos = Counter((BOS, *context) for context in cut(forms.project, "web"))

    assert Counter(contexts_of(forms.manifests["even"])) <= with_bos


# Recipes


def test_the_engine_its_memory_and_groups_do_not_affect_the_output(changing):
    spec = {"corpora": ["web", "code"]}
    manifest = build(changing.open(same=spec), "same")
    expected = sha256_by_tar(manifest.folder)

    for change in [{"engine": "tiled"}, {"engine": "buckets", "memory_mib": 200}, {"groups": 5}]:
        changed_project = changing.open(same=spec | change)
        plan_manifest = shuffling.make_plan(changed_project, "same")
        rebuilt = build(open_project(changing.file, rebuild=True), "same")

        assert plan_manifest.digest == manifest.recipe["parents"]["plan"]
        assert rebuilt.digest == manifest.digest
        assert sha256_by_tar(rebuilt.folder) == expected
        assert not (rebuilt.folder / ".shards").exists()


def test_settings_that_affect_the_output_are_in_the_recipe(changing):
    half = {"corpora": {"web": 1.0, "code": 0.5}}
    changes = [
        {},
        {"seed": 1},
        {"even": True},
        {"tail": "carry"},
        {"member": "json.gz"},
        half,
        half | {"mix": "weights"},
        half | {"mix": "weights", "contexts": 30},
        {"corpora": {"web": 1.0, "code": 1.0}},
    ]
    webdatasets = {}
    for number, change in enumerate(changes):
        webdatasets[f"a{number}"] = {"corpora": ["web", "code"]} | change

    project = changing.open(**webdatasets)

    all_options = set()
    for name in webdatasets:
        plan = node_at(f"shuffle_plans/{name}")
        options = plan.stage.recipe(project, plan.key, {}).options
        all_options.add(json.dumps(options, sort_keys=True))
    assert len(all_options) == len(changes)


# The preset tokshuf

LIKE_TOKSHUF = {"corpora": ["web"], "preset": "tokshuf"}


@pytest.fixture
def tokshuf_settings(golden_tars) -> dict[str, Any]:
    """Settings of a project that is tokenized for the preset tokshuf."""
    tokenizer_path = golden_tars / "tokenizer" / "tokenizer.json"
    return {
        "tokenizer": {"path": str(tokenizer_path), "eod": "<|endoftext|>"},
        "tokenization": {"preset": "tokshuf", "workers": 1, "range_mib": 0.02},
    }


def test_the_preset_tokshuf_gives_the_tars_of_nanoset_shuffle(
    changing, tokshuf_settings, golden_tars, tmp_path
):
    raw = changing.file.parent / "raw/web"
    words = ["shuffle", "--input", raw, "--output", tmp_path / "out", "--preset", "tokshuf"]
    words += ["--tokenizer", golden_tars / "tokenizer", "--seqlen", LENGTH]
    words += ["--wds-chunk-size", 16, "--member", "npy", "--workers", 1]
    words += ["--max-rejected-fraction", 0.5]

    manifest = build(changing.open(tokshuf_settings, like=LIKE_TOKSHUF), "like")
    outcome = invoke_nanoset(words, catch_exceptions=False)

    assert outcome.exit_code == 0
    assert sha256_by_tar(tmp_path / "out") == sha256_by_tar(manifest.folder)


def test_the_preset_tokshuf_requires_the_end_token_of_tokshuf(changing, tokshuf_settings):
    tokenizer = tokshuf_settings["tokenizer"] | {"eod": "<|padding|>"}
    project = changing.open(tokshuf_settings | {"tokenizer": tokenizer}, like=LIKE_TOKSHUF)

    with pytest.raises(ConfigError, match="the token 0"):
        shuffling.make_plan(project, "like")


def test_the_preset_tokshuf_requires_a_tokenizer_that_tokshuf_knows(changing, tokshuf_settings):
    tokenizer = {"path": "tokenizer.json", "eod": "<|pad|>"}
    project = changing.open(tokshuf_settings | {"tokenizer": tokenizer}, like=LIKE_TOKSHUF)

    with pytest.raises(ConfigError, match="does not know this tokenizer"):
        shuffling.make_plan(project, "like")


def test_the_preset_tokshuf_requires_the_files_that_were_tokenized(changing, tokshuf_settings):
    """It cuts each file separately."""
    project = changing.open(tokshuf_settings, like=LIKE_TOKSHUF)
    (changing.file.parent / "raw/web/zz.jsonl").write_text('{"text": "one more"}\n')
    make_inventory(project, "web")

    with pytest.raises(StaleError, match="other files"):
        shuffling.make_plan(project, "like")


# Tars that are missing or stale


def test_tars_need_a_plan(changing):
    project = changing.open(a={"corpora": ["web"]})

    with pytest.raises(MissingError):
        shuffling.write_group(project, "a", 0)


class HalfWritten(NamedTuple):
    """A webdataset of two groups of tars, of which the first is written."""

    project: Any
    folder: Path
    markers: list[Path]
    """Of the tars that are written."""


@pytest.fixture
def half_written(changing) -> HalfWritten:
    """A build that was interrupted between the groups."""
    project = changing.open(a={"corpora": ["web"]})
    shuffling.make_plan(project, "a")
    shuffling.write_group(project, "a", 0)
    [folder] = project.outputs.folder.glob("webdatasets/a/*")
    return HalfWritten(project, folder, sorted((folder / ".shards").iterdir()))


def test_it_is_known_which_groups_of_tars_are_written(half_written):
    assert shuffling.is_group_written(half_written.project, "a", 0)
    assert not shuffling.is_group_written(half_written.project, "a", 1)


def test_a_webdataset_is_not_finished_before_all_tars_are_written(half_written):
    with pytest.raises(MissingError, match="some tars have not been written"):
        shuffling.finish(half_written.project, "a")


def test_a_tar_whose_marker_a_killed_build_left_incomplete_is_unfinished(half_written):
    marker = half_written.markers[0]
    marker.write_text('{"made_fr')

    access = half_written.project.outputs.access
    unfinished = WEBDATASET.unfinished_files(access, half_written.folder)

    assert f".shards/{marker.name}" in unfinished
    assert not shuffling.is_group_written(half_written.project, "a", 0)


def test_a_folder_with_the_marker_of_another_version_is_not_taken_for_unfinished(half_written):
    half_written.markers[0].write_text('{"made_fr')
    half_written.markers[1].write_text('{"made_from": "something else"}')

    access = half_written.project.outputs.access

    assert WEBDATASET.unfinished_files(access, half_written.folder) is None


def test_tars_are_written_only_from_the_planned_datasets(half_written):
    project = half_written.project
    n_tokens = current_dataset(project, "web").facts["tokens"]

    # Rebuild the dataset of the corpus with its documents in another order.
    file = project.config.file.parent / "raw/web/part-1/web-3.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(reversed(lines)))
    make_inventory(project, "web")
    make_shards(project, "web")
    make_dataset(project, "web")
    assert current_dataset(project, "web").facts["tokens"] == n_tokens

    # Neither the written group nor the other one can be written for the former plan.
    for group in [0, 1]:
        with pytest.raises(StaleError, match="made from other inputs"):
            shuffling.write_group(project, "a", group)

    # With a new plan, all tars are rewritten.
    assert sorted(contexts_of(build(project, "a"))) == sorted(cut(project, "web"))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: "", id="empty"),
        pytest.param(lambda text: "{", id="cut off"),
        pytest.param(lambda text: '{"nanoset": 1}', id="without recipe"),
        pytest.param(lambda text: text.replace('"tokens": ', '"tokens": 1'), id="other facts"),
    ],
)
def test_a_webdataset_whose_manifest_is_damaged_is_rebuilt(changing, damage):
    project = changing.open(all={"corpora": ["web"]})
    manifest = build(project, "all")
    content_before = content_by_file(manifest.folder)
    file = manifest.folder / "manifest.json"
    text = file.read_text()
    assert damage(text) != text
    file.write_text(damage(text))

    rebuilt = build(project, "all")

    assert rebuilt.digest == manifest.digest
    assert content_by_file(manifest.folder) == content_before


# Several builds


class CompleteWebdataset(NamedTuple):
    """A webdataset that is built."""

    project: Any
    manifest: Any
    names: list[str]
    """Of the files in its folder."""

    @property
    def current_names(self) -> list[str]:
        """The names of the files that are in its folder now."""
        return sorted(path.name for path in self.manifest.folder.iterdir())

    def add_marker(self) -> None:
        """Add a marker of a tar, as a killed build leaves it."""
        folder = self.manifest.folder / ".shards"
        folder.mkdir()
        (folder / "shard-00000000.json").write_text("{}")


@pytest.fixture
def complete(changing) -> CompleteWebdataset:
    """A webdataset of one corpus."""
    project = changing.open(plain={"corpora": ["web"]})
    manifest = build(project, "plain")
    names = sorted(path.name for path in manifest.folder.iterdir())
    return CompleteWebdataset(project, manifest, names)


def test_a_build_removes_markers_that_a_killed_build_left(complete):
    complete.add_marker()

    build(complete.project, "plain")

    assert complete.current_names == complete.names


def test_a_sweep_removes_what_killed_builds_left_but_not_files_of_running_ones(complete):
    # A tar that a running build, this process, is writing.
    folder = complete.manifest.folder
    running_file = open_unfinished(folder / "shard-00000000.tar")

    # A tar that was being written by a process that has ended, and its folder of markers.
    ended_process = subprocess.Popen(["true"])
    ended_process.wait()
    with open_unfinished(folder / "shard-00000001.tar") as file:
        own_part = f"-{os.getpid()}."
        assert own_part in file.name
        os.rename(file.name, file.name.replace(own_part, f"-{ended_process.pid}."))
    (folder / ".shards").mkdir()

    sweep(complete.project)

    assert complete.current_names == sorted([*complete.names, Path(running_file.name).name])
    discard(running_file)


def test_a_webdataset_that_another_build_completes_meanwhile_is_used(complete, monkeypatch):
    """The other build removes the markers, so that the manifest says what they said."""
    stage = complete.manifest.stage
    find = type(complete.project.outputs).find
    searches = []

    def find_at_third_search(outputs, recipe):
        searches.append(recipe.stage)
        if recipe.stage == stage and searches.count(stage) <= 2:
            return None
        return find(outputs, recipe)

    monkeypatch.setattr(type(complete.project.outputs), "find", find_at_third_search)
    manifest = shuffling.finish(complete.project, "plain")

    assert manifest.digest == complete.manifest.digest
    assert searches.count(stage) == 3
