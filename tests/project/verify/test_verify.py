"""`nanoset verify` finds no fault in a healthy project, and names every fault of a damaged one."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.building import make_corpora
from helpers.built_project import first_file, overwrite, problems
from helpers.inspecting import node_at, verify_at, verify_output
from helpers.sample_project import jsonl, sentences
from nanoset_core.errors import ConfigError
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.graph.built_inputs import changes_against_built_inputs
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.project import Project
from nanoset_core.project.verify import targets, verify_project
from nanoset_core.stages.report import Report

Damage = Callable[[Project], None]
"""Changes files of a project."""
Check = Callable[[Project, bool], Report]
"""Verifies outputs of a project, quickly or (True) deeply."""

ONE_MILLION = 10**6
"""More than any index file of the project has entries."""


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cache_file(project: Project, nanoset: str, split: str, ending: str) -> Path:
    """Return the first index file of a split whose name has an ending."""
    folder = project.outputs.folder / "nanosets" / nanoset
    names: set[str] = set()
    for manifest in folder.glob(f"{split}/*/*/manifest.json"):
        names.update(json.loads(manifest.read_bytes())["facts"]["cache_files"])
    matching_names = sorted(name for name in names if name.endswith(ending))
    return folder / "cache" / matching_names[0]


# Healthy projects


def report_by_output(project_folder: Path, *, deep: bool) -> dict[str, Report]:
    """Verify all outputs of a project, and return the reports by the outputs that they are about."""
    project = Project.open(project_folder / "nanoset.yaml")
    return {report.output: report for report in verify_project(project, deep=deep)}


@pytest.fixture(scope="module")
def quick_reports(built) -> dict[str, Report]:
    """The reports on the healthy project after a quick check, by their outputs."""
    return report_by_output(built, deep=False)


@pytest.fixture(scope="module")
def deep_reports(built) -> dict[str, Report]:
    """The reports on the healthy project after a deep check, by their outputs."""
    return report_by_output(built, deep=True)


@pytest.fixture(params=["quick_reports", "deep_reports"])
def healthy_reports(request) -> dict[str, Report]:
    """The reports on the healthy project after each kind of check, by their outputs."""
    return request.getfixturevalue(request.param)


def test_the_only_finding_in_a_healthy_project_is_its_line_that_is_no_json(healthy_reports):
    findings = []
    for report in healthy_reports.values():
        findings += report.findings

    (finding,) = findings
    assert finding.severity == "warning"
    assert finding.what == "lines were rejected that may be damaged"
    # The blank line after it is rejected, too, but is not damaged.
    assert "(invalid_json 1): 1 in part-0/web-0.jsonl" in finding.found


def test_the_report_of_a_corpus_has_its_figures(healthy_reports):
    figures = healthy_reports["corpora/web"].figures

    assert figures["lines"] == 245
    assert figures["documents"] == 243
    assert figures["rejected"] == 2
    assert figures["documents_compared"] == 64
    assert figures["documents_sampled"] == 64
    # One of the 242 documents that are not empty is there twice.
    assert figures["duplicate_documents"] == round(1 / 242, 6)
    assert healthy_reports["corpora/books"].figures["documents_compared"] == 64


def test_the_report_of_a_split_has_the_shares_of_its_corpora(healthy_reports):
    figures = healthy_reports["nanosets/pretrain/train"].figures

    assert abs(figures["share_web"] - 0.7) < 0.01


def test_a_quick_check_reads_two_contexts_of_each_tar(quick_reports):
    figures = quick_reports["webdatasets/shuffled"].figures

    assert figures["contexts_read"] == 2 * figures["shards"]


def test_a_deep_check_reads_all_contexts(deep_reports):
    figures = deep_reports["webdatasets/shuffled"].figures

    assert figures["contexts_read"] == figures["sequences"]


# Which outputs are verified


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["pretrain/train", "b*"], ["books", "pretrain/train", "books/packed"]),
        (["pretrain"], ["pretrain/train", "pretrain/valid", "pretrain/test", "pretrain/handoff"]),
        (["web"], ["web", "web/packed"]),
        (["*/packed"], ["web/packed", "books/packed"]),
        (["packed/*"], ["web/packed", "books/packed"]),
        (["web*"], ["web", "web/packed"]),
    ],
    ids=" ".join,
)
def test_patterns_select_outputs(project, patterns, names):
    assert [target.name for target in targets(project, patterns)] == names


def test_each_output_is_selected_by_the_name_that_its_report_has(project, quick_reports):
    names = [name for name in quick_reports if name != "raw"]  # the raw folder is no output

    for name in names:
        reports = list(verify_project(project, [name]))
        assert [report.output for report in reports] == [name]


def test_an_output_that_was_not_built_is_selected_by_the_name_that_its_report_has(copy):
    project = copy()
    shutil.rmtree(project.outputs.folder)

    (report,) = verify_project(project, ["corpora/web"])

    (same_report,) = verify_project(project, [report.output])
    assert same_report.output == report.output


def test_a_pattern_that_selects_nothing_is_an_error(project):
    with pytest.raises(ConfigError, match="selects nothing"):
        targets(project, ["nothing"])


def test_each_output_that_was_not_built_is_reported(copy):
    project = copy()
    shutil.rmtree(project.outputs.folder)

    reports = list(verify_project(project))

    assert reports
    for report in reports:
        assert "has not been built" in problems(report)[0]


def test_an_output_is_looked_up_once_for_each_output_made_from_it(project, monkeypatch):
    n_lookups: Counter[tuple[str, str]] = Counter()
    current_version = OutputRoot.current_version

    def counted(outputs: OutputRoot, folder: str, name: str) -> Any:
        n_lookups[folder, name] += 1
        return current_version(outputs, folder, name)

    monkeypatch.setattr(OutputRoot, "current_version", counted)
    # Both are made from the corpora web and code.
    for address in ("nanosets/pretrain/handoff", "webdatasets/shuffled"):
        node = node_at(address)
        assert changes_against_built_inputs(Graph(project, known={}), node) == []

    assert n_lookups["datasets", "web"] == 2
    assert n_lookups["datasets", "code"] == 2
    assert max(n_lookups.values()) == 2


# Functions that damage a project


def change_facts(manifest: Path, **changes: Any) -> None:
    """Change facts in a manifest, and remove the checksum of the facts."""
    content = json.loads(manifest.read_bytes())
    content["facts"] |= changes
    content.pop("sha256", None)
    manifest.write_text(json.dumps(content))


def change_fact_of(pattern: str, name: str, value: Any) -> Damage:
    """Change a fact in the first manifest that matches a pattern; a mapping is merged into it."""

    def damage(project: Project) -> None:
        manifest = first_file(project, pattern)
        new_value = value
        if isinstance(value, dict):
            new_value = json.loads(manifest.read_bytes())["facts"][name] | value
        change_facts(manifest, **{name: new_value})

    return damage


def overwrite_in(pattern: str, offset: int, data: bytes, file_number: int = 0) -> Damage:
    """Overwrite bytes of a file.

    Args:
        pattern: The file is one of those that match this pattern.
        offset: Of the first byte; a negative offset counts from the end of the file.
        data: The new bytes.
        file_number: Which one of the files, in the order of their names.
    """

    def damage(project: Project) -> None:
        path = sorted(project.outputs.folder.glob(pattern))[file_number]
        overwrite(path, offset % path.stat().st_size, data)

    return damage


def cut(pattern: str, stop: int) -> Damage:
    """Cut the first file that matches a pattern; a negative stop counts from its end."""

    def damage(project: Project) -> None:
        path = first_file(project, pattern)
        path.write_bytes(path.read_bytes()[:stop])

    return damage


def replace_in(pattern: str, old: bytes, new: bytes) -> Damage:
    """Replace text once in the first file that matches a pattern and has the text."""

    def damage(project: Project) -> None:
        paths = sorted(project.outputs.folder.glob(pattern))
        path = next(path for path in paths if old in path.read_bytes())
        path.write_bytes(path.read_bytes().replace(old, new, 1))

    return damage


def remove(pattern: str) -> Damage:
    """Remove the first file that matches a pattern."""
    return lambda project: first_file(project, pattern).unlink()


def change_settings(old: str, new: str) -> Damage:
    """Replace text in nanoset.yaml."""

    def damage(project: Project) -> None:
        file = project.config.file
        file.write_text(file.read_text().replace(old, new))

    return damage


def change_tokenizer(project: Project) -> None:
    """Add a line break to the file of the tokenizer."""
    file = project.config.tokenizer_file
    file.write_text(file.read_text() + "\n")


def damage_three_tars(project: Project) -> None:
    """Remove a tar, cut another one, and change bytes of a third one."""
    tars = sorted(project.outputs.folder.glob(TARS))
    tars[0].unlink()
    tars[1].write_bytes(tars[1].read_bytes()[:-10240])
    overwrite(tars[-1], 3000, b"\xff\xff\xff")


# Functions that verify outputs of a project, whose settings they read again


def check_at(address: str) -> Check:
    """Verify one output."""
    return lambda project, deep: verify_at(Project.open(project.config.file), address, deep=deep)


def check_corpus(project: Project, deep: bool) -> Report:
    """Verify all outputs of the corpus web together, as `nanoset verify` does."""
    return verify_output(Project.open(project.config.file), "web", deep)


check_shards = check_at("tokenized/web")
check_dataset = check_at("datasets/web")
check_mappings = check_at("nanosets/pretrain/train/index_mappings")
check_webdataset = check_at("webdatasets/shuffled")


# Damaged outputs

TOKENS = "datasets/web/*/*.bin"
INDEX = "datasets/web/*/*.idx"
SHUFFLE_INDEX = "nanosets/pretrain/cache/*-train-shuffle_index.npy"
TARS = "webdatasets/shuffled/*/shard-*.tar"
FIRST_TOKEN_IN_TAR = 512 + 128
"""Offset of the first token: after a header of tar, and one of npy."""

MISSING = "a file is missing"
OTHER_SIZE = "a file has another size than when it was written"
OTHER_BYTES = "a file has other bytes than when it was written"
WRONG_CONTEXT = "context 0 of a tar is not what it must be"


@dataclass(frozen=True)
class Fault:
    """A fault of a project, and what is found of it."""

    damage: Damage
    check: Check
    quick_findings: Sequence[str]
    """How the findings of a quick check begin, in any order."""
    deep_findings: Sequence[str] | None = None
    """How findings of a deep check begin; None if they are those of a quick check."""


FAULTS = {
    "lines that are not accounted for": Fault(
        change_fact_of("tokenized/web/*/manifest.json", "lines", 999),
        check_shards,
        quick_findings=[
            "lines are not accounted for",
            "the shards together have another number of lines than their corpus",
        ],
    ),
    "a cut shard": Fault(
        cut("shards/web/*/tokens.bin", 0), check_corpus, quick_findings=["a shard is not whole"]
    ),
    "a link to the current version that is missing": Fault(
        remove("datasets/web/current"),
        check_corpus,
        quick_findings=["the link `current` is missing"],
    ),
    "a damaged table of documents": Fault(
        overwrite_in("shards/web/*/documents.parquet", -20, b"\xff" * 20),
        check_shards,
        quick_findings=["this is not the table of the shard's documents"],
        deep_findings=[OTHER_BYTES],
    ),
    "a changed list of rejected lines": Fault(
        replace_in("shards/web/*/rejects.jsonl", b"no json", b"so json"),
        check_shards,
        quick_findings=[],
        deep_findings=[OTHER_BYTES],
    ),
    "another magic number of an index": Fault(
        overwrite_in(INDEX, 0, b"X"),
        check_dataset,
        quick_findings=["not an index of an indexed dataset"],
        deep_findings=[OTHER_BYTES],
    ),
    "another type of tokens in an index": Fault(
        overwrite_in(INDEX, 17, b"\x04"),
        check_dataset,
        quick_findings=["sequence 1 has an impossible pointer"],
        deep_findings=[OTHER_BYTES],
    ),
    "a token that is not in the vocabulary": Fault(
        overwrite_in(TOKENS, 0, struct.pack("<H", 401)),
        check_dataset,
        quick_findings=["a token is not in the vocabulary"],
        deep_findings=[OTHER_BYTES],
    ),
    "another end token": Fault(
        overwrite_in(TOKENS, -2, struct.pack("<H", 7)),
        check_dataset,
        quick_findings=["a sequence does not begin and end with the tokens that it should"],
        deep_findings=[OTHER_BYTES],
    ),
    "another token": Fault(
        overwrite_in(TOKENS, 0, struct.pack("<H", 300)),
        check_dataset,
        quick_findings=["a document's source line gives other tokens"],
        deep_findings=[OTHER_BYTES],
    ),
    "a missing token file": Fault(remove(TOKENS), check_dataset, quick_findings=[MISSING]),
    "a missing index": Fault(remove(INDEX), check_dataset, quick_findings=[MISSING]),
    "a cut token file": Fault(
        cut(TOKENS, -2),
        check_dataset,
        quick_findings=[OTHER_SIZE, "the token file is shorter than its index says"],
    ),
    "a cut index file": Fault(
        cut(SHUFFLE_INDEX, -4),
        check_mappings,
        quick_findings=["an index file has another size than when it was written"],
    ),
    "a changed index file": Fault(
        overwrite_in(SHUFFLE_INDEX, -8, b"\1" + bytes(7)),
        check_mappings,
        quick_findings=[],
        deep_findings=["an index file has other bytes than when it was written"],
    ),
    "several damaged tars": Fault(
        damage_three_tars,
        check_webdataset,
        quick_findings=[MISSING, OTHER_SIZE],
        deep_findings=[MISSING, OTHER_SIZE, OTHER_BYTES],
    ),
    "a token in a tar that is not in the vocabulary": Fault(
        overwrite_in(TARS, FIRST_TOKEN_IN_TAR + 4, b"\xff\xff", file_number=2),
        check_webdataset,
        quick_findings=[WRONG_CONTEXT],
        deep_findings=[OTHER_BYTES],
    ),
    "another token in a tar": Fault(
        overwrite_in(TARS, FIRST_TOKEN_IN_TAR + 4, b"\1\0"),
        check_webdataset,
        quick_findings=[WRONG_CONTEXT],
        deep_findings=[OTHER_BYTES],
    ),
    "a header of a tar": Fault(
        overwrite_in(TARS, 148, b"7777777"),
        check_webdataset,
        quick_findings=["the header's checksum is wrong"],
        deep_findings=[OTHER_BYTES],
    ),
    "another count in the list of tars": Fault(
        replace_in(
            "webdatasets/shuffled/*/manifest.jsonl",
            b'"num_sequences":128',
            b'"num_sequences":129',
        ),
        check_webdataset,
        quick_findings=[OTHER_BYTES],
    ),
}


def check_beginnings(findings: Sequence[str], beginnings: Sequence[str]) -> None:
    """Check that a finding begins with each text, and that there is none if there is no text."""
    for beginning in beginnings:
        assert [finding for finding in findings if finding.startswith(beginning)], findings
    if not beginnings:
        assert findings == []


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_found_and_named(copy, fault):
    project = copy()
    fault.damage(project)

    findings = problems(fault.check(project, False))
    check_beginnings(findings, fault.quick_findings)
    assert len(findings) == len(fault.quick_findings), findings

    expected = fault.quick_findings if fault.deep_findings is None else fault.deep_findings
    check_beginnings(problems(fault.check(project, True)), expected)


@pytest.mark.parametrize("address", ["packed/web", "webdatasets/shuffled"])
def test_a_sound_output_is_not_blamed_for_a_damaged_dataset(copy, address):
    project = copy()
    tokens_file = first_file(project, TOKENS)
    overwrite(tokens_file, 0, struct.pack("<H", 300))

    [finding] = verify_at(project, address, deep=True).errors

    assert finding.what.startswith("the output datasets/web is damaged")
    assert finding.where == str(tokens_file)
    assert finding.remedy.startswith(f"delete {tokens_file.parent}, and run `nanoset build`")


def test_the_remedy_for_wrong_tokens_is_that_for_damaged_bytes(copy):
    project = copy()
    path = first_file(project, "packed/web/*/web.pbin")
    overwrite(path, 12, struct.pack("<H", 300))

    [finding] = verify_at(project, "packed/web", deep=True).errors

    assert finding.remedy == (
        f"delete {path.parent}, and run `nanoset build`, then `nanoset verify --deep`: "
        "outputs that were made from it may be damaged, too"
    )


@pytest.mark.parametrize("deep", [False, True])
def test_an_output_of_a_damaged_dataset_is_found_when_the_dataset_was_rebuilt(copy, deep):
    project = copy()
    # The dataset is as it was written, and the .pbin has another token.
    path = first_file(project, "packed/web/*/web.pbin")
    overwrite(path, 12, struct.pack("<H", 300))

    [finding] = verify_at(project, "packed/web", deep=deep).errors

    assert finding.what == "a token is not that of the dataset"
    assert finding.remedy.startswith(f"delete {path.parent}")


def test_the_remedy_for_damaged_bytes_says_to_verify_again(copy):
    project = copy()
    overwrite(first_file(project, TOKENS), 0, struct.pack("<H", 300))

    report = verify_at(project, "datasets/web", deep=True)

    assert "`nanoset verify --deep`" in report.errors[0].remedy


def zero_second_pointer(index: Path) -> None:
    """Let sequence 1 of an indexed dataset begin at byte 0, where sequence 0 begins, too."""
    n_sequences = int(np.frombuffer(index.read_bytes(), "<u8", 1, 18)[0])
    # A header of 34 bytes; the lengths (int32) and the pointers (int64) of all sequences; and
    # the documents (int64) after them.
    overwrite(index, 34 + 12 * n_sequences + 8, struct.pack("<q", 0))


def test_documents_that_are_not_where_their_shards_say_are_deep_findings(copy):
    project = copy()
    index = first_file(project, INDEX)
    # The index is consistent with itself and with its sha256.
    zero_second_pointer(index)
    manifest = index.with_name("manifest.json")
    content = json.loads(manifest.read_bytes())
    content["files"][index.name]["sha256"] = sha256_of(index)
    del content["sha256"]
    manifest.write_text(json.dumps(content))

    expected = "document 0 has another length than its shard says"
    assert expected in problems(verify_at(project, "datasets/web", deep=True))
    assert expected not in problems(verify_at(project, "datasets/web"))


# Warnings


@dataclass(frozen=True)
class Cause:
    """A change of a project that makes an output worth a warning."""

    change: Damage
    check: Check
    what: str
    """How the warning begins."""
    found: str | None = None
    """What the warning says was found; None if that is not compared."""


CAUSES = {
    "another tokenizer": Cause(change_tokenizer, check_dataset, "the tokenizer is not the one"),
    "other settings of a nanoset": Cause(
        change_settings("seed: 7", "seed: 8"),
        check_mappings,
        "this output is stale",
        found="seed: 7 → 8",
    ),
    "other settings of a webdataset": Cause(
        change_settings("seed: 5", "seed: 6"),
        check_webdataset,
        "this output is stale",
        found="seed: 5 → 6",
    ),
    "an uneven shuffle": Cause(
        change_fact_of(
            "shuffle_plans/shuffled/*/manifest.json",
            "quality",
            {"even": False, "rank_correlation": 0.5},
        ),
        check_webdataset,
        "the contexts are not shuffled as evenly as chance would have it",
    ),
}


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES.keys())
def test_an_output_that_is_sound_but_unlikely_intended_gets_a_warning(copy, cause):
    project = copy()
    cause.change(project)

    report = cause.check(project, False)

    assert report.passed
    (warning,) = [finding for finding in report.warnings if finding.what.startswith(cause.what)]
    if cause.found is not None:
        assert warning.found == cause.found


def test_more_rejected_lines_than_the_settings_allow_now_are_an_error(copy):
    project = copy()
    change_settings("max_rejected_fraction: 0.2", "max_rejected_fraction: 0.001")(project)

    report = check_shards(project, False)

    assert problems(report) == ["too many lines are no documents"]
    # They are reported once, not as a warning, too.
    assert problems(report, "warning") == []


@pytest.fixture
def changed_raw_file(copy) -> Path:
    """A raw file of a built project that was changed after the build."""
    project = copy()
    path = project.config.raw_folder / "web/part-0/web-1.jsonl"
    path.write_bytes(path.read_bytes().replace(b"model", b"modem"))
    return path


def project_of(raw_file: Path) -> Project:
    """Open the project of a raw file, which is in a folder of the corpus web."""
    return Project.open(raw_file.parents[3] / "nanoset.yaml")


def check_warning_of_changed_file(report: Report) -> None:
    """Check that a report warns of the documents of a changed file."""
    assert report.passed
    (warning, _) = problems(report, "warning")
    assert warning.startswith("a document's source line gives other tokens (")


def test_a_raw_file_that_was_changed_is_a_warning(changed_raw_file):
    report = verify_at(project_of(changed_raw_file), "datasets/web")

    check_warning_of_changed_file(report)
    assert "the file was changed since" in [finding.found for finding in report.warnings]


def test_a_large_raw_file_is_not_read_to_find_out_that_it_was_changed(
    changed_raw_file, monkeypatch
):
    monkeypatch.setattr("nanoset_core.lineage.texts.MOST_HASHED_BYTES", 0)
    monkeypatch.setattr("nanoset_core.lineage.texts.StoredPiece.check", None)

    report = verify_at(project_of(changed_raw_file), "datasets/web")

    check_warning_of_changed_file(report)
    assert "the file was changed since" not in [finding.found for finding in report.warnings]


def test_a_raw_file_that_was_deleted_is_a_warning(changed_raw_file):
    changed_raw_file.unlink()

    report = verify_at(project_of(changed_raw_file), "datasets/web")

    (warning, _) = problems(report, "warning")
    assert warning.startswith("a file of the corpus is missing (")


def test_raw_files_that_are_not_read_are_warnings(copy):
    project = copy()
    folder = project.config.raw_folder / "web"
    (folder / "notes.doc").touch()
    (folder / "empty.jsonl").touch()

    report = verify_at(project, "inventory/web")

    assert problems(report, "warning") == [
        "1 file is not read: 1 .doc (notes.doc)",
        "1 file is empty: empty.jsonl",
    ]
    for finding in report.findings:
        assert finding.remedy
        assert finding.where == str(folder)
    assert verify_output(project, "web").findings[:2] == report.findings


def test_a_raw_folder_in_which_nothing_is_read_is_a_warning(copy):
    project = copy()
    (project.config.raw_folder / "c4").mkdir()

    first_report, *_ = verify_project(project)

    assert first_report.output == "raw"
    assert first_report.passed
    assert problems(first_report, "warning") == ["a folder in which nothing is read: it is empty"]


def test_a_raw_file_that_is_a_dangling_link_is_a_warning(copy):
    project = copy()
    (project.config.raw_folder / "web/dangling.jsonl").symlink_to("nowhere")

    report = verify_at(project, "inventory/web")

    assert report.passed
    assert report.findings[0].where.endswith("dangling.jsonl")


def test_documents_whose_mean_length_changed_little_are_no_warning(copy):
    project = copy()
    file = project.config.raw_folder / "code" / "more.jsonl"
    file.write_bytes(jsonl(sentences("more", 5)))
    make_corpora(project, "code")

    report = verify_at(project, "datasets/code")

    assert report.findings == []
    assert report.figures["tokens_per_document"] != report.figures["tokens_per_document_before"]


def test_documents_whose_mean_length_changed_much_are_a_warning(copy):
    project = copy()
    file = project.config.raw_folder / "code" / "more.jsonl"
    file.write_bytes(jsonl([{"id": "long", "text": "a word and another " * 20_000}]))
    make_corpora(project, "code")

    report = verify_at(project, "datasets/code")

    assert report.passed
    assert problems(report, "warning") == [
        "documents have another length than in the previous version"
    ]
    assert "nanoset diff code" in report.findings[0].remedy


# Index files of nanosets


@pytest.mark.parametrize("ending", ["sample_index.npy", "description.txt", "nanoset.json"])
def test_an_index_file_that_is_missing_is_named(copy, ending):
    project = copy()
    description = cache_file(project, "pretrain", "train", "description.txt")
    path = description.with_name(description.name.replace("description.txt", ending))
    path.rename(path.with_name("away"))

    report = verify_output(project, "pretrain/train")
    assert [finding.where for finding in report.findings] == [str(path)]

    path.with_name("away").rename(path)
    assert verify_output(project, "pretrain/train").passed


@pytest.mark.parametrize(
    ("output", "kind"), [("index_mappings", "GPTDataset"), ("blend", "BlendedDataset")]
)
def test_a_note_on_index_files_in_which_a_value_changed_is_an_error(copy, output, kind):
    project = copy()
    cache = project.outputs.folder / "nanosets/pretrain/cache"
    for note in cache.glob(f"*-{kind}-train-nanoset.json"):
        content = json.loads(note.read_bytes())
        content["made_from"]["description"] = "0" * 32
        note.write_text(json.dumps(content), encoding="utf-8")

    report = verify_at(project, f"nanosets/pretrain/train/{output}")

    assert {finding.what for finding in report.errors} == {
        "the receipt of what index files were made from does not say what was planned and written"
    }
    assert "description: " in report.errors[0].found


def change_entry(path: Path, entry: int, value: int) -> None:
    """Change an entry of an array in a file; rows are counted as if they were concatenated."""
    array = np.load(path)
    array.reshape(-1)[entry] = value
    np.save(path, array)


@pytest.mark.parametrize(
    ("array", "entry", "value"),
    [
        ("document", 3, ONE_MILLION),
        ("shuffle", 3, ONE_MILLION),
        ("sample", 8, ONE_MILLION),
        ("sample", 9, ONE_MILLION),
        ("sample", 9, -1),
    ],
)
def test_entries_outside_the_dataset_are_found(copy, array, entry, value):
    project = copy()
    path = cache_file(project, "plain", "train", f"{array}_index.npy")
    change_entry(path, entry, value)

    report = verify_at(project, "nanosets/plain/train/index_mappings")

    assert problems(report) == ["an index file has other bytes than when it was written"]
    [finding] = report.findings
    assert finding.where == str(path)
    assert "delete the file" in finding.remedy


def test_each_of_several_damaged_index_files_is_reported_once(copy):
    project = copy()
    cache = project.outputs.folder / "nanosets/pretrain/cache"
    paths = sorted(cache.glob("*-GPTDataset-train-sample_index.npy"))
    for path in paths:
        change_entry(path, 9, ONE_MILLION)

    report = verify_at(project, "nanosets/pretrain/train/index_mappings")

    assert len(paths) > 1
    assert sorted(finding.where for finding in report.errors) == [str(path) for path in paths]


def test_entries_outside_the_dataset_that_were_written_so_are_found(copy):
    project = copy()
    path = cache_file(project, "plain", "train", "sample_index.npy")
    change_entry(path, 9, ONE_MILLION)
    record_changed_file(project, path, "sample_index.npy", "plain/train/index_mappings")

    report = verify_at(project, "nanosets/plain/train/index_mappings")

    assert problems(report) == ["the index files don't fit the dataset"]


def record_changed_file(project: Project, path: Path, ending: str, output: str) -> None:
    """Let manifest and note say that a changed index file is the one that was written.

    Args:
        project: The project.
        path: The index file.
        ending: How its name ends, where that of its note ends with `nanoset.json`.
        output: The output of the nanoset that it belongs to, such as `plain/train/blend`.
    """
    sha256 = sha256_of(path)
    manifest = first_file(project, f"nanosets/{output}/*/manifest.json")
    facts_of_files = json.loads(manifest.read_bytes())["facts"]["cache_files"]
    facts_of_files[path.name]["sha256"] = sha256
    change_facts(manifest, cache_files=facts_of_files)
    note = path.with_name(path.name.replace(ending, "nanoset.json"))
    content = json.loads(note.read_bytes())
    content["files"][path.name]["sha256"] = sha256
    note.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("array", "row"), [("document_index", 2), ("sample_index", 1), ("shuffle_index", 2)]
)
def test_entries_that_the_plan_does_not_give_are_found_deeply(copy, array, row):
    project = copy()
    path = cache_file(project, "plain", "train", f"{array}.npy")
    other_entry = np.load(path).reshape(-1)[4]
    change_entry(path, 2, other_entry)
    record_changed_file(project, path, f"{array}.npy", "plain/train/index_mappings")

    report = verify_at(project, "nanosets/plain/train/index_mappings", deep=True)

    assert problems(report)[0] == f"entry {row} of {array} is not what the plan gives"


def test_large_index_files_are_not_rebuilt_to_compare(copy, monkeypatch):
    project = copy()
    monkeypatch.setattr("nanoset_core.stages.mappings.verify.MAX_REBUILT_ENTRIES", 10)
    monkeypatch.setattr("nanoset_core.sampling.cache.build_member_indices", None)
    monkeypatch.setattr("nanoset_core.sampling.cache.build_blend_indices", pytest.fail)

    report = verify_output(project, "pretrain/train", deep=True)

    assert report.passed
    assert report.figures["entries_not_rebuilt"] > 10


def test_a_blend_with_a_sample_that_does_not_exist_is_an_error(copy):
    project = copy()
    path = cache_file(project, "pretrain", "train", "dataset_sample_index.npy")
    change_entry(path, 0, ONE_MILLION)

    report = verify_at(project, "nanosets/pretrain/train/blend")

    assert problems(report) == ["an entry of the blend leads nowhere"]


def test_a_blend_with_another_sample_than_planned_is_found_deeply(copy):
    project = copy()
    path = cache_file(project, "pretrain", "train", "dataset_sample_index.npy")
    change_entry(path, 0, ONE_MILLION)
    record_changed_file(project, path, "dataset_sample_index.npy", "pretrain/train/blend")

    report = verify_at(project, "nanosets/pretrain/train/blend", deep=True)

    expected = "entry 0 of dataset_sample_index is not what the plan gives"
    assert expected in problems(report)


def test_a_blend_with_a_dataset_that_does_not_exist_names_it(copy):
    project = copy()
    path = cache_file(project, "pretrain", "train", "dataset_index.npy")
    change_entry(path, 0, 7)

    report = verify_at(project, "nanosets/pretrain/train/blend")

    assert report.errors[0].found.endswith(" of dataset 7")


def test_index_files_of_another_dataset_are_stale(copy):
    project = copy()
    # Megatron-LM would train on the index files of the old dataset without a warning.
    index = first_file(project, "datasets/books/*/*.idx")
    zero_second_pointer(index)

    report = verify_at(project, "nanosets/plain/train/index_mappings")

    assert problems(report) == [
        "index files are stale: the dataset is not the one that they were made from"
    ]
    assert report.errors[0].where == str(index)
