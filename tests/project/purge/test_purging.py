"""`nanoset purge` erases documents from all outputs, and nothing else."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from click.testing import Result

from helpers.buckets import root_in
from helpers.building import make_columns, make_corpora, make_view, run_stages
from helpers.child_processes import start_nanoset
from helpers.command import hide_command, invoke_nanoset, run_nanoset
from helpers.inspecting import current_dataset, leased_by_a_build
from helpers.locations import REPOSITORY
from helpers.s3_server import requests_answered
from helpers.sample_project import jsonl, outputs_of, tree, write_project
from nanoset_core.errors import ConfigError, FormatError, MissingError, StaleError, StorageError
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.made_from import sources_of
from nanoset_core.project.project import Project
from nanoset_core.project.purge import apply as purge_module
from nanoset_core.project.purge.apply import purge
from nanoset_core.project.purge.interrupted import InterruptedPurge, interrupted_purges
from nanoset_core.project.purge.plan import plan_purge
from nanoset_core.project.purge.receipt import is_unfinished
from nanoset_core.stages.mappings.run_before import handoff_and_splits
from nanoset_core.stages.shards import purged

CHECK_RECEIPT = REPOSITORY / "deploy" / "check_receipt.py"
"""The script that checks a receipt without nanoset."""

CHANGES = {
    "documents: {": "documents: {columns: [note], ",
    "nanosets:\n": "views:\n  kept: {of: web, exclude: drop.txt}\npacks: {kept-40: {of: kept, length: 40}}\n"
    "pbin: [web, kept]\nnanosets:\n",
    "blend: {web: 0.7, code: 0.3}": "blend: {kept: 0.7, code: 0.3}",
    "groups: 3": "groups: 1",
}
"""Replacements in the settings of the sample project, for outputs of every kind."""

FEW_OUTPUTS = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
documents: {max_rejected_fraction: 0.2, columns: [note]}
tokenization: {append_eod: true, range_mib: 0.02, workers: 1}
views:
  kept: {of: web, exclude: drop.txt}
pbin: [kept]
"""
"""Settings for one chain of outputs: a corpus, its view, and what is written from that."""

IDS = ["secret-1", "secret-2", "web-3", "web-239"]
"""Documents that are erased: two with text that no other document has, and two of the sample."""

DAY = "2026-11-26"
SNIPPET_BYTES = 64
SNIPPET_STEP = 48
"""Each snippet starts that many bytes after the one before, so that any 112 bytes hold one."""


# Documents with text that is easy to find again


def secret_text(seed: int, length: int = 500) -> str:
    """Return random letters, which occur nowhere else."""
    rng = random.Random(seed)
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(length))


SECRET_ROWS = [
    {"id": f"secret-{number}", "text": secret_text(number), "note": secret_text(10 + number, 200)}
    for number in (1, 2)
]
ROWS = [
    {"id": "plain-1", "text": "a text between the others"},
    *SECRET_ROWS,
    {"id": "plain-2", "text": "and the last one"},
]
"""The documents of the raw file `secret.jsonl`."""


