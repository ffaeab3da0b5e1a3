"""A built project: healthy as it is, and every fault that is put into it found and named."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections import Counter

import numpy as np
import pytest

from helpers.building import make_corpora
from helpers.built_project import first_file, overwrite, problems
from helpers.inspecting import node_at, verify_at
from helpers.sample_project import jsonl, sentences
from nanoset_core.errors import ConfigError
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.graph import stale_reasons
from nanoset_core.project.project import Project
from nanoset_core.project.verify import targets, verify_output, verify_project


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cache_file(project, name, split, part):
    manifests = sorted(project.outputs.folder.glob(f"nanosets/{name}/{split}/*/*/manifest.json"))
    files = {
        file for path in manifests for file in json.loads(path.read_bytes())["facts"]["cache_files"]
    }
    (found,) = [file for file in sorted(files) if file.endswith(part)][:1]
    return project.outputs.folder / "nanosets" / name / "cache" / found


@pytest.mark.parametrize("deep", [False, True])
def test_a_healthy_project_has_no_findings_but_of_its_bad_line(project, deep):
    reports = list(verify_project(project, deep=deep))
    (finding,) = [finding for report in reports for finding in report.findings]
    assert (finding.severity, finding.what) == (
        "warning",
        "lines were rejected that may be damaged",
    )
    assert "(invalid_json 1): part-0/web-0.jsonl 1" in finding.found, (
        "the blank line is none of them"
    )
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


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["pretrain/train", "b*"], "books pretrain/train books/packed"),
        (["pretrain"], "pretrain/train pretrain/valid pretrain/test pretrain/handoff"),
        (["web"], "web web/packed"),
        (["*/packed"], "web/packed books/packed"),
    ],
)
def test_selecting(project, patterns, names):
    assert [target.name for target in targets(project, patterns)] == names.split()


def test_selecting_nothing(project):
    with pytest.raises(ConfigError, match="selects nothing"):
        targets(project, ["nothing"])


def test_nothing_was_built(copy):
    project = copy()
    shutil.rmtree(project.outputs.folder)
    for report in verify_project(project):
        assert "has not been built" in problems(report)[0]


def test_each_output_is_looked_up_once_to_tell_whether_another_is_fresh(project, monkeypatch):
    asked = Counter()
    real = OutputRoot.current_version

    def current_version(outputs, folder, name):
        asked[folder, name] += 1
        return real(outputs, folder, name)

    monkeypatch.setattr(OutputRoot, "current_version", current_version)
    for address in ("nanosets/pretrain/handoff", "webdatasets/shuffled"):
        node = node_at(address)
        assert stale_reasons(project, node.stage, node.key) == []
    assert asked["datasets", "web"] == asked["datasets", "code"] == 2, "once for each of the two"
    assert max(asked.values()) == 2


# corpora


def change_facts(path, **changes):
    value = json.loads(path.read_bytes())
    value["facts"] |= changes
    value.pop("sha256", None)  # of a manifest that holds other facts
    path.write_text(json.dumps(value))


def at(pattern, offset, data, which=0):
    """Overwrite bytes of one of the files that fit a pattern; a negative offset counts from the
    end.
    """

    def damage(project):
        path = sorted(project.outputs.folder.glob(pattern))[which]
        overwrite(path, offset % path.stat().st_size, data)

    return damage


def cut(pattern, size):
    def damage(project):
        path = first_file(project, pattern)
        path.write_bytes(path.read_bytes()[:size])

    return damage


def facts(pattern, change):
    def damage(project):
        path = first_file(project, pattern)
        change_facts(path, **change(json.loads(path.read_bytes())["facts"]))

    return damage


def instead(pattern, old, new):
    def damage(project):
        path = next(
            path
            for path in sorted(project.outputs.folder.glob(pattern))
            if old in path.read_bytes()
        )
        path.write_bytes(path.read_bytes().replace(old, new, 1))

    return damage


def edited(old, new):
    def damage(project):
        file = project.config.file
        file.write_text(file.read_text().replace(old, new))

    return damage


def verified(address):
    """Verify one output of a project, whose settings are read again."""
    return lambda project, deep: verify_at(Project.open(project.config.file), address, deep=deep)


def verified_corpus(project, deep):
    """Verify all outputs of the corpus web together, as `nanoset verify` does."""
    return verify_output(Project.open(project.config.file), "web", deep)


def other_tokenizer(project):
    file = project.config.tokenizer_file
    file.write_text(file.read_text() + "\n")


def tars_gone_cut_and_changed(project):
    tars = sorted(project.outputs.folder.glob(TAR))
    tars[0].unlink()
    tars[1].write_bytes(tars[1].read_bytes()[:-10240])
    overwrite(tars[-1], 3000, b"\xff\xff\xff")


SHARDS = verified("tokenized/web")
INDEXED = verified("datasets/web")
CORPUS = verified_corpus
MAPPINGS = verified("nanosets/pretrain/train/index_mappings")
TARS = verified("webdatasets/shuffled")
TAR, LIST, BIN = (
    "webdatasets/shuffled/*/shard-*.tar",
    "webdatasets/shuffled/*/manifest.jsonl",
    "datasets/web/*/*.bin",
)
IDX, SHUFFLE = "datasets/web/*/*.idx", "nanosets/pretrain/cache/*-train-shuffle_index.npy"
GONE, SIZE, BYTES = (
    "a file is missing",
    "a file has another size than when it was written",
    "a file has other bytes than when it was written",
)
CONTEXT = "context 0 of a tar is not what it must be"
FRAMING = "a sequence does not begin and end with the tokens that it should"
SOURCE = "a document's source line gives other tokens"
# (damage, check, what is found without `deep`, what is found with it): each begins a finding, in
# whatever order
FAULTS = {
    "lines not accounted for": (
        facts("tokenized/web/*/manifest.json", lambda found: {"lines": 999}),
        SHARDS,
        [
            "lines are not accounted for",
            "the shards together have another number of lines than their corpus",
        ],
        None,
    ),
    "a cut shard": (cut("shards/web/*/tokens.bin", 0), CORPUS, ["a shard is not whole"], None),
    "a damaged table of documents": (
        at("shards/web/*/documents.parquet", -20, b"\xff" * 20),
        SHARDS,
        ["this is not the table of the shard's documents"],
        [BYTES],
    ),
    "a changed reject": (
        instead("shards/web/*/rejects.jsonl", b"no json", b"so json"),
        SHARDS,
        [],
        [BYTES],
    ),
    "magic of an idx": (at(IDX, 0, b"X"), INDEXED, ["not an index of an indexed dataset"], [BYTES]),
    "type of an idx": (
        at(IDX, 17, b"\x04"),
        INDEXED,
        ["sequence 1 has an impossible pointer"],
        [BYTES],
    ),
    "an id": (
        at(BIN, 0, struct.pack("<H", 401)),
        INDEXED,
        ["a token is not in the vocabulary"],
        [BYTES],
    ),
    "an end": (at(BIN, -2, struct.pack("<H", 7)), INDEXED, [FRAMING], [BYTES]),
    "a token": (at(BIN, 0, struct.pack("<H", 300)), INDEXED, [SOURCE], [BYTES]),
    "a cut bin": (
        cut(BIN, -2),
        INDEXED,
        [SIZE, "the token file is shorter than its index says"],
        None,
    ),
    "a cut index file": (
        cut(SHUFFLE, -4),
        MAPPINGS,
        ["an index file has another size than when it was written"],
        None,
    ),
    "a changed index file": (
        at(SHUFFLE, -8, b"\1" + bytes(7)),
        MAPPINGS,
        [],
        ["an index " + BYTES[2:]],
    ),
    "tars": (tars_gone_cut_and_changed, TARS, [GONE, SIZE], [GONE, SIZE, BYTES]),
    "a context": (at(TAR, 512 + 128 + 4, b"\xff\xff", 2), TARS, [CONTEXT], [BYTES]),
    "a context of the vocabulary": (at(TAR, 512 + 128 + 4, b"\1\0"), TARS, [CONTEXT], [BYTES]),
    "a header of a tar": (
        at(TAR, 148, b"7777777"),
        TARS,
        ["the header's checksum is wrong"],
        [BYTES],
    ),
    "another count in a list": (
        instead(LIST, b'"num_sequences":128', b'"num_sequences":129'),
        TARS,
        [BYTES],
        None,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(copy, fault):
    damage, check, quick, deep = FAULTS[fault]
    project = copy()
    damage(project)
    for expected, is_deep in ((quick, False), (quick if deep is None else deep, True)):
        found = problems(check(project, is_deep))
        assert all(any(what.startswith(one) for what in found) for one in expected), found
        assert bool(found) == bool(expected)
        assert is_deep or len(found) == len(expected), found


WARNINGS = {
    "another tokenizer": (other_tokenizer, INDEXED, "the tokenizer is not the one", None),
    "other settings of a nanoset": (
        edited("seed: 7", "seed: 8"),
        MAPPINGS,
        "this output is stale",
        "seed: 7 → 8",
    ),
    "other settings of tars": (
        edited("seed: 5", "seed: 6"),
        TARS,
        "this output is stale",
        "seed: 5 → 6",
    ),
    "an uneven shuffle": (
        facts(
            "shuffle_plans/shuffled/*/manifest.json",
            lambda found: {"quality": found["quality"] | {"even": False, "rank_correlation": 0.5}},
        ),
        TARS,
        "the contexts are not shuffled as evenly as chance would have it",
        None,
    ),
}


@pytest.mark.parametrize("change", WARNINGS)
def test_what_is_right_but_not_as_it_should_be_is_a_warning(copy, change):
    happen, check, what, found = WARNINGS[change]
    project = copy()
    happen(project)
    report = check(project, False)
    assert report.passed
    (warning,) = [finding for finding in report.warnings if finding.what.startswith(what)]
    assert found in (None, warning.found)


def test_too_many_rejects_for_the_present_policy(copy):
    project = copy()
    edited("max_rejected_fraction: 0.2", "max_rejected_fraction: 0.001")(project)
    report = SHARDS(project, False)
    assert problems(report) == ["too many lines are no documents"]
    assert problems(report, "warning") == [], "told once"


@pytest.mark.parametrize("is_large", [False, True])
def test_a_raw_file_that_was_changed_or_is_gone_is_a_warning(copy, monkeypatch, is_large):
    project = copy()
    path = project.config.raw_folder / "web/part-0/web-1.jsonl"
    path.write_bytes(path.read_bytes().replace(b"model", b"modem"))
    if is_large:  # it is not hashed for a warning
        monkeypatch.setattr("nanoset_core.lineage.texts.MOST_HASHED_BYTES", 0)
        monkeypatch.setattr("nanoset_core.lineage.texts.StoredPiece.check", None)
    report = verify_at(project, "datasets/web")
    assert report.passed
    (what, _) = problems(report, "warning")
    assert what.startswith("a document's source line gives other tokens (")
    assert (
        any(finding.found == "the file was changed since" for finding in report.warnings)
        != is_large
    )
    path.unlink()
    (what, _) = problems(verify_at(project, "datasets/web"), "warning")
    assert what.startswith("a file of the corpus is missing (")


def test_what_lies_among_the_files_is_a_warning(copy):
    project = copy()
    folder = project.config.raw_folder
    (folder / "web/notes.txt").touch()
    (folder / "web/empty.jsonl").touch()
    (folder / "c4").mkdir()
    report = verify_at(project, "inventory/web")
    assert problems(report, "warning") == [
        "1 file is not read: 1 .txt (notes.txt)",
        "1 file is empty: empty.jsonl",
    ]
    assert all(
        finding.remedy and finding.where == str(folder / "web") for finding in report.findings
    )
    assert verify_output(project, "web").findings[:2] == report.findings
    first, *_ = verify_project(project)
    assert (first.output, first.passed) == ("raw", True)
    assert problems(first, "warning") == ["a folder in which nothing is read: it is empty"]
    (folder / "web/dangling.jsonl").symlink_to("nowhere")
    report = verify_at(project, "inventory/web")
    assert report.passed
    assert report.findings[0].where.endswith("dangling.jsonl")


def test_documents_at_other_places_than_their_shards_say(copy):
    project = copy()
    idx = first_file(project, IDX)
    n = int(np.frombuffer(idx.read_bytes(), "<u8", 1, 18)[0])
    # Document 0 is empty, and document 1 has the tokens of both: neither the .idx nor its sha256
    # tells.
    overwrite(idx, 34 + 12 * n + 8, struct.pack("<q", 0))
    manifest = idx.with_name("manifest.json")
    value = json.loads(manifest.read_bytes())
    value["files"][idx.name]["sha256"] = sha256_of(idx)
    del value["sha256"]
    manifest.write_text(json.dumps(value))
    what = "document 0 has another length than its shard says"
    assert what in problems(verify_at(project, "datasets/web", deep=True))
    assert what not in problems(verify_at(project, "datasets/web"))


# nanosets


def test_a_missing_index_file(copy):
    project = copy()
    for part in ("sample_index.npy", "description.txt", "nanoset.json"):
        path = cache_file(project, "pretrain", "train", "description.txt")
        path = (
            path
            if part == "description.txt"
            else path.with_name(path.name.replace("description.txt", part))
        )
        path.rename(path.with_name("away"))
        report = verify_output(project, "pretrain/train")
        assert [finding.where for finding in report.findings] == [str(path)]
        path.with_name("away").rename(path)
    assert verify_output(project, "pretrain/train").passed


@pytest.mark.parametrize(
    ("output", "kind"), [("index_mappings", "GPTDataset"), ("blend", "BlendedDataset")]
)
def test_a_note_in_which_one_value_changed(copy, output, kind):
    project = copy()
    for note in (project.outputs.folder / "nanosets/pretrain/cache").glob(
        f"*-{kind}-train-nanoset.json"
    ):
        value = json.loads(note.read_bytes())
        value["made_from"]["description"] = "0" * 32
        note.write_text(json.dumps(value), encoding="utf-8")
    report = verify_at(project, f"nanosets/pretrain/train/{output}")
    assert {finding.what for finding in report.errors} == {
        "the note of what index files were made from does not say what was planned and written"
    }
    assert "description: " in report.errors[0].found


@pytest.mark.parametrize(
    ("part", "entry", "value"),
    [
        ("document", 3, 10**6),
        ("shuffle", 3, 10**6),
        ("sample", 8, 10**6),
        ("sample", 9, 10**6),
        ("sample", 9, -1),
    ],
)
def test_samples_that_cannot_be_read(copy, part, entry, value):
    project = copy()
    change_array(cache_file(project, "plain", "train", f"{part}_index.npy"), entry, value)
    assert problems(verify_at(project, "nanosets/plain/train/index_mappings")) == [
        "the index files don't fit the dataset"
    ]


def change_array(path, entry, value):
    array = np.load(path)
    array.reshape(-1)[entry] = value
    np.save(path, array)


def note_changed(project, path, part, output):
    """Let manifest and note say that a changed index file is the one that was written."""
    sha256 = sha256_of(path)
    manifest = first_file(project, f"nanosets/{output}/*/manifest.json")
    facts = json.loads(manifest.read_bytes())["facts"]["cache_files"]
    facts[path.name]["sha256"] = sha256
    change_facts(manifest, cache_files=facts)
    note = path.with_name(path.name.replace(part, "nanoset.json"))
    noted = json.loads(note.read_bytes())
    noted["files"][path.name]["sha256"] = sha256
    note.write_text(json.dumps(noted))


@pytest.mark.parametrize(
    ("part", "row"), [("document_index", 2), ("sample_index", 1), ("shuffle_index", 2)]
)
def test_entries_that_the_plan_does_not_give_are_found_deeply(copy, part, row):
    project = copy()
    path = cache_file(project, "plain", "train", f"{part}.npy")
    change_array(path, 2, np.load(path).reshape(-1)[4])
    note_changed(project, path, f"{part}.npy", "plain/train/index_mappings")
    found = problems(verify_at(project, "nanosets/plain/train/index_mappings", deep=True))
    assert found[0] == f"entry {row} of {part} is not what the plan gives"


def test_large_index_files_are_not_built_again(copy, monkeypatch):
    project = copy()
    monkeypatch.setattr("nanoset_core.stages.mappings.verify.MAX_REBUILT_ENTRIES", 10)
    monkeypatch.setattr("nanoset_core.sampling.cache.build_member_indices", None)
    monkeypatch.setattr("nanoset_core.sampling.cache.build_blend_indices", pytest.fail)
    report = verify_output(project, "pretrain/train", deep=True)
    assert report.passed
    assert report.figures["entries_not_rebuilt"] > 10


def test_a_blend_that_names_what_is_not_there(copy):
    project = copy()
    path = cache_file(project, "pretrain", "train", "dataset_sample_index.npy")
    change_array(path, 0, 10**6)
    assert problems(verify_at(project, "nanosets/pretrain/train/blend")) == [
        "an entry of the blend leads nowhere"
    ]
    note_changed(project, path, "dataset_sample_index.npy", "pretrain/train/blend")
    assert "entry 0 of dataset_sample_index is not what the plan gives" in problems(
        verify_at(project, "nanosets/pretrain/train/blend", deep=True)
    )
    path = cache_file(project, "pretrain", "train", "dataset_index.npy")
    change_array(path, 0, 7)
    report = verify_at(project, "nanosets/pretrain/train/blend")
    assert report.errors[0].found.endswith(" of dataset 7")


def test_a_stale_cache(copy):
    """The .idx was replaced under the index files: Megatron-LM would train on the old ones without
    a word.
    """
    project = copy()
    idx = first_file(project, IDX.replace("web", "books"))
    n = int(np.frombuffer(idx.read_bytes(), "<u8", 1, 18)[0])
    overwrite(idx, 34 + 12 * n + 8, struct.pack("<q", 0))
    report = verify_at(project, "nanosets/plain/train/index_mappings")
    assert problems(report) == [
        "index files are stale: the dataset is not the one that they were made from"
    ]
    assert report.errors[0].where == str(idx)


def test_documents_of_another_length_than_before_are_a_warning(copy):
    project = copy()
    file = project.config.raw_folder / "code" / "more.jsonl"
    file.write_bytes(jsonl(sentences("more", 5)))
    make_corpora(project, "code")
    report = verify_at(project, "datasets/code")
    assert report.findings == []
    assert report.figures["tokens_per_document"] != report.figures["tokens_per_document_before"]
    file.write_bytes(jsonl([{"id": "long", "text": "a word and another " * 20_000}]))
    make_corpora(project, "code")
    report = verify_at(project, "datasets/code")
    assert report.passed
    assert problems(report, "warning") == [
        "documents have another length than in the previous version"
    ]
    assert "nanoset diff code" in report.findings[0].remedy
