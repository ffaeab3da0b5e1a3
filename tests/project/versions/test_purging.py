"""Erasing documents: nothing of their text or tokens is left below the root, and nothing else is
lost.
"""

import contextlib
import gzip
import importlib.util
import itertools
import json
import os
import random
import re
import shutil
import tarfile

import numpy as np
import pytest

from helpers.building import make_columns, make_corpora, make_view, run_stages
from helpers.command import hide_command, invoke_nanoset
from helpers.inspecting import current_dataset, leased_by_a_build
from helpers.locations import REPOSITORY
from helpers.s3_server import root_in
from helpers.sample_project import jsonl, outputs_of, tree, write_project
from nanoset_core.errors import ConfigError, FormatError, MissingError, StaleError, StorageError
from nanoset_core.project import purge as purging
from nanoset_core.project.project import Project
from nanoset_core.project.purge import purge
from nanoset_core.project.purge_plan import plan_purge
from nanoset_core.project.purge_receipt import is_unfinished
from nanoset_core.stages.mappings.run_before import handoff_and_splits
from nanoset_core.stages.shards import purged

SCRIPT = REPOSITORY / "deploy" / "check_receipt.py"
CHANGES = {
    "documents: {": "documents: {columns: [note], ",
    "nanosets:\n": "views:\n  kept: {of: web, exclude: drop.txt}\npacks: {kept-40: {of: kept, length: 40}}\n"
    "pbin: [web, kept]\nnanosets:\n",
    "blend: {web: 0.7, code: 0.3}": "blend: {kept: 0.7, code: 0.3}",
    "groups: 3": "groups: 1",
}
IDS = ["secret-1", "secret-2", "web-3", "web-239"]
DAY = "2026-11-26"


def secret(seed, length=500):
    rng = random.Random(seed)
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(length))


def rows():
    texts = [{"id": f"secret-{n}", "text": secret(n), "note": secret(10 + n, 200)} for n in (1, 2)]
    return [
        {"id": "plain-1", "text": "a text between the others"},
        *texts,
        {"id": "plain-2", "text": "and the last one"},
    ]


def build(project):
    make_corpora(project)
    make_columns(project, "web")
    run_stages(project)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tokenizer_file):
    """A built project with two documents that are like no others; not to be written to."""
    file = write_project(tmp_path_factory.mktemp("purging") / "project", tokenizer_file, CHANGES)
    (file.parent / "drop.txt").write_text("web-7\n")
    build(Project.open(file))  # versions without these documents
    (file.parent / "raw/web/secret.jsonl").write_bytes(jsonl(rows()))
    build(Project.open(file))
    return file


@pytest.fixture
def project(whole, tmp_path):
    return Project.open(
        shutil.copytree(whole.parent, tmp_path / "project", symlinks=True) / whole.name
    )


def erase(project, ids=IDS, how=build):
    plan = plan_purge(project, ids)
    return purge(project, plan, lambda: how(Project.open(project.config.file)), DAY)


def contents(folder):
    """Yield (name, bytes) of every file, and of what is in tars, gzip and Parquet."""
    import pyarrow.parquet as pq

    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name, data = path.relative_to(folder).as_posix(), path.read_bytes()
            yield name, gzip.decompress(data) if name.endswith(".gz") else data
            if name.endswith(".parquet"):
                yield name, repr(pq.read_table(path).to_pydict()).encode()
            if name.endswith(".tar"):
                with tarfile.open(path) as tar:
                    for member in tar:
                        inner = tar.extractfile(member).read()
                        yield name, gzip.decompress(inner) if member.name.endswith(".gz") else inner


def windows(tokenizer_file):
    """Windows of 64 bytes of the texts, and of their tokens in every width; any 112 bytes of these
    hold one.
    """
    from tokenizers import Tokenizer

    tokenizer, found = Tokenizer.from_file(str(tokenizer_file)), set()
    for row in rows()[1:3]:
        tokens = np.array(tokenizer.encode(row["text"]).ids)
        for data in (
            row["text"].encode(),
            row["note"].encode(),
            *(tokens.astype(f"<i{n}").tobytes() for n in (2, 4, 8)),
        ):
            found |= {data[begin : begin + 64] for begin in range(0, len(data) - 63, 48)}
    return sorted(found)


def traces(folder, found):
    """Return the first parts of the names of what holds one of the windows."""
    joined = {}
    for name, data in contents(folder):
        joined.setdefault(name.split("/")[0], []).append(data)
    return {
        place
        for place, parts in joined.items()
        if any(one in (data := b"".join(parts)) for one in found)
    }


