"""A built project: healthy as it is, and every fault that is put into it found and named."""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter

import numpy as np
import pytest
from built_project import one, poke, whats
from sample_project import jsonl, sentences

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.pipeline import handoff, indexed, raw, shuffling, stage, tokenization
from nanoset_core.pipeline.graph import stale_reasons
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.verification.verify import (
    targets,
    verify_blend,
    verify_corpus,
    verify_indexed,
    verify_inventory,
    verify_mappings,
    verify_nanoset,
    verify_project,
    verify_shards,
    verify_webdataset,
)


def cache_file(project, name, split, part):
    manifests = sorted(project.outputs.folder.glob(f"nanosets/{name}/{split}/*/*/manifest.json"))
    files = {file for path in manifests for file in json.loads(path.read_bytes())["facts"]["cache_files"]}
    (found,) = [file for file in sorted(files) if file.endswith(part)][:1]
    return project.outputs.folder / "nanosets" / name / "cache" / found


@pytest.mark.parametrize("deep", [False, True])
def test_a_healthy_project_has_no_findings_but_of_its_bad_line(project, deep):
    reports = list(verify_project(project, deep=deep))
    (finding,) = [finding for report in reports for finding in report.findings]
    assert (finding.severity, finding.what) == ("warning", "lines were rejected that may be damaged")
    assert "(invalid_json 1): part-0/web-0.jsonl 1" in finding.found, "the blank line is none of them"
    figures = {report.output: report.figures for report in reports}
    web = figures["corpora/web"]
    assert (web["lines"], web["documents"], web["rejected"]) == (245, 243, 2)
    assert web["documents_compared"] == web["documents_sampled"] == 64
    assert web["duplicate_documents"] == round(1 / 242, 6)
    assert figures["corpora/books"]["documents_compared"] == 64
    shares = figures["nanosets/pretrain/train"]
    assert abs(shares["share_web"] - 0.7) < 0.01
    tars = figures["webdatasets/shuffled"]
    assert tars["contexts_read"] == (tars["sequences"] if deep else 2 * tars["shards"])


def test_selecting(project):
    assert [target.name for target in targets(project, ["pretrain/train", "b*"])] == [
        "books",
        "pretrain/train",
        "books/packed",
    ]
    assert [target.name for target in targets(project, ["pretrain"])] == [
        "pretrain/train",
        "pretrain/valid",
        "pretrain/test",
        "pretrain/handoff",
    ]
    with pytest.raises(ConfigError, match="selects nothing"):
        targets(project, ["nothing"])


def test_each_output_is_looked_up_once_to_tell_whether_another_is_fresh(project, monkeypatch):
    asked = Counter()
    real = OutputRoot.current_version

    def current_version(outputs, folder, name):
        asked[folder, name] += 1
        return real(outputs, folder, name)

    monkeypatch.setattr(OutputRoot, "current_version", current_version)
    for asset, subject in ((handoff.TRAINER_FILES, "pretrain"), (shuffling.WEBDATASET, "shuffled")):
        assert stale_reasons(project, asset, stage.Key(subject)) == []
    datasets = [("datasets", corpus) for corpus in ("web", "code")]
    assert all(asked[one] == 2 for one in datasets), "once for each of the two"
    assert max(asked.values()) == 2


def test_nothing_was_built(copy):
    project = copy()
    shutil.rmtree(project.outputs.folder)
    for report in verify_project(project):
        assert whats(report)
        assert "has not been built" in whats(report)[0]


def test_a_tar_that_is_gone_hides_no_damage_of_another(copy):
    project = copy()
    tars = sorted(project.outputs.folder.glob("webdatasets/shuffled/*/*.tar"))
    tars[0].unlink()
    poke(tars[-1], 3000, b"\xff\xff\xff")
    assert whats(verify_webdataset(project, "shuffled")) == ["a file is missing"]
    assert {"a file is missing", "a file has other bytes than when it was written"} <= set(
        whats(verify_webdataset(project, "shuffled", deep=True))
    )


# corpora


