"""A build estimates the disk space that it needs, and is refused if the disk is clearly too small."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard

from helpers.building import build_all
from helpers.inspecting import corpus_names
from nanoset_core.errors import StorageError
from nanoset_core.project.dry_run import disk
from nanoset_core.project.dry_run.disk import check_disk, disk_need, room_warning, stale_outputs
from nanoset_core.project.graph.graph import graph_over
from nanoset_core.project.project import Project
from nanoset_core.stages.stage import Node
from nanoset_core.stages.webdataset.stage import TarsStage

TOKEN_BYTES = 2
"""Size of a token of the sample project, whose vocabulary is small."""
CONTEXT_LENGTH = 33
"""Tokens of a sample in the tars of the sample project."""
TEXT_BYTES_PER_TOKEN = 4
"""What is assumed of a corpus before any of it was tokenized."""


def every_node(project: Project) -> Sequence[Node]:
    """Return the outputs of a whole build."""
    return graph_over(project, {}, corpus_names(project)).nodes()


def text_size(path: Path) -> int:
    """Return how many bytes a file has, after decompression if it is compressed."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if path.suffix == ".zst":
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
            data = reader.read()
    return len(data)


def estimated_tokens(project: Project, *folders: str) -> float:
    """Return how many tokens the raw text in some folders is estimated to have."""
    text_bytes = 0
    for folder in folders:
        files = (project.config.file.parent / "raw" / folder).rglob("*.*")
        text_bytes += sum(text_size(path) for path in files)
    return text_bytes / TEXT_BYTES_PER_TOKEN


def tar_bytes(n_tokens: float) -> float:
    """Return how large the tars with some tokens are, in samples of 33 tokens as `.npy`.

    The header of a sample and its 128 + 66 bytes take a block of 512 bytes each.
    """
    return n_tokens / CONTEXT_LENGTH * 2 * 512


def nearly(n_bytes: float) -> object:
    """Return a value that equals numbers of bytes that differ by rounding only."""
    return pytest.approx(n_bytes, abs=8)


# Before the first build


def test_tokens_are_estimated_by_the_size_of_the_text(make_project):
    project = Project.open(make_project())

    need = disk_need(project, every_node(project))

    token_bytes = estimated_tokens(project, ".") * TOKEN_BYTES
    assert need["shards"] == nearly(token_bytes)
    assert need["datasets"] == nearly(need["shards"])
    assert need["tars"] == nearly(tar_bytes(estimated_tokens(project, ".")))
    assert "packed" not in need


def test_of_many_corpora_with_compressed_files_only_the_first_ones_are_sampled(
    make_project, monkeypatch
):
    project = Project.open(make_project())
    raw_folder = project.config.file.parent / "raw"
    line = b'{"text": "the same words again and again and again and again"}\n'
    for name in ("first", "second", "third"):
        (raw_folder / name).mkdir()
        (raw_folder / name / "a.jsonl.gz").write_bytes(gzip.compress(line * 1000))
    sampled_folders = []

    def sampled_expansion(folder, files):
        sampled_folders.append(folder)
        return 2.0

    monkeypatch.setattr(disk, "expansion", sampled_expansion)
    monkeypatch.setattr(disk, "_MAX_SAMPLED_CORPORA", 2)
    estimates = disk._TextEstimates(project)

    expansions = [estimates.of(name).expansion for name in ("first", "second", "third")]

    assert len(sampled_folders) == 2
    assert expansions == [2.0, 2.0, 2.0]


def test_a_build_of_nothing_needs_no_space(make_project):
    project = Project.open(make_project())

    need = disk_need(project, [])

    assert need == {}


def project_with_tars_of(make_project, settings: str) -> Project:
    """Write a project whose webdataset has other corpora, and open it."""
    project = Project.open(make_project(replacements={"corpora: [web, code, books]": settings}))
    # The smallest corpus limits how much can be mixed.
    assert estimated_tokens(project, "books") < estimated_tokens(project, "web")
    return project


def test_tars_need_the_requested_share_of_each_corpus(make_project):
    project = project_with_tars_of(make_project, "corpora: {web: 0.5, books: 0}")

    need = disk_need(project, every_node(project))

    assert need["tars"] == nearly(tar_bytes(estimated_tokens(project, "web") / 2))


