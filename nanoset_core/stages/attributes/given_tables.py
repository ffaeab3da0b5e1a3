"""Which tables nanoset.yaml names for a corpus: `attributes: {web: scores/*.parquet}`."""

from __future__ import annotations

from nanoset_core.errors import ConfigError, one_of, remedy_for_name
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.attributes.names import FOLDER
from nanoset_core.stages.attributes.settings import AttributesSpec


def files_setting(corpus: str) -> str:
    """Return the key of nanoset.yaml that names the attribute tables of a corpus, for messages.

    Args:
        corpus: Name of the corpus, such as "web" for "attributes.web.files".
    """
    return f"{FOLDER}.{corpus}.files"


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
            where=f"{config.file}: {FOLDER}",
            found=corpus,
            expected=one_of(config.attributes, "none: it is empty"),
            remedy=remedy_for_name(
                corpus, config.attributes, f"name some there: {{{corpus}: scores/*.parquet}}"
            ),
        )
    return spec
