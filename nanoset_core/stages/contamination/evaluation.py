"""The texts of a section's evaluation files, indexed so that documents can be searched for them.

The section `contamination.evals` of nanoset.yaml with `files: evals/*.jsonl` has one index of the
texts in all these files. The index is a separate output: it is built once, and used for all corpora
that the section searches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.project.project import Project
from nanoset_core.stages.contamination.collector import TextCollector, evaluation_facts
from nanoset_core.stages.contamination.layouts import EVALUATION_LAYOUT
from nanoset_core.stages.contamination.search import Evaluation
from nanoset_core.stages.contamination.texts import read_texts
from nanoset_core.stages.contamination.token_bytes import word_vocabulary
from nanoset_core.stages.given_files import GivenFiles, given_files
from nanoset_core.storage.identity import first_repeated, names_of_both
from nanoset_core.storage.location import RawFolder
from nanoset_core.tokenizers.engines.reference import reference_engine

VERSION = 1
TEXTS_FILE = "texts.parquet"
"""Table of the file and the line of each text."""
_MISSING = "missing"
"""In recipes, what replaces the digests of evaluation files that cannot be read."""


def make_evaluation(project: Project, section: str) -> Manifest:
    """Index the texts of a section's evaluation files, unless such an index exists.

    The index says where each run of a few words, such as "how tired are they", occurs in the texts,
    so that documents with the same run are found.

    Args:
        project: The project.
        section: A section of `contamination` in nanoset.yaml.

    Returns:
        Manifest of the index, which is an output of its own.

    Raises:
        ConfigError: Two names of the section lead to the same file.
        MissingError: A file is missing.
        InputError: A file contains no text at the section's keys.
        FormatError: A file cannot be read.
    """
    # The recipe is everything that the index depends on; its digest names the index.
    recipe = Recipe(
        stage=EVALUATION_LAYOUT.folder,
        name=section,
        version=VERSION,
        parents={},  # it is made from no other output
        options=evaluation_options(project, section),
    )

    def write_index(folder: Path) -> Written:
        """Write the files of the index to an empty folder, and return its facts."""
        facts = _write_evaluation(project, section, folder)
        return Written(facts)

    # This calls `write_index`, unless an index with the same recipe exists.
    return project.outputs.commit(recipe, write_index)


def evaluation_options(project: Project, section: str) -> dict[str, Any]:
    """Return everything that decides which texts are looked for, as options of a recipe.

    A recipe is what an output is made from. If it changes, the output is rebuilt.

    Args:
        project: The project, with its settings and tokenizer.
        section: A section of `contamination` in nanoset.yaml.

    Returns:
        Such as `{"files": [[["a.jsonl"], "3f9a…"]], "text_keys": ["text"], "ngram": 5, "tokenizer":
        "51c0…"}`. "files" is "missing" if the files cannot be read.
    """
    spec = project.config.contamination[section]
    return {
        "files": _file_digests(project, section) or _MISSING,
        "text_keys": list(spec.keys),
        "ngram": spec.ngram,
        "tokenizer": project.tokenizer.fingerprint,
    }


def _file_digests(project: Project, section: str) -> list[list[Any]]:
    """Return the names of a section's evaluation files, and a digest of their content.

    Args:
        project: The project.
        section: A section of `contamination` in nanoset.yaml, which names files and patterns.

    Returns:
        One list `[names, digest]` for each name or pattern in the section. It is empty if files are
        missing: a recipe is needed even then, and `make_evaluation` reports the error.
    """
    try:
        file_groups = _given_files(project, section)
        return [[list(group.names), group.digest] for group in file_groups]
    except (MissingError, InputError):
        return []


def evaluation_files(project: Project, section: str) -> list[GivenFiles]:
    """Return the evaluation files of a section: those of each name or pattern, together.

    Args:
        project: The project.
        section: A section of `contamination` in nanoset.yaml, which names files and patterns.

    Raises:
        ConfigError: Two of its names lead to the same file.
        MissingError: A name leads to no file.
        InputError: A folder cannot be read.
    """
    groups = _given_files(project, section)
    _check_no_file_twice(groups, where=f"{project.config.file}: contamination.{section}.files")
    return groups


def _check_no_file_twice(groups: Sequence[GivenFiles], where: str) -> None:
    """Raise an error if two names, patterns or links lead to the same evaluation file.

    Args:
        groups: The files of each name or pattern.
        where: The setting that names them, for the message.

    Raises:
        ConfigError: Two paths lead to the same file.
    """
    paths: list[RawFolder] = []
    for group in groups:
        paths.extend(group.folder / name for name in group.names)

    repeated_paths = first_repeated(paths)
    if repeated_paths is not None:
        raise ConfigError(
            "a file of evaluations is named twice",
            where=where,
            found=names_of_both(*repeated_paths),
            expected="each file once, by whatever path, pattern or link",
            remedy="remove one of the names, or the link",
        )


def _given_files(project: Project, section: str) -> list[GivenFiles]:
    """Return the files of each of a section's patterns."""
    patterns = project.config.contamination[section].patterns
    key = f"contamination.{section}.files"
    return [given_files(project, pattern, key) for pattern in patterns]


