"""Which corpora a section of `contamination` searches, and what training reads of them.

A dataset in training is a corpus, a view (a selection of a corpus's documents) or a pack (documents
joined into longer sequences). A view with `clean_of: [evals]` leaves out the documents in which the
section `evals` found a text, so it may be read even if its corpus is contaminated.
"""

from __future__ import annotations

from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.views.settings import base_of, chain_of


def names_in_training(config: ProjectConfig) -> list[str]:
    """Return the datasets that training runs read, in whatever file format, each once.

    Args:
        config: The settings of the project, which describe these runs.

    Returns:
        Names of corpora, and of datasets that are made from them, such as `["web", "whole"]`.
    """
    names: list[str] = []
    for nanoset in config.nanosets.values():
        names.extend(nanoset.trained_corpora)  # its others are only for validation or test
    for webdataset in config.webdatasets.values():
        names.extend(webdataset.corpora)
    names.extend(config.pbin)
    names.extend(export.of for export in config.exports.values())
    return list(dict.fromkeys(names))


def searched_corpora(config: ProjectConfig, section: str) -> list[str]:
    """Return the corpora that are searched for the texts of an evaluation.

        evals: {files: quiz.jsonl, of: [web]}    only web
        evals: {files: quiz.jsonl}               all corpora that training runs read

    Args:
        config: The settings of the project.
        section: Name of the evaluation: a section of `contamination`.
    """
    named_corpora = config.contamination[section].of
    if named_corpora:
        return list(named_corpora)
    # Training may read a selection of a corpus's documents: `base_of` returns its corpus.
    corpora = [base_of(config.derived, name) for name in names_in_training(config)]
    return list(dict.fromkeys(corpora))  # each once


def is_clean(config: ProjectConfig, section: str, name: str) -> bool:
    """Return whether a dataset leaves out the documents that contain texts of an evaluation.

        clean: {of: web, clean_of: [evals]}     yes, for `evals`
        a dataset that is made from `clean`     yes
        the corpus web itself                   no

    Args:
        config: The settings of the project.
        section: Name of the evaluation: a section of `contamination`.
        name: Name of the dataset.
    """
    if name not in config.derived:  # a corpus has all its documents
        return False
    # It may be made from a dataset that is made from another one: look at all of these.
    for dataset in chain_of(config.derived, name):
        view = config.views.get(dataset)  # None if it is not a selection of documents
        if view is not None and section in view.clean_of:
            return True
    return False


def contaminated_inputs_of_training(config: ProjectConfig, section: str, corpus: str) -> list[str]:
    """Return the datasets of training runs that have documents with texts of an evaluation.

    For example, some documents of the corpus `web` contain such texts. Training reads `web` itself,
    and a selection (view) `web_clean`, which leaves them out. Then the result is `["web"]`.

    Args:
        config: The settings of the project.
        section: Name of the evaluation: a section of `contamination`.
        corpus: Name of a corpus with such documents.

    Returns:
        Names of datasets: of the corpus itself, or of selections of its documents.
    """
    contaminated_names = []
    for name in names_in_training(config):
        is_of_corpus = base_of(config.derived, name) == corpus
        if is_of_corpus and not is_clean(config, section, name):
            contaminated_names.append(name)
    return contaminated_names