@pytest.fixture(scope="module")
def secret_snippets(tokenizer_file: Path) -> list[bytes]:
    """Pieces of the texts and notes of the secret documents, and of their tokens in each width."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    snippets = set()
    for row in SECRET_ROWS:
        tokens = np.array(tokenizer.encode(row["text"]).ids)
        representations = [row["text"].encode(), row["note"].encode()]
        representations += [tokens.astype(f"<i{width}").tobytes() for width in (2, 4, 8)]
        for data in representations:
            for start in range(0, len(data) - SNIPPET_BYTES + 1, SNIPPET_STEP):
                snippets.add(data[start : start + SNIPPET_BYTES])
    return sorted(snippets)


def stored_bytes(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, and what is in it if it is a tar, gzip or Parquet file."""
    import pyarrow.parquet as pq

    data = path.read_bytes()
    yield gzip.decompress(data) if path.name.endswith(".gz") else data
    if path.name.endswith(".parquet"):
        yield repr(pq.read_table(path).to_pydict()).encode()
    if path.name.endswith(".tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                member_file = tar.extractfile(member)
                assert member_file is not None
                member_data = member_file.read()
                is_gzip = member.name.endswith(".gz")
                yield gzip.decompress(member_data) if is_gzip else member_data


def folders_with(snippets: Sequence[bytes], root: Path) -> set[str]:
    """Return the names directly below a root under which one of the snippets is stored."""
    # Files of a folder are joined, as a snippet may begin in one and end in the next.
    parts_by_folder: dict[str, list[bytes]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            folder = path.relative_to(root).parts[0]
            parts_by_folder.setdefault(folder, []).extend(stored_bytes(path))

    folders = set()
    for folder, parts in parts_by_folder.items():
        data = b"".join(parts)
        if any(snippet in data for snippet in snippets):
            folders.add(folder)
    return folders


# Projects before and after a purge


def build(project: Project) -> None:
    """Build all outputs of a project."""
    make_corpora(project)
    make_columns(project, "web")
    run_stages(project)


def build_twice(file: Path) -> Project:
    """Build a project before and after it gets the secret rows; return it."""
    (file.parent / "drop.txt").write_text("web-7\n")
    build(Project.open(file))
    (file.parent / "raw/web/secret.jsonl").write_bytes(jsonl(ROWS))
    build(Project.open(file))
    return Project.open(file)


def erase(
    project: Project, ids: Sequence[str] = IDS, how: Callable[[Project], object] = build
) -> Path:
    """Erase documents from a project, and return the path of the receipt.

    Args:
        project: The project.
        ids: Ids of the documents.
        how: Builds the project, which the purge opens again for it.
    """
    plan = plan_purge(project, ids)
    return purge(project, plan, lambda: how(Project.open(project.config.file)), DAY)


def copy_of(config_file: Path, folder: Path) -> Project:
    """Copy a project with its outputs into a new folder, and open the copy."""
    shutil.copytree(config_file.parent, folder, symlinks=True)
    return Project.open(folder / config_file.name)


def digests_of_web(project: Project) -> list[str]:
    """Return the digests of all versions of the dataset `web`, newest first."""
    return [manifest.digest for manifest in project.outputs.versions("datasets", "web")]


def run_in(project: Project, *words: object) -> str:
    """Run a command of a project; return what it printed, and the error that it raised."""
    result = invoke_nanoset([*words, "--config", str(project.config.file)])
    return f"{result.output}{result.exception or ''}"


def check_receipt(root: Path, receipt: Path) -> int:
    """Run the script that checks a receipt, and return its exit code."""
    spec = importlib.util.spec_from_file_location("check_receipt", CHECK_RECEIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main(str(root), str(receipt))


@pytest.fixture(scope="module")
def built(tmp_path_factory, tokenizer_file) -> Project:
    """A project with two versions of its outputs, of which only the second has the secret rows.

    Tests must not write to it.
    """
    folder = tmp_path_factory.mktemp("purging") / "project"
    file = write_project(folder, tokenizer_file, CHANGES)
    return build_twice(file)


@pytest.fixture
def project(built, tmp_path) -> Project:
    """A copy of the built project, to be changed."""
    return copy_of(built.config.file, tmp_path / "project")


@pytest.fixture(scope="module")
def small_built(tmp_path_factory, tokenizer_file) -> Project:
    """A project like `built`, with few outputs; tests must not write to it.

    How a purge begins and ends does not depend on the kinds of outputs.
    """
    folder = tmp_path_factory.mktemp("purging") / "small"
    file = write_project(folder, tokenizer_file)
    shutil.rmtree(folder / "raw" / "code")
    file.write_text(FEW_OUTPUTS)
    return build_twice(file)


@pytest.fixture
def small_project(small_built, tmp_path) -> Project:
    """A copy of the small project, to be changed."""
    return copy_of(small_built.config.file, tmp_path / "project")


class ErasedProject(NamedTuple):
    """A project after a purge."""

    project: Project
    receipt: Path
    warnings_during_build: Sequence[InterruptedPurge]
    """The purges that seemed to be interrupted when the build of the purge had ended."""
    status_during_build: str
    """What `nanoset status` printed then."""

    @property
    def root(self) -> Path:
        """The folder of the outputs."""
        return self.project.config.root_folder


@pytest.fixture(scope="module")
def erased(built, tmp_path_factory) -> ErasedProject:
    """The built project after a purge; tests must not write to it."""
    folder = tmp_path_factory.mktemp("after-purge") / "project"
    project = copy_of(built.config.file, folder)
    warnings = []
    outputs = []

    def build_and_look(opened: Project) -> None:
        build(opened)
        warnings.extend(interrupted_purges(opened.outputs))
        outputs.append(run_in(opened, "status"))

    receipt = erase(project, how=build_and_look)
    return ErasedProject(project, receipt, warnings, status_during_build=outputs[0])


@pytest.fixture
def erased_copy(erased, tmp_path) -> ErasedProject:
    """A copy of the project after a purge, to be changed."""
    config_file = erased.project.config.file
    project = copy_of(config_file, tmp_path / "project")
    receipt = project.config.file.parent / erased.receipt.relative_to(config_file.parent)
    return erased._replace(project=project, receipt=receipt)


# What is erased


def test_outputs_of_every_kind_hold_the_documents_before_a_purge(built, secret_snippets):
    folders = folders_with(secret_snippets, built.config.root_folder)

    # Without this, the tests below would find nothing because they look for the wrong bytes.
    assert folders >= {
        "shards",
        "datasets",
        "views",
        "webdatasets",
        "packed",
        "column_tables",
    }


def test_nothing_of_the_documents_is_stored_after_a_purge(erased, secret_snippets):
    assert folders_with(secret_snippets, erased.root) == set()


def test_a_purge_leaves_no_document_to_erase(erased):
    assert plan_purge(erased.project, IDS).documents == {}


def test_a_purge_erases_all_versions_with_one_of_the_documents(built, erased):
    # The first version has no secret rows, but has web-3 and web-239.
    digests_before = digests_of_web(built)
    assert len(digests_before) == 2

    digests_after = digests_of_web(erased.project)

    assert not set(digests_after) & set(digests_before)


def test_each_version_is_erased_before_those_that_it_was_made_from(built):
    versions = plan_purge(built, IDS).versions

    # If a purge is killed, what was made from an erased version would not be found any more.
    erased: set[str] = set()
    for version in versions:
        manifest = built.outputs.manifest_at(built.outputs.folder / version.path)
        assert not erased.intersection(sources_of(built.outputs, manifest).digests)
        erased.add(manifest.digest)
    assert len(erased) > 10


def test_a_purge_keeps_the_versions_of_other_corpora(erased):
    assert [*erased.project.outputs.versions("datasets", "code")]


def test_a_purge_keeps_the_other_documents_of_a_corpus(erased):
    # 240 documents of the sample and 4 of secret.jsonl, of which 4 were erased.
    assert erased.project.outputs.current("datasets", "web").facts["documents"] == 240


def test_a_purge_keeps_versions_without_the_documents(small_project):
    erase(small_project, ["secret-1", "secret-2"])

    assert len([*small_project.outputs.versions("datasets", "web")]) == 2
    assert len([*small_project.outputs.versions("views", "kept")]) == 2


def test_outputs_after_a_purge_equal_those_of_a_build_from_the_text(erased, tmp_path):
    rebuilt = copy_of(erased.project.config.file, tmp_path / "rebuilt")
    rebuilt_root = rebuilt.config.root_folder
    shutil.rmtree(rebuilt_root)
    shutil.copytree(erased.root / purged.FOLDER, rebuilt_root / purged.FOLDER)
    build(Project.open(rebuilt.config.file))

    digest_after_purge = outputs_of(erased.project.config.file)
    digest_after_rebuild = outputs_of(rebuilt.config.file)

    # A shard's manifest records how many documents its engine was compared with, which differs.
    different_names = [
        name
        for name, digest in digest_after_rebuild.items()
        if digest_after_purge.get(name) != digest
        and not (name.startswith("shards/") and name.endswith("/manifest.json"))
    ]
    assert different_names == []


def test_outputs_that_are_not_configured_any_more_are_erased_too(small_project, secret_snippets):
    # Remove the view from the settings; whatever used it uses its corpus.
    file = small_project.config.file
    text = file.read_text()
    text = text.replace("views:\n  kept: {of: web, exclude: drop.txt}\n", "")
    text = text.replace("kept", "web")
    file.write_text(text)

    erase(Project.open(file))

    root = small_project.config.root_folder
    assert folders_with(secret_snippets, root) == set()
    assert not (root / "views/kept/current.json").exists()


def test_documents_are_erased_if_only_datasets_store_tokens(small_project, secret_snippets):
    file = small_project.config.file
    root = small_project.config.root_folder
    file.write_text(file.read_text() + "storage: {shards: drop}\n")
    collected = invoke_nanoset(["gc", "--yes", "--config", str(file)], catch_exceptions=False)
    assert collected.exit_code == 0
    assert not [*root.glob("shards/web/*/tokens.bin")]

    erase(Project.open(file))

    assert folders_with(secret_snippets, root) == set()
    assert not [*root.glob("shards/web/*/tokens.bin")]

    # The next build has nothing to do.
    file.write_text(file.read_text() + "# as before\n")
    datasets_before = tree(root / "datasets")
    build(Project.open(file))
    assert tree(root / "datasets") == datasets_before


def test_the_data_of_a_run_are_erased_even_if_collections_should_keep_them(
    project, secret_snippets
):
    digest = project.outputs.current("nanosets", "pretrain/handoff").digest
    file = project.config.file
    handoff = f"data/nanosets/pretrain/handoff/{digest}"
    file.write_text(file.read_text() + f"storage: {{keep_runs: [{handoff}]}}\n")

    receipt = erase(Project.open(file))

    assert receipt.exists()
    assert folders_with(secret_snippets, project.config.root_folder) == set()
    # Later collections know that nothing is left to keep.
    assert collect(Project.open(file)).left_alone == ()


def test_later_builds_leave_the_documents_out_wherever_they_reappear(erased_copy):
    project = erased_copy.project
    raw = project.config.file.parent / "raw" / "web"

    # The documents are in another file, too.
    new_row = {"id": "new", "text": "one that is new"}
    (raw / "more.jsonl").write_bytes(jsonl([*ROWS, new_row]))
    make_corpora(project, "web")
    facts = project.outputs.current("tokenized", "web").facts
    assert facts["documents"] == 243
    assert facts["purged"] == 6

    # The files that held them have other names.
    (raw / "secret.jsonl").unlink()
    (raw / "part-0/web-0.jsonl").rename(raw / "part-0/web-00.jsonl")
    (raw / "part-1/web-3.jsonl").rename(raw / "part-1/web-30.jsonl")
    make_corpora(project, "web")
    assert project.outputs.current("tokenized", "web").facts["documents"] == 241

    # One record of the purge, and one for each build that left out documents, in all its shards.
    assert len([*(erased_copy.root / purged.FOLDER / "web").iterdir()]) == 3


def test_a_damaged_record_of_erased_documents_is_an_error(erased_copy):
    (record,) = (erased_copy.root / purged.FOLDER / "web").iterdir()
    record.write_text("{}")

    with pytest.raises(FormatError, match="record of erased documents"):
        make_corpora(erased_copy.project, "web")


# The receipt


def test_the_receipt_lists_the_documents_with_their_files(erased):
    documents = json.loads(erased.receipt.read_text())["documents"]

    assert len(documents) == 4
    assert "secret.jsonl" in {document["file"] for document in documents}


def test_the_receipt_passes_the_check_that_needs_no_nanoset(erased):
    assert check_receipt(erased.root, erased.receipt) == 0


def test_the_check_of_a_receipt_counts_what_it_has_read(erased, capsys):
    check_receipt(erased.root, erased.receipt)

    n_versions = len(json.loads(erased.receipt.read_text())["made"])
    n_tables = len([*erased.root.glob("shards/*/*/documents.parquet")])
    assert n_tables > 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"checked {n_versions} of the {n_versions} new versions and {n_tables} tables of documents: "
        "as the receipt says"
    )


def test_the_check_of_a_receipt_finds_the_documents_in_a_copy_from_before_the_purge(
    built, erased, capsys
):
    assert check_receipt(built.config.root_folder, erased.receipt) == 1

    output = capsys.readouterr().out
    assert "still exists" in output
    assert re.search(r"documents\.parquet contains \d of the documents", output)


def test_the_check_of_a_receipt_works_after_later_purges_replaced_all_that_it_lists(erased_copy):
    receipt = json.loads(erased_copy.receipt.read_text())
    for version in receipt["made"]:
        shutil.rmtree(erased_copy.root / version)

    assert check_receipt(erased_copy.root, erased_copy.receipt) == 0


def test_a_copy_of_a_receipt_with_another_name_is_recognised(erased_copy, tmp_path):
    receipt = json.loads(erased_copy.receipt.read_text())
    for version in receipt["made"]:
        shutil.rmtree(erased_copy.root / version)
    copy = tmp_path / "purge-of-today.json"
    shutil.copyfile(erased_copy.receipt, copy)

    assert check_receipt(erased_copy.root, copy) == 0


@pytest.mark.parametrize("place", ["missing", "", "data/datasets", "data/purge_receipts"])
def test_the_check_of_a_receipt_fails_in_a_folder_that_is_not_the_output_root(erased, place):
    with pytest.raises(SystemExit) as end:
        check_receipt(erased.project.config.file.parent / place, erased.receipt)

    # Python prints the text, and ends with exit code 1.
    assert "this is not the output root of this purge, so nothing was checked" in end.value.code


def test_the_check_of_a_receipt_fails_in_another_project_that_erased_the_same_ids(erased, tmp_path):
    receipt = json.loads(erased.receipt.read_text())
    other_receipts = tmp_path / "purge_receipts"
    other_receipts.mkdir()
    receipt_of_other = receipt | {"erased": {"shards/web/" + "0" * 20: {}}, "made": {}}
    (other_receipts / erased.receipt.name).write_text(json.dumps(receipt_of_other))

    with pytest.raises(SystemExit) as end:
        check_receipt(tmp_path, erased.receipt)

    assert "not the output root" in end.value.code


@pytest.mark.parametrize("content", [None, "text", "[]", '{"erased": {}}'])
def test_the_check_of_a_receipt_names_a_file_that_is_none(erased, tmp_path, content):
    file = tmp_path / "receipt.json"
    if content is not None:
        file.write_text(content)

    with pytest.raises(SystemExit) as end:
        check_receipt(erased.root, file)

    assert re.search("no such receipt|no receipt of `nanoset purge`", end.value.code)
    assert str(file) in end.value.code


@pytest.mark.parametrize("content", [b"", b"[]", b'{"erased": 3, "ids": 3, "documents": 3}'])
def test_receipts_that_cannot_be_read_are_ignored(erased_copy, content):
    erased_copy.receipt.write_bytes(content)

    output = run_in(erased_copy.project, "explain", "pretrain", "train", "--document", "secret-1")

    assert "no such document" in output


# What other commands say about erased documents


def explain_run(project: Project, handoff_digest: str) -> str:
    """Ask where the first step of a training run got its data, and return the answer."""
    run_file = project.config.file.parent / "run.yaml"
    run_file.write_text(
        f"handoff: data/nanosets/pretrain/handoff/{handoff_digest}\n"
        "data_parallel_size: 1\nmicro_batch_size: 1\nglobal_batch_size: 4\n"
    )
    return run_in(project, "explain", "--run", run_file, "--step", 1)


def test_a_run_is_explained_while_its_handoff_exists(project):
    handoff = project.outputs.current("nanosets", "pretrain/handoff")

    assert "step 1" in explain_run(project, handoff.digest)


def test_explain_names_the_purge_that_erased_the_handoff_of_a_run(built, erased_copy):
    handoff = built.outputs.current("nanosets", "pretrain/handoff")

    output = explain_run(erased_copy.project, handoff.digest)

    assert f"erased by the purge of {DAY}" in output
    assert erased_copy.receipt.name in output
    assert "correct the name" not in output


def test_a_handoff_that_never_existed_is_not_called_erased(erased):
    with pytest.raises(MissingError, match="correct the name of its handoff") as caught:
        handoff_and_splits(erased.project.outputs, "pretrain", "0" * 20)

    assert "erased" not in str(caught.value)


def test_diff_names_the_purge_that_erased_a_version(built, erased):
    newest, oldest = digests_of_web(built)

    output = run_in(erased.project, "diff", oldest[:8], newest[:8])

    assert f"erased by the purge of {DAY}" in output


def test_diff_does_not_call_a_version_erased_that_never_existed(built, erased):
    newest, _ = digests_of_web(built)

    output = run_in(erased.project, "diff", "0123456789", newest[:8])

    assert "no such version of a dataset" in output


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(["--document", "secret-1"], id="by id"),
        pytest.param(["--file", "secret.jsonl", "--line", 2], id="by file and line"),
        pytest.param(["--file", "web/secret.jsonl:3"], id="by file of a corpus"),
    ],
)
def test_explain_names_the_purge_that_erased_a_document(erased, document):
    output = run_in(erased.project, "explain", "pretrain", "train", *document)

    assert f"erased by the purge of {DAY}" in output


