"""Projects whose documents hold texts of an evaluation file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from helpers.building import make_corpora, open_project
from helpers.inspecting import current_output
from helpers.sample_project import WORDS, jsonl, write_corpus
from nanoset_core.project.project import Project
from nanoset_core.stages.contamination.make import find_contamination
from nanoset_core.stages.contamination.matches import MATCHES

QUESTIONS = [
    "If two sailors walk 17 miles to the old harbour of Lisbon, how tired are their seven donkeys?",
    "A painter mixes nine buckets of blue with a cup of yellow; "
    "which wall of the windmill does she finish on Friday?",
    "Bakers in Antwerp sell bread by weight. "
    "Does a wet loaf cost more than its flour did last winter?",
]
SETTINGS = {
    "tokenization": {"range_mib": 0.005, "workers": 1},
    "contamination": {"evals": {"files": "evals/*.jsonl", "text_keys": ["question"]}},
    "nanosets": {"plain": {"blend": "web", "sequence_length": 16, "split": "1,0,0"}},
    "views": {"clean": {"of": "web", "clean_of": ["evals"]}},
}


def documents_with(n_documents: int, plants: Mapping[int, str]) -> list[dict[str, str]]:
    """Return documents d0, d1, … of which some hold a planted text: number → text."""
    documents = []
    for number in range(n_documents):
        text = " ".join(WORDS[number * (k + 3) % len(WORDS)] for k in range(30))
        plant = plants.get(number, "")
        documents.append({"id": f"d{number}", "text": f"{text} {plant}\n{text}"})
    return documents


def searched_project(
    folder: Path,
    tokenizer_file: Path,
    files: Mapping[str, Sequence[Mapping[str, str]]],
    questions: Sequence[str],
) -> Path:
    """Build a corpus `web`, search it for questions, and return the path of nanoset.yaml.

    Args:
        folder: Folder of the project.
        tokenizer_file: Of the project.
        files: Name → documents of the files of the corpus.
        questions: Lines of evals/a.jsonl.
    """
    config = write_corpus(folder, tokenizer_file, SETTINGS)
    shutil.rmtree(folder / "raw")
    (folder / "raw" / "web").mkdir(parents=True)
    for name, documents in files.items():
        (folder / "raw" / "web" / name).write_bytes(jsonl(documents))
    write_questions(folder / "evals" / "a.jsonl", questions)

    project = open_project(config)
    make_corpora(project)
    find_contamination(project, "evals", "web")
    return config


def write_questions(path: Path, questions: Sequence[str]) -> None:
    """Write an evaluation file."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(jsonl({"question": question} for question in questions))


def with_settings(project: Project, section: str, **changes: Any) -> Project:
    """Change settings of `contamination.evals`, `nanosets.plain` …, and open the project again.

    Args:
        project: The project.
        section: Path of the section, with dots.
        changes: Key → value.
    """
    settings = json.loads(project.config.file.read_text())
    target = settings
    for name in section.split("."):
        target = target[name]
    target.update(changes)
    project.config.file.write_text(json.dumps(settings))
    return open_project(project.config.file)


def places_of_matches(project: Project) -> list[tuple[object, ...]]:
    """Return (document, its file, line and id, file and line of the evaluation text) of matches."""
    columns = ["document", "file", "line", "id", "evaluation_file", "evaluation_line"]
    matches = current_output(project, "contamination/evals/web").path(MATCHES)
    rows = pq.read_table(matches).select(columns).to_pylist()
    return [tuple(row.values()) for row in rows]
