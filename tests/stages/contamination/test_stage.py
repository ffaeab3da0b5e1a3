"""Contamination of a project's corpora: what is found where, policies, views without it, appends,
gc and a bucket.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from helpers.building import make_corpora, make_mappings, make_view
from helpers.inspecting import current_output, node_at
from helpers.sample_project import WORDS, jsonl, outputs_of, write_corpus
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.project.gc import collect
from nanoset_core.project.project import Project
from nanoset_core.project.settings import check_config
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.contamination import make as contamination
from nanoset_core.stages.contamination.matches import MATCHES, summarize
from nanoset_core.stages.contamination.stage import CONTAMINATION, contaminated_documents

QUESTIONS = [
    "If two sailors walk 17 miles to the old harbour of Lisbon, how tired are their seven donkeys?",
    "A painter mixes nine buckets of blue with a cup of yellow; which wall of the windmill does she finish on Friday?",
    "Bakers in Antwerp sell bread by weight. Does a wet loaf cost more than its flour did last winter?",
]
PLANTS = {
    4: QUESTIONS[0],
    17: QUESTIONS[2].upper().replace(" ", "\n"),
    23: QUESTIONS[1].replace("yellow", "green"),
}
SETTINGS = {
    "tokenization": {"range_mib": 0.005, "workers": 1},
    "contamination": {"evals": {"files": "evals/*.jsonl", "text_keys": ["question"]}},
    "nanosets": {"plain": {"blend": "web", "sequence_length": 16, "split": "1,0,0"}},
    "views": {"clean": {"of": "web", "clean_of": ["evals"]}},
}


def rows(count: int, plants: dict[int, str]) -> list[dict[str, str]]:
    texts = [
        " ".join(WORDS[number * (k + 3) % len(WORDS)] for k in range(30)) for number in range(count)
    ]
    return [
        {"id": f"d{number}", "text": f"{text} {plants.get(number, '')}\n{text}"}
        for number, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokenizer_file) -> Path:
    """A project that was looked through; not to be written to."""
    file = write_corpus(
        tmp_path_factory.mktemp("contamination") / "project", tokenizer_file, SETTINGS
    )
    shutil.rmtree(file.parent / "raw")
    for part, numbers in enumerate(({4, 17}, {23})):
        path = file.parent / "raw" / "web" / f"{part}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jsonl(rows(30, {one: PLANTS[one] for one in numbers})))
    (file.parent / "evals").mkdir()
    (file.parent / "evals" / "a.jsonl").write_bytes(jsonl({"question": text} for text in QUESTIONS))
    project = Project.open(file)
    make_corpora(project)
    contamination.find_contamination(project, "evals", "web")
    return file


@pytest.fixture
def project(made, tmp_path) -> Project:
    """A copy of it."""
    shutil.copytree(made.parent, tmp_path / "project", symlinks=True)
    return Project.open(tmp_path / "project" / "nanoset.yaml")


def with_policy(project: Project, policy: str, blend: str = "web") -> Project:
    settings = json.loads(project.config.file.read_text())
    settings["contamination"]["evals"]["policy"] = policy
    settings["nanosets"]["plain"]["blend"] = blend
    project.config.file.write_text(json.dumps(settings))
    return Project.open(project.config.file)


def found(project: Project) -> list[tuple[object, ...]]:
    manifest = current_output(project, "contamination/evals/web")
    columns = ("document", "file", "line", "id", "evaluation_file", "evaluation_line")
    table = pq.read_table(manifest.path(MATCHES)).to_pylist()
    return [tuple(row[name] for name in columns) for row in table]


EXPECTED = [
    (4, "0.jsonl", 5, "d4", "a.jsonl", 1),
    (17, "0.jsonl", 18, "d17", "a.jsonl", 3),
    (53, "1.jsonl", 24, "d23", "a.jsonl", 2),
]


def test_files_and_lines_of_both_are_named(project):
    assert found(project) == EXPECTED
    assert contaminated_documents(project, "evals", "web").tolist() == [4, 17, 53]
    first = current_output(project, "contamination/evals/web").facts["first"][0]
    assert first["share"] == 1.0
    assert first["words"].startswith("if two sailors walk 17 miles to the old harbour of lisbon")


@pytest.mark.parametrize(
    ("policy", "blend", "says"),
    [
        ("warn", "web", "warning"),
        ("warn", "clean", "warning"),
        ("block", "web", "error"),
        ("block", "clean", None),
        ("exclude", "web", "warning"),
        ("exclude", "clean", None),
    ],
)
def test_policies(project, policy, blend, says):
    project = with_policy(project, policy, blend)
    [report] = verify_project(project, ["evals"])
    assert [finding.severity for finding in report.findings] == ([says] if says else [])
    if says == "error":
        assert report.errors[0].where.endswith("raw/web/0.jsonl:5")
        assert "100% of a.jsonl:1: 'if two sailors" in str(report.errors[0].found)
        assert "clean_of: [evals] instead of web" in str(report.errors[0].remedy)
    search = node_at("contamination/evals/web")
    gate = {"after evals of web": search} if policy == "block" and blend == "web" else {}
    inputs = node_at("nanosets/plain/train/index_mappings").inputs(project.config)
    assert {name: node for name, node in inputs.items() if node.stage is search.stage} == gate
    made = make_mappings(project, "plain", "train") if blend == "web" else None
    assert made is None or set(made.recipe["parents"]) == {"web"}, (
        "a gate is no part of what is made behind it"
    )


def test_after_an_append_the_new_shards_alone_are_looked_through(project, monkeypatch):
    view = make_view(project, "clean")
    assert view.facts["documents"] == 57
    assert view.facts["steps"][-1][1] == "clean of evals"
    (project.config.file.parent / "raw" / "web" / "2.jsonl").write_bytes(
        jsonl(rows(25, {11: QUESTIONS[1]}))
    )
    make_corpora(project)
    looked = []
    work = contamination._search_shard
    monkeypatch.setattr(
        contamination,
        "_search_shard",
        lambda texts, task: looked.append(task.first) or work(texts, task),
    )
    contamination.find_contamination(project, "evals", "web")
    assert looked == [60]
    assert found(project) == [*EXPECTED, (71, "2.jsonl", 12, "d11", "a.jsonl", 2)]
    assert make_view(project, "clean").facts["documents"] == 81
    looked.clear()
    collect(project)
    shutil.rmtree(project.outputs.folder / contamination.STAGE)
    contamination.find_contamination(project, "evals", "web")
    assert not looked, "gc keeps what was found in shards"
    (project.config.file.parent / "evals" / "b.jsonl").write_bytes(
        jsonl([{"question": rows(2, {})[1]["text"]}])
    )
    contamination.find_contamination(project, "evals", "web")
    assert sorted(looked) == [0, 30, 60]
    assert len(found(project)) > 4


def test_what_is_not_there_is_said_and_what_cannot_be_is_refused(project):
    shutil.rmtree(project.config.file.parent / "evals")
    with pytest.raises(MissingError, match=r"contamination\.evals\.files"):
        contamination.find_contamination(project, "evals", "web")
    settings = json.loads(project.config.file.read_text())
    settings["views"]["clean"]["clean_of"] = ["evil"]
    settings["contamination"] = {"evals": {"files": [], "of": ["clean"]}, "plain": {"files": "x"}}
    _, errors = check_config(settings, project.config.file)
    assert sorted(error.what for error in errors) == [
        "a view is searched by way of its corpus",
        "no such section of contamination",
        "there is nothing to look for",
        "two things share a name",
    ]


@pytest.mark.parametrize(
    "files",
    [
        ["evals/a.jsonl", "evals/a.jsonl"],
        ["evals/*.jsonl", "./evals/a.jsonl"],
        ["evals", "linked/a.jsonl"],
    ],
)
def test_a_file_that_is_named_twice_is_refused(project, files):
    (project.config.file.parent / "linked").symlink_to("evals")
    settings = json.loads(project.config.file.read_text())
    settings["contamination"]["evals"]["files"] = files
    project.config.file.write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="named twice"):
        contamination.find_contamination(Project.open(project.config.file), "evals", "web")


def test_the_same_is_found_in_a_bucket(made, tmp_path, bucket):
    shutil.copytree(made.parent, tmp_path / "project", ignore=shutil.ignore_patterns("data"))
    file = tmp_path / "project" / "nanoset.yaml"
    settings = json.loads(file.read_text()) | {
        "root": bucket.url(),
        "storage": {"endpoint_url": bucket.endpoint_url},
    }
    file.write_text(json.dumps(settings))
    project = Project.open(file)
    make_corpora(project)
    contamination.find_contamination(project, "evals", "web")
    here = outputs_of(made)
    for name in (stored.name for stored in bucket.list("contamination")):
        if name.endswith(MATCHES):
            assert bucket.sha256(name) == here[name]
    shutil.rmtree(project.outputs.folder)  # the copies of this machine
    assert found(Project.open(file)) == EXPECTED
    assert make_view(project, "clean").facts["documents"] == 57


INSTRUCTION = "Read the passage below with care and answer the question with a single word, without any explanation."


@pytest.fixture(scope="module")
def boilerplate(tmp_path_factory, tokenizer_file) -> Path:
    """A project in which 120 documents hold an instruction, and two a question; not to be written
    to.
    """
    file = write_corpus(
        tmp_path_factory.mktemp("boilerplate") / "project", tokenizer_file, SETTINGS
    )
    shutil.rmtree(file.parent / "raw")
    plants = dict.fromkeys(range(120), INSTRUCTION) | {
        7: f"{INSTRUCTION} {QUESTIONS[0]}",
        130: QUESTIONS[1],
    }
    (file.parent / "raw" / "web").mkdir(parents=True)
    (file.parent / "raw" / "web" / "0.jsonl").write_bytes(jsonl(rows(140, plants)))
    (file.parent / "evals").mkdir()
    texts = [INSTRUCTION, *QUESTIONS]
    (file.parent / "evals" / "a.jsonl").write_bytes(jsonl({"question": text} for text in texts))
    project = Project.open(file)
    make_corpora(project)
    contamination.find_contamination(project, "evals", "web")
    return file


@pytest.fixture
def shared(boilerplate, tmp_path) -> Project:
    """A copy of it."""
    shutil.copytree(boilerplate.parent, tmp_path / "shared", symlinks=True)
    return Project.open(tmp_path / "shared" / "nanoset.yaml")


def made_of(project: Project):
    return current_output(project, "contamination/evals/web")


def test_boilerplate_that_many_documents_hold_is_reported_apart_with_counts(shared):
    question, instruction = CONTAMINATION.show(shared, made_of(shared)).warnings

    assert question.startswith(
        "2 documents hold texts of evals; 0.jsonl:8 holds 100% of a.jsonl:2: 'if two sailors"
    )
    assert instruction.startswith(
        "1 text of evals is in 100 documents or more, probably as boilerplate: 119 documents"
    )
    assert "120 hold 100% of a.jsonl:1: 'read the passage below" in instruction
    assert CONTAMINATION.show(shared, made_of(shared)).figures["contaminated"] == 2
    assert CONTAMINATION.show(shared, made_of(shared)).details["boilerplate only"] == "119"


def test_an_older_output_is_summarized_from_its_table(shared):
    made = made_of(shared)
    older = replace(
        made, facts={name: fact for name, fact in made.facts.items() if name != "boilerplate"}
    )

    assert list(CONTAMINATION.show(shared, older).warnings) == list(
        CONTAMINATION.show(shared, made).warnings
    )
    assert CONTAMINATION.show(shared, older).figures == CONTAMINATION.show(shared, made).figures


def test_a_block_names_boilerplate_apart_and_still_blocks(shared):
    [report] = verify_project(with_policy(shared, "block"), ["evals"])

    assert report.errors[0].what.startswith(
        "2 documents that training reads hold texts of evals; 1 text of evals is in"
    )
    assert report.errors[0].where.endswith("raw/web/0.jsonl:8")
    assert report.figures["contaminated"] == 2


def test_a_view_still_leaves_boilerplate_out(shared):
    assert make_view(shared, "clean").facts["documents"] == 140 - 121


def test_a_text_in_fewer_documents_is_no_boilerplate():
    row = {
        "file": "0.jsonl",
        "line": 1,
        "share": 1.0,
        "words": "a",
        "evaluation_file": "a.jsonl",
        "evaluation_line": 1,
    }
    matches = [{**row, "document": number} for number in range(99)]

    assert summarize(matches)[:4] == (99, matches[0], 0, 0)
    assert summarize([*matches, {**row, "document": 99}])[:4] == (0, None, 1, 100)
    assert summarize([])[:4] == (0, None, 0, 0)
