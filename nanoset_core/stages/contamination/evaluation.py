"""The texts of a section's evaluation files, indexed so that documents can be searched for them.

The index is a separate output: it is built once, and used for all corpora of the section.
"""

from __future__ import annotations

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
    """Index the texts of a section's evaluation files, unless that was done before.

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
    recipe = Recipe(
        stage=EVALUATION_LAYOUT.folder,
        name=section,
        version=VERSION,
        parents={},  # it is made from no other output
        options=evaluation_options(project, section),
    )

    def write(folder: Path) -> Written:
        """Write the index to the folder of its version."""
        return Written(_write_evaluation(project, section, folder))

    return project.outputs.commit(recipe, write)


def evaluation_options(project: Project, section: str) -> dict[str, Any]:
    """Return everything that decides which texts are looked for, as options of a recipe.

    Args:
        project: The project.
        section: A section of `contamination` in nanoset.yaml.
    """
    spec = project.config.contamination[section]
    try:
        file_groups = _given_files(project, section)  # one for each pattern of file names
        contents = [[list(group.names), group.digest] for group in file_groups]
    except (MissingError, InputError):
        contents = []  # `make_evaluation` reports the error
    return {
        "files": contents or _MISSING,  # a recipe is needed even if files cannot be read
        "text_keys": list(spec.keys),
        "ngram": spec.ngram,
        "tokenizer": project.tokenizer.fingerprint,
    }


def evaluation_files(project: Project, section: str) -> list[GivenFiles]:
    """Return the files whose texts are looked for in documents, by name or pattern.

    Args:
        project: The project.
        section: A section of `contamination` in nanoset.yaml, which names files and patterns.

    Raises:
        ConfigError: Two of its names lead to the same file.
        MissingError: A name leads to no file.
        InputError: A folder cannot be read.
    """
    groups = _given_files(project, section)
    paths: list[RawFolder] = []
    for group in groups:
        paths.extend(group.folder / name for name in group.names)

    # Patterns and links may lead to the same file.
    repeated_paths = first_repeated(paths)
    if repeated_paths is not None:
        raise ConfigError(
            "a file of evaluations is named twice",
            where=f"{project.config.file}: contamination.{section}.files",
            found=names_of_both(*repeated_paths),
            expected="each file once, by whatever path, pattern or link",
            remedy="remove one of the names, or the link",
        )
    return groups


def _given_files(project: Project, section: str) -> list[GivenFiles]:
    """Return the files of each of a section's patterns."""
    patterns = project.config.contamination[section].patterns
    key = f"contamination.{section}.files"
    return [given_files(project, pattern, key) for pattern in patterns]


def _write_evaluation(project: Project, section: str, folder: Path) -> dict[str, int]:
    """Write an index of a section's evaluation texts, and a table of their files and lines.

    Args:
        section: A section of `contamination` in nanoset.yaml.
        folder: The folder to write to.

    Returns:
        Counts of texts and n-grams, for the manifest.
    """
    spec = project.config.contamination[section]

    # The engine divides a text into tokens, and the vocabulary knows the words in each token.
    tokenizer_file = project.config.tokenizer_file
    engine = reference_engine(tokenizer_file)
    vocabulary = word_vocabulary(tokenizer_file)
    collector = TextCollector(engine, vocabulary)

    # Files are numbered in the order of the section, and texts in the order of their lines.
    file_names: list[str] = []
    for group in evaluation_files(project, section):
        for file in group.stats:
            file_number = len(file_names)
            texts = read_texts(group.folder, file, spec.keys)
            collector.add(file_number, texts, group.folder / file.path)
            file_names.append(file.path)

    index = collector.index(spec.ngram)
    Evaluation(vocabulary, index).save(folder)
    _write_origins(folder / TEXTS_FILE, collector, file_names)
    return evaluation_facts(collector, index)


def _write_origins(path: Path, collector: TextCollector, file_names: list[str]) -> None:
    """Write the table that names the file and the line of each text.

    Args:
        path: The table, a Parquet file.
        collector: The collected texts.
        file_names: Name of each file, by its number.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file_numbers = pa.array([origin.file for origin in collector.origins], pa.int64())
    lines = pa.array([origin.line for origin in collector.origins], pa.int64())
    table = pa.table({"file": pa.array(file_names).take(file_numbers), "line": lines})
    pq.write_table(table, path, compression="zstd")
