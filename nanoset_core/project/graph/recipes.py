"""The recipes of the outputs of a project: what each should be made from."""

from __future__ import annotations

from collections.abc import Mapping

from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph.nodes import digest_of_node, walk_inputs
from nanoset_core.project.project import Project
from nanoset_core.stages.stage import AFTER, Node


class Recipes:
    """What each output of a project should be made from, derived from the lists of raw files."""

    def __init__(self, project: Project, known: Mapping[Node, Recipe]) -> None:
        """Begin with the recipes that are given. Others are derived when they are needed.

        Args:
            project: Its nanoset.yaml has the settings of the recipes.
            known: Output → its recipe, at least for the inventories (lists of raw files).
        """
        self.project = project
        self._recipes = dict(known)

    def add(self, node: Node, recipe: Recipe) -> None:
        """Remember what an output should be made from.

        Args:
            node: The output.
            recipe: What it should be made from.
        """
        self._recipes[node] = recipe

    def of(self, node: Node) -> Recipe | None:
        """Return what an output would be made from if it were built now: its recipe.

        A recipe has the settings that decide the bytes of an output, such as dtype: uint16, and a
        digest (hash) of each input. If it differs from the recipe of the existing output, that has
        to be rebuilt.

        Args:
            node: The output.

        Returns:
            The recipe. None if it is not known, because it depends on raw files that the caller has
            not listed.
        """
        if node in self._recipes:
            return self._recipes[node]

        # An output without inputs is a list of raw files, from which all others are made. Its
        # recipe has to be given.
        if not node.inputs(self.project.config):
            return None
        input_digests = self._input_digests(node)
        if input_digests is None:
            return None  # the recipe of an input is not known

        recipe = node.stage.recipe(self.project, node.key, input_digests)
        self._recipes[node] = recipe
        return recipe

    def _input_digests(self, node: Node) -> dict[str, str] | None:
        """Return the digests (hashes) of what an output would be made from if it were built now.

        Args:
            node: The output, such as a dataset.

        Returns:
            Name of each input → its digest, such as {"shards": "3f9c…"}. None if one of the digests
            is not known yet.
        """
        digests: dict[str, str] = {}
        for name, input_node in node.inputs(self.project.config).items():
            input_recipe = self.of(input_node)
            if input_recipe is None:
                return None

            # Some inputs only have to be built earlier, and are not read: their names begin with
            # AFTER ("after "). They have no influence on the output.
            is_read = not name.startswith(AFTER)
            if is_read:
                digests[name] = digest_of_node(input_node, input_recipe)
        return digests

    def corpora_with_unknown_files(self, node: Node) -> list[str]:
        """Return the text collections (corpora) of an output whose raw files were not listed.

        As long as they are not, nobody can say what the output should be made from. For example, an
        index is made from the datasets of `web` and `news`, and the files of `news` are not known:

            dataset of web     []
            dataset of news    ["news"]
            index              ["news"], from its inputs

        Args:
            node: The output, such as the index.

        Returns:
            Names of corpora, each once.
        """

        def is_of_one_corpus(node: Node) -> bool:
            """Return whether an output needs the files of a single corpus, as a dataset does.

            An index belongs to a nanoset, and is made from outputs of several corpora.
            """
            return node.is_of_corpus or not node.inputs(self.project.config)

        def unknown_inputs(node: Node) -> list[Node]:
            """Return the inputs of an output of several corpora whose recipes are not known."""
            if is_of_one_corpus(node):
                return []  # it is known which corpus lacks the files: that of the output
            inputs = node.inputs(self.project.config).values()
            return [input_node for input_node in inputs if self.of(input_node) is None]

        recipe_is_known = self.of(node) is not None
        if recipe_is_known:
            return []
        unknown_nodes = [node, *walk_inputs([node], unknown_inputs)]
        corpora = [unknown.key.subject for unknown in unknown_nodes if is_of_one_corpus(unknown)]
        return list(dict.fromkeys(corpora))  # each once, in order
