"""Names, version and facts of the stage `attributes`, and its settings of a corpus.

Attributes are values of a corpus's documents in other tables, such as scores, which are joined by
the documents' ids.
"""

from __future__ import annotations

from nanoset_core.errors import ConfigError, one_of, remedy_for_name
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.shards.settings import AttributesSpec

VERSION = 1
STAGE = "attributes"
TABLES_FOLDER = "attribute_tables"
"""Folder of the tables, below the root; one version for each shard."""
PROGRESS_NAME = "document_attributes"
"""What the work is called while it runs."""

MISSING = "missing"
"""Fact: documents without a row in the attribute tables."""
WITHOUT_ID = "without_id"
"""Fact: those of them that have no id."""
DUPLICATES = "duplicates"
"""Fact: documents whose id has several rows."""
UNMATCHED = "unmatched"
"""Fact: ids of the attribute tables that no document has."""
COUNTS = (MISSING, WITHOUT_ID, DUPLICATES, UNMATCHED)
FIRST_MISSING = "first_missing"
"""Fact: the first id of a document without a row, or empty."""
ROWS = "rows"
"""Fact: rows of the attribute tables."""


def files_setting(corpus: str) -> str:
    """Return the key of nanoset.yaml that names the attribute tables of a corpus, for messages.

    Args:
        corpus: Name of the corpus, such as "web" for "attributes.web.files".
    """
    return f"{STAGE}.{corpus}.files"


def attributes_spec(config: ProjectConfig, corpus: str) -> AttributesSpec:
    """Return which tables have further values of a corpus's documents, such as scores.

    They are named in nanoset.yaml:

        attributes: {web: scores/*.parquet}

    Args:
        config: The settings of the project.
        corpus: Name of the corpus, a collection of texts, such as "web".

    Raises:
        ConfigError: nanoset.yaml names no such tables for the corpus.
    """
    spec = config.attributes_of(corpus)
    if spec is None:
        raise ConfigError(
            "no tables of attributes are named",
            where=f"{config.file}: {STAGE}",
            found=corpus,
            expected=one_of(config.attributes, "none: it is empty"),
            remedy=remedy_for_name(
                corpus, config.attributes, f"name some there: {{{corpus}: scores/*.parquet}}"
            ),
        )
    return spec