def _write_evaluation(project: Project, section: str, folder: Path) -> dict[str, int]:
    """Write an index of a section's evaluation texts, and a table of their files and lines.

    Args:
        project: The project, with the tokenizer by which texts are divided into words.
        section: A section of `contamination` in nanoset.yaml.
        folder: The folder to write to.

    Returns:
        Counts of texts and n-grams, for the manifest.
    """
    # The engine divides a text into tokens, and the vocabulary knows the words in each token.
    tokenizer_file = project.config.tokenizer_file
    engine = reference_engine(tokenizer_file)
    vocabulary = word_vocabulary(tokenizer_file)

    collector = TextCollector(engine, vocabulary)
    file_names = _collect_texts(collector, project, section)

    index = collector.index(project.config.contamination[section].ngram)
    Evaluation(vocabulary, index).save(folder)
    _write_origins(folder / TEXTS_FILE, collector, file_names)
    return evaluation_facts(collector, index)


def _collect_texts(collector: TextCollector, project: Project, section: str) -> list[str]:
    """Add the texts of a section's evaluation files to a collector, and return the files' names.

    Files are numbered in the order of the section: number 0 is the first file that it names.

    For example, the section `files: [quiz.jsonl, maths/*.jsonl]` gives `["quiz.jsonl", "a.jsonl",
    "b.jsonl"]`.

    Args:
        collector: Receives the texts, in the order of files and of their lines.
        project: The project.
        section: A section of `contamination` in nanoset.yaml.

    Returns:
        Name of each file, by its number.
    """
    text_keys = project.config.contamination[section].keys
    file_names: list[str] = []
    for group in evaluation_files(project, section):  # the files of one name or pattern
        for file in group.stats:  # path, size and time of each file
            texts = read_texts(group.folder, file, text_keys)
            collector.add(file=len(file_names), texts=texts, path=group.folder / file.path)
            file_names.append(file.path)
    return file_names


def _write_origins(path: Path, collector: TextCollector, file_names: list[str]) -> None:
    """Write the table that names the file and the line of each evaluation text.

    Row k is about text k: `quiz.jsonl`, line 3.

    Args:
        path: The table, a Parquet file.
        collector: The collected texts.
        file_names: Name of each file, by its number.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # One row for each text. Replace the number of its file by the file's name.
    file_numbers = pa.array([origin.file for origin in collector.origins], pa.int64())
    names = pa.array(file_names).take(file_numbers)
    lines = pa.array([origin.line for origin in collector.origins], pa.int64())
    pq.write_table(pa.table({"file": names, "line": lines}), path, compression="zstd")