def test_a_document_that_never_existed_is_not_called_erased(erased):
    output = run_in(erased.project, "explain", "pretrain", "train", "--document", "nobody")

    assert "no such document" in output
    assert "erased" not in output


def test_purging_again_names_the_purge_that_erased_the_documents(erased):
    output = run_in(erased.project, "purge", "secret-1")

    assert f"secret-1: erased by the purge of {DAY}" in output


# The command


def test_the_command_lists_the_lines_and_changes_nothing_without_yes(small_project):
    outputs_before = outputs_of(small_project.config.file)
    ids_file = small_project.config.file.with_name("ids.txt")
    # A byte-order mark, a comment, and an id with characters that are line breaks to Python only.
    ids_file.write_bytes("\ufeffsecret-2\r\n# why\na\x85b\u2028c".encode())

    output = run_in(small_project, "purge", "secret-1", "nobody", "--ids-file", ids_file)

    output = output.replace("\n", "")
    assert "secret.jsonl:2" in output
    assert "secret.jsonl:3" in output
    assert "no output holds a document with 2 of these ids, such as 'nobody'" in output
    assert "add --yes to erase it" in output
    assert outputs_of(small_project.config.file) == outputs_before


def test_the_command_changes_nothing_if_it_cannot_build(small_project, monkeypatch):
    outputs_before = outputs_of(small_project.config.file)
    hide_command(monkeypatch, "build")

    output = run_in(small_project, "purge", "secret-1", "nobody", "--yes")

    assert "`nanoset build` is not installed" in output
    assert not (small_project.config.root_folder / purged.FOLDER).exists()
    assert outputs_of(small_project.config.file) == outputs_before