def test_too_many_rejects_for_the_present_policy(copy):
    project = copy()
    file = project.config.file
    file.write_text(file.read_text().replace("max_rejected_fraction: 0.2", "max_rejected_fraction: 0.001"))
    report = verify_shards(Project.open(file), "web")
    assert whats(report) == ["too many lines are no documents"]
    assert whats(report, "warning") == [], "told once"


def change_facts(path, **changes):
    value = json.loads(path.read_bytes())
    value["facts"] |= changes
    value.pop("sha256", None)  # of a manifest that holds other facts
    path.write_text(json.dumps(value))


def test_lines_that_are_not_accounted_for(copy):
    project = copy()
    change_facts(one(project, "tokenized/web/*/manifest.json"), lines=999)
    found = whats(verify_shards(project, "web"))
    assert "lines are not accounted for" in found
    assert "the shards together have another number of lines than their corpus" in found


def test_a_shard_that_is_missing_or_cut(copy):
    project = copy()
    one(project, "shards/web/*/tokens.bin").write_bytes(b"")
    assert whats(verify_corpus(project, "web")) == ["a shard is not whole"]


def test_a_cut_table_of_documents(copy):
    project = copy()
    path = one(project, "shards/web/*/documents.parquet")
    content = path.read_bytes()
    poke(path, len(content) - 20, b"\xff" * 20)
    report = verify_shards(project, "web")
    assert whats(report) == ["this is not the table of the shard's documents"]
    assert str(path) in report.errors[0].where


def test_other_shards_than_the_files_give(copy):
    project = copy()
    path = one(project, "tokenized/web/*/manifest.json")
    change_facts(path, shards=json.loads(path.read_bytes())["facts"]["shards"][::-1])
    assert whats(verify_shards(project, "web")) == ["the shards are not those of the corpus's files"]


def test_changed_bytes_are_found_by_checksum(copy):
    project = copy()
    path = one(project, "shards/web/*/rejects.jsonl")
    path = next(p for p in project.outputs.folder.glob("shards/web/*/rejects.jsonl") if p.stat().st_size)
    poke(path, path.read_bytes().index(b"no json"), b"so")
    assert verify_shards(project, "web").passed
    assert whats(verify_shards(project, "web", deep=True)) == ["a file has other bytes than when it was written"]


def dataset_file(project, corpus, ending):
    return one(project, f"datasets/{corpus}/*/*.{ending}")


@pytest.mark.parametrize(
    ("ending", "offset", "data", "what"),
    [
        ("idx", 0, b"X", "not an index of an indexed dataset"),
        ("idx", 17, b"\x04", "sequence 1 has an impossible pointer"),
        ("bin", 0, struct.pack("<H", 401), "a token is not in the vocabulary"),
        ("bin", -2, struct.pack("<H", 7), "a sequence does not begin and end with the tokens that it should"),
        ("bin", 0, struct.pack("<H", 300), "a document's source line gives other tokens"),
    ],
)
def test_a_byte_of_a_dataset(copy, ending, offset, data, what):
    project = copy()
    path = dataset_file(project, "web", ending)
    poke(path, offset % path.stat().st_size, data)
    report = verify_indexed(project, "web")
    assert any(found.startswith(what) for found in whats(report))
    assert "a file has other bytes than when it was written" in whats(verify_indexed(project, "web", deep=True))


def test_a_cut_bin(copy):
    project = copy()
    path = dataset_file(project, "web", "bin")
    path.write_bytes(path.read_bytes()[:-2])
    assert whats(verify_indexed(project, "web")) == [
        "a file has another size than when it was written",
        "the token file is shorter than its index says",
    ]


def test_a_raw_file_that_was_changed_or_is_gone_is_a_warning(copy):
    project = copy()
    path = project.config.raw_folder / "web/part-0/web-1.jsonl"
    path.write_bytes(path.read_bytes().replace(b"model", b"modem"))
    report = verify_indexed(project, "web")
    assert report.passed
    (what, _) = whats(report, "warning")
    assert what.startswith("a document's source line gives other tokens (")
    path.unlink()
    (what, _) = whats(verify_indexed(project, "web"), "warning")
    assert what.startswith("a file of the corpus is gone (")