def test_tars_of_a_mixture_end_with_its_smallest_corpus(make_project):
    settings = "corpora: {web: 0.5, books: 0.5}\n    mix: weights"
    project = project_with_tars_of(make_project, settings)

    need = disk_need(project, every_node(project))

    assert need["tars"] == nearly(tar_bytes(2 * estimated_tokens(project, "books")))


def test_tars_of_a_number_of_contexts_need_the_space_of_these(make_project):
    settings = "corpora: {web: 1, books: 1}\n    mix: weights\n    contexts: 10"
    project = project_with_tars_of(make_project, settings)

    need = disk_need(project, every_node(project))

    assert need["tars"] == nearly(tar_bytes(10 * CONTEXT_LENGTH))


def test_the_size_of_compressed_samples_is_estimated_from_tokens_that_are_known(make_project):
    replacements = {"member: npy": "member: json.gz", "sequence_length: 33": "sequence_length: 257"}
    project = build_all(make_project(replacements=replacements))

    need = disk_need(project, every_node(project))

    folder = (project.outputs.folder / "webdatasets" / "shuffled" / "current").resolve()
    tars = list(folder.glob("*.tar"))
    # Tokens of this small vocabulary have few digits, and so are compressed better than others.
    assert need["tars"] == pytest.approx(sum(tar.stat().st_size for tar in tars), rel=0.25)


def test_the_size_of_the_groups_of_a_webdataset_is_estimated_once(make_project, monkeypatch):
    project = Project.open(make_project())
    estimated_groups = []

    def disk_bytes(stage, project, key, text_of):
        estimated_groups.append(key.part)
        return 100

    monkeypatch.setattr(TarsStage, "disk_bytes", disk_bytes)

    need = disk_need(project, every_node(project))

    assert len(estimated_groups) == 1
    assert need["tars"] == 3 * 100  # the webdataset has three groups


# Tars of views and packs, in a project with the views `few` and `all`

VIEWS = """\
views:
  all: {of: web}
  few: {of: web, where: "tokens < 20", repeat: 2}
  least: {of: web, tokens: 100, repeat: 2}
  least_twice: {of: least, repeat: 2}
  held_out: {of: web, split: {keep: [0.1, 0.3]}}
"""


def project_with_views(make_project, webdataset: str) -> Project:
    """Write a project with some views, whose webdataset has other settings, and open it."""
    replacements = {"corpora: [web, code, books]": webdataset, "nanosets:\n": VIEWS + "nanosets:\n"}
    return Project.open(make_project(replacements=replacements))


def test_tars_of_packs_need_the_space_of_what_is_packed(make_project):
    settings = "corpora: [web]\n    packing: {kind: best_fit}"
    project = project_with_views(make_project, settings)

    need = disk_need(project, every_node(project))

    assert need["tars"] == nearly(tar_bytes(estimated_tokens(project, "web")))


def test_tars_of_a_view_that_was_not_built_need_the_space_of_its_corpus(make_project):
    project = project_with_views(make_project, "corpora: [all]")

    need = disk_need(project, every_node(project))

    assert need["tars"] == nearly(tar_bytes(estimated_tokens(project, "web")))


def test_tars_of_a_view_with_a_limit_of_tokens_need_the_space_of_these(make_project):
    project = project_with_views(make_project, "corpora: [least]")

    need = disk_need(project, every_node(project))

    assert need["tars"] == nearly(tar_bytes(2 * 100))  # each document is repeated


def test_tars_of_a_view_of_a_view_need_the_space_of_what_that_one_may_have(make_project):
    project = project_with_views(make_project, "corpora: [least_twice]")

    need = disk_need(project, every_node(project))

    assert need["tars"] == nearly(tar_bytes(2 * 2 * 100))  # both views repeat their documents


def test_tars_of_a_split_need_the_space_of_its_share_of_the_corpus(make_project):
    project = project_with_views(make_project, "corpora: [held_out]")

    need = disk_need(project, every_node(project))

    assert need["tars"] == nearly(tar_bytes(0.2 * estimated_tokens(project, "web")))