def erase_with_failing_build(
    project: Project, monkeypatch: pytest.MonkeyPatch, build_outputs: Callable[[Project], object]
) -> Result:
    """Run the command with a build that ends with exit code 1.

    Args:
        project: The project.
        monkeypatch: Replaces the build.
        build_outputs: Makes what the build makes before it ends.
    """

    def build_and_fail() -> None:
        build_outputs(Project.open(project.config.file))
        sys.exit(1)

    command = "nanoset_core.cli.commands.purge"
    monkeypatch.setattr(f"{command}.build_of", lambda *_: build_and_fail)
    return invoke_nanoset(["purge", *IDS, "--yes", "--config", project.config.file])


def test_the_command_says_that_nothing_was_erased_if_the_build_replaced_too_little(
    small_project, monkeypatch
):
    outcome = erase_with_failing_build(small_project, monkeypatch, build_outputs=lambda _: None)

    assert outcome.exit_code == 1
    assert "no version was erased" in str(outcome.exception)
    assert "packed/kept/" in str(outcome.exception)
    assert "remove them from nanoset.yaml" in str(outcome.exception)


def test_a_build_that_fails_elsewhere_does_not_stop_a_purge(
    small_project, monkeypatch, secret_snippets
):
    outcome = erase_with_failing_build(small_project, monkeypatch, build_outputs=build)

    assert outcome.exit_code == 1
    assert "erased; the receipt: " in outcome.output
    assert "the build has failed" in outcome.output
    assert folders_with(secret_snippets, small_project.config.root_folder) == set()
    assert interrupted_purges(small_project.outputs) == []