def test_what_lies_among_the_files_is_a_warning(copy):
    project = copy()
    folder = project.config.raw_folder
    (folder / "web/notes.txt").touch()
    (folder / "web/empty.jsonl").touch()
    (folder / "c4").mkdir()
    report = verify_inventory(project, "web")
    assert whats(report, "warning") == ["1 file is not read: 1 .txt (notes.txt)", "1 file is empty: empty.jsonl"]
    assert all(finding.remedy and finding.where == str(folder / "web") for finding in report.findings)
    assert verify_corpus(project, "web").findings[:2] == report.findings
    first, *_ = verify_project(project)
    assert (first.output, first.passed) == ("raw", True)
    assert whats(first, "warning") == ["a folder in which nothing is read: it is empty"]
    (folder / "web/dangling.jsonl").symlink_to("nowhere")
    report = verify_inventory(project, "web")
    assert report.passed
    assert report.findings[0].where.endswith("dangling.jsonl")


def test_a_changed_tokenizer_is_a_warning(copy):
    project = copy()
    file = project.config.tokenizer_file
    file.write_text(file.read_text() + "\n")
    report = verify_indexed(Project.open(project.config.file), "web")
    assert report.passed
    assert any("tokenizer is not the one" in what for what in whats(report, "warning"))


def test_documents_at_other_places_than_their_shards_say(copy):
    project = copy()
    idx = dataset_file(project, "web", "idx")
    # two documents of one token less and one more: nothing else notices
    lengths = np.frombuffer(idx.read_bytes(), "<i4", 2, 34).copy()
    pointers_at = 34 + 4 * 242
    poke(idx, 34, (lengths + np.array([1, -1])).astype("<i4").tobytes())
    poke(idx, pointers_at + 8, struct.pack("<q", 2 * (int(lengths[0]) + 1)))
    found = whats(verify_indexed(project, "web", deep=True))
    assert "document 0 has another length than its shard says" in found or any("begin and end" in w for w in found)


# nanosets


def test_a_missing_index_file(copy):
    project = copy()
    for part in ("sample_index.npy", "description.txt", "nanoset.json"):
        path = cache_file(project, "pretrain", "train", "description.txt")
        path = path if part == "description.txt" else path.with_name(path.name.replace("description.txt", part))
        path.rename(path.with_name("away"))
        (report,) = [verify_nanoset(project, "pretrain", "train")]
        assert [finding.where for finding in report.findings] == [str(path)]
        path.with_name("away").rename(path)
    assert verify_nanoset(project, "pretrain", "train").passed


@pytest.mark.parametrize("check", [verify_mappings, verify_blend])
def test_a_note_in_which_one_value_changed(copy, check):
    project = copy()
    kind = "GPTDataset" if check is verify_mappings else "BlendedDataset"
    for note in (project.outputs.folder / "nanosets/pretrain/cache").glob(f"*-{kind}-train-nanoset.json"):
        value = json.loads(note.read_bytes())
        value["made_from"]["description"] = "0" * 32
        note.write_text(json.dumps(value), encoding="utf-8")
    report = check(project, "pretrain", "train")
    assert {finding.what for finding in report.errors} == {
        "the note of what index files were made from does not say what was planned, and what was written"
    }
    assert "description: " in report.errors[0].found


def test_a_cut_index_file_and_one_of_other_bytes(copy):
    project = copy()
    path = cache_file(project, "pretrain", "train", "shuffle_index.npy")
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    assert whats(verify_mappings(project, "pretrain", "train")) == [
        "an index file has another size than when it was written"
    ]
    poke(path, 0, whole[:-8] + whole[-4:] + whole[-8:-4])
    path.write_bytes(whole[:-8] + whole[-4:] + whole[-8:-4])
    assert verify_mappings(project, "pretrain", "train").passed
    assert whats(verify_mappings(project, "pretrain", "train", deep=True)) == [
        "an index file has other bytes than when it was written"
    ]


