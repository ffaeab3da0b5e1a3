"""Find the outputs that `--corpus` and `--select` of `nanoset build` select.

A selection is a name such as `web` or `pretrain/train`, a pattern such as `pre*`, or an expression
in Dagster's syntax: `+pretrain/blend` is the blend of `pretrain` and everything that it reads.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Collection, Iterable, Sequence

import dagster as dg

from nanoset_assets.assets.output_names import asset_path, leads_to_dataset
from nanoset_assets.definitions import remembered_definitions
from nanoset_assets.names import Names
from nanoset_assets.project_defs import ProjectDefs
from nanoset_core.errors import ConfigError, closest_name
from nanoset_core.project.verify import target_name
from nanoset_core.stages.stage import Node, is_of_corpora


def selected(
    nodes: Iterable[Node],
    select: Sequence[str],
    corpora: Collection[str],
    project_defs: ProjectDefs,
) -> set[Node]:
    """Return the outputs that a user wants to build, by the options `--select` and `--corpus`.

    A project has outputs for each corpus (a collection of documents) and for each data mixture. By
    default, the command builds all of them. The options select by a name, a pattern, or an
    expression of Dagster's (the second example):

        --select pretrain/train          the training split of the mixture `pretrain`
        --select "+pretrain/blend"       this output, and all that it is made from
        --corpus web                     the dataset of `web`, and all that it is made from
        --corpus web --select packed*    outputs whose name starts so, but only those of `web`

    Args:
        nodes: All outputs of the project.
        select: The texts of all options `--select`. What they select is united.
        corpora: The names of all options `--corpus`; empty if there are none.
        project_defs: The names and settings of the project in Dagster.

    Raises:
        ConfigError: An option `--select` names no output.
    """
    candidates = _outputs_of_corpora(nodes, corpora) if corpora else list(nodes)
    if select:
        return _selected_by_texts(candidates, select, project_defs)
    if corpora:
        # `--corpus` alone means the datasets, and what they are made from. Other outputs of
        # corpora, such as exports, have to be selected.
        return {node for node in candidates if leads_to_dataset(node.stage)}
    return set(candidates)


def _outputs_of_corpora(nodes: Iterable[Node], corpora: Collection[str]) -> list[Node]:
    """Return the outputs that are made of certain corpora, which are collections of documents.

    A name alone does not say what an output is made of: a data mixture, for example, can have the
    same name as a corpus. Its outputs are left out.

    Args:
        nodes: All outputs of the project.
        corpora: Names of the corpora.
    """
    of_corpora = [node for node in nodes if is_of_corpora(node.stage)]
    return [node for node in of_corpora if node.key.subject in corpora]


def _selected_by_texts(
    nodes: Sequence[Node], select: Sequence[str], project_defs: ProjectDefs
) -> set[Node]:
    """Return the outputs that the texts of all options `--select` mean together.

    Args:
        nodes: The outputs to select from.
        select: The texts, such as `["pretrain/train", "+web"]`.
        project_defs: The names and settings of the project in Dagster.

    Raises:
        ConfigError: A text means none of the outputs.
    """
    definitions = remembered_definitions(project_defs)  # all assets, for Dagster's expressions
    names = project_defs.names
    chosen: set[Node] = set()
    for text in select:
        matches = _matches(nodes, text, definitions, names)
        if not matches:
            raise _selects_nothing(nodes, text, names)
        chosen.update(matches)
    return chosen


def _matches(
    nodes: Sequence[Node], text: str, definitions: dg.Definitions, names: Names
) -> list[Node]:
    """Return the outputs that the text of an option `--select` means.

    First, Dagster is asked whether it is an expression of its own syntax, such as `+pretrain/blend`
    (this output and all that it is made from). If not, it is compared with the names of the
    outputs, in which `*` stands for any characters:

        web               everything that is made of the corpus `web`
        pretrain/train    the training split of the mixture `pretrain`
        pre*              everything of all mixtures and corpora whose name starts with `pre`

    Args:
        nodes: The outputs to select from.
        text: The text of the option.
        definitions: The project's Dagster assets.
        names: Knows the name of each output in Dagster.
    """
    asset_keys = _assets_selected_by_dagster(text, definitions)
    if asset_keys:
        return [node for node in nodes if names.asset(asset_path(node)) in asset_keys]
    return [node for node in nodes if fnmatch.filter(_names_of(node), text)]


def _assets_selected_by_dagster(text: str, definitions: dg.Definitions) -> set[dg.AssetKey]:
    """Return the Dagster assets that a text selects, if it is an expression of Dagster's syntax.

    For example, `+pretrain/blend` selects the asset `pretrain/blend` and all that it depends on.

    Args:
        text: What a user wrote. It may also be a name or a pattern that Dagster cannot parse.
        definitions: The project's Dagster assets.

    Returns:
        The keys of the assets; empty if Dagster cannot parse the text, or selects nothing.
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
    """Return the names by which users can select an output of the data pipeline.

    For the training split of the mixture `pretrain`, for example:

        pretrain                   everything of the mixture
        pretrain/train             everything of this split
        pretrain/index_mappings    the Dagster asset

    A view is a selection of the documents of a text collection (corpus). For a view `clean` of the
    collection `web`:

        web              everything of the collection
        web/clean        this view
        web/views        the Dagster asset
        clean/view       the name of the view for `nanoset verify --select`
        clean            the same in short

    Args:
        node: The output. Its key has the mixture or the collection (`subject`), and the split or
            the view (`part`).
    """
    subject = node.key.subject
    part = node.key.part
    asset_name = "/".join(asset_path(node))
    names = [subject, f"{subject}/{part}", asset_name, target_name(node)]
    has_name_of_its_own = node.stage.layout.is_named_by_part  # such as a view
    if has_name_of_its_own:
        names.append(str(part))
    return names


