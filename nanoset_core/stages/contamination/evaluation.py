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
from nanoset_core.stages.contamination.names import EVALUATION_LAYOUT, EVALUATION_VERSION
from nanoset_core.stages.contamination.search import Evaluation
from nanoset_core.stages.contamination.texts import read_texts
from nanoset_core.stages.contamination.token_bytes import word_vocabulary
from nanoset_core.stages.given_files import GivenFiles, given_files
from nanoset_core.storage.location import Location
from nanoset_core.storage.reading.identity import first_repeated, names_of_both
from nanoset_core.tokenizers.engines.reference import reference_engine

TEXTS_FILE = "texts.parquet"
"""Table of the file and the line of each text."""
_MISSING = "missing"
"""In recipes, what replaces the digests of evaluation files that cannot be read."""


def make_evaluation(project: Project, section: str) -> Manifest:
    """Index the texts of evaluation files, so that copies of them can be found in documents.

    For example, the index says that the words "how tired are they" occur in text 3. It is made once
    for the same files and settings, and used for all collections of documents.

    Args:
        project: The project.
        section: A section of `contamination` in nanoset.yaml, which names the files.

    Returns:
        Manifest of the index, which is an output of its own.

    Raises:
        ConfigError: Two names of the section lead to the same file.
        MissingError: A file is missing.
        InputError: A file contains no text at the section's keys.
        FormatError: A file cannot be read.
    """

    def write_index(folder: Path) -> Written:
        """Write the files of the index to an empty folder, and return what is recorded of it."""
        facts = _write_evaluation(project, section, folder)
        return Written(facts)

    # A recipe is everything that the index depends on, such as the content of the files. If an
    # index with the same recipe exists, `commit` returns it. Otherwise it calls `write_index`.
    recipe = Recipe(
        stage=EVALUATION_LAYOUT.folder,
        name=section,
        version=EVALUATION_VERSION,
        parents={},  # outputs that it is made from; there are none
        options=evaluation_options(project, section),
    )
    return project.outputs.commit(recipe, write_index)


def evaluation_options(project: Project, section: str) -> dict[str, Any]:
    """Return everything that decides which evaluation texts are looked for in documents.

    It is stored with the result of a search. If it changes, the search is repeated. For example:

        {"files": [[["a.jsonl"], "3f9a…"]],    names of the files, and a digest of their content
         "text_keys": ["text"],                which part of each line is the text
         "ngram": 5,                           runs of 5 words are compared
         "tokenizer": "51c0…"}                 how texts are divided into tokens

    "files" is "missing" if the files cannot be read.

    Args:
        project: The project, with its settings and tokenizer.
        section: A section of `contamination` in nanoset.yaml.
    """
    spec = project.config.contamination[section]
    return {
        "files": _file_digests(project, section) or _MISSING,
        "text_keys": list(spec.keys),
        "ngram": spec.ngram,
        "tokenizer": project.tokenizer.fingerprint,
    }


def _file_digests(project: Project, section: str) -> list[list[Any]]:
    """Return the names of evaluation files, and a digest of their content, to notice changes.

    If files are missing, this returns an empty list instead of an error: the caller must be able to
    compare a result with the present files even then. `make_evaluation` reports the error.

    Args:
        project: The project.
        section: A section of `contamination` in nanoset.yaml, which names files and patterns.

    Returns:
        One list `[names, digest]` for each name or pattern: `[["maths/a.jsonl", "maths/b.jsonl"],
        "3f9a…"]` for `maths/*.jsonl`.
    """
    try:
        file_groups = _given_files(project, section)
        return [[list(group.names), group.digest] for group in file_groups]
    except (MissingError, InputError):
        return []


