"""List the corpora that nanoset.yaml names, and check that the raw folder has them.

A corpus is named in its own section, `corpora`, or by an output that is made from it: a nanoset
with `blend: web` names the corpus `web`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from nanoset_core.errors import ConfigError, remedy_for_name
from nanoset_core.project.graph import requested_nodes
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.text.endings import ACCEPTED


@dataclass(frozen=True, slots=True)
class _Mention:
    """A place in nanoset.yaml that names a corpus."""

    key: str
    """Path of the key."""
    corpus: str


def requested_corpora(config: ProjectConfig) -> set[str]:
    """Return the corpora that nanoset.yaml names, whether they exist or not.

    Args:
        config: The settings of nanoset.yaml.
    """
    return {mention.corpus for mention in _mentions(config)}


def check_requested_corpora(config: ProjectConfig, known: Collection[str]) -> None:
    """Check that the corpora in nanoset.yaml exist, and that no view or packs have such a name.

    Args:
        config: The settings of nanoset.yaml.
        known: Names of the corpora of the raw folder.

    Raises:
        ConfigError: A corpus does not exist, or shares its name with a derived dataset.
    """
    for name in config.derived:
        if name in known:
            raise _shared_name(config, name)
    for mention in _mentions(config):
        if mention.corpus not in known:
            raise _unknown_corpus(config, mention, known)


def _mentions(config: ProjectConfig) -> Iterator[_Mention]:
    """Yield every place in nanoset.yaml that names a corpus.

    Args:
        config: The settings of nanoset.yaml.

    Yields:
        First the settings of corpora, then the outputs that are made from corpora.
    """
    for corpus in config.corpora:
        yield _Mention("corpora", corpus)
    # A setting such as `blend: web` of a nanoset makes the dataset of `web` an input of an output.
    for node in requested_nodes(config):
        for input_node in node.inputs(config).values():
            if input_node.is_of_corpus:
                key_in_yaml = node.key.requested_at  # such as nanosets.pretrain
                yield _Mention(key_in_yaml, corpus=input_node.key.subject)


def _shared_name(config: ProjectConfig, name: str) -> ConfigError:
    """Return the error for a derived dataset, such as a view, with the name of a corpus.

    Args:
        config: The settings.
        name: The name that both have.
    """
    section = config.section_of(name)
    return ConfigError(
        f"a corpus and an entry of `{section}` share a name",
        where=f"{config.file}: {section}.{name}",
        found=name,
        remedy=f"rename the entry of `{section}`",
    )


def _unknown_corpus(
    config: ProjectConfig, mention: _Mention, known: Collection[str]
) -> ConfigError:
    """Return the error for a corpus that the raw folder does not have, or that has no text.

    Args:
        config: The settings.
        mention: The corpus, and the place in nanoset.yaml that names it.
        known: The corpora that the raw folder has.
    """
    folder = config.corpus_folder(mention.corpus)
    where = f"{config.file}: {mention.key}.{mention.corpus}"  # such as nanosets.pretrain.web
    existing = f"{', '.join(known) or 'no corpora'} in {config.raw_folder}"
    remedy = f"put its files ({ACCEPTED}) into {folder}, or take it out of {config.file.name}"
    if folder.is_dir():
        return ConfigError(
            "this corpus has no text that could be read", where=where, found=existing, remedy=remedy
        )

    # The name may be misspelt: suggest a similar name of a corpus, or of a view or packs.
    similar_names = [*known, *config.derived]
    return ConfigError(
        "this corpus is not in the raw folder",
        where=where,
        found=existing,
        remedy=remedy_for_name(mention.corpus, similar_names, remedy),
    )
