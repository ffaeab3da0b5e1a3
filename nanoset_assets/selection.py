"""What `nanoset build` is asked to make: assets, by Dagster's selection syntax, or outputs, by their names."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

import dagster as dg

from nanoset_assets.names import Names
from nanoset_core.errors import ConfigError
from nanoset_core.pipeline.raw import INVENTORY
from nanoset_core.pipeline.stage import Node


def check_names(asked: Iterable[str], corpora: Collection[str]) -> None:
    """Refuse a corpus that is not there.

    Raises:
        ConfigError: one of those that were asked for is none of `corpora`.
    """
    for name in asked:
        if name not in corpora:
            raise ConfigError(
                "this corpus is not in the raw folder",
                where="--corpus",
                found=repr(name),
                expected=f"one of {', '.join(corpora) or 'none: there are no corpora'}",
            )


def selected(
    nodes: Iterable[Node], select: Sequence[str], corpora: Collection[str], definitions: dg.Definitions, names: Names
) -> set[Node]:
    """Those of a project's outputs that are asked for.

    Args:
        nodes: the outputs.
        select: Dagster's selection syntax, or names and patterns of corpora, nanosets, nanoset/split and webdatasets;
            empty: everything.
        corpora: only these; where nothing is selected, up to their datasets. Empty: no such limit.
        definitions: of the project.
        names: of the project.

    Raises:
        ConfigError: one of them selects nothing.
    """
    within = [node for node in nodes if not corpora or (node.stage.by_corpus and node.key.subject in corpora)]
    if not select:
        return {node for node in within if not corpora or node.stage.kind == INVENTORY.kind}
    return {node for text in select for node in _found(within, text, definitions, names)}


def _found(nodes: Sequence[Node], text: str, definitions: dg.Definitions, names: Names) -> list[Node]:
    keys = _assets(text, definitions, names)
    found = [node for node in nodes if (node.asset in keys if keys else _is_named(node, text))]
    if not found:
        assets = dict.fromkeys(names.asset(node.asset).to_user_string() for node in nodes)
        subjects = dict.fromkeys(node.key.subject for node in nodes)
        raise ConfigError(
            "this selects nothing",
            where="--select",
            found=repr(text),
            expected=f"an asset ({', '.join(assets)}), a corpus, nanoset or webdataset ({', '.join(subjects)}), a "
            "split such as pretrain/train, a pattern such as pre*, or Dagster's selection syntax: +pretrain/blend",
        )
    return found


def _assets(text: str, definitions: dg.Definitions, names: Names) -> set[tuple[str, ...]]:
    """Keys of the assets that Dagster's syntax selects; none where it cannot make anything of the text."""
    graph = definitions.resolve_asset_graph()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=dg.BetaWarning)  # of what Dagster itself uses for groups
            keys = dg.AssetSelection.from_string(text).resolve(graph)
    except Exception:  # noqa: BLE001 - the parser's errors have no common kind
        return set()
    return {path for key in keys if (path := names.path(key)) is not None}


def _is_named(node: Node, pattern: str) -> bool:
    """As `nanoset verify --select` does: web, pretrain, pretrain/train, pre*; and by asset: pretrain/*."""
    key = node.key
    names = (key.subject, f"{key.subject}/{key.part}", "/".join(node.asset))
    return any(fnmatchcase(name, pattern) for name in names)
