"""held_out: the datasets of a nanoset → documents of valid and test that train reads too,
themselves or as a copy.

A document on both sides is found by the `.idx` files alone. Copies are found by a hash of each
document's tokens, which is kept for each shard: after an append the new ones alone are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import StaleError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import token_starts
from nanoset_core.loading.opening import STAGE
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.hashing import hash_ranges
from nanoset_core.sampling.splits import SPLITS, parse_split
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.datasets import Datasets, dataset_node
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.mappings.settings import NanosetSpec, corpora_of
from nanoset_core.stages.per_shard import PLACE, DocumentsTask, Sharded, make_per_shard, write_rows
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.stage import (
    AFTER,
    SUBJECT,
    InternalStage,
    Key,
    Layout,
    Node,
    Stage,
    Summary,
    counted,
)
from nanoset_core.stages.views.settings import base_of, chain_of

VERSION = 1
ASSET = "held_out"
SHARED = "shared.parquet"
_HASHES_FILE = "hashes.npy"
_HASHES = "hashes"
"""Fact: digests of the hashes of each shard."""
_TRAIN, _VALID, _HELD = 1, 2, 6
"""Bits of a document: train reads it, valid does, valid or test does."""
_CHUNK = 1 << 20
"""Documents, or tokens, that are looked at together."""
_LISTED, _SHOWN = 10_000, 8
_UNREAD = frozenset({"seed", "trainer_path", "tokenizer_identifiers"})
"""Options of a split that do not decide which documents it reads."""


def gate(config: ProjectConfig, name: str) -> dict[str, Node]:
    """Return name → what has to be checked before anything is made that trains on a nanoset."""
    is_blocked = config.nanosets[name].held_out == "block" and _can_share(
        config, config.nanosets[name]
    )
    return {f"{AFTER}{ASSET}": Node(HELD_OUT, Key(name))} if is_blocked else {}


def _can_share(config: ProjectConfig, spec: NanosetSpec) -> bool:
    """Return whether a nanoset has documents to train on, others that are held out, and may have
    some on both sides.
    """
    sides = [corpora_of(spec.blend_of(split)) for split in SPLITS]
    if spec.shares is not None:
        shares = parse_split(spec.shares)
        sides = [names if share > 0 else () for names, share in zip(sides, shares, strict=True)]
    train, held = sides[0], {*sides[1], *sides[2]}
    if not train or not held or spec.held_out is not None:
        return bool(train and held)
    bases = [base_of(config.derived, name) for name in train]
    if spec.shares is None:
        return not {base_of(config.derived, name) for name in held}.isdisjoint(bases)
    above = {
        one for name in train if name in config.derived for one in chain_of(config.derived, name)
    }
    # a document that is cut may lie in packs of two splits
    is_given_twice = any(one in config.packs or config.views[one].repeat > 1 for one in above)
    return len({*bases}) < len(bases) or is_given_twice


def _hash(task: DocumentsTask) -> str:
    """Hash each document of one shard, and store that; return its digest."""
    with task.root.in_task() as root:
        dataset = root.rebase(task.dataset)

        def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
            np.save(
                folder / _HASHES_FILE,
                document_hashes(open_dataset(dataset), task.first, task.count),
            )
            return {"documents": task.count}, {}

        return root.commit(task.recipe, write).digest


def document_hashes(dataset: MMapIndexedDataset, first: int, count: int) -> NDArray[np.uint64]:
    """Return a hash of the tokens of each of some documents, uint64; 0 of those with fewer than
    two.
    """
    begins = token_starts(dataset, dataset.document_indices[first : first + count + 1])
    size, hashes, low = dataset.dtype.itemsize, np.zeros(count, np.uint64), 0
    while low < count:
        high = int(np.searchsorted(begins, begins[low] + _CHUNK, side="right")) - 1
        high = min(max(high, low + 1), count)
        begin, end = int(begins[low]), int(begins[high])
        tokens = dataset.tokens_for(np.array([begin * size]), np.array([end * size]))[begin:end]
        found = hash_ranges(
            np.ascontiguousarray(tokens).view(np.uint8), (begins[low : high + 1] - begin) * size
        )
        hashes[low:high] = np.where(
            np.diff(begins[low : high + 1]) > 1, found | np.uint64(found == 0), 0
        )
        low = high
    return hashes


def stored_hashes(project: Project, corpus: str, shard: str) -> NDArray[np.uint64] | None:
    """Return the hashes of the documents of a shard, as `document_hashes` gives them, or None if
    none are stored.
    """
    recipe = Recipe(TOKEN_HASHES.layout.folder, corpus, VERSION, {"shard": shard})
    stored = project.outputs.find(recipe)
    if stored is None:
        return None
    hashes: NDArray[np.uint64] = np.load(stored.path(_HASHES_FILE), "r", allow_pickle=False)
    return hashes


class _Side(NamedTuple):
    """A corpus whose documents a nanoset reads."""

    dataset: Manifest
    marks: NDArray[np.uint8]
    """Bits of each document."""


class _Pairs(NamedTuple):
    """Documents that are held out, and those of train that they are, or whose tokens they have; all
    int64.
    """

    sides: NDArray[np.int64]
    documents: NDArray[np.int64]
    train_sides: NDArray[np.int64]
    train_documents: NDArray[np.int64]


def _marked(project: Project, nanoset: NanosetContext) -> list[_Side]:
    """Return the corpora of a nanoset, with which splits read each of their documents: one byte a
    document.
    """
    datasets = Datasets(project.outputs)
    side_by_corpus: dict[str, _Side] = {}
    for number, split in enumerate(SPLITS):
        planned = nanoset.plan(split)
        members = () if planned.plan is None else planned.plan.members
        for name, member in zip(planned.corpora, members, strict=False):
            dataset = datasets.open(nanoset.dataset(name))
            corpus = dataset.corpus
            if corpus.name not in side_by_corpus:
                n_documents = len(corpus.index.document_indices) - 1
                side_by_corpus[corpus.name] = _Side(
                    corpus.manifest, np.zeros(n_documents, np.uint8)
                )
            side = side_by_corpus[corpus.name]
            if side.dataset.digest != corpus.manifest.digest:
                raise StaleError(
                    "views of a nanoset are of several versions of their corpus",
                    where=dataset.unpacked.manifest.url(),
                    remedy="run `nanoset build`",
                )
            for documents in dataset.documents_in(*member.rows):
                side.marks[documents] |= 1 << number
    return list(side_by_corpus.values())


def _shared(sides: Sequence[_Side]) -> _Pairs:
    """Return the documents that both train and another split read."""
    found = [
        np.flatnonzero(((side.marks & _TRAIN) > 0) & ((side.marks & _HELD) > 0)) for side in sides
    ]
    own = np.repeat(np.arange(len(sides)), [len(one) for one in found])
    documents = np.concatenate([np.empty(0, np.int64), *found])
    return _Pairs(own, documents, own, documents)


Blocks = Callable[[int], Iterator[tuple[int, NDArray[np.uint64]]]]
"""Yields (first document, hashes) of a corpus, by its number, shard after shard."""


def _copies(sides: Sequence[_Side], blocks: Blocks) -> _Pairs:
    """Return the documents that are held out, and of which train reads a copy; 24 bytes for each
    that is held out.
    """
    held = list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]]()
    for number, side in enumerate(sides):
        for first, hashes in blocks(number):
            marks = side.marks[first : first + len(hashes)]
            own = np.flatnonzero(((marks & _HELD) > 0) & ((marks & _TRAIN) == 0) & (hashes > 0))
            held.append((np.full(len(own), number), first + own, hashes[own]))
    if not held:
        return _shared([])
    owners, documents, keys = (np.concatenate(part) for part in zip(*held, strict=True))
    known, places = np.unique(keys, return_inverse=True)
    train = np.full((2, len(known)), -1)
    for number, side in enumerate(sides if len(known) else ()):
        for first, hashes in blocks(number):
            own = np.flatnonzero(
                ((side.marks[first : first + len(hashes)] & _TRAIN) > 0) & (hashes > 0)
            )
            at = np.minimum(np.searchsorted(known, hashes[own]), len(known) - 1)
            same = known[at] == hashes[own]
            at, index = np.unique(at[same], return_index=True)
            fresh = train[1, at] < 0
            train[:, at[fresh]] = np.array([[number], [first]])
            train[1, at[fresh]] += own[same][index[fresh]]
    found = np.flatnonzero(train[1, places] >= 0)
    return _Pairs(owners[found], documents[found], *train[:, places[found]])


@holding
def compare_held_out(project: Project, name: str) -> Manifest:
    """Look for the documents of valid and test in train, by their tokens too where `held_out` is
    given; make current.

    Raises:
        MissingError: a dataset was not made yet.
        ConfigError, InputError: a split cannot be filled as asked.
    """
    outputs, nanoset = project.outputs, NanosetContext(project, name)
    recipe = HELD_OUT.recipe(project, Key(name), nanoset.digests(nanoset.spec.corpora))
    if not project.rebuild and (made := outputs.find(recipe)) is not None:
        return outputs.make_current(made)
    sides, digests = _marked(project, nanoset), dict[str, list[str]]()
    sharded = [cache(partial(Sharded.of, project, side.dataset)) for side in sides]
    pairs = [_shared(sides)]
    if nanoset.spec.held_out is not None:
        for one in sharded:
            corpus = one().dataset.name
            recipes = [
                Recipe(TOKEN_HASHES.layout.folder, corpus, VERSION, {"shard": shard})
                for shard in one().shards
            ]
            digests[corpus] = make_per_shard(
                project, one(), recipes, _hash, (ASSET, f"{name} {corpus}")
            )

        def blocks(number: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
            corpus = sides[number].dataset.name
            for first, digest in zip(
                sharded[number]().firsts.tolist(), digests[corpus], strict=False
            ):
                file = outputs.folder / TOKEN_HASHES.layout.folder / corpus / digest / _HASHES_FILE
                yield first, np.load(outputs.access.fetch(file), "r", allow_pickle=False)

        pairs.append(_copies(sides, blocks))
    rows = _rows(project, sides, sharded, pairs)

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        own = (("corpus", "string"), *PLACE)
        write_rows(
            folder / SHARED,
            rows,
            [("split", "string"), *own, *((f"train_{name}", kind) for name, kind in own)],
        )
        held = sum(int(np.count_nonzero(side.marks & _HELD)) for side in sides)
        counts = {
            "held_out": held,
            "shared": len(pairs[0].documents),
            "copies": sum(len(one.documents) for one in pairs[1:]),
        }
        return {
            **counts,
            "first": rows[:_SHOWN],
            _HASHES: [one for some in digests.values() for one in some],
        }, {}

    return outputs.make_current(outputs.commit(recipe, write))


def _rows(
    project: Project,
    sides: Sequence[_Side],
    sharded: Sequence[Callable[[], Sharded]],
    pairs: Sequence[_Pairs],
) -> list[dict[str, Any]]:
    """Return the first rows of the table of documents on both sides: where both come from."""
    owners, documents, train_owners, train_documents = (
        np.concatenate(part)[:_LISTED] for part in zip(*pairs, strict=True)
    )
    places: list[dict[int, dict[str, Any]]] = []
    for number, side in enumerate(sides):
        own = np.unique(
            np.concatenate([documents[owners == number], train_documents[train_owners == number]])
        ).tolist()
        found = sharded[number]().places(project, own) if own else []
        places.append({one["document"]: {"corpus": side.dataset.name, **one} for one in found})
    rows = []
    for owner, document, *train in zip(
        *(part.tolist() for part in (owners, documents, train_owners, train_documents)), strict=True
    ):
        split = SPLITS[1] if sides[owner].marks[document] & _VALID else SPLITS[2]
        copy = {f"train_{name}": value for name, value in places[train[0]][train[1]].items()}
        rows.append({"split": split, **places[owner][document], **copy})
    return rows


def finding(facts: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return (what, where, found) of documents that are held out and in train, in words; None where
    there are none.
    """
    if not facts["first"]:
        return None
    count, first = facts["shared"] + facts["copies"], facts["first"][0]
    where, train = (
        f"{first[f'{side}corpus']}/{first[f'{side}file']}:{first[f'{side}line']}"
        for side in ("", "train_")
    )
    named = "" if first["id"] is None else f", id {first['id']!r}"
    found = (
        "train reads it"
        if where == train
        else f"its tokens are those of {train}, which train reads"
    )
    what = f"{count:,} of {facts['held_out']:,} documents that are held out are in train"
    if facts["copies"]:
        what += f", {facts['copies']:,} of them as a copy"
    return what, f"{where} ({first['split']}{named})", found


