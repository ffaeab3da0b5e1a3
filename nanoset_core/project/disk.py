"""How much of the root's disk a build is going to take: told before it starts, and refused where it cannot be had."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Collection, Mapping

from nanoset_core.errors import NanosetError, StorageError
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.graph import graph_over
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.exports.settings import IN_SAMPLES
from nanoset_core.stages.exports.stage import EXPORT
from nanoset_core.stages.inventory import stage as raw
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.pbin.stage import PACKED
from nanoset_core.stages.shards.shards import BIN
from nanoset_core.stages.shards.stage import SHARDS, STAGE, TOKENIZED
from nanoset_core.stages.stage import Key, Node, require
from nanoset_core.stages.views.settings import base_of
from nanoset_core.stages.webdataset.settings import WebdatasetSpec
from nanoset_core.stages.webdataset.stage import SHUFFLED_TARS

LEAST_BYTES = 256 << 20
"""Builds that take less are neither told of nor refused."""
BYTES_PER_TOKEN = 4
"""Of text as it is stored, where no earlier shards of the corpus tell."""
_SURE = 0.9
"""Share of the estimate that has to be free."""


def text_bytes(project: Project, nodes: Collection[Node]) -> dict[str, int]:
    """Return the corpora among outputs that are to be made, each with the bytes of its text as stored.

    A corpus that cannot be read counts as empty; the step that reads it reports why.
    """
    size_by_corpus = dict.fromkeys((node.key.subject for node in nodes if node.is_of_corpus), 0)
    for corpus in size_by_corpus:
        with contextlib.suppress(NanosetError, OSError):
            size_by_corpus[corpus] = raw.contents_now(project, corpus).size
    return size_by_corpus


def plan_line(step_count: int, size_by_corpus: Mapping[str, int]) -> str:
    """Return the line that begins a build: how many steps it has, and how much text the corpora among them hold."""
    line = f"plan: {format_count(step_count, 'step')}"
    if size_by_corpus:
        corpora = "1 corpus" if len(size_by_corpus) == 1 else f"{len(size_by_corpus):,} corpora"
        line += f", from {format_bytes(sum(size_by_corpus.values()))} of text in {corpora}"
    return line


def stale_outputs(project: Project, corpus: str) -> set[Node]:
    """Return the outputs of a corpus alone that are missing or are not what its current inventory asks for."""
    inventory = require(project, raw.INVENTORY, Key(corpus))
    graph = graph_over(project, {corpus: Recipe(**inventory.recipe)}, [corpus])
    own = (node for node in graph.nodes() if node.is_of_corpus and node.key.subject == corpus)
    return {node for node in own if graph.stale_reasons(node)}


def check_disk(project: Project, nodes: Collection[Node], say: Callable[[str], None]) -> None:
    """Say what outputs that are to be made will take of a local root's disk, unless it is little.

    StorageError where less than 90 % of that is free.
    """
    if not nodes or project.config.root_place is not None:
        return
    need = {what: size for what, size in disk_need(project, nodes).items() if size}
    total, folder = sum(need.values()), project.outputs.folder
    if total < LEAST_BYTES:
        return
    free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
    parts = ", ".join(f"{what} {format_bytes(size)}" for what, size in need.items())
    if free < _SURE * total:
        raise StorageError(
            "the disk has too little room for this build",
            where=folder,
            found=f"{format_bytes(free)} free",
            expected=f"about {format_bytes(total)}: {parts}",
            remedy="run `nanoset gc --yes`, give `root` a larger disk or a bucket, or build less at once (--select)",
        )
    say(f"takes about {format_bytes(total)} of disk ({parts}); {format_bytes(free)} are free")


def disk_need(project: Project, nodes: Collection[Node]) -> dict[str, int]:
    """Return what is to be made → bytes that it will take, estimated by the bytes of raw text.

    A corpus has as many tokens a byte as its last shards, else one for each 4 bytes as stored. Not counted are shards
    that are there (the last ones where settings are the same, and those of a build that was cut short), and indexes.
    """
    width, tokens = project.tokenizer.dtype.itemsize, dict[str, float]()
    need, config = dict.fromkeys(("shards", "datasets", "packs", "tars", "packed", "exports"), 0), project.config
    exports = (config.exports[node.key.subject] for node in nodes if node.stage is EXPORT)
    written = [base_of(config.derived, one.of) for one in exports if one.format in IN_SAMPLES or one.of in config.views]
    packs = [node.key.subject for node in nodes if node.stage is PACKS]
    tars = [project.webdataset(node.key.subject) for node in nodes if node.stage is SHUFFLED_TARS]
    named = {*written, *packs, *(base_of(config.derived, corpus) for spec in tars for corpus in spec.corpora)}
    for corpus in named | {node.key.subject for node in nodes if node.is_of_corpus}:
        try:
            size = raw.contents_now(project, corpus).size
        except NanosetError:  # it cannot be read, which is reported elsewhere
            continue
        rate, grown = 1 / BYTES_PER_TOKEN, size
        try:
            earlier = project.outputs.live(STAGE, corpus)
        except NanosetError:  # it is damaged, which is reported elsewhere
            earlier = None
        if earlier is not None and earlier.facts["stored_bytes"]:
            rate = earlier.facts["tokens"] / earlier.facts["stored_bytes"]
            wanted = TOKENIZED.recipe(project, Key(corpus), earlier.recipe["parents"])
            grown = max(0, size - earlier.facts["stored_bytes"] * (wanted.digest == earlier.digest))
        tokens[corpus] = size * rate
        stored = int(tokens[corpus] * width)
        if Node(TOKENIZED, Key(corpus)) in nodes:
            need["shards"] += max(0, int(grown * rate * width) - _made(project, corpus, earlier))
        need["datasets"] += stored if Node(DATASET, Key(corpus)) in nodes else 0
        need["packed"] += stored if Node(PACKED, Key(corpus)) in nodes else 0
    need["packs"] += sum(int(tokens.get(corpus, 0) * width) for corpus in packs)
    need["exports"] += sum(int(tokens.get(corpus, 0) * width) for corpus in written)
    for spec in tars:
        need["tars"] += int(_in_tars(spec, tokens) * width / spec.groups)
    return need


def _in_tars(spec: WebdatasetSpec, tokens: Mapping[str, float]) -> float:
    """Return the tokens that the tars of a webdataset hold, of corpora of so many."""
    numbers = spec.numbers or dict.fromkeys(spec.names, 1.0)
    held = {corpus: tokens.get(corpus, 0.0) for corpus in numbers}
    if spec.mix == "frequencies":
        return sum(held[corpus] * number for corpus, number in numbers.items())
    if spec.contexts is not None:
        return float(spec.contexts * spec.sequence_length)
    return sum(numbers.values()) * min(held[corpus] / number for corpus, number in numbers.items() if number)


def _made(project: Project, corpus: str, earlier: Manifest | None) -> int:
    """Return the bytes of tokens in shards of a corpus that are not of its last set."""
    access, folder = project.outputs.access, project.outputs.folder / SHARDS / corpus
    known = frozenset(() if earlier is None else earlier.facts[SHARDS])
    return sum(access.size(folder / digest / BIN) or 0 for digest in access.names(folder) - known)
