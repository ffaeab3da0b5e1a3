"""The stage `tokenized`: the documents of a corpus as token ids, in shards.

The set of a corpus lists its shards. A shard is named by what it is made from, so that after an
append only the shards of new text are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from nanoset_core.errors import InputError, MissingError, NanosetError, one_line
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.shards.make import BIN, SHARDS, VERSION
from nanoset_core.stages.shards.options import token_options
from nanoset_core.stages.shards.shard_sets import (
    STAGE,
    each_shard,
    expected_losses,
    recorded_losses,
    refusal,
    set_recipe,
)
from nanoset_core.stages.shards.show import tokenized_summary
from nanoset_core.stages.stage import (
    CorpusStage,
    Estimated,
    InternalStage,
    Key,
    Layout,
    Node,
    OutsideFiles,
    Planned,
    ReadingBudget,
    Summary,
)
from nanoset_core.stages.text_estimate import TextEstimate


class TokenizedStage(CorpusStage, OutsideFiles, Planned, Estimated):
    """A corpus as token ids: the set of its shards."""

    layout = Layout(STAGE)
    version = VERSION
    estimated_as = "shards"

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"inventory": Node(INVENTORY, key)}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return set_recipe(project, key.subject, parents, token_options(project, key.subject))

    def make(self, project: Project, key: Key) -> Manifest:
        # Imported here: every command imports this module, but few of them tokenize text.
        from nanoset_core.stages.shards.tokenize import tokenize_corpus

        return tokenize_corpus(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        from nanoset_core.stages.shards.verify import verify_shards

        return verify_shards(project, key.subject, deep=deep, run=run)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return tokenized_summary(project, manifest)

    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        """Return what is wrong with the current shards of a corpus, if anything is.

        A shard may be damaged, or more text may have been lost than the settings allow now. These
        limits are not part of the recipe. So a stricter limit makes no output stale, and is checked
        here.

        Args:
            project: The project.
            key: The corpus.
            manifest: Manifest of the set of shards.

        Returns:
            A message; None if nothing is wrong.
        """
        try:
            each_shard(project, key.subject, manifest.facts[SHARDS], lambda shard: None)
            refused = refusal(project, key.subject, recorded_losses(project.outputs, manifest))
        except MissingError:
            return "a shard is missing or damaged"
        except NanosetError as error:
            return one_line(error)
        return _refusal_text(refused)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe, reading: ReadingBudget
    ) -> str | None:
        """Return why a build should not start, if it is known that too much text would be lost.

        Before a build, the losses are known only if all of its shards exist.

        Args:
            project: The project.
            key: The corpus.
            recipe: Recipe of the set of shards that would be built.
            reading: Not used, since nothing is read for this.

        Returns:
            A message; None if the build may start.
        """
        lost = expected_losses(project, key.subject, recipe)
        if lost is None:
            return None
        return _refusal_text(refusal(project, key.subject, lost))

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        """Estimate the size of the shards that a build would add.

        These are the shards of new text, or all shards if settings have changed.

        Args:
            project: The project.
            key: The corpus.
            text_of: Returns an estimate of the text of a corpus.
        """
        # Bytes of the text that is not in shards yet.
        text = text_of(key.subject)
        new_bytes = text.stored_bytes
        if text.tokenized is not None:
            recipe = self.recipe(project, key, text.tokenized.recipe["parents"])
            if recipe.digest == text.tokenized.digest:
                new_bytes = max(0, new_bytes - text.tokenized.facts["stored_bytes"])
        if not new_bytes:
            return 0

        token_bytes = project.tokenizer.dtype.itemsize
        shard_bytes = int(new_bytes * text.tokens_per_byte * token_bytes)
        existing_bytes = _unlisted_shard_bytes(project.outputs, key.subject, text.tokenized)
        return max(0, shard_bytes - existing_bytes)

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        """Return the digests of the shards."""
        return map(str, manifest.facts[SHARDS])


def _refusal_text(refused: InputError | None) -> str | None:
    """Return an error about lost text in one line with the allowed limit, or None for no error."""
    if refused is None:
        return None
    return f"{one_line(refused)}; expected {refused.expected}"


def _unlisted_shard_bytes(outputs: OutputRoot, corpus: str, tokenized: Manifest | None) -> int:
    """Return the bytes of tokens in shards that the current set does not list.

    An interrupted build leaves such shards, and the next build uses them.

    Args:
        outputs: The outputs of the project.
        corpus: Name of the corpus.
        tokenized: Manifest of the current set of shards; None if there is none.
    """
    access = outputs.access
    folder = outputs.folder / SHARDS / corpus
    listed: set[str] = set()
    if tokenized is not None:
        listed.update(tokenized.facts[SHARDS])
    sizes = [access.size(folder / digest / BIN) for digest in access.names(folder) - listed]
    return sum(size or 0 for size in sizes)


TOKENIZED = TokenizedStage()
SHARD = InternalStage(Layout(SHARDS), TOKENIZED)
"""Shards, whose recipes are those of `shard_recipe`."""