def test_nothing_of_the_documents_is_left_and_nothing_else_is_lost(project, tokenizer_file):
    root, wanted = project.config.root_folder, windows(tokenizer_file)
    places = {"shards", "datasets", "views", "webdatasets", "packed", "column_tables"}
    assert traces(root, wanted) >= places
    old = project.outputs.versions("datasets", "web")
    newest, oldest = [*old]
    receipt = erase(project)
    assert traces(root, wanted) == set()
    assert [one.digest for one in project.outputs.versions("datasets", "code")]
    left = {one.digest for one in project.outputs.versions("datasets", "web")}
    # the first build had web-3 and web-239, too
    assert not left & {newest.digest, oldest.digest}
    assert plan_purge(project, IDS).documents == {}
    found = json.loads(receipt.read_text())
    assert len(found["documents"]) == 4
    assert {one["file"] for one in found["documents"]} >= {"secret.jsonl"}
    assert project.outputs.current("datasets", "web").facts["documents"] == 240
    assert check(root, receipt) == 0


def check(root, receipt):
    spec = importlib.util.spec_from_file_location("check_receipt", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main(str(root), str(receipt))


def test_versions_that_never_held_the_documents_stay(project):
    erase(project, ["secret-1", "secret-2"])
    assert len([*project.outputs.versions("datasets", "web")]) == 2
    assert len([*project.outputs.versions("views", "kept")]) == 2


def test_what_is_left_is_what_a_build_from_the_text_gives(project, tmp_path):
    erase(project)
    here, place = outputs_of(project.config.file), project.config.root_folder
    other = shutil.copytree(project.config.file.parent, tmp_path / "other", symlinks=True)
    shutil.rmtree(other / "data")
    shutil.copytree(place / purged.FOLDER, other / "data" / purged.FOLDER)
    build(Project.open(other / "nanoset.yaml"))
    there = outputs_of(other / "nanoset.yaml")
    differing = {name for name, sha in there.items() if here.get(name) != sha}
    # A shard's manifest says how many documents its engine was compared with.
    assert {
        name
        for name in differing
        if not (name.startswith("shards/") and name.endswith("/manifest.json"))
    } == set()


@pytest.mark.parametrize("ending", ["a build that fails", "after 0", "after 7"])
def test_a_purge_that_is_cut_short_is_ended_by_the_next(
    project, monkeypatch, ending, tokenizer_file
):
    root = project.config.root_folder
    if ending == "a build that fails":
        with pytest.raises(OSError, match="full"):
            erase(project, how=lambda _: (_ for _ in ()).throw(OSError("full")))
    else:
        calls, remove = itertools.count(), shutil.rmtree

        def some(folder, *args, **kwargs):
            if next(calls) >= int(ending.split()[1]):
                raise OSError("killed")
            remove(folder, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(purging.shutil, "rmtree", some)
            with pytest.raises(OSError, match="killed"):
                erase(project)
    assert is_unfinished(project, IDS, ())
    receipt = erase(project)
    assert traces(root, windows(tokenizer_file)) == set()
    found = json.loads(receipt.read_text())
    assert len(found["documents"]) == 4
    assert not is_unfinished(project, IDS, ())
    assert {"datasets", "views", "packs", "packed", "shards", "webdatasets"} <= {
        one.split("/")[0] for one in found["erased"]
    }
    assert check(root, receipt) == 0


def test_outputs_that_nothing_asks_for_any_more_go_too(project, tokenizer_file):
    file = project.config.file
    file.write_text(
        file.read_text()
        .replace("views:\n  kept: {of: web, exclude: drop.txt}\n", "")
        .replace("kept", "web")
    )
    file.write_text(file.read_text().replace("pbin: [web, web]", "pbin: [web]"))
    erase(Project.open(file))
    assert traces(project.config.root_folder, windows(tokenizer_file)) == set()
    assert not (project.config.root_folder / "views/kept/current.json").exists()


def test_tokens_that_lie_in_datasets_only(project, tokenizer_file):
    file, root = project.config.file, project.config.root_folder
    file.write_text(file.read_text() + "storage: {shards: drop}\n")
    words = ["gc", "--yes", "--config", str(file)]
    assert invoke_nanoset(words, catch_exceptions=False).exit_code == 0
    assert not [*root.glob("shards/web/*/tokens.bin")]
    erase(Project.open(file))
    assert traces(root, windows(tokenizer_file)) == set()
    assert not [*root.glob("shards/web/*/tokens.bin")]
    file.write_text(file.read_text() + "# as before\n")
    before = tree(root / "datasets")
    build(Project.open(file))
    assert tree(root / "datasets") == before


def test_a_document_that_comes_back_elsewhere_is_left_out(project):
    erase(project)
    raw = project.config.file.parent / "raw" / "web"
    (raw / "more.jsonl").write_bytes(jsonl([*rows(), {"id": "new", "text": "one that is new"}]))
    make_corpora(project, "web")
    facts = project.outputs.current("tokenized", "web").facts
    assert (facts["documents"], facts["purged"]) == (243, 6)
    (raw / "secret.jsonl").unlink()
    for old, new in (
        ("part-0/web-0.jsonl", "part-0/web-00.jsonl"),
        ("part-1/web-3.jsonl", "part-1/web-30.jsonl"),
    ):
        (raw / old).rename(raw / new)
    make_corpora(project, "web")
    assert project.outputs.current("tokenized", "web").facts["documents"] == 241
    # One record of the purge, and one for each build that found some, in however many shards.
    assert len([*(project.config.root_folder / purged.FOLDER / "web").iterdir()]) == 3


def test_the_command_lists_first_and_names_the_raw_text(project, monkeypatch):
    words = ["purge", "secret-1", "nobody", "--config", str(project.config.file)]
    before = outputs_of(project.config.file)
    (ids := project.config.file.with_name("ids.txt")).write_bytes(
        "\ufeffsecret-2\r\n# why\na\x85b\u2028c".encode()
    )
    outcome = invoke_nanoset([*words, "--ids-file", str(ids)], catch_exceptions=False)
    said = outcome.output.replace("\n", "")
    assert "secret.jsonl:2" in said
    assert "secret.jsonl:3" in said
    assert "no output holds a document with 2 of these ids, such as 'nobody'" in said
    assert "add --yes to erase it" in said
    hide_command(monkeypatch, "build")
    assert "`nanoset build` is not installed" in invoke_nanoset([*words, "--yes"]).output
    assert not (project.config.root_folder / purged.FOLDER).exists()
    assert outputs_of(project.config.file) == before
    said = invoke_nanoset([*words[:1], "nobody", *words[3:]], catch_exceptions=False).output
    assert said == "no output holds a document with one of these ids\n"


@pytest.fixture
def run_command(project):
    """Run a command of the project; return what it printed."""

    def run(*words):
        result = invoke_nanoset([*words, "--config", str(project.config.file)])
        return f"{result.output}{result.exception or ''}"

    return run


def test_a_run_whose_handoff_was_erased_names_the_purge(project, run_command):
    handoff = project.outputs.current("nanosets", "pretrain/handoff")
    run_file = project.config.file.parent / "run.yaml"
    run_file.write_text(
        f"handoff: data/nanosets/pretrain/handoff/{handoff.digest}\n"
        "data_parallel_size: 1\nmicro_batch_size: 1\nglobal_batch_size: 4\n"
    )
    assert "step 1" in run_command("explain", "--run", run_file, "--step", 1)

    receipt = erase(project)

    said = run_command("explain", "--run", run_file, "--step", 1)
    assert f"erased by the purge of {DAY}" in said
    assert receipt.name in said
    assert "correct the name" not in said


def test_a_handoff_that_never_existed_is_not_called_erased(project):
    erase(project)

    with pytest.raises(MissingError, match="correct the name of its handoff") as raised:
        handoff_and_splits(project.outputs, "pretrain", "0" * 20)

    assert "erased" not in str(raised.value)


def test_versions_that_were_erased_are_named_by_diff(project, run_command):
    newest, oldest = project.outputs.versions("datasets", "web")
    erase(project)

    assert f"erased by the purge of {DAY}" in run_command(
        "diff", oldest.digest[:8], newest.digest[:8]
    )
    assert "no such version of a dataset" in run_command("diff", "0123456789", newest.digest[:8])


@pytest.mark.parametrize(
    "document",
    [
        ("--document", "secret-1"),
        ("--file", "secret.jsonl", "--line", 2),
        ("--file", "web/secret.jsonl:3"),
    ],
)
def test_documents_that_were_erased_are_named_by_explain(project, run_command, document):
    erase(project)

    assert f"erased by the purge of {DAY}" in run_command("explain", "pretrain", "train", *document)


def test_a_document_that_never_existed_is_not_called_erased(project, run_command):
    erase(project)

    said = run_command("explain", "pretrain", "train", "--document", "nobody")
    assert "no such document" in said
    assert "erased" not in said


def test_purging_again_names_the_purge_that_erased_the_documents(project, run_command):
    erase(project)

    assert f"secret-1: erased by the purge of {DAY}" in run_command("purge", "secret-1")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"erased": 3, "ids": 3, "documents": 3}'])
def test_receipts_that_cannot_be_read_are_passed_over(project, run_command, content):
    erase(project).write_bytes(content)

    assert "no such document" in run_command(
        "explain", "pretrain", "train", "--document", "secret-1"
    )


def test_nothing_is_erased_while_something_is_of_the_old_shards(project):
    before = {name for name in outputs_of(project.config.file) if name.startswith("datasets/")}
    with pytest.raises(StaleError, match="were not rebuilt"):
        erase(project, how=lambda _: None)
    assert {
        name for name in outputs_of(project.config.file) if name.startswith("datasets/")
    } >= before


def test_nothing_is_erased_where_a_build_made_shards_meanwhile(project, monkeypatch):
    shards = project.config.root_folder / "shards" / "web"

    def made_meanwhile(_):
        shutil.copytree(next(shards.iterdir()), shards / ("f" * 20))
        return ()

    with (
        monkeypatch.context() as patch,
        pytest.raises(StorageError, match="while the purge was under way"),
    ):
        patch.setattr(purging, "drop_duplicate_tokens", made_meanwhile)
        erase(project)
    shutil.rmtree(shards / ("f" * 20))
    erase(project)


def test_during_a_build_nothing_is_changed_and_the_build_is_named(project):
    before = tree(project.config.root_folder)
    with leased_by_a_build(project, "books"):
        during = tree(project.config.root_folder)
        with pytest.raises(StorageError) as caught:
            erase(project, how=pytest.fail)
        assert tree(project.config.root_folder) == during
    assert caught.value.what == "documents cannot be erased while a build is under way"
    assert re.fullmatch(rf"process {os.getpid()} on .*, since .*, makes books", caught.value.found)
    expected = (
        f"wait until it has ended, or end it (`kill {os.getpid()}` ends it); then purge again: "
        "nothing was changed"
    )
    assert caught.value.remedy == expected
    assert tree(project.config.root_folder) == before
    erase(project)


def test_a_build_that_begins_during_a_purge_is_named_too(project):
    with contextlib.ExitStack() as held:

        def build_and_begin_another(opened):
            build(opened)
            held.enter_context(leased_by_a_build(project, "web"))

        with pytest.raises(StorageError, match="while a build is under way") as caught:
            erase(project, how=build_and_begin_another)
    assert "makes web" in caught.value.found
    assert "run the same purge again" in caught.value.remedy
    erase(project)


def test_what_cannot_be_erased_is_refused(project):
    with pytest.raises(ConfigError, match="there are no shards of such a corpus"):
        plan_purge(project, IDS, ["nowhere"])
    shutil.rmtree(project.config.file.parent / "raw" / "web")
    with pytest.raises(ConfigError, match="not in the raw folder any more"):
        plan_purge(project, IDS)
    shutil.rmtree(project.config.file.parent / "raw" / "books")
    assert (
        len(plan_purge(project, [f"books-{number}" for number in range(90)]).current["books"]) == 90
    )


def test_a_damaged_record_is_named(project):
    erase(project, ["web-3"])
    (record,) = (project.config.root_folder / purged.FOLDER / "web").iterdir()
    record.write_text("{}")
    with pytest.raises(FormatError, match="record of erased documents"):
        make_corpora(project, "web")


def test_in_a_bucket(tmp_path, tokenizer_file, bucket):
    from helpers import s3_server

    file = write_project(tmp_path / "project", tokenizer_file, root_in(bucket) | CHANGES)
    (file.parent / "drop.txt").write_text("web-7\n")
    (file.parent / "raw/web/secret.jsonl").write_bytes(jsonl(rows()))
    project = Project.open(file)
    before = s3_server.requests_answered[bucket.endpoint_url]
    assert all(
        purged.read_erased(project.outputs, f"corpus-{number}") == purged.ErasedDocuments()
        for number in range(20)
    )
    assert s3_server.requests_answered[bucket.endpoint_url] == before + 1, (
        "one look for all corpora"
    )
    how = bucket_build
    how(project)
    receipt = erase(project, how=how)
    for stored in bucket.list(""):
        (tmp_path / "copy" / stored.name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / stored.name).write_bytes(bucket.read(stored.name))
    assert traces(tmp_path / "copy", windows(tokenizer_file)) == set()
    assert traces(project.outputs.folder, windows(tokenizer_file)) == set()
    assert current_dataset(Project.open(file), "kept").facts["documents"] == 239
    assert check(tmp_path / "copy", receipt) == 0


def bucket_build(project):
    make_corpora(project, "web")
    make_columns(project, "web")
    make_view(project, "kept")