def evaluation_files(project: Project, section: str) -> list[GivenFiles]:
    """Find the evaluation files that a section of the settings names, each by a path or a pattern.

    For example, `files: [quiz.jsonl, maths/*.jsonl]` gives two groups: one with quiz.jsonl, and one
    with all files of the pattern.

    Args:
        project: The project.
        section: A section of `contamination` in nanoset.yaml.

    Raises:
        ConfigError: Two of its names lead to the same file.
        MissingError: A name leads to no file.
        InputError: A folder cannot be read.
    """
    groups = _given_files(project, section)
    _check_no_file_twice(groups, where=f"{project.config.file}: contamination.{section}.files")
    return groups


def _check_no_file_twice(groups: Sequence[GivenFiles], where: str) -> None:
    """Raise an error if the settings name the same evaluation file twice, by whatever path.

    For example, `files: [quiz.jsonl, "*.jsonl"]` names quiz.jsonl twice.

    Args:
        groups: The files of each name or pattern.
        where: The setting that names them, for the message.

    Raises:
        ConfigError: Two paths lead to the same file.
    """
    paths: list[Location] = []
    for group in groups:
        paths.extend(group.folder / name for name in group.names)

    repeated_paths = first_repeated(paths)  # two paths of one file, or None
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
    """Write an index of evaluation texts, such as the questions of a benchmark, to a folder.

    With the index, copies of these texts are found in documents. Documents are stored as tokens. So
    the texts are tokenized as well, and both are divided into words by the same table, which says
    what words each token of the vocabulary has.

    Args:
        project: The project, with the tokenizer of the documents.
        section: A section of `contamination` in nanoset.yaml, which names the evaluation files.
        folder: The folder to write to. It also gets a table that says from which file and line each
            text comes.

    Returns:
        Counts of texts and of runs of words, to be recorded.
    """
    tokenizer_file = project.config.tokenizer_file
    engine = reference_engine(tokenizer_file)
    vocabulary = word_vocabulary(tokenizer_file)
    collector = TextCollector(engine, vocabulary)
    file_names = _collect_texts(collector, project, section)

    words_per_run = project.config.contamination[section].ngram  # 13 for example
    index = collector.index(words_per_run)
    Evaluation(vocabulary, index).save(folder)
    _write_origins(folder / TEXTS_FILE, collector, file_names)
    return evaluation_facts(collector, index)


def _collect_texts(collector: TextCollector, project: Project, section: str) -> list[str]:
    """Read the texts of evaluation files into a collector, and return the names of the files.

    The collector knows a file by its number. For `files: [quiz.jsonl, maths/*.jsonl]`, file 0 is
    quiz.jsonl, file 1 is maths/a.jsonl, and file 2 is maths/b.jsonl.

    Args:
        collector: Gets the texts, in the order of files and of their lines.
        project: The project.
        section: A section of `contamination` in nanoset.yaml, which names the files.

    Returns:
        Name of each file, by its number.
    """
    text_keys = project.config.contamination[section].keys
    file_names: list[str] = []
    for group in evaluation_files(project, section):  # the files of `maths/*.jsonl`, for example
        for file in group.stats:  # each file, with its path, size and time
            file_number = len(file_names)
            texts = read_texts(group.folder, file, text_keys)
            collector.add(file_number, texts, path=group.folder / file.path)
            file_names.append(file.path)
    return file_names


def _write_origins(path: Path, collector: TextCollector, file_names: list[str]) -> None:
    """Write a table that says from which file and line each evaluation text comes.

        text    file          line
        0       quiz.jsonl    1
        1       quiz.jsonl    3

    Args:
        path: The table, a Parquet file. The number of the text is that of the row.
        collector: The collected texts, with the number of the file of each.
        file_names: Name of each file, by its number.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # One row for each text. Replace the number of its file by the file's name.
    file_numbers = pa.array([origin.file for origin in collector.origins], pa.int64())
    names = pa.array(file_names).take(file_numbers)
    lines = pa.array([origin.line for origin in collector.origins], pa.int64())
    pq.write_table(pa.table({"file": names, "line": lines}), path, compression="zstd")