def test_tars_of_a_view_that_was_built_need_the_space_of_its_share_of_the_corpus(make_project):
    project = project_with_views(make_project, "corpora: [few]")
    build_all(project.config.file)
    view_manifest = project.outputs.current("views", "few")
    view_tokens = view_manifest.facts["tokens"]
    assert 0 < view_tokens < estimated_tokens(project, "web")
    # The next build makes the view of twice the text.
    raw_folder = project.config.file.parent / "raw"
    shutil.copytree(raw_folder / "web", raw_folder / "web" / "copy")

    need = disk_need(project, every_node(project))

    assert need["tars"] == nearly(tar_bytes(2 * view_tokens))


def test_exports_that_consist_of_links_need_no_space(make_project):
    exports = "exports:\n  one: {of: web, format: datatrove}\n"
    project = Project.open(make_project(replacements={"nanosets:\n": exports + "nanosets:\n"}))

    need = disk_need(project, every_node(project))

    assert "exports" not in need


def test_exports_that_are_written_need_the_space_of_their_tokens(make_project):
    # The view was not built. So how many tokens its documents have is not known: it counts as its
    # whole corpus.
    exports = """\
views: {few: {of: web, documents: 9}}
exports:
  one: {of: web, format: datatrove}
  two: {of: web, format: mds, sequence_length: 9}
  three: {of: few, format: olmo-core}
"""
    project = Project.open(make_project(replacements={"nanosets:\n": exports + "nanosets:\n"}))

    need = disk_need(project, every_node(project))

    export_bytes = estimated_tokens(project, "web") * TOKEN_BYTES
    assert need["exports"] == nearly(2 * export_bytes)


def test_pbin_files_need_the_space_of_their_tokens(make_project):
    settings = "views: {few: {of: web, tokens: 100}}\npbin: [web, few]\n"
    project = Project.open(make_project(replacements={"nanosets:\n": settings + "nanosets:\n"}))

    need = disk_need(project, every_node(project))

    assert need["packed"] == nearly((estimated_tokens(project, "web") + 100) * TOKEN_BYTES)


# After a build


def test_after_a_build_only_what_would_be_rebuilt_needs_space(make_project):
    project = Project.open(make_project())
    nodes = every_node(project)
    shards_before = disk_need(project, nodes)["shards"]
    build_all(project.config.file)

    # The shards exist. Datasets count as to be written, and their size is known from the shards.
    need = disk_need(project, nodes)
    paths = {path.resolve() for path in project.outputs.folder.glob("datasets/*/*/*.bin")}
    assert "shards" not in need
    assert need["datasets"] == nearly(sum(path.stat().st_size for path in paths))

    # A build that was interrupted has some of its shards.
    shutil.rmtree(project.outputs.folder / "tokenized")
    assert disk_need(project, nodes)["shards"] < shards_before / 2


def test_shards_that_no_build_can_use_reduce_no_estimate(make_project):
    project = build_all(make_project())
    config_file = project.config.file
    nodes = every_node(project)

    # With another tokenization, all text is tokenized again.
    text = config_file.read_text()
    config_file.write_text(text.replace("append_eod: true", "append_eod: false"))
    changed_project = Project.open(config_file)
    shards_in_list = disk_need(changed_project, nodes)["shards"]
    shutil.rmtree(project.outputs.folder / "tokenized")
    shards_in_no_list = disk_need(changed_project, nodes)["shards"]

    paths = [path.resolve() for path in project.outputs.folder.glob("shards/*/*/*.bin")]
    assert shards_in_list == nearly(sum(path.stat().st_size for path in paths))
    assert shards_in_no_list == nearly(estimated_tokens(changed_project, ".") * TOKEN_BYTES)


def test_an_output_of_which_only_the_link_is_missing_needs_no_space(make_project):
    project = build_all(make_project())
    dataset_folder = project.outputs.folder / "datasets/web"
    version = (dataset_folder / "current").resolve()
    (dataset_folder / "current").unlink()

    assert stale_outputs(project, "web") == set()

    # A damaged version is written again.
    next(version.glob("*.bin")).unlink()
    assert [node.stage.kind for node in stale_outputs(project, "web")] == ["corpus"]


# Whether the disk is large enough