class HeldOutStage(Stage):
    """Documents of valid and test that train reads too."""

    layout = Layout(STAGE, (SUBJECT, ASSET))
    kind = "nanoset"
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [
            Key(name, requested_at=f"nanosets.{name}")
            for name, spec in config.nanosets.items()
            if _can_share(config, spec)
        ]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {
            corpus: dataset_node(config, corpus) for corpus in config.nanosets[key.subject].corpora
        }

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        nanoset = NanosetContext(project, key.subject)
        options: dict[str, Any] = {
            split: {
                name: value for name, value in nanoset.options(split).items() if name not in _UNREAD
            }
            for split in SPLITS
        }
        options["copies"] = nanoset.spec.held_out is not None
        return Recipe(STAGE, self.layout.name_of(key), VERSION, parents, options)

    def make(self, project: Project, key: Key) -> Manifest:
        return compare_held_out(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        from nanoset_core.stages.held_out.verify import verify_held_out

        return verify_held_out(project, key.subject, deep)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        shared = finding(manifest.facts)
        if shared is None:
            return Summary(counted(manifest))
        what, where, found = shared
        return Summary(
            counted(manifest), warnings=[f"{what}: {where}: {found}; see {manifest.url(SHARED)}"]
        )

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        return map(str, manifest.facts[_HASHES])


HELD_OUT = HeldOutStage()
TOKEN_HASHES = InternalStage(Layout("token_hashes"), HELD_OUT)
"""Hashes of the documents of single shards."""
