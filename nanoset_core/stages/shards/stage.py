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
    check_shards,
    error_of_losses,
    expected_losses,
    recorded_losses,
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
        """Return what is wrong with the current shards of a corpus, or None.

        A shard may be damaged, or the user may have lowered the limits for lost text since the
        shards were made. Text is lost if lines are no documents, or files cannot be read.

        Args:
            project: Its outputs and limits are read.
            key: The corpus.
            manifest: Manifest of the corpus's set of shards, which lists their digests.

        Returns:
            One line, for messages.
        """
        corpus = key.subject
        try:
            check_shards(project, corpus, manifest.facts[SHARDS])
            losses = recorded_losses(project.outputs, manifest)
            # This reads the lists of rejected lines, which may be damaged, too.
            error_if_too_much = error_of_losses(project, corpus, losses)
        except MissingError:
            return "a shard is missing or damaged"
        except NanosetError as error:
            return one_line(error)
        return _one_line_with_limit(error_if_too_much)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe, reading: ReadingBudget
    ) -> str | None:
        """Return the message that a build would lose too much text, or None if it may start.

        Args:
            project: Its output root and limits for lost text are read.
            key: The corpus.
            recipe: Recipe of the set of shards that would be built.
            reading: Not used, since nothing is read for this.
        """
        losses = expected_losses(project, key.subject, recipe)
        if losses is None:  # not known yet, since not all shards exist
            return None
        error_if_too_much = error_of_losses(project, key.subject, losses)
        return _one_line_with_limit(error_if_too_much)

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        """Estimate how many bytes of shards a build would add.

        These are the shards of new text, or all shards if settings have changed.

        Args:
            project: Its settings, tokenizer and existing shards are read.
            key: The corpus.
            text_of: Returns an estimate of the text of a corpus.
        """
        text = text_of(key.subject)
        new_bytes = self._bytes_to_tokenize(project, key, text)
        if new_bytes == 0:
            return 0

        # Subtract the shards of an interrupted build: the next build uses them.
        token_bytes = project.tokenizer.dtype.itemsize
        shard_bytes = int(new_bytes * text.tokens_per_byte * token_bytes)
        existing_bytes = _unlisted_shard_bytes(project.outputs, key.subject, text.tokenized)
        return max(0, shard_bytes - existing_bytes)

    def _bytes_to_tokenize(self, project: Project, key: Key, text: TextEstimate) -> int:
        """Return how many bytes of text are not in the current set of shards.

        Args:
            project: Its settings and tokenizer are read.
            key: The corpus.
            text: The text as it is now, and the current set, which was made from earlier text.
        """
        if text.tokenized is None:
            return text.stored_bytes
        # A recipe consists of the text (its parents) and the settings, and its digest changes with
        # either. Make a recipe of the old text and today's settings: if it has another digest than
        # the current set, settings have changed, and all text has to be tokenized again.
        old_text = text.tokenized.recipe["parents"]
        recipe_today = self.recipe(project, key, old_text)
        if recipe_today.digest != text.tokenized.digest:
            return text.stored_bytes

        # An estimate: usually text is only added.
        old_bytes = int(text.tokenized.facts["stored_bytes"])
        return max(0, text.stored_bytes - old_bytes)

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        """Return the digests of the shards."""
        return map(str, manifest.facts[SHARDS])


def _one_line_with_limit(error: InputError | None) -> str | None:
    """Return an error about lost text in one line with the allowed limit, or None for no error."""
    if error is None:
        return None
    return f"{one_line(error)}; expected {error.expected}"


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
    listed_digests: set[str] = set()
    if tokenized is not None:
        listed_digests.update(tokenized.facts[SHARDS])

    n_bytes = 0
    for digest in access.names(folder) - listed_digests:
        size = access.size(folder / digest / BIN)
        if size is not None:  # a shard may have no file of tokens
            n_bytes += size
    return n_bytes


TOKENIZED = TokenizedStage()
SHARD = InternalStage(Layout(SHARDS), TOKENIZED)
"""Shards, whose recipes are those of `shard_recipe`."""