@pytest.mark.parametrize(
    ("part", "entry", "value"),
    [
        ("document_index.npy", 3, 10**6),
        ("shuffle_index.npy", 3, 10**6),
        ("sample_index.npy", 8, 10**6),
        ("sample_index.npy", 9, 10**6),
        ("sample_index.npy", 9, -1),
    ],
)
def test_entries_out_of_range(copy, part, entry, value):
    project = copy()
    change_array(cache_file(project, "plain", "train", part), entry, value)
    assert whats(verify_mappings(project, "plain", "train")) == ["the index files don't fit the dataset"]


def change_array(path, entry, value):
    array = np.load(path)
    array.reshape(-1)[entry] = value
    np.save(path, array)


def note_changed(project, path, part, output):
    """Let manifest and note say that a changed index file is the one that was written."""
    sha256 = sha256_file(path)
    manifest = one(project, f"nanosets/{output}/*/manifest.json")
    facts = json.loads(manifest.read_bytes())["facts"]["cache_files"]
    facts[path.name]["sha256"] = sha256
    change_facts(manifest, cache_files=facts)
    note = path.with_name(path.name.replace(part, "nanoset.json"))
    noted = json.loads(note.read_bytes())
    noted["files"][path.name]["sha256"] = sha256
    note.write_text(json.dumps(noted))


@pytest.mark.parametrize("part", ["document_index.npy", "sample_index.npy", "shuffle_index.npy"])
def test_entries_that_the_plan_does_not_give_are_found_deeply(copy, part):
    project = copy()
    path = cache_file(project, "plain", "train", part)
    array = np.load(path).reshape(-1)
    change_array(path, 2, array[4])
    note_changed(project, path, part, "plain/train/index_mappings")
    row = 1 if part == "sample_index.npy" else 2
    assert whats(verify_mappings(project, "plain", "train", deep=True))[0] == (
        f"entry {row} of {part.removesuffix('.npy')} is not what the plan gives"
    )


def test_a_blend_that_names_what_is_not_there(copy):
    project = copy()
    path = cache_file(project, "pretrain", "train", "dataset_sample_index.npy")
    change_array(path, 0, 10**6)
    assert whats(verify_blend(project, "pretrain", "train")) == ["entry 0 of the blend is outside of its datasets"]
    note_changed(project, path, "dataset_sample_index.npy", "pretrain/train/blend")
    assert "entry 0 of dataset_sample_index is not what the plan gives" in whats(
        verify_blend(project, "pretrain", "train", deep=True)
    )
    path = cache_file(project, "pretrain", "train", "dataset_index.npy")
    change_array(path, 0, 7)
    report = verify_blend(project, "pretrain", "train")
    assert (report.errors[0].found, report.errors[0].expected) == ("7", "0 to 1")


def test_a_stale_cache(copy):
    """The .idx was replaced under the index files: Megatron-LM would train on the old ones without a word."""
    project = copy()
    idx = dataset_file(project, "books", "idx")
    n = int(np.frombuffer(idx.read_bytes(), "<u8", 1, 18)[0])
    poke(idx, 34 + 12 * n + 8, struct.pack("<q", 0))
    report = verify_mappings(project, "plain", "train")
    assert whats(report) == ["index files are stale: the dataset is not the one that they were made from"]
    assert report.errors[0].where == str(idx)


def test_other_settings_than_the_present_ones_are_a_warning(copy):
    project = copy()
    file = project.config.file
    file.write_text(file.read_text().replace("seed: 7", "seed: 8"))
    report = verify_nanoset(Project.open(file), "pretrain", "train")
    assert report.passed
    assert whats(report, "warning") == ["this output is stale"]
    assert report.warnings[0].found == "seed: 7 → 8"


# webdatasets


