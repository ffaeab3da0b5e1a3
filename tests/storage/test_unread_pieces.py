"""Large objects that are cut without being read: what is told of their lines is what a local build
tells of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.building import make_corpora, make_inventory, make_mappings, make_shards
from helpers.inspecting import find_document
from helpers.s3_server import upload_raw
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_assets.ui.previews import first_rejects
from nanoset_core.errors import InputError, MissingError, NanosetError, SourceChangedError
from nanoset_core.lineage.documents import Lineage
from nanoset_core.lineage.texts import file_state
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.project.purge_plan import plan_purge
from nanoset_core.project.verify import verify_project
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.datasets import dataset_of
from nanoset_core.stages.inventory.corpora import corpus_folder, scan_corpora
from nanoset_core.stages.inventory.make import (
    current_inventory,
    fingerprint_memory,
    remembered_inventory,
    survey_corpus,
)
from nanoset_core.stages.shards.document_table import FACT, LineNumbers
from nanoset_core.stages.shards.losses import read_rejects
from nanoset_core.stages.shards.make import REJECTS
from nanoset_core.stages.shards.shard_sets import current_shards, losses, refusal
from nanoset_core.storage.s3 import S3Store
from nanoset_core.text.fingerprints import fingerprint
from nanoset_core.text.listing import FileStat
from nanoset_core.text.rejects import Reject

PIECE_BYTES, WINDOW_BYTES = 6000, 256
CONFIG = f"""\
raw: raw
root: data
tokenizer: {{path: tokenizer.json, eod: "{EOD}"}}
documents: {{max_rejected_fraction: 0.5}}
tokenization: {{append_eod: true, range_mib: 0.02, workers: 1}}
nanosets:
  plain: {{blend: web, sequence_length: 16, split: "1"}}
