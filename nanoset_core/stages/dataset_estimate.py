"""Estimate the tokens of a corpus, a view or packs, before they are built.

A build needs this to know whether the disk is large enough for what it makes of them.
"""

from __future__ import annotations

from collections.abc import Callable

from nanoset_core.errors import NanosetError
from nanoset_core.project.project import Project
from nanoset_core.stages.stage import Key, current_version
from nanoset_core.stages.text_estimate import TextEstimate
from nanoset_core.stages.views.settings import base_of
from nanoset_core.stages.views.stage import VIEW


def estimated_dataset_bytes(
    project: Project, name: str, text_of: Callable[[str], TextEstimate]
) -> int:
    """Estimate how many bytes the tokens of a dataset take.

    Args:
        project: Its tokenizer decides how many bytes a token has.
        name: Name of a corpus, a view or packs.
        text_of: Returns an estimate of the text of a corpus.
    """
    n_tokens = estimated_dataset_tokens(project, name, text_of)
    return int(n_tokens * project.tokenizer.dtype.itemsize)


def estimated_dataset_tokens(
    project: Project, name: str, text_of: Callable[[str], TextEstimate]
) -> float:
    """Estimate how many tokens a dataset has.

    For example, if the corpus `web` has about 1,000 tokens:

        the corpus `web`                                       1,000
        a view that had 30 % of web when it was built          300
        a view that was not built yet                          1,000, since it may have all of them
        the same with `tokens: 200`, a limit                   200
        the same with `split: {keep: [0, 0.1]}`                100
        packs                                                  those of the corpus or view in them

    Args:
        project: Its settings name the views and packs. Its outputs are searched for views.
        name: Name of a corpus, a view or packs.
        text_of: Returns an estimate of the text of a corpus.
    """
    config = project.config
    if name in config.packs:
        return estimated_dataset_tokens(project, config.packs[name].of, text_of)
    if name not in config.views:
        return text_of(name).tokens

    corpus = base_of(config.derived, name)
    share = built_share(project, corpus, name)
    if share is not None:
        return text_of(corpus).tokens * share

    # The view chooses from its corpus, or from another view, which may repeat documents.
    view = config.views[name]
    n_tokens = estimated_dataset_tokens(project, view.of, text_of)
    is_of_corpus = view.of == corpus
    if view.split is not None and is_of_corpus:  # in a view, equal hashes may choose all or nothing
        start, stop = view.split.keep
        n_tokens *= stop - start

    # The settings limit how many tokens are chosen. Then each document may be repeated.
    limits = [n_tokens]
    if view.tokens is not None:
        limits.append(view.tokens)
    if view.top is not None and view.top.tokens is not None:
        limits.append(view.top.tokens)
    return min(limits) * view.repeat


def built_share(project: Project, corpus: str, view: str) -> float | None:
    """Return which share of its corpus's tokens a view has, such as 0.3.

    It is the share of the current version, which may be of other text or settings than the next
    one: this is an estimate.

    Args:
        project: Its outputs are searched.
        corpus: Name of the corpus.
        view: Name of the view.

    Returns:
        The share; None if the view was not built, cannot be read, or is of a corpus without tokens.
    """
    # Imported here: every command imports this module, but few of them estimate sizes.
    from nanoset_core.stages.views.facts import step_rows

    try:
        manifest = current_version(project, VIEW, Key(corpus, view)).manifest
    except NanosetError:
        return None
    if manifest is None:
        return None

    n_corpus_tokens = step_rows(manifest.facts)[0].tokens  # before the first step of the choice
    if n_corpus_tokens == 0:
        return None
    return float(manifest.facts["tokens"] / n_corpus_tokens)