def _selects_nothing(nodes: Sequence[Node], text: str, names: Names) -> ConfigError:
    """Return the error for an option `--select` that names no output, with all names that exist.

    If one of the names is similar, the error suggests it: "did you mean 'pretrain/train'?"

    Args:
        nodes: The outputs that could have been selected.
        text: The text of the option.
        names: Knows the name of each output in Dagster.
    """
    output_names = _short_names(nodes)
    asset_names = _asset_names(nodes, names)
    suggestion = _suggested_name(text, nodes, [*output_names, *asset_names])
    return ConfigError(
        "this selects nothing",
        where="--select",
        found=repr(text),
        expected=f"an asset ({', '.join(asset_names)}), "
        f"a corpus, view, nanoset or webdataset ({', '.join(output_names)}), "
        "a split such as pretrain/train, "
        "a pattern such as pre*, or Dagster's selection syntax: +pretrain/blend",
        remedy=None if suggestion is None else f"did you mean {suggestion!r}?",
    )


def _short_names(nodes: Sequence[Node]) -> list[str]:
    """Return the names that users give outputs in the settings, each once.

    These are names of text collections and data mixtures, such as `web` and `pretrain`, followed by
    those of views (selections of documents) and packed datasets, which have a name of their own.

    Args:
        nodes: The outputs.
    """
    subjects = [node.key.subject for node in nodes]
    views = [str(node.key.part) for node in nodes if node.stage.layout.is_named_by_part]
    return [*dict.fromkeys(subjects), *dict.fromkeys(views)]


def _asset_names(nodes: Sequence[Node], names: Names) -> list[str]:
    """Return the names of the Dagster assets that outputs belong to, each once.

    Args:
        nodes: The outputs.
        names: Knows the name of each output in Dagster.

    Returns:
        Such as ["indexed_dataset", "pretrain/blend"].
    """
    asset_keys = [names.asset(asset_path(node)) for node in nodes]
    return list(dict.fromkeys(key.to_user_string() for key in asset_keys))


def _suggested_name(text: str, nodes: Sequence[Node], other_names: Sequence[str]) -> str | None:
    """Return the name of an output that a user may have meant; None if no name is similar.

        user wrote      suggestion
        train           pretrain/train    (the name of a split alone)
        pretrain/tain   pretrain/train    (the most similar name)

    Args:
        text: What the user wrote, which names no output.
        nodes: The outputs. Those of a mixture have names such as "pretrain/train".
        other_names: Names of other kinds, such as those of mixtures and of Dagster assets.
    """
    part_names = [f"{node.key.subject}/{node.key.part}" for node in nodes if node.key.part]
    for name in part_names:
        if name.endswith(f"/{text}"):
            return name
    return closest_name(text, [*other_names, *part_names])