class Disk:
    """Lets the disk seem to have some space, and checks whether it is enough for a build."""

    def __init__(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = every_node(project)
        self.needed_bytes = sum(disk_need(project, self.nodes).values())
        self._project = project
        self._monkeypatch = monkeypatch

    def messages_if_free(self, n_bytes: float) -> list[str]:
        """Return what a build says that finds some bytes of the disk free."""

        def disk_usage(place: Path) -> SimpleNamespace:
            return SimpleNamespace(free=int(n_bytes))

        self._monkeypatch.setattr(shutil, "disk_usage", disk_usage)
        messages: list[str] = []
        check_disk(self._project, self.nodes, messages.append)
        return messages


@pytest.fixture
def disk_of_project(make_project, monkeypatch) -> Disk:
    """The disk of the sample project."""
    return Disk(Project.open(make_project()), monkeypatch)


def test_a_small_project_is_built_on_a_full_disk_after_a_warning(disk_of_project):
    size, warning = disk_of_project.messages_if_free(0)

    assert size.endswith("; 0 B are free")
    assert warning == "warning: the disk may be too small for this build"


def test_a_small_project_with_enough_room_is_built_without_a_word(disk_of_project):
    assert disk_of_project.messages_if_free(2 * disk_of_project.needed_bytes) == []


def test_a_large_project_is_built_if_the_disk_is_nearly_large_enough(disk_of_project, monkeypatch):
    monkeypatch.setattr(disk, "LEAST_BYTES", 0)

    # Estimates may be too high by some percent.
    size, warning = disk_of_project.messages_if_free(0.91 * disk_of_project.needed_bytes)

    assert "of disk (shards" in size
    assert warning == "warning: the disk may be too small for this build"


def test_a_large_project_with_enough_room_is_told_its_size(disk_of_project, monkeypatch):
    monkeypatch.setattr(disk, "LEAST_BYTES", 0)

    (message,) = disk_of_project.messages_if_free(2 * disk_of_project.needed_bytes)

    assert message.startswith("takes about ")


def test_a_dry_run_warns_of_a_disk_on_which_the_build_would_be_refused():
    gib = 1 << 30

    assert room_warning(2 * gib, free=3 * gib) is None
    assert room_warning(2 * gib, free=None) is None
    assert room_warning(2 * gib, free=gib) == (
        "the disk is too small for this build, which would not start"
    )


def test_a_disk_that_cannot_be_queried_is_an_error_with_its_place(make_project, monkeypatch):
    project = Project.open(make_project())

    def fail(place: Path) -> None:
        raise OSError("input/output error")

    monkeypatch.setattr(shutil, "disk_usage", fail)

    with pytest.raises(StorageError, match="free space") as caught:
        check_disk(project, every_node(project), print)

    assert caught.value.where == str(project.config.file.parent)


def test_a_large_project_is_refused_if_the_disk_is_too_small(disk_of_project, monkeypatch):
    monkeypatch.setattr(disk, "LEAST_BYTES", 0)

    with pytest.raises(StorageError, match="too little room") as caught:
        disk_of_project.messages_if_free(0.89 * disk_of_project.needed_bytes)

    assert "free" in caught.value.found
    for output in ("shards", "datasets", "tars"):
        assert output in caught.value.expected
    assert "nanoset gc" in caught.value.remedy


def refusal(project: Project, monkeypatch: pytest.MonkeyPatch) -> StorageError:
    """Return the error of a build that finds no space on the disk."""
    monkeypatch.setattr(disk, "LEAST_BYTES", 0)
    with pytest.raises(StorageError, match="too little room") as caught:
        Disk(project, monkeypatch).messages_if_free(0)
    return caught.value


def test_a_refusal_names_the_views_whose_size_is_not_known_yet(make_project, monkeypatch):
    project = project_with_views(make_project, "corpora: [few]")

    remedy = refusal(project, monkeypatch).remedy
    assert "these views were not built yet: web/few. Build" in remedy
    assert "`nanoset build --select '*/views'`" in remedy

    build_all(project.config.file)
    shutil.rmtree(project.outputs.folder / "webdatasets")
    assert "views" not in refusal(project, monkeypatch).remedy
