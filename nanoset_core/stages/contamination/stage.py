"""The stage `contamination`: find the documents of a corpus that contain evaluation texts.

Each section of `contamination` in nanoset.yaml names evaluation files, and the corpora that are
searched for their texts.

What searches documents is imported in the methods that need it. Every command imports this module,
but few of them search documents, and `nanoset status` has to start quickly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError, StaleError, one_line
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.contamination.names import (
    EVALUATION_LAYOUT,
    FOLDER,
    LAYOUT,
    SHARD_LAYOUT,
    VERSION,
)
from nanoset_core.stages.contamination.scope import is_clean, searched_corpora
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.stage import (
    AFTER,
    Forbidding,
    InternalStage,
    Key,
    Node,
    Planned,
    ReadingBudget,
    Summary,
    require,
)
from nanoset_core.stages.views.settings import base_of


class ContaminationStage(Planned, Forbidding):
    """Finds the documents of a corpus that contain evaluation texts.

    The subject of a key is a section of `contamination`, the part is a corpus.
    """

    layout = LAYOUT
    kind = FOLDER
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        for section in config.contamination:
            for corpus in searched_corpora(config, section):
                yield Key(section, corpus, requested_at=f"contamination.{section}.of")

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"dataset": Node(DATASET, Key(key.required_part))}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        from nanoset_core.stages.contamination.make import contamination_recipe

        return contamination_recipe(project, key, parents)

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.contamination.make import find_contamination

        return find_contamination(project, key.subject, key.required_part)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        # Imported here: every command imports this module, but few of them verify outputs.
        from nanoset_core.stages.contamination.verify import verify_contamination

        return verify_contamination(project, key, deep=deep)

    def check_allowed(self, project: Project, key: Key, manifest: Manifest) -> None:
        """Check that no document of a corpus contains an evaluation text.

        If the section of the evaluation sets `policy: block`, files for training on the corpus are
        only made if this check passes.

        Args:
            project: The project.
            key: Its `subject` is the section of `contamination`, its `part` the corpus.
            manifest: The result of the search.

        Raises:
            ForbiddenError: A document does. The error quotes it.
        """
        from nanoset_core.stages.contamination.verify import check_not_contaminated

        check_not_contaminated(project, key, manifest)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe | None, reading: ReadingBudget
    ) -> str | None:
        """Return why a search for evaluation texts cannot be made, or None if it can.

        This is asked before a build starts, so that it does not fail after hours: a file with these
        texts may be missing, or may be named twice.

        Args:
            project: The project, whose nanoset.yaml names the files.
            key: Its `subject` is the section of `contamination` that names them.
            recipe: Has a digest of the files; None if it is not known yet, because text was not
                read.
            reading: Not used: files that have not changed since an earlier call are not read.

        Returns:
            The error as one line of text.
        """
        from nanoset_core.stages.contamination.evaluation import evaluation_files

        try:
            files = evaluation_files(project, key.subject)  # finds the files, or raises an error
            if recipe is not None:  # then they were read for it, as far as that is possible
                for group in files:
                    group.check_readable()
        except NanosetError as error:
            return one_line(error)
        return None

    def show(self, project: Project, manifest: Manifest) -> Summary:
        from nanoset_core.stages.contamination.show import contamination_summary

        return contamination_summary(project, manifest)

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        """Yield the digests of the index of evaluation texts, and of each shard's result.

        Args:
            outputs: Not used.
            manifest: The result for a corpus, whose facts name these outputs.
        """
        yield str(manifest.facts["evaluation"])
        for digest in manifest.facts[SHARDS]:
            yield str(digest)


CONTAMINATION = ContaminationStage()
INTERNAL = (
    InternalStage(EVALUATION_LAYOUT, CONTAMINATION),
    InternalStage(SHARD_LAYOUT, CONTAMINATION),
)
"""Stages of the outputs to which a result of this stage refers by their digests."""


def searches_before_training(config: ProjectConfig, names: Iterable[str]) -> dict[str, Node]:
    """Return the searches for evaluation texts that must be finished before a training run starts.

    With `policy: block`, a run is refused if it would read a document with an evaluation text. So
    the files that the run reads have the result of the search as an input, which decides whether
    they may be made. For example, for the evaluation `evals` and a run that reads the corpus `web`:

        {"after evals of web": the search of web for texts of evals}

    Args:
        config: The project's settings.
        names: The datasets that the run is going to read.

    Returns:
        Name of the input → the search, which is an output of the pipeline.
    """
    dataset_names = list(names)
    searches = {}
    for section, spec in config.contamination.items():
        if spec.policy == "block":
            for corpus in _corpora_to_search(config, section, dataset_names):
                # Inputs whose name begins with "after " only have to be made before. They are not
                # read.
                input_name = f"{AFTER}{section} of {corpus}"
                # The stage of the pipeline, and which of its outputs
                searches[input_name] = Node(CONTAMINATION, Key(section, corpus))
    return searches


def _corpora_to_search(config: ProjectConfig, section: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the corpora of some datasets whose documents may contain texts of an evaluation.

    A dataset is a corpus, or a selection of its documents. Some selections leave out all documents
    with such texts: their corpora are not yielded.

    Args:
        config: The project's settings.
        section: Name of the evaluation, a section of `contamination`.
        names: The datasets, such as those that a training run reads.
    """
    corpora_of_evaluation = set(searched_corpora(config, section))
    for name in names:
        corpus = base_of(config.derived, name)
        if corpus in corpora_of_evaluation and not is_clean(config, section, name):
            yield corpus


def contaminated_documents(project: Project, section: str, corpus: str) -> NDArray[np.int64]:
    """Return the documents of a corpus that contain evaluation texts, to leave them out.

    Args:
        project: The project.
        section: Which evaluation texts: a key of `contamination` in nanoset.yaml, such as "evals".
        corpus: Name of the corpus.

    Returns:
        Numbers of documents in the current version of the corpus, such as [3, 17]; int64,
        ascending.

    Raises:
        MissingError: The corpus has not been searched.
        StaleError: Another version than the current one was searched.
    """
    from nanoset_core.stages.contamination.matches import documents_in_matches

    # This command makes the search, and no other outputs.
    build_search = f"run `nanoset build --select {section}/{corpus}`"
    search = require(project, CONTAMINATION, Key(section, corpus), remedy=f"{build_search} first")

    # The numbers that were found are those of the documents in the version that was searched.
    dataset = require(project, DATASET, Key(corpus))
    searched_digest = search.recipe["parents"]["dataset"]
    if searched_digest != dataset.digest:
        raise StaleError(
            "another dataset than the current one was searched for evaluation texts",
            where=search.url(),
            expected=dataset.url(),
            remedy=build_search,
        )
    return documents_in_matches(search)
