"""List the corpora that nanoset.yaml names, and check that the raw folder has them.

A corpus is named in its own section, `corpora`, or by an output that is made from it: a nanoset
with `blend: web` names the corpus `web`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from nanoset_core.errors import ConfigError, remedy_for_name
from nanoset_core.project.graph.nodes import requested_nodes
from nanoset_core.project.settings import ProjectConfig, with_lines
from nanoset_core.text.files.endings import ACCEPTED


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
    """Check the names of text collections (corpora) in the settings.

    A corpus is a folder of raw text. Two mistakes are possible:

        blend: wbe              a training reads `wbe`, but there is no such folder: "did you mean
                                web?"
        views: {web: …}         a view (a selection of documents) has the name of a corpus

    Args:
        config: The settings of nanoset.yaml.
        known: Names of the corpora that exist, such as {"web"}.

    Raises:
        ConfigError: There are such mistakes. The error lists all of them, with their lines.
    """
    errors: list[ConfigError] = []
    for name in config.derived:  # views and similar datasets
        if name in known:
            errors.append(_shared_name(config, name))

    # Report each corpus once, at the first place that names it.
    reported: set[str] = set()
    for mention in _mentions(config):
        if mention.corpus not in known and mention.corpus not in reported:
            errors.append(_unknown_corpus(config, mention, known))
            reported.add(mention.corpus)
    if errors:
        raise with_lines(errors, config.file)


def _mentions(config: ProjectConfig) -> Iterator[_Mention]:
    """Yield every place in the settings that names a text collection (corpus).

    For example, `corpora: {web: …}` names the corpus `web`, and so does `blend: web` in the section
    "nanosets.pretrain".

    Args:
        config: The settings of nanoset.yaml.

    Yields:
        The path of the key, and the name of the corpus.
    """
    for corpus in config.corpora:
        yield _Mention(f"corpora.{corpus}", corpus)

    # Many other keys request an output that is made from a corpus. Instead of looking at each of
    # these keys, ask every requested output what it is made from.
    for node in requested_nodes(config):
        for input_node in node.inputs(config).values():
            if input_node.is_of_corpus:
                yield _Mention(node.key.requested_at, corpus=input_node.key.subject)


def _shared_name(config: ProjectConfig, name: str) -> ConfigError:
    """Return the error that a collection of texts (corpus) and another dataset have the same name.

    For example, there is a folder `web` of raw text, and a view (a selection of documents) is named
    `web`, too. Then `blend: web` could mean either.

    Args:
        config: The settings.
        name: The name.
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
    """Return the error that the settings name a text collection (corpus) that cannot be read.

    A corpus is a folder of raw text. It may exist without text, or not exist at all.

    Args:
        config: The settings.
        mention: The name, and the place in nanoset.yaml that has it.
        known: Names of the corpora that exist.
    """
    folder = config.corpus_folder(mention.corpus)
    remedy = f"put its files ({ACCEPTED}) into {folder}, or take it out of {config.file.name}"
    if folder.is_dir():
        problem = "this corpus has no text that could be read"
    else:
        problem = "this corpus is not in the raw folder"
        # The user may have misspelt the name of a corpus, or of a selection of documents (a view).
        possible_names = [*known, *config.derived]
        remedy = remedy_for_name(mention.corpus, possible_names, remedy)
    return ConfigError(
        problem,
        where=f"{config.file}: {mention.key}",  # such as nanosets.pretrain.blend
        found=f"{mention.corpus!r}; {_existing_names(config, known)}",
        remedy=remedy,
    )


def _existing_names(config: ProjectConfig, corpora: Collection[str]) -> str:
    """Return a clause that lists all names that the settings can refer to.

    For example: "/data/raw has web, code, and nanoset.yaml has web-en".

    Args:
        config: The settings, which may define selections of documents.
        corpora: Names of the text collections (corpora) that exist.
    """
    text = f"{config.raw_folder} has {', '.join(corpora) or 'no corpora'}"
    if config.derived:
        text += f", and {config.file.name} has {', '.join(config.derived)}"
    return text
