"""Compare the held-out documents of a nanoset with those that it trains on: which are leaked?

A document is held out if the split valid or test reads it, and leaked if train reads it as well, or
a copy of it. The result is a list such as

    split   file      line   train_file   train_line
    valid   a.jsonl     12   a.jsonl              12     train reads the same document
    test    b.jsonl      7   a.jsonl              93     train reads a copy of it
    test    b.jsonl      7   c.jsonl               5     a further copy, which train reads, too
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from nanoset_core.loading.layout import NANOSETS_FOLDER
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.held_out.hashes import (
    HashTask,
    ShardHashes,
    each_shards_hashes,
    hashes_recipe,
)
from nanoset_core.stages.held_out.names import (
    FOLDER,
    FURTHER_COPIES,
    HASHES,
    MAX_LISTED,
    SHARED,
    TRAIN_COPIES,
    VERSION,
)
from nanoset_core.stages.held_out.search import (
    FurtherCopies,
    HeldOutPairs,
    ReadCorpus,
    TrainCopies,
    count_train_copies,
    find_copies,
    find_further_copies,
    find_shared,
    read_corpora,
)
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.sharded import PLACE, make_of_documents, write_rows

_MAX_SHOWN = 8
"""Leaked documents that are in the manifest, not only in the list."""
_IRRELEVANT_OPTIONS = frozenset({"seed", "trainer_path", "tokenizer_identifiers"})
"""Options of a split that do not decide which documents it reads."""


def held_out_recipe(project: Project, nanoset_name: str, parents: Mapping[str, str]) -> Recipe:
    """Return what a comparison of train with valid and test depends on, with a digest of it.

    The comparison finds documents of valid and test that train reads as well. It is repeated only
    if this digest changes:

        parents    {"web": "3f9c…", …}                   the datasets that are read
        options    {"train": {"split": "98,1,1", …},     the settings that decide which documents
                    "valid": …, "test": …,               each of the three reads
                    "copies": true}                      whether documents of equal text count

    Args:
        project: The project, whose settings describe the training data.
        nanoset_name: Name of the training data, such as "pretrain".
        parents: Name of each dataset → its digest.
    """
    nanoset = NanosetContext(project, nanoset_name)
    options: dict[str, Any] = {}
    for split in SPLITS:
        split_options = nanoset.options(split)
        for name in _IRRELEVANT_OPTIONS:  # such as the seed, which only shuffles samples
            split_options.pop(name, None)
        options[split] = split_options
    options["copies"] = nanoset.spec.held_out is not None
    return Recipe(NANOSETS_FOLDER, f"{nanoset_name}/{FOLDER}", VERSION, parents, options)


@holding
def compare_held_out(project: Project, name: str) -> Manifest:
    """Find documents of valid and test that train reads as well, unless that was done before.

    A validation loss on such documents would be too good. There are two kinds:

        shared    the same document is in train and in valid or test
        copy      another document in train has the same text

    Copies are found only with the setting `held_out`, since all documents must be read for that.

    Args:
        project: The project.
        name: Name of the training data in nanoset.yaml.

    Returns:
        Manifest of the result, a record with counts and the first of these documents.

    Raises:
        MissingError: A dataset has not been built.
        StaleError: Two views were made from different versions of their corpus.
        ConfigError, InputError: A split cannot be filled as its settings ask.
    """
    nanoset = NanosetContext(project, name)
    recipe = held_out_recipe(project, name, nanoset.digests(nanoset.spec.corpora))

    # Use an earlier result with the same inputs, unless the user demands to repeat everything.
    comparison = None
    if not project.rebuild:
        comparison = project.outputs.find(recipe)
    if comparison is None:
        comparison = _compare(project, nanoset, recipe)
    return project.outputs.make_current(comparison)


def _compare(project: Project, nanoset: NanosetContext, recipe: Recipe) -> Manifest:
    """Find the leaked documents: those of valid and test that train reads as well. Store a list.

    Each row of the list is a pair of a document of valid or test and a document of train:

        pair                                     kind
        a.jsonl, line 12    a.jsonl, line 12     shared: it is the same document
        a.jsonl, line 30    b.jsonl, line 93     copied: the same text
        a.jsonl, line 30    b.jsonl, line 95     further copy: the first document is listed above

    Args:
        project: The project.
        nanoset: What train, valid and test read.
        recipe: What the result depends on, which is stored with it.

    Returns:
        Manifest of the result, a record with counts and the first leaked documents.
    """
    corpora = read_corpora(project, nanoset)  # with the splits that read each document
    shared = find_shared(corpora)
    if nanoset.spec.held_out is None:
        copies = _Copies()  # the user does not ask for copies: search none
    else:
        copies = _find_all_copies(project, nanoset.name, corpora, shared)

    # List each leaked document once, and then the further copies: 10,000 rows at most.
    leaked = HeldOutPairs.concatenate([shared, copies.copied])
    all_pairs = leaked
    if copies.further is not None:
        all_pairs = HeldOutPairs.concatenate([leaked, copies.further.pairs])
    rows = _list_pairs(project, corpora, all_pairs.first(MAX_LISTED))

    leaked_rows = rows[: len(leaked.documents)]
    facts: dict[str, Any] = {
        "held_out": sum(corpus.count_held_out() for corpus in corpora),
        "shared": len(shared.documents),
        "first": leaked_rows[:_MAX_SHOWN],
        **copies.facts(),
    }

    def write(folder: Path) -> Written:
        """Write the list to a folder, and return what the record has."""
        write_rows(folder / SHARED, rows, _list_columns())
        return Written(facts)

    return project.outputs.commit(recipe, write)


@dataclass(frozen=True, slots=True)
class _Copies:
    """What a search for documents with the same tokens has found."""

    copied: HeldOutPairs = field(default_factory=HeldOutPairs.none)
    """Held-out documents of which train reads a copy, each with one copy."""
    further: FurtherCopies | None = None
    """All other copies in train; None if they were not searched, or no document is leaked."""
    in_train: Sequence[TrainCopies] | None = None
    """Counts of copies that train reads itself, by corpus; None if copies were not searched."""
    hash_digests: Sequence[str] = ()
    """Digests of the hashes that were compared: one for each shard of each corpus."""

    def facts(self) -> dict[str, Any]:
        """Return what the manifest of the result records about copies."""
        facts: dict[str, Any] = {
            "copies": len(self.copied.documents),
            HASHES: list(self.hash_digests),
        }
        if self.in_train is not None:
            facts[TRAIN_COPIES] = [counts._asdict() for counts in self.in_train]
        if self.further is not None:
            facts[FURTHER_COPIES] = self.further.n_documents
        return facts


def _find_all_copies(
    project: Project, nanoset_name: str, corpora: Sequence[ReadCorpus], shared: HeldOutPairs
) -> _Copies:
    """Find documents with the same text as others, by hashes of their tokens.

    For example, document 1 of valid has the same text as the documents 5, 6 and 8 of train:

        copied      the pair (1, 5)              a document of valid, and the first one of train
        further     the pairs (1, 6), (1, 8)     the same one of valid, and each other one of train
        in train    2 documents, 6 and 8         repeat an earlier document of train: only counted

    Args:
        project: The project.
        nanoset_name: Name of the training data, which is shown with the progress.
        corpora: The corpora (collections of documents) that train, valid and test read.
        shared: The documents of valid and test that train itself reads, without a copy. Train may
            have copies of them in addition: these belong to `further`.
    """
    hash_digests = [_hash_documents(project, nanoset_name, corpus) for corpus in corpora]

    # The hashes do not fit into memory. So the searches read them again from files, by calling
    # `hashes_of(0)` for the first corpus, and so on.
    hashes_of = partial(_read_hashes, project.outputs, corpora, hash_digests)
    copied = find_copies(corpora, hashes_of)
    in_train = count_train_copies(corpora, hashes_of)
    further: FurtherCopies | None = None
    leaked = HeldOutPairs.concatenate([shared, copied])  # of valid or test, and read by train
    if len(leaked.documents):
        further = find_further_copies(corpora, hashes_of, leaked, max_pairs=MAX_LISTED)
    return _Copies(
        copied=copied,
        further=further,
        in_train=in_train,
        hash_digests=list(chain.from_iterable(hash_digests)),
    )


def _read_hashes(
    outputs: OutputRoot,
    corpora: Sequence[ReadCorpus],
    hash_digests: Sequence[Sequence[str]],
    corpus_number: int,
) -> Iterator[ShardHashes]:
    """Yield the stored hashes of the documents of a corpus, file by file.

    Args:
        outputs: The outputs, which have the files of hashes.
        corpora: The corpora.
        hash_digests: For each corpus, the digests that its files of hashes are named by.
        corpus_number: Index of the corpus.
    """
    sharded = corpora[corpus_number].sharded
    return each_shards_hashes(outputs, sharded, hash_digests[corpus_number])


def _hash_documents(project: Project, nanoset_name: str, corpus: ReadCorpus) -> list[str]:
    """Compute a hash of the tokens of each document of a corpus, and store the hashes.

    The documents are in several parts, called shards, and the hashes of each shard are stored
    separately. If text is added to the corpus, only new shards are hashed.

    Args:
        project: The project.
        nanoset_name: Name of the training data, which is shown with the progress.
        corpus: The corpus.

    Returns:
        For each shard, the digest by which its stored hashes are found.
    """
    # A recipe for each shard: what its hashes are made from. Those that exist are kept.
    recipes = [hashes_recipe(corpus.name, shard) for shard in corpus.sharded.shards]
    return make_of_documents(
        project,
        corpus.sharded,
        recipes,
        new_task=HashTask,  # what a worker process does for each of the others
        activity=FOLDER,
        subject=f"{nanoset_name} {corpus.name}",  # shown with the progress: "pretrain web"
    )


def _list_columns() -> list[tuple[str, str]]:
    """Return name and type of each column of a table of pairs of documents: ("split", "string"), …

    A row is about a document that is meant for validation or testing, and about a document that
    train reads, which has the same text. So most columns exist twice:

        split, corpus, file, line, …                where the first one comes from
        train_corpus, train_file, train_line, …     where the second one comes from
    """
    place = [("corpus", "string"), *PLACE]  # PLACE: file, line and so on
    train_place = [(f"train_{name}", arrow_type) for name, arrow_type in place]
    return [("split", "string"), *place, *train_place]


def _list_pairs(
    project: Project, corpora: Sequence[ReadCorpus], pairs: HeldOutPairs
) -> list[dict[str, Any]]:
    """Return a table of documents of valid or test, each with a document of train of the same text.

    It says where both come from:

        split    corpus    file       line    train_corpus    train_file    train_line
        valid    web       a.jsonl    12      web             a.jsonl       93

    Args:
        project: The project.
        corpora: The corpora (collections of documents) that they are from.
        pairs: The documents, by their numbers, and those of their corpora in this list.

    Returns:
        The rows of the table: name of a column → value.
    """
    # Look up where all documents of a corpus come from together, to read its tables only once.
    places_by_corpus = []
    for number, corpus in enumerate(corpora):
        documents = pairs.documents_of_corpus(number)
        places_by_corpus.append(_places(project, corpus, documents))

    rows = []
    for pair in pairs.each():
        place = places_by_corpus[pair.corpus][pair.document]  # {"file": "a.jsonl", "line": 12, …}
        train_place = places_by_corpus[pair.train_corpus][pair.train_document]
        train_columns = {f"train_{column}": value for column, value in train_place.items()}
        split = corpora[pair.corpus].split_holding_out(pair.document)  # valid or test
        rows.append({"split": split, **place, **train_columns})
    return rows


def _places(
    project: Project, corpus: ReadCorpus, documents: Collection[int]
) -> dict[int, dict[str, Any]]:
    """Return from which line of which file of raw text some documents come.

    Args:
        project: The project.
        corpus: The corpus that the documents are from.
        documents: Their numbers in the corpus.

    Returns:
        Number of the document → `{"corpus": "web", "file": "a.jsonl", "line": 12, …}`.
    """
    if not documents:
        return {}  # without reading a table of the corpus
    places = {}
    for place in corpus.sharded.places(project, sorted(documents)):
        places[place["document"]] = {"corpus": corpus.name, **place}
    return places
