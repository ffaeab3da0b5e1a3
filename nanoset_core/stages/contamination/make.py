"""Search the dataset of a corpus for evaluation texts, shard by shard.

The result for each shard is a separate output, whose facts are the matches. After text has been
appended to a corpus, only its new shards are searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from nanoset_core.errors import StaleError
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, despite_lost_copies
from nanoset_core.stages.contamination.evaluation import evaluation_options, make_evaluation
from nanoset_core.stages.contamination.layouts import LAYOUT, SHARD_LAYOUT, SHARDS, STAGE, VERSION
from nanoset_core.stages.contamination.matches import match_rows, write_matches
from nanoset_core.stages.contamination.search import Evaluation, Match
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.sharded import DocumentsTask, Sharded, make_of_documents
from nanoset_core.stages.stage import Key, require
from nanoset_core.storage.leases import leased


def contamination_recipe(project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
    """Return everything that decides what a section finds in a corpus.

    An output whose recipe has changed is stale, and is made again.

    Args:
        project: The project, with its settings and tokenizer.
        key: The section of `contamination` in nanoset.yaml, and the corpus.
        parents: `{"dataset": digest}`: which version of the corpus's dataset is searched.

    Returns:
        The recipe, with the evaluation files and settings as options.
    """
    options = evaluation_options(project, key.subject)
    options["threshold"] = project.config.contamination[key.subject].threshold
    return Recipe(STAGE, LAYOUT.name_of(key), VERSION, parents, options)


def find_contamination(project: Project, section: str, corpus: str) -> Manifest:
    """Find the documents of a corpus that contain evaluation texts, and return the result.

    The result is a table of these documents, each with the text and the line that it comes from.

    Args:
        project: The project.
        section: A section of `contamination` in nanoset.yaml, which names evaluation files.
        corpus: The corpus.

    Returns:
        Manifest of the result, which becomes the current version of the output.

    Raises:
        MissingError: The dataset has not been built, or an evaluation file is missing.
        StaleError: The dataset was made with another tokenizer.
        InputError: An evaluation file holds no text.
        FormatError: An evaluation file cannot be read.
    """
    access = project.outputs.access
    # The lease keeps `nanoset gc` from deleting outputs of the section and the corpus.
    with leased(access, {section, corpus}, subject=section):
        # If another process removes a local copy of a file in a bucket, the search starts again.
        return despite_lost_copies(access, lambda: _search_corpus(project, section, corpus))


def _search_corpus(project: Project, section: str, corpus: str) -> Manifest:
    """Search a corpus for the evaluation texts of a section, unless a result for both exists.

    Args:
        project: The project.
        section: A section of `contamination` in nanoset.yaml, which names evaluation files.
        corpus: The corpus.

    Returns:
        Manifest of the result, which becomes the current version of the output.
    """
    # The recipe consists of everything that decides the result: dataset, texts and threshold.
    outputs = project.outputs
    dataset = _current_dataset(project, corpus)
    recipe = contamination_recipe(project, Key(section, corpus), {"dataset": dataset.digest})

    result = None if project.rebuild else outputs.find(recipe)
    if result is None:
        evaluation = make_evaluation(project, section)
        result = _search_dataset(project, recipe, evaluation, Sharded.of(project, dataset))
    return outputs.make_current(result)


def _search_dataset(
    project: Project, recipe: Recipe, evaluation: Manifest, sharded: Sharded
) -> Manifest:
    """Search all shards of a dataset for evaluation texts, and commit the table of matches.

    Args:
        project: The project.
        recipe: The recipe of the result for the whole corpus.
        evaluation: The index of evaluation texts.
        sharded: The corpus's dataset and its shards.

    Returns:
        Manifest of the result.
    """
    # Search each shard, which is a range of the dataset's documents. The result of a shard is an
    # output of its own, which its digest identifies.
    shard_digests = _search_shards(project, recipe, evaluation, sharded)

    # Join these results to one table. A row says which document of the raw text has which text.
    matches = _matches(project.outputs, recipe.name, sharded, shard_digests)
    rows = match_rows(project, sharded, evaluation, matches)

    def write(folder: Path) -> Written:
        """Write the table of all matches, and return the facts of the result."""
        facts = {
            "documents": int(sharded.document_bounds[-1]),  # the end of the last shard
            "evaluation": evaluation.digest,
            SHARDS: shard_digests,
            **write_matches(folder, rows),
        }
        # Repeat the counts of the evaluation texts, as `evaluation_texts` and so on.
        for name, count in evaluation.facts.items():
            facts[f"evaluation_{name}"] = count
        return Written(facts)

    return project.outputs.commit(recipe, write)


def _search_shards(
    project: Project, recipe: Recipe, evaluation: Manifest, sharded: Sharded
) -> list[str]:
    """Search the shards of a corpus that have not been searched for these texts yet.

    A shard is a range of the corpus's documents. If text is appended to the corpus, it is in new
    shards, so only these are searched.

    Args:
        project: The project.
        recipe: The recipe of the result for the whole corpus, named after section and corpus.
        evaluation: The index of evaluation texts.
        sharded: The corpus's dataset and its shards.

    Returns:
        The digest of each shard's result, which is an output of its own.
    """
    shard_recipes = _shard_recipes(recipe, evaluation, sharded)
    # This skips shards whose result exists, and runs the other tasks on all processes or machines.
    return make_of_documents(
        project,
        sharded,
        shard_recipes,
        partial(SearchTask, evaluation=evaluation),
        activity=STAGE,
        subject=recipe.name.replace("/", " "),  # for the progress: "evals web"
    )


def _current_dataset(project: Project, corpus: str) -> Manifest:
    """Return the current dataset of a corpus, which must have been made with today's tokenizer.

    Args:
        project: The project, with its present tokenizer.
        corpus: The corpus.

    Raises:
        MissingError: The dataset has not been built.
        StaleError: The dataset was made with another tokenizer than the evaluation texts will be.
    """
    dataset = require(project, DATASET, Key(corpus))
    if dataset.recipe["options"]["tokenizer"] != project.tokenizer.fingerprint:
        raise StaleError(
            "the dataset was made with another tokenizer",
            where=dataset.url(),
            remedy="run `nanoset build`",
        )
    return dataset


def _shard_recipes(recipe: Recipe, evaluation: Manifest, sharded: Sharded) -> list[Recipe]:
    """Return the recipe of each shard's result, which names all that the result depends on.

    That is the index of evaluation texts, the shard, and the share of a text that has to match.

    Args:
        recipe: The recipe of the result for the whole corpus.
        evaluation: The index of evaluation texts.
        sharded: The corpus's dataset and its shards.
    """
    options = {"threshold": recipe.options["threshold"]}
    recipes = []
    for shard in sharded.shards:
        # The whole dataset is not named, so that the result stays valid when shards are added.
        parents = {"evaluation": evaluation.digest, "shard": shard}
        recipes.append(Recipe(SHARD_LAYOUT.folder, recipe.name, VERSION, parents, options))
    return recipes


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask(DocumentsTask):
    """Searches the documents of one shard for evaluation texts."""

    evaluation: Manifest
    """The index of evaluation texts."""

    def write(self, folder: Path) -> Written:
        """Search the documents of one shard for evaluation texts, in a worker process.

        The matches are few, so they are stored in the manifest and not in a file.

        Args:
            folder: Folder of the output. No file is written to it.

        Returns:
            The matches, as a fact of the output's manifest.
        """
        # In this process, the outputs may be in another folder than in the one that made the task.
        evaluation_manifest = self.root.rebase(self.evaluation)
        evaluation = _load_evaluation(_local_folder(evaluation_manifest))
        dataset = open_dataset(self.root.rebase(self.dataset))
        matches = evaluation.search(
            dataset,
            first=self.first,
            count=self.count,
            threshold=self.recipe.options["threshold"],
        )

        # Count documents from the start of the shard, whose place in the dataset may change. The
        # rows have the fields of `Match`, in their order.
        rows = []
        for match in matches:
            document_in_shard = match.document - self.first
            rows.append([document_in_shard, match.text, match.share, match.words])
        return Written({"matches": rows})


def _local_folder(manifest: Manifest) -> Path:
    """Return the folder of an output's files, and download them if they are in a bucket."""
    for name in manifest.files:
        manifest.path(name)  # downloads the file
    return manifest.folder