def test_tars_that_are_missing_cut_or_changed(copy):
    project = copy()
    tars = sorted(project.outputs.folder.glob("webdatasets/shuffled/*/shard-*.tar"))
    poke(tars[2], 512 + 128 + 4, b"\xff\xff")
    report = verify_webdataset(project, "shuffled")
    assert whats(report) == ["context 0 of a tar is not what it must be"]
    assert whats(verify_webdataset(project, "shuffled", deep=True)) == [
        "a file has other bytes than when it was written"
    ]
    tars[0].unlink()
    tars[1].write_bytes(tars[1].read_bytes()[:-10240])
    report = verify_webdataset(project, "shuffled")
    assert [(finding.what, finding.where) for finding in report.errors] == [
        ("a file is missing", str(tars[0])),
        ("a file has another size than when it was written", str(tars[1])),
    ]


def test_contexts_that_are_not_those_of_the_plan(copy):
    project = copy()
    tar = one(project, "webdatasets/shuffled/*/shard-00000000.tar")
    first = tar.read_bytes()[512 + 128 : 512 + 128 + 66]
    token = struct.unpack("<H", first[4:6])[0]
    poke(tar, 512 + 128 + 4, struct.pack("<H", (token + 1) % 400))
    report = verify_webdataset(project, "shuffled")
    assert whats(report) == ["context 0 of a tar is not what it must be"]
    assert "by the plan" in report.errors[0].expected


def test_a_tar_with_a_broken_header(copy):
    project = copy()
    tar = one(project, "webdatasets/shuffled/*/shard-00000000.tar")
    poke(tar, 148, b"7777777")
    assert whats(verify_webdataset(project, "shuffled")) == ["the header's checksum is wrong"]


def test_lists_that_do_not_name_the_tars(copy):
    project = copy()
    path = one(project, "webdatasets/shuffled/*/manifest.jsonl")
    lines = path.read_bytes()
    path.write_bytes(lines.replace(b'"num_sequences":128', b'"num_sequences":129'))
    assert whats(verify_webdataset(project, "shuffled")) == ["a list does not name the tars that were written"]
    path.write_bytes(lines[:-1] + b" ")
    assert whats(verify_webdataset(project, "shuffled"))[0].startswith("a list does not say how many sequences")
    path.write_bytes(lines[:-5] + b"xxxxx")
    assert whats(verify_webdataset(project, "shuffled")) == ["a list of the tars cannot be read"]


def test_tars_of_an_older_dataset_are_a_warning(copy):
    project = copy()
    file = project.config.file
    file.write_text(file.read_text().replace("seed: 5", "seed: 6"))
    report = verify_webdataset(Project.open(file), "shuffled")
    assert report.passed
    assert whats(report, "warning") == ["this output is stale"]
    assert report.warnings[0].found == "seed: 5 → 6"


def rebuild(project, corpus):
    raw.make_inventory(project, corpus)
    tokenization.tokenize(project, corpus)
    indexed.index(project, corpus)


def test_documents_of_another_length_than_before_are_a_warning(copy):
    project = copy()
    file = project.config.raw_folder / "code" / "more.jsonl"
    file.write_bytes(jsonl(sentences("more", 5)))
    rebuild(project, "code")
    report = verify_indexed(project, "code")
    assert report.findings == []
    assert report.figures["tokens_per_document"] != report.figures["tokens_per_document_before"]
    file.write_bytes(jsonl([{"id": "long", "text": "a word and another " * 20_000}]))
    rebuild(project, "code")
    report = verify_indexed(project, "code")
    assert report.passed
    assert whats(report, "warning") == ["documents have another length than in the version before"]
    assert "nanoset diff code" in report.findings[0].remedy


def test_an_uneven_shuffle_is_a_warning(copy):
    project = copy()
    path = one(project, "shuffle_plans/shuffled/*/manifest.json")
    quality = json.loads(path.read_bytes())["facts"]["quality"]
    assert quality["even"]
    change_facts(path, quality=quality | {"even": False, "rank_correlation": 0.5})
    report = verify_webdataset(project, "shuffled")
    assert report.passed
    assert whats(report, "warning") == ["the contexts are not shuffled as evenly as chance would have it"]