storage: {{fingerprint: content}}
"""
LARGE = "large.jsonl"


def large_text() -> bytes:
    """Documents with lines of other kinds in between, one of them longer than several pieces; the
    last has no end.
    """
    draw, lines = random.Random(3), jsonl(sentences("web", 400)).splitlines()
    for bad in (b"", b"{", b"[1]", b'{"no": "text"}', b"   ", b'{"text": "broken'):
        for _ in range(12):
            lines.insert(draw.randrange(len(lines)), bad)
    lines.insert(150, json.dumps({"id": "long", "text": "word " * 4000}).encode())
    return b"\n".join(lines)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Project:
    """A local project whose files were read to be cut; not to be written to."""
    return built(write_project(tmp_path_factory.mktemp("counted"), tokenizer_file))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoset_core.text.fingerprints.PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr("nanoset_core.text.piece_cuts.WINDOW_BYTES", WINDOW_BYTES)
    # what was written just now is remembered
    monkeypatch.setattr("nanoset_core.text.fingerprint_memory._RACY_NS", -(10**18))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """(name, begin, end) of every range that is read."""
    found: list[tuple[str, int, int]] = []
    real = S3Store.read_range

    def read_range(self, name, begin, end, mark=None):
        found.append((name, begin, end))
        assert mark is not None, "another version of the object might answer"
        return real(self, name, begin, end, mark)

    monkeypatch.setattr(S3Store, "read_range", read_range)
    return found


@pytest.fixture
def unread(
    counted: Project, tmp_path: Path, tokenizer_file: Path, place: S3Store, small_pieces: None
) -> Path:
    """nanoset.yaml of a project with the same text in a bucket, of which nothing is made yet."""
    config = write_project(tmp_path / "unread", tokenizer_file)
    text = config.read_text().replace(
        "raw: raw", f"raw: {upload_raw(config.parent / 'raw', place).url()}"
    )
    text = text.replace(
        "fingerprint: content", f"fingerprint: etag-pieces, endpoint_url: {place.endpoint_url!r}"
    )
    config.write_text(text)
    return config


def write_project(folder: Path, tokenizer_file: Path) -> Path:
    (folder / "raw" / "web").mkdir(parents=True)
    (folder / "raw" / "web" / LARGE).write_bytes(large_text())
    (folder / "raw" / "web" / "small.jsonl").write_bytes(
        jsonl(sentences("small", 5)) + b"\n" + b"[]\n"
    )
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (folder / "nanoset.yaml").write_text(CONFIG)
    return folder / "nanoset.yaml"


def built(config: Path) -> Project:
    project = Project.open(config)
    make_corpora(project, "web")
    for split in SPLITS:
        make_mappings(project, "plain", split)
    return project


def tokenized(project: Project) -> Manifest:
    return project.outputs.current("tokenized", "web")


def lineage(project: Project) -> Lineage:
    return Lineage(dataset_of(project.outputs, project.outputs.current("datasets", "web")))


def numbers(project: Project) -> LineNumbers:
    return LineNumbers.of(tokenized(project).facts)


def rejects(project: Project) -> Iterator[Reject]:
    for shard in current_shards(project, tokenized(project)):
        yield from read_rejects(shard.path(REJECTS), numbers(project))


def refused(project: Project) -> NanosetError:
    with pytest.raises(InputError) as caught:
        make_shards(project, "web")
    return caught.value


def test_whatever_is_told_of_a_line_is_what_a_local_build_tells(counted, unread):
    ours = built(unread)
    for end in ("bin", "idx"):
        mine, theirs = (
            p.outputs.current("datasets", "web").path(f"web_text_document.{end}")
            for p in (ours, counted)
        )
        assert mine.read_bytes() == theirs.read_bytes()

    _, inventory = current_inventory(ours, "web")
    pieces = [piece for piece in inventory.pieces if piece.path == LARGE]
    assert len(pieces) > 10
    assert {piece.first_line for piece in pieces} == {0}
    assert max(piece.size for piece in pieces) > 3 * PIECE_BYTES, "the long line is in one piece"
    assert len(tokenized(ours).facts["shards"]) > 3
    assert [begin for begin, _ in tokenized(ours).facts[FACT][LARGE]] == [
        piece.begin for piece in pieces
    ]
    assert (
        sum(lines for _, lines in tokenized(ours).facts[FACT][LARGE])
        == large_text().count(b"\n") + 1
    )

    documents = range(ours.outputs.current("datasets", "web").facts["documents"])
    found, wanted = (lineage(project).origins(documents) for project in (ours, counted))
    assert [(o.file, o.line, o.byte_offset, o.id) for o in found] == [
        (o.file, o.line, o.byte_offset, o.id) for o in wanted
    ]
    assert list(rejects(ours)) == list(rejects(counted))
    for origin in wanted[::23]:
        (places,) = find_document(ours, "plain", "train", file=origin.file, line=origin.line)
        assert (places.origin.document, places.origin.line) == (origin.document, origin.line)
        (places,) = find_document(ours, "plain", "train", file=f"web/{origin.file}:{origin.line}")
        assert places.origin.id == origin.id
    ids = [origin.id for origin in wanted[::23]]
    erased = [plan_purge(project, ids).current["web"] for project in (ours, counted)]
    ours_erased, counted_erased = (
        [replace(document, row=0) for document in documents] for documents in erased
    )
    assert ours_erased == counted_erased, "the same documents, which may be in other shards"
    for reject in list(rejects(counted))[::7]:
        hints = []
        for project in (ours, counted):
            with pytest.raises(MissingError, match="the line was rejected") as caught:
                find_document(project, "plain", "train", file=reject.file, line=reject.line)
            hints.append(caught.value.remedy)
        assert hints[0] == hints[1]
    with pytest.raises(MissingError, match="no such document"):
        find_document(ours, "plain", "train", file=LARGE, line=10_000)

    shown = [
        first_rejects(current_shards(project, tokenized(project)), numbers(project)).value
        for project in (ours, counted)
    ]
    assert shown[0] == shown[1]
    told = [
        [
            (one.severity, one.what, one.found)
            for report in verify_project(project, ["web"], deep=True)
            for one in report.findings
        ]
        for project in (ours, counted)
    ]
    assert told[0] == told[1]
    assert {severity for severity, _, _ in told[0]} == {"warning"}, "of damaged lines"

    ours.config.file.write_text(ours.config.file.read_text().replace("0.5", "0.01"))
    strict = Project.open(ours.config.file)
    lost = [losses(project.outputs, tokenized(project)) for project in (ours, counted)]
    errors = [refusal(strict, "web", one) for one in lost]
    assert errors[0].found == errors[1].found
    assert "; line " in errors[0].found
    assert refused(strict).found == errors[1].found, "also where it is judged for the first time"


def test_an_object_is_not_read_before_it_is_tokenized_and_looked_at_once(unread, asked):
    project = Project.open(unread)
    first = make_inventory(project, "web")
    size = len(large_text())
    assert {name for name, _, _ in asked} == {f"web/{LARGE}"}
    assert sum(end - begin for _, begin, end in asked) < size // 4 + 5 * PIECE_BYTES, (
        "the long line is read as well"
    )
    asked.clear()
    assert make_inventory(project, "web").digest == first.digest
    assert asked == []
    text = unread.read_text()
    unread.write_text(text.replace("etag-pieces", "etag"))
    assert make_inventory(Project.open(unread), "web").digest == first.digest, (
        "what is known stays as it is"
    )


def test_what_was_one_piece_is_cut_once_that_is_asked_for(unread, asked):
    text = unread.read_text()
    unread.write_text(text.replace("etag-pieces", "etag"))
    before = Project.open(unread)
    whole = make_inventory(before, "web")
    assert asked == []
    assert FACT not in make_shards(before, "web").facts
    unread.write_text(text)
    project = Project.open(unread)
    (found,) = scan_corpora(project).corpora.values()
    assert remembered_inventory(before, found) is not None
    assert remembered_inventory(project, found) is None, "a survey has to look"
    old = current_inventory(project, "web")[1]
    assert make_inventory(project, "web").digest != whole.digest
    folder = corpus_folder(project, "web")
    assert file_state(old, fingerprint_memory(project, folder), folder, LARGE, 10) == "unchanged"
    assert remembered_inventory(project, found) == current_inventory(project, "web")[1]


def test_an_object_that_is_replaced_is_cut_anew(unread, place):
    project, store = Project.open(unread), S3Store(place.bucket, "raw text/web", place.endpoint_url)
    before = make_inventory(project, "web")
    listed = survey_corpus(project, "web")
    store.put(LARGE, large_text() + b"\n" + jsonl(sentences("more", 3)))
    with pytest.raises(SourceChangedError, match="not as the inventory found it"):
        make_shards(project, "web")
    assert make_inventory(project, "web").digest != before.digest
    make_shards(project, "web")
    folder = corpus_folder(project, "web")
    mark = int(listed.pieces[0].digest.partition(":")[2], 16)
    with pytest.raises(SourceChangedError, match="changed while it was read"):
        fingerprint(folder, FileStat(LARGE, len(large_text()), 1, mark))


@pytest.mark.parametrize("before", [3, 200])
def test_where_no_line_can_be_told_yet_the_byte_is(unread, before):
    unread.write_text(unread.read_text().replace("max_rejected_fraction: 0.5", "on_reject: fail"))
    project = Project.open(unread)
    folder = corpus_folder(project, "web")
    lines = jsonl(sentences("web", 400)).splitlines(keepends=True)
    folder.store.put(f"{folder.path}/{LARGE}", b"".join([*lines[:before], b"\n", *lines[before:]]))
    make_inventory(project, "web")
    line = f":{before + 1}" if before == 3 else ""  # of the first piece every line is known
    assert (
        refused(project).where == f"{folder / LARGE}{line} (byte {sum(map(len, lines[:before])):,})"
    )
