"""Find out why a column that should have numbers has texts, for the error of a condition.

A column has one type in the whole corpus. So a single text, such as the quality "n/a", makes all
numbers of its column texts, and the condition `quality >= 3` cannot be computed any more. The error
names a document with such a text.
"""

from __future__ import annotations

from nanoset_core.document_tables.conditions import ColumnTypeError
from nanoset_core.errors import ConfigError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.views.tables import DOCUMENT_COLUMNS, document_values, origin_texts

_MAX_DOCUMENTS = 4_000_000
"""Documents of a corpus up to which a text is searched for: this takes some seconds."""
_MAX_CHARACTERS = 60
"""Longer texts are cut off."""
_NUMBER = r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"
"""How numbers are written that became texts."""


def naming_a_text(error: ColumnTypeError, project: Project, dataset: Manifest) -> ConfigError:
    """Add to an error which text is in a column that should have numbers, if that is found quickly.

    For example, the condition `quality > 3` is an error if `quality` has texts. The user is told of
    one of them: "…, but quality is 'n/a' in web/part-0.jsonl:17, id 'x1'".

    Args:
        error: The error: a condition does not fit the type of its column.
        project: The project.
        dataset: The dataset of the corpus.

    Returns:
        An error that says which document has which text. Or the same error if the column was not
        compared with numbers, is one that nanoset itself writes, or would take long to read.
    """
    column = error.text_column
    if column is None or column in DOCUMENT_COLUMNS:
        return error
    is_large = dataset.facts["documents"] > _MAX_DOCUMENTS
    is_in_bucket = project.outputs.access.takes_requests  # all tables would have to be downloaded
    if is_large or is_in_bucket:
        return error

    text_found = _first_text(project, dataset, column)
    if text_found is None:
        found = f"{error.found}, but all values of {column} are numbers that are stored as texts"
        remedy = f"compare {column} with texts, or set documents.csv_values: json for CSV files"
    else:
        found = f"{error.found}, but {column} is {text_found}"
        remedy = f"correct this value and others like it, or compare {column} with texts"
    return ConfigError(
        error.what, where=error.where, found=found, expected=error.expected, remedy=remedy
    )


def _first_text(project: Project, dataset: Manifest, column: str) -> str | None:
    """Return the first text of a column that is not a number, with its document.

    Args:
        project: The project.
        dataset: The dataset of the corpus.
        column: The column, which has texts.

    Returns:
        Such as "'n/a' in web/part-0.jsonl:17, id 'x1'"; None if all texts are numbers.
    """
    import pyarrow.compute as pc

    for values in document_values(project, dataset.name, dataset, [column]):
        texts = values.columns[column]  # (n_documents,)
        is_number = pc.match_substring_regex(texts, _NUMBER)  # null for documents without a value
        row = pc.index(is_number, False).as_py()  # -1 if all are numbers
        if row >= 0:
            text = texts[row].as_py()[:_MAX_CHARACTERS]
            document = int(values.numbers[row])
            origin = origin_texts(project, dataset, [document])[document]
            return f"{text!r} in {origin}"
    return None