@lru_cache(maxsize=2)
def _load_evaluation(folder: Path) -> Evaluation:
    """Return the evaluation in a folder; cached, since a worker searches many shards with it."""
    return Evaluation.load(folder)


def _matches(
    outputs: OutputRoot, name: str, sharded: Sharded, shard_digests: Sequence[str]
) -> list[Match]:
    """Return the matches in all shards, with documents numbered in the whole dataset.

    A match is a document that contains an evaluation text, or much of it.

    Args:
        outputs: The project's outputs.
        name: Name of the result.
        sharded: The corpus's dataset and its shards.
        shard_digests: The digest of each shard's result.
    """
    matches_by_shard = outputs.each_version(
        _matches_in_shard, SHARD_LAYOUT.folder, name, shard_digests
    )

    # Document 7 of a shard that starts at document 1000 is document 1007 of the dataset.
    first_documents = sharded.document_bounds[:-1].tolist()
    matches = []
    for first_document, shard_matches in zip(first_documents, matches_by_shard, strict=True):
        for match in shard_matches:
            document = first_document + match.document
            matches.append(match._replace(document=document))
    return matches


def _matches_in_shard(outputs: OutputRoot, folder: Path) -> list[Match]:
    """Return the matches in a shard, with documents numbered from the start of the shard."""
    manifest = outputs.manifest_at(folder)
    if manifest is None:
        return []
    return [Match(*row) for row in manifest.facts["matches"]]
