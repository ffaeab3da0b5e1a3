"""Which corpora a section of `contamination` searches, and what training reads of them.

A dataset in training is a corpus, a view (a selection of a corpus's documents) or a pack (documents
joined into longer sequences). A view with `clean_of: [evals]` leaves out the documents in which the
section `evals` found a text, so it may be read even if its corpus is contaminated.
"""

from __future__ import annotations

from collections.abc import Iterator

from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.views.settings import base_of, chain_of


def names_in_training(config: ProjectConfig) -> list[str]:
    """Return the datasets that training reads, in whatever format, each once.

    Args:
        config: The settings of the project. The train splits of its nanosets, its webdatasets and
            its pbin files count.

    Returns:
        Names of corpora, and of datasets that are derived from them, such as `["web", "packed"]`.
    """
    names = list(_names_in_nanosets(config))
    for webdataset in config.webdatasets.values():
        names.extend(webdataset.corpora)
    names.extend(config.pbin)
    return list(dict.fromkeys(names))


def _names_in_nanosets(config: ProjectConfig) -> Iterator[str]:
    """Yield the datasets that the train splits of nanosets read."""
    for nanoset in config.nanosets.values():
        for name in nanoset.corpora:
            if nanoset.trains_on(name):  # the others are only for validation or test
                yield name


def searched_corpora(config: ProjectConfig, section: str) -> list[str]:
    """Return the corpora that a section searches: those that it names, or all used in training.

    Args:
        config: The settings of the project.
        section: Name of a section of `contamination`.
    """
    named_corpora = config.contamination[section].of
    if named_corpora:
        return list(named_corpora)
    corpora = [base_of(config.derived, name) for name in names_in_training(config)]
    return list(dict.fromkeys(corpora))


def is_clean(config: ProjectConfig, section: str, name: str) -> bool:
    """Return whether a dataset leaves out the documents that a section of `contamination` found.

    A view does if its `clean_of` names the section, and so do datasets that are derived from it.

    Args:
        config: The settings of the project.
        section: Name of the section.
        name: Name of the dataset: a corpus, or a dataset that is derived from one.

    Returns:
        For example, True for a view with `clean_of: [evals]` and the section `evals`.
    """
    if name not in config.derived:  # a corpus holds all its documents
        return False
    for dataset in chain_of(config.derived, name):  # and those that it is derived from
        view = config.views.get(dataset)
        if view is not None and section in view.clean_of:
            return True
    return False


def contaminated_inputs_of_training(config: ProjectConfig, section: str, corpus: str) -> list[str]:
    """Return the datasets by which training reads the contaminated documents of a corpus.

    For example, of the corpus `web`, training may read `web` itself and the view `web_clean`, which
    leaves the contaminated documents out. Then the result is `["web"]`.

    Args:
        config: The settings of the project.
        section: Name of a section of `contamination`, which says what counts as contaminated.
        corpus: Name of the corpus.

    Returns:
        Names of the corpus itself, and of views and packs of it that do not leave these documents
        out.
    """
    return [
        name
        for name in names_in_training(config)
        if base_of(config.derived, name) == corpus and not is_clean(config, section, name)
    ]
