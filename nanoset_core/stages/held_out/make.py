"""Compare the held-out documents of a nanoset with those that it trains on.

A document is held out if the splits valid or test read it. The result is a list such as

    split   file      line   train_file   train_line
    valid   a.jsonl     12   a.jsonl              12     train reads the same document
    test    b.jsonl      7   a.jsonl              93     train reads a copy of it
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from nanoset_core.loading.layout import STAGE
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.project.project import Project, holding
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.held_out.hashes import (
    HashTask,
    ShardHashes,
    each_shards_hashes,
    hashes_recipe,
)
from nanoset_core.stages.held_out.search import (
    HeldOutPairs,
    ReadCorpus,
    TrainCopies,
    count_train_copies,
    find_copies,
    find_shared,
    read_corpora,
)
from nanoset_core.stages.held_out.settings import ASSET, HASHES, SHARED, TRAIN_COPIES, VERSION
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.sharded import PLACE, make_of_documents, write_rows

_MAX_LISTED = 10_000
"""Documents that the file lists at most."""
_MAX_SHOWN = 8
"""Of these, so many are in the manifest, too."""
_IRRELEVANT_OPTIONS = frozenset({"seed", "trainer_path", "tokenizer_identifiers"})
"""Options of a split that do not decide which documents it reads."""


def held_out_recipe(project: Project, nanoset_name: str, parents: Mapping[str, str]) -> Recipe:
    """Return everything on which a search for documents of valid or test in train depends.

    The search compares the splits of a nanoset (train, valid and test). It is repeated if one of
    the datasets, or a setting that decides which documents a split reads, has changed.

    Args:
        project: Its settings describe the nanoset.
        nanoset_name: Name of the nanoset, such as "pretrain".
        parents: Name of each dataset that the nanoset reads → digest of its version.

    Returns:
        The datasets, and as options the settings of each split, such as `{"train": {"preset":
        "megatron", …}, "valid": …, "test": …, "copies": True}`.
    """
    nanoset = NanosetContext(project, nanoset_name)
    options: dict[str, Any] = {}
    for split in SPLITS:
        options[split] = {
            name: value
            for name, value in nanoset.options(split).items()
            if name not in _IRRELEVANT_OPTIONS
        }

    # With the setting `held_out`, the comparison also finds copies: documents with the same tokens.
    options["copies"] = nanoset.spec.held_out is not None
    output_name = f"{nanoset_name}/{ASSET}"
    return Recipe(STAGE, output_name, VERSION, parents, options)


@holding
def compare_held_out(project: Project, name: str) -> Manifest:
    """Find the documents that the split train reads although valid or test hold them out.

    Copies, which are other documents with the same tokens, are found only if the nanoset has the
    setting `held_out`: all documents must be read to find them. The result becomes the current
    version.

    Args:
        project: The project.
        name: The nanoset.

    Returns:
        Manifest of the result, with counts and a table of the first documents.

    Raises:
        MissingError: A dataset has not been built.
        StaleError: Two views were made from different versions of their corpus.
        ConfigError, InputError: A split cannot be filled as its settings ask.
    """
    outputs = project.outputs
    nanoset = NanosetContext(project, name)
    recipe = held_out_recipe(project, name, nanoset.digests(nanoset.spec.corpora))
    comparison = None if project.rebuild else outputs.find(recipe)
    if comparison is None:
        comparison = _compare(project, nanoset, recipe)
    return outputs.make_current(comparison)


def _compare(project: Project, nanoset: NanosetContext, recipe: Recipe) -> Manifest:
    """Find the held-out documents that the split train reads, and commit the list of them.

    Args:
        project: The project.
        nanoset: The nanoset.
        recipe: Recipe of the result.
    """
    corpora = read_corpora(project, nanoset)
    shared = find_shared(corpora)
    copies = _Copies()
    if nanoset.spec.held_out is not None:
        copies = _find_all_copies(project, nanoset.name, corpora)

    # List the first of them, with the lines that they come from.
    all_pairs = HeldOutPairs.concatenate([shared, copies.held_out])
    rows = _list_pairs(project, corpora, all_pairs.first(_MAX_LISTED))

    # Facts are stored in the manifest of the result.
    facts: dict[str, Any] = {
        "held_out": sum(corpus.count_held_out() for corpus in corpora),
        "shared": len(shared.documents),
        "first": rows[:_MAX_SHOWN],
        **copies.facts(),
    }

    def write(folder: Path) -> Written:
        """Write the list to a folder, and return the facts of the result."""
        write_rows(folder / SHARED, rows, _list_columns())
        return Written(facts)

    return project.outputs.commit(recipe, write)


@dataclass(frozen=True, slots=True)
class _Copies:
    """Documents with the same tokens as a document that train reads."""

    held_out: HeldOutPairs = field(default_factory=HeldOutPairs.none)
    """Copies that valid or test read."""
    in_train: Sequence[TrainCopies] | None = None
    """Counts of copies that train reads itself, by corpus; None if copies were not searched."""
    hash_digests: Sequence[str] = ()
    """Digests of the hashes that were compared: one for each shard of each corpus."""

    def facts(self) -> dict[str, Any]:
        """Return what the manifest of the result records about copies."""
        facts: dict[str, Any] = {
            "copies": len(self.held_out.documents),
            HASHES: list(self.hash_digests),
        }
        if self.in_train is not None:
            facts[TRAIN_COPIES] = [counts._asdict() for counts in self.in_train]
        return facts


def _find_all_copies(project: Project, nanoset_name: str, corpora: Sequence[ReadCorpus]) -> _Copies:
    """Find documents that are copies of one that the split train reads, by hashes of their tokens.

    They are searched in valid and test, and in train itself.

    Args:
        project: The project.
        nanoset_name: Name of the nanoset, for the progress.
        corpora: The corpora that it reads.
    """
    hash_digests = [_hash_documents(project, nanoset_name, corpus) for corpus in corpora]
    hashes_of = partial(_stored_hashes, project, corpora, hash_digests)
    return _Copies(
        held_out=find_copies(corpora, hashes_of),
        in_train=count_train_copies(corpora, hashes_of),
        hash_digests=list(chain.from_iterable(hash_digests)),
    )


def _stored_hashes(
    project: Project,
    corpora: Sequence[ReadCorpus],
    hash_digests: Sequence[Sequence[str]],
    number: int,
) -> Iterator[ShardHashes]:
    """Yield the stored hashes of the documents of a corpus, shard by shard.

    Args:
        project: The project.
        corpora: All corpora that the nanoset reads.
        hash_digests: Digests of the hashes of each corpus, one for each of its shards.
        number: Index of the corpus in `corpora`.
    """
    return each_shards_hashes(project.outputs, corpora[number].sharded, hash_digests[number])


def _hash_documents(project: Project, nanoset_name: str, corpus: ReadCorpus) -> list[str]:
    """Store a hash of the tokens of each document of a corpus.

    Each shard's hashes are a separate output. After an append, only those of new shards are made.

    Args:
        project: The project.
        nanoset_name: Name of the nanoset whose splits are compared, for the progress.
        corpus: The corpus.

    Returns:
        For each shard, the digest of the output with its hashes.
    """
    recipes = [hashes_recipe(corpus.name, shard) for shard in corpus.sharded.shards]
    return make_of_documents(
        project,
        corpus.sharded,
        recipes,
        new_task=HashTask,  # hashes the documents of one shard, in a worker process
        activity=ASSET,
        subject=f"{nanoset_name} {corpus.name}",
    )


def _list_columns() -> list[tuple[str, str]]:
    """Return name and type of each column of SHARED: a split, and the places of two documents."""
    place = [("corpus", "string"), *PLACE]
    train_place = [(f"train_{name}", arrow_type) for name, arrow_type in place]
    return [("split", "string"), *place, *train_place]


def _list_pairs(
    project: Project, corpora: Sequence[ReadCorpus], pairs: HeldOutPairs
) -> list[dict[str, Any]]:
    """Return where both documents of each pair come from, as rows of a table.

    For example, document 11 of the corpus web is held out, and document 92 has the same tokens:
    then the row has `file: a.jsonl, line: 12` of the first, and `train_file: a.jsonl, train_line:
    93` of the second.

    Args:
        project: The project.
        corpora: The corpora, by number.
        pairs: Held-out documents, each with a document of train that has the same tokens.

    Returns:
        For each pair: the split, the place of the held-out document (corpus, file, line and id),
        and that of the other document, in columns with the prefix `train_`.
    """
    # Look up the places of all documents of a corpus together, to read its tables only once.
    places_by_corpus = []
    for number, corpus in enumerate(corpora):
        documents = pairs.documents_of_corpus(number)
        places_by_corpus.append(_places(project, corpus, documents))

    rows = []
    for pair in pairs.each():
        place = places_by_corpus[pair.corpus][pair.document]
        train_place = places_by_corpus[pair.train_corpus][pair.train_document]
        train_columns = {f"train_{column}": value for column, value in train_place.items()}
        split = corpora[pair.corpus].split_holding_out(pair.document)
        rows.append({"split": split, **place, **train_columns})
    return rows


def _places(
    project: Project, corpus: ReadCorpus, documents: Collection[int]
) -> dict[int, dict[str, Any]]:
    """Return where some documents of a corpus come from.

    Args:
        project: The project.
        corpus: The corpus.
        documents: Numbers of the documents.

    Returns:
        Number of the document → its corpus, file, line and id.
    """
    if not documents:
        return {}  # without looking up the shards of the corpus
    places = {}
    for place in corpus.sharded.places(project, sorted(documents)):
        places[place["document"]] = {"corpus": corpus.name, **place}
    return places