def test_the_command_says_that_nothing_was_erased_if_the_build_cannot_begin(
    small_project, monkeypatch
):
    def refuse_to_build(_: Project) -> None:
        raise StorageError("the disk is too small")

    outcome = erase_with_failing_build(small_project, monkeypatch, build_outputs=refuse_to_build)

    assert "no version was erased" in outcome.output


def test_the_command_says_if_no_output_holds_a_document(built):
    output = run_in(built, "purge", "nobody")

    assert output == "no output holds a document with one of these ids\n"


def test_an_id_that_no_document_has_is_no_error(built):
    run_nanoset("purge", "nobody", "--yes", "--config", built.config.file)  # expects exit code 0


@pytest.mark.parametrize("content", ["", "\n", "# nothing was demanded today\n"])
@pytest.mark.parametrize("command", [["purge", "--yes"], ["takedown", "--reason", "demanded"]])
def test_there_is_nothing_to_do_if_the_file_lists_no_ids(built, tmp_path, command, content):
    ids_file = tmp_path / "ids.txt"
    ids_file.write_text(content)

    outcome = run_nanoset(*command, "--ids-file", ids_file, "--config", built.config.file)

    assert outcome.output == "the file of --ids-file lists no ids, so there is nothing to do\n"


@pytest.mark.parametrize("ids", [[], [""]])
def test_neither_ids_nor_a_file_is_wrong_usage(built, ids):
    outcome = invoke_nanoset(["purge", *ids, "--config", built.config.file])

    assert outcome.exit_code == 2
    assert "Missing argument 'IDS...'" in outcome.output


