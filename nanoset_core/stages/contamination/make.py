"""Search the dataset of a corpus for evaluation texts, shard by shard.

The result for each shard is a separate output, whose facts are the matches. After text has been
appended to a corpus, only its new shards are searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from nanoset_core.errors import StaleError
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, despite_lost_copies
from nanoset_core.stages.contamination.evaluation import evaluation_options, make_evaluation
from nanoset_core.stages.contamination.matches import match_rows, write_matches
from nanoset_core.stages.contamination.names import FOLDER, LAYOUT, SHARD_LAYOUT, VERSION
from nanoset_core.stages.contamination.search import Evaluation, Match
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.sharded import DocumentsTask, Sharded, make_of_documents
from nanoset_core.stages.stage import Key, require
from nanoset_core.storage.in_use.leases import leased


def contamination_recipe(project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
    """Return everything that decides which evaluation texts are found in a corpus.

    It is stored with the result. If it changes, the corpus is searched again: for another version
    of the corpus, other evaluation files, or another threshold.

    Args:
        project: The project, with its settings and tokenizer.
        key: Which search: `subject` is the name of the evaluation, a section of `contamination` in
            nanoset.yaml, and `part` is the corpus.
        parents: `{"dataset": digest}`: which version of the corpus is searched.
    """
    evaluation = key.subject
    options = evaluation_options(project, evaluation)  # its files, and how texts are compared
    options["threshold"] = project.config.contamination[evaluation].threshold
    name = LAYOUT.name_of(key)  # such as "evals/web"
    return Recipe(FOLDER, name, VERSION, parents, options)


def find_contamination(project: Project, section: str, corpus: str) -> Manifest:
    """Find documents of a corpus that contain evaluation texts, such as benchmark questions.

    A model that is trained on these documents would get results that are too good. The result is a
    table of these documents, each with the text and the line that it comes from.

    Args:
        project: The project.
        section: A section of `contamination` in nanoset.yaml, which names evaluation files.
        corpus: The corpus, a collection of documents.

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
    """Search a corpus for evaluation texts, unless a result for the same texts and version exists.

    Args:
        project: The project.
        section: A section of `contamination` in nanoset.yaml, which names evaluation files.
        corpus: The corpus, a collection of documents.

    Returns:
        Manifest of the result, which becomes the current version of the output.
    """
    outputs = project.outputs
    dataset = _current_dataset(project, corpus)
    recipe = contamination_recipe(project, Key(section, corpus), {"dataset": dataset.digest})
    existing_result = None if project.rebuild else outputs.find(recipe)
    if existing_result is not None:
        return outputs.make_current(existing_result)

    evaluation = make_evaluation(project, section)  # an index of the texts
    result = _search_dataset(project, recipe, evaluation, Sharded.of(project, dataset))
    return outputs.make_current(result)


def _search_dataset(
    project: Project, recipe: Recipe, evaluation: Manifest, sharded: Sharded
) -> Manifest:
    """Search all documents of a corpus for evaluation texts, and store a table of the matches.

    A row of the table says which line of the raw text contains which evaluation text.

    Args:
        project: The project.
        recipe: What the result depends on: corpus, texts and settings. It is stored with it.
        evaluation: An index of the evaluation texts, in which passages are looked up.
        sharded: The tokenized documents of the corpus, which are divided into shards.

    Returns:
        The record that is stored with the table: what was searched, and how much was found.
    """
    shard_digests = _search_shards(project, recipe, evaluation, sharded)
    matches = _matches(project.outputs, recipe.name, sharded, shard_digests)
    rows = match_rows(project, sharded, evaluation, matches)
    facts: dict[str, Any] = {
        "documents": int(sharded.document_bounds[-1]),  # the end of the last shard
        "evaluation": evaluation.digest,
        SHARDS: shard_digests,
    }

    def write(folder: Path) -> Written:
        """Write the table to a new folder, and return what the record says about it."""
        match_counts = write_matches(folder, rows)  # such as {"contaminated": 12, …}
        return Written({**facts, **match_counts, **_facts_about_evaluation(evaluation)})

    return project.outputs.commit(recipe, write)  # makes the folder, and calls `write`


def _facts_about_evaluation(evaluation: Manifest) -> dict[str, Any]:
    """Return what was counted in evaluation texts, such as `{"evaluation_texts": 1319, …}`.

    Args:
        evaluation: Manifest of the index of the texts.
    """
    return {f"evaluation_{name}": value for name, value in evaluation.facts.items()}


