"""Find the outputs that `--corpus` and `--select` of `nanoset build` select.

A selection is a name such as `web` or `pretrain/train`, a pattern such as `pre*`, or an expression
in Dagster's syntax: `+pretrain/blend` is the blend of `pretrain` and everything that it reads.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Collection, Iterable, Sequence

import dagster as dg

from nanoset_assets.asset_names import asset_path
from nanoset_assets.names import Names
from nanoset_core.errors import ConfigError, closest_name
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.stage import Node, is_of_corpora


def selected(
    nodes: Iterable[Node],
    select: Sequence[str],
    corpora: Collection[str],
    definitions: dg.Definitions,
    names: Names,
) -> set[Node]:
    """Return the outputs of a project that `--select` and `--corpus` name.

    Args:
        nodes: All outputs of the project.
        select: Selections, each in Dagster's syntax, or a name or pattern; their results are
            united. Empty: everything, or the datasets of `corpora`.
        corpora: Restricts the selection to outputs of these corpora; empty: no restriction.
        definitions: The definitions of the project, on which Dagster resolves its syntax.
        names: The names of the project in Dagster.

    Returns:
        The outputs; without those that they are made from, unless these are selected, too.

    Raises:
        ConfigError: A selection contains no output.
    """
    candidates = _outputs_of_corpora(nodes, corpora) if corpora else list(nodes)
    if not select:
        if corpora:
            # `--corpus` alone means the datasets and what they are made from: all stages of the
            # kind "corpus". Others, such as exports, have to be selected.
            candidates = [node for node in candidates if node.stage.kind == INVENTORY.kind]
        return set(candidates)

    chosen: set[Node] = set()
    for text in select:
        matches = _matches(candidates, text, definitions, names)
        if not matches:
            raise _selects_nothing(candidates, text, names)
        chosen.update(matches)
    return chosen


def _outputs_of_corpora(nodes: Iterable[Node], corpora: Collection[str]) -> list[Node]:
    """Return the outputs of some corpora.

    Args:
        nodes: All outputs of the project. Those of a nanoset with the name of a corpus, for
            example, are left out.
        corpora: Names of the corpora.
    """
    of_corpora = [node for node in nodes if is_of_corpora(node.stage)]
    return [node for node in of_corpora if node.key.subject in corpora]


def _matches(
    nodes: Sequence[Node], text: str, definitions: dg.Definitions, names: Names
) -> list[Node]:
    """Return the outputs that a text selects by Dagster's syntax, or else by name or pattern.

    Args:
        nodes: The outputs to select from.
        text: A selection, such as `+pretrain/blend`, or a name or pattern, such as web,
            pretrain/train, pre* or pretrain/*.
        definitions: The definitions of the project, on which Dagster resolves its syntax.
        names: The names of the project in Dagster.
    """
    asset_keys = _assets_selected_by_dagster(text, definitions)
    if asset_keys:
        return [node for node in nodes if names.asset(asset_path(node)) in asset_keys]
    return [node for node in nodes if fnmatch.filter(_names_of(node), text)]


def _assets_selected_by_dagster(text: str, definitions: dg.Definitions) -> set[dg.AssetKey]:
    """Return the assets that Dagster selects by a text, such as `+pretrain/blend`.

    Args:
        text: The text, which may also be a name or pattern that Dagster does not know.
        definitions: The definitions of the project, with all its assets.

    Returns:
        Their keys; empty if Dagster cannot parse the text, or if it selects nothing.
    """
    graph = definitions.resolve_asset_graph()
    try:
        with warnings.catch_warnings():
            # Dagster warns of a beta feature that it uses itself, for groups.
            warnings.simplefilter("ignore", category=dg.BetaWarning)
            return set(dg.AssetSelection.from_string(text).resolve(graph))
    except Exception:  # noqa: BLE001 - the parser's errors have no common class
        return set()


def _names_of(node: Node) -> list[str]:
    """Return the names by which an output can be selected: its subject, its part, and its asset."""
    subject = node.key.subject
    return [subject, f"{subject}/{node.key.part}", "/".join(asset_path(node))]


def _selects_nothing(nodes: Sequence[Node], text: str, names: Names) -> ConfigError:
    """Return the error for a text that selects nothing, with everything that could be selected.

    Args:
        nodes: The outputs to select from.
        text: The selection.
        names: The names of the project in Dagster.
    """
    # `dict.fromkeys` leaves out duplicates, and keeps the order.
    subjects = dict.fromkeys(node.key.subject for node in nodes)
    assets = dict.fromkeys(names.asset(asset_path(node)).to_user_string() for node in nodes)
    parts = [f"{node.key.subject}/{node.key.part}" for node in nodes if node.key.part]
    closest = closest_name(text, [*subjects, *assets, *parts])
    return ConfigError(
        "this selects nothing",
        where="--select",
        found=repr(text),
        expected=f"an asset ({', '.join(assets)}), "
        f"a corpus, nanoset or webdataset ({', '.join(subjects)}), a split such as pretrain/train, "
        "a pattern such as pre*, or Dagster's selection syntax: +pretrain/blend",
        remedy=None if closest is None else f"did you mean {closest!r}?",
    )