def test_the_command_counts_the_versions_that_it_does_not_list(built, monkeypatch):
    n_versions = len(plan_purge(built, ["secret-1"]).versions)
    monkeypatch.setattr("nanoset_core.cli.commands.purge._MAX_SHOWN", 2)

    output = run_in(built, "purge", "secret-1")

    assert f"… and {n_versions - 2} more versions" in output


def test_the_command_counts_the_ids_whose_purge_it_does_not_look_up(erased, monkeypatch):
    monkeypatch.setattr("nanoset_core.cli.commands.purge._MAX_SHOWN", 1)

    output = run_in(erased.project, "purge", "secret-1", "secret-2")

    assert "the receipts were not searched for 1 more id" in output


# Interrupted purges


def interrupt_the_build(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a purge whose build fails."""

    def fail_to_build(_: Project) -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        erase(project, how=fail_to_build)


def interrupt_the_removal(
    project: Project, monkeypatch: pytest.MonkeyPatch, n_removed: int
) -> None:
    """Begin a purge that stops after it has removed some versions, and has hidden the next one."""
    calls = itertools.count()
    hide = purge_module.withdraw_output
    ended_process = subprocess.Popen(["true"])
    ended_process.wait()

    def hide_until_killed(*arguments: object) -> Sequence[Path]:
        hidden_folders = hide(*arguments)
        if next(calls) < n_removed:
            return hidden_folders
        # The name says which process has hidden the version: let that be one that has ended.
        for folder in hidden_folders:
            name = folder.name.replace(f"-{os.getpid()}.", f"-{ended_process.pid}.")
            folder.rename(folder.with_name(name))
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(purge_module, "withdraw_output", hide_until_killed)
        with pytest.raises(OSError, match="killed"):
            erase(project)


@pytest.mark.parametrize(
    "interrupt",
    [
        pytest.param(interrupt_the_build, id="in the build"),
        pytest.param(partial(interrupt_the_removal, n_removed=0), id="before the first removal"),
        pytest.param(partial(interrupt_the_removal, n_removed=7), id="after seven removals"),
    ],
)
def test_the_next_purge_completes_an_interrupted_one(
    small_project, monkeypatch, interrupt, secret_snippets
):
    versions_before = {version.path for version in plan_purge(small_project, IDS).versions}
    interrupt(small_project, monkeypatch)
    assert is_unfinished(small_project, IDS, ())

    receipt = erase(small_project)

    assert not is_unfinished(small_project, IDS, ())
    root = small_project.config.root_folder
    assert folders_with(secret_snippets, root) == set()

    # The receipt lists what both of them erased.
    content = json.loads(receipt.read_text())
    assert len(content["documents"]) == 4
    erased_versions = {"/".join(place.split("/")[:3]) for place in content["erased"]}
    assert erased_versions >= versions_before
    stages = {version.split("/")[0] for version in versions_before}
    assert stages >= {"datasets", "views", "packed", "shards"}
    assert check_receipt(root, receipt) == 0


@pytest.fixture(scope="module")
def built_after_interruption(small_built, tmp_path_factory) -> Project:
    """A project after a purge that was interrupted, and a build that completed everything else.

    Tests must not write to it.
    """
    project = copy_of(small_built.config.file, tmp_path_factory.mktemp("interrupted") / "project")
    interrupt_the_build(project, pytest.MonkeyPatch())
    build(Project.open(project.config.file))
    return project


@pytest.fixture
def interrupted(built_after_interruption, tmp_path) -> Project:
    """A copy of that project, to be changed."""
    return copy_of(built_after_interruption.config.file, tmp_path / "project")


COMMANDS_THAT_WARN = ["status", "build", "build --dry-run", "verify", "gc"]


@pytest.mark.parametrize("command", COMMANDS_THAT_WARN)
def test_commands_warn_of_an_interrupted_purge(interrupted, command):
    outputs = [run_in(interrupted, *command.split()) for _ in range(2)]

    (receipt,) = (interrupted.config.root_folder / "purge_receipts").iterdir()
    for output in outputs:
        line = next(line for line in output.splitlines() if "was interrupted" in line)
        assert line.startswith(f"warning: the purge of {DAY} was interrupted, ")
        assert "run `nanoset purge ID… --yes` with the same 4 ids again" in line
        assert str(receipt) in line


def test_no_command_warns_of_an_interrupted_purge_that_was_finished(interrupted):
    erase(interrupted)

    outputs = [run_in(interrupted, *command.split()) for command in COMMANDS_THAT_WARN]

    assert not any("interrupted" in output for output in outputs)


def test_the_json_of_a_command_is_not_disturbed_by_the_warning(interrupted):
    result = invoke_nanoset(["status", "--json", "--config", str(interrupted.config.file)])

    assert json.loads(result.stdout)
    assert f"the purge of {DAY} was interrupted" in result.stderr


def test_the_warning_names_the_corpora_that_were_searched(small_project):
    plan = plan_purge(small_project, IDS, ["web"])
    with pytest.raises(StaleError):
        purge(small_project, plan, lambda: None, DAY)

    (warning,) = interrupted_purges(small_project.outputs)

    assert "`nanoset purge ID… --corpus web --yes`" in str(warning)


def test_a_damaged_receipt_does_not_hide_that_a_purge_was_interrupted(interrupted):
    (receipt,) = (interrupted.config.root_folder / "purge_receipts").iterdir()
    receipt.write_bytes(b"")

    (warning,) = interrupted_purges(interrupted.outputs)

    assert str(warning).startswith("the purge was interrupted, ")


def test_a_purge_that_is_running_is_not_interrupted(erased):
    assert erased.warnings_during_build == []


def test_versions_that_a_running_purge_erases_next_are_not_reported_as_left_over(erased):
    assert "up to date" in erased.status_during_build
    assert "`nanoset gc` lists them" not in erased.status_during_build


def test_a_purge_whose_process_was_killed_is_interrupted(small_project):
    kill_after_its_beginning = """
import os
from nanoset_core.project.purge import apply as purge
purge._shorten_shards = lambda *arguments: os.kill(os.getpid(), 9)
"""
    file = small_project.config.file
    process = start_nanoset(
        "purge", *IDS, "--yes", "--config", file, before=kill_after_its_beginning
    )
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL

    # The killed process could not remove the object that says that it is running.
    assert [*small_project.config.root_folder.glob(".in-use/purge-*")]
    assert len(interrupted_purges(small_project.outputs)) == 1


def test_the_command_counts_documents_that_only_old_versions_contain(interrupted):
    output = run_in(interrupted, "purge", *IDS)

    assert "an earlier purge of these ids was interrupted: this one finishes it" in output
    assert "0 documents in current outputs, 4 only in old versions; " in output


# Purges that are refused


def test_nothing_is_erased_if_the_build_did_not_replace_the_outputs(small_project):
    def datasets() -> set[str]:
        names = outputs_of(small_project.config.file)
        return {name for name in names if name.startswith("datasets/")}

    datasets_before = datasets()

    with pytest.raises(StaleError, match="were not rebuilt"):
        erase(small_project, how=lambda _: None)

    assert datasets() >= datasets_before


def test_a_purge_stops_if_shards_were_added_meanwhile(small_project, monkeypatch):
    shards = small_project.config.root_folder / "shards" / "web"
    added_shard = shards / ("f" * 20)

    def add_shard(_: object) -> tuple[()]:
        shutil.copytree(next(shards.iterdir()), added_shard)
        return ()

    # Another build adds a shard during the last step before anything is erased.
    with (
        monkeypatch.context() as patch,
        pytest.raises(StorageError, match="while the purge was under way"),
    ):
        patch.setattr(purge_module, "drop_duplicate_tokens", add_shard)
        erase(small_project)

    # The next purge completes it.
    shutil.rmtree(added_shard)
    erase(small_project)


def test_a_purge_during_a_build_changes_nothing_and_names_the_build(small_project):
    root = small_project.config.root_folder
    tree_before = tree(root)

    with leased_by_a_build(small_project, "books"):
        tree_during_build = tree(root)
        with pytest.raises(StorageError) as caught:
            erase(small_project, how=pytest.fail)
        assert tree(root) == tree_during_build

    assert caught.value.what == "documents cannot be erased while a build is under way"
    assert re.fullmatch(rf"process {os.getpid()} on .*, since .*, makes books", caught.value.found)
    expected_remedy = (
        f"wait until it has ended, or end it (`kill {os.getpid()}` ends it); then purge again: "
        "nothing was changed"
    )
    assert caught.value.remedy == expected_remedy
    # Once the build has ended, nothing keeps the same purge from being accepted.
    assert tree(root) == tree_before


def test_a_build_that_starts_during_a_purge_is_named(small_project):
    with contextlib.ExitStack() as leases:

        def build_while_another_starts(opened: Project) -> None:
            build(opened)
            leases.enter_context(leased_by_a_build(small_project, "web"))

        with pytest.raises(StorageError, match="while a build is under way") as caught:
            erase(small_project, how=build_while_another_starts)

    assert "makes web" in caught.value.found
    assert "run the same purge again" in caught.value.remedy


def test_a_purge_refuses_to_leave_a_copy_behind_that_was_made_through_a_link(small_project):
    link = small_project.outputs.folder / "datasets/web/current"
    version = link.resolve()
    link.unlink()
    shutil.copytree(version, link)

    with pytest.raises(StorageError, match="a purge does not reach folders `current`") as caught:
        plan_purge(small_project, IDS)

    assert caught.value.found == "datasets/web/current"
    assert f"find {small_project.outputs.folder} " in caught.value.remedy


def test_a_corpus_without_shards_cannot_be_purged(built):
    with pytest.raises(ConfigError, match="there are no shards of such a corpus"):
        plan_purge(built, IDS, ["nowhere"])


def test_a_document_cannot_be_erased_alone_if_the_text_of_its_corpus_was_deleted(small_project):
    shutil.rmtree(small_project.config.file.parent / "raw" / "web")

    # The shards cannot be rebuilt, so that the other documents would be lost.
    with pytest.raises(ConfigError, match="not in the raw folder any more"):
        plan_purge(small_project, IDS)


def test_all_documents_of_a_corpus_can_be_erased_if_its_text_was_deleted(small_project):
    shutil.rmtree(small_project.config.file.parent / "raw" / "books")
    all_ids = [f"books-{number}" for number in range(90)]

    plan = plan_purge(small_project, all_ids)

    assert len(plan.current["books"]) == 90


# Buckets


@pytest.fixture
def bucket_project(tmp_path, tokenizer_file, bucket) -> Project:
    """A project with the secret rows whose outputs go to a bucket; nothing is built yet."""
    folder = tmp_path / "project"
    # A shard a file: each object takes some requests.
    file = write_project(
        folder, tokenizer_file, root_in(bucket) | CHANGES | {"range_mib: 0.02": "range_mib: 1"}
    )
    (folder / "drop.txt").write_text("web-7\n")
    (folder / "raw/web/secret.jsonl").write_bytes(jsonl(ROWS))
    return Project.open(file)


def build_view(project: Project) -> None:
    """Build the corpus web and its view: fewer outputs, as each request takes its time."""
    make_corpora(project, "web")
    make_columns(project, "web")
    make_view(project, "kept")


def test_one_request_finds_out_that_no_corpus_has_erased_documents(bucket_project, bucket):
    n_requests_before = requests_answered[bucket.endpoint_url]

    for number in range(20):
        documents = purged.read_erased(bucket_project.outputs, f"corpus-{number}")
        assert documents == purged.ErasedDocuments()
    assert interrupted_purges(bucket_project.outputs) == []

    assert requests_answered[bucket.endpoint_url] == n_requests_before + 1


def test_a_purge_refuses_to_leave_a_copy_in_a_bucket_that_was_made_through_a_link(
    bucket_project, bucket
):
    build_view(bucket_project)
    bucket.put("datasets/web/current/web_text_document.bin", b"tokens")

    with pytest.raises(StorageError, match="a purge does not reach folders `current`") as caught:
        plan_purge(bucket_project, IDS)

    assert caught.value.found == "datasets/web/current"
    assert "*/*/current/*" in caught.value.remedy


def test_documents_are_erased_from_a_bucket_and_its_local_copies(
    bucket_project, bucket, tmp_path, secret_snippets
):
    build_view(bucket_project)

    receipt = erase(bucket_project, how=build_view)

    downloads = tmp_path / "downloads"
    for stored in bucket.list(""):
        path = downloads / stored.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.read(stored.name))
    assert folders_with(secret_snippets, downloads) == set()
    assert folders_with(secret_snippets, bucket_project.outputs.folder) == set()
    reopened = Project.open(bucket_project.config.file)
    assert current_dataset(reopened, "kept").facts["documents"] == 239
    assert check_receipt(downloads, receipt) == 0