def _search_shards(
    project: Project, recipe: Recipe, evaluation: Manifest, sharded: Sharded
) -> list[str]:
    """Search each shard of a corpus for evaluation texts, except for those searched before.

    If text is added to a corpus, it is in new shards. So only these are searched, by worker
    processes, each of which runs `SearchTask.write` for one shard at a time.

    Args:
        project: The project.
        recipe: What the result for the whole corpus depends on. Its name has evaluation and corpus,
            such as "evals/web".
        evaluation: The index of evaluation texts.
        sharded: The documents of the corpus, with its shards.

    Returns:
        For each shard, the digest that identifies its stored matches.
    """
    shard_recipes = [
        _recipe_of_shard(recipe, evaluation, shard_digest) for shard_digest in sharded.shards
    ]
    return make_of_documents(
        project,
        sharded,
        shard_recipes,
        new_task=partial(SearchTask, evaluation=evaluation),
        activity=FOLDER,
        subject=recipe.name.replace("/", " "),  # shown with the progress: "evals web"
    )


def _recipe_of_shard(recipe: Recipe, evaluation: Manifest, shard_digest: str) -> Recipe:
    """Return what the matches in one shard of a corpus depend on.

    That is the shard, and not the whole corpus, which changes whenever text is added.

    Args:
        recipe: What the matches in the whole corpus depend on.
        evaluation: The index of evaluation texts.
        shard_digest: Digest that identifies the content of the shard.
    """
    return Recipe(
        stage=SHARD_LAYOUT.folder,
        name=recipe.name,  # such as "evals/web"
        version=VERSION,
        parents={"evaluation": evaluation.digest, "shard": shard_digest},
        options={"threshold": recipe.options["threshold"]},  # share of a text that has to match
    )


def _current_dataset(project: Project, corpus: str) -> Manifest:
    """Return the tokenized documents of a corpus, which must have been made with today's tokenizer.

    They are searched for evaluation texts. These are tokenized now, and both must agree in how
    words are divided into tokens.

    Args:
        project: The project, with its present tokenizer.
        corpus: The corpus.

    Raises:
        MissingError: The dataset has not been built.
        StaleError: The dataset was made with another tokenizer.
    """
    dataset = require(project, DATASET, Key(corpus))
    if dataset.recipe["options"]["tokenizer"] != project.tokenizer.fingerprint:
        raise StaleError(
            "the dataset was made with another tokenizer",
            where=dataset.url(),
            remedy="run `nanoset build`",
        )
    return dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask(DocumentsTask):
    """Searches the documents of one shard for evaluation texts."""

    evaluation: Manifest
    """The index of evaluation texts."""

    def write(self, folder: Path) -> Written:
        """Search some consecutive documents of a dataset for evaluation texts, in a worker process.

        The matches are few. So they are not written to a file, but returned, to be recorded.

        Args:
            folder: Folder of the result. No file is written to it.

        Returns:
            The record: `{"matches": [[document, text, share, words], …]}`. Documents are counted
            from the first one that is searched: the documents are a shard, which may get another
            place in a later dataset.
        """
        evaluation = self._open_evaluation()
        dataset = open_dataset(self.root.rebase(self.dataset))
        threshold = self.recipe.options["threshold"]
        rows = []
        for match in evaluation.search(dataset, self.first, self.count, threshold):
            document = match.document - self.first
            rows.append([document, match.text, match.share, match.words])
        return Written({"matches": rows})

    def _open_evaluation(self) -> Evaluation:
        """Return the evaluation texts, from the files in the folder of all outputs.

        On this machine, that folder may have another path than on the one that made the task.
        `rebase` replaces the path.
        """
        evaluation = self.root.rebase(self.evaluation)
        return _load_evaluation(_local_folder(evaluation))


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
    """Collect the matches of all shards of a corpus, with documents numbered in the whole corpus.

    A match is a document that contains an evaluation text, or much of it. In a shard, documents are
    numbered from its start: document 7 of a shard that starts at document 1000 is document 1007.

    Args:
        outputs: Where the matches are stored.
        name: Name of the result, such as "evals/web".
        sharded: The documents of the corpus, with its shards.
        shard_digests: For each shard, the digest that identifies its stored matches.
    """
    matches_by_shard = outputs.each_version(
        _matches_in_shard, SHARD_LAYOUT.folder, name, shard_digests
    )
    first_documents = sharded.document_bounds[:-1].tolist()
    matches = []
    for first_document, shard_matches in zip(first_documents, matches_by_shard, strict=True):
        for match in shard_matches:
            document = first_document + match.document
            matches.append(match._replace(document=document))
    return matches


def _matches_in_shard(outputs: OutputRoot, folder: Path) -> list[Match]:
    """Read the matches in a shard, with documents numbered from the start of the shard.

    Args:
        outputs: Where the matches are stored.
        folder: Folder of the matches in this shard.
    """
    manifest = outputs.manifest_at(folder)
    if manifest is None:
        return []
    return [Match(*row) for row in manifest.facts["matches"]]
