"""The stage `tokenized`: the documents of a corpus as token ids, in shards.

The set of a corpus lists its shards. A shard is named by what it is made from, so that after an
append only the shards of new text are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from nanoset_core.errors import MissingError, NanosetError, one_line, one_line_with_remedy
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.shards.names import FOLDER, SHARDS_FOLDER, VERSION
from nanoset_core.stages.shards.one_shard import BIN
from nanoset_core.stages.shards.options import range_bytes, token_options
from nanoset_core.stages.shards.shard_sets import (
    error_of_losses,
    expected_losses,
    losing_shards,
    no_text_error,
    recorded_losses,
    set_recipe,
    shard_digests,
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

    layout = Layout(FOLDER)
    version = VERSION
    reads_raw_text = True
    estimated_as = "shards"

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"inventory": Node(INVENTORY, key)}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return set_recipe(project, key.subject, parents, token_options(project, key.subject))

    def make(self, project: Project, key: Key) -> Manifest:
        # Imported here: every command imports this module, but few of them tokenize text.
        from nanoset_core.stages.shards.make import tokenize_corpus

        return tokenize_corpus(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        from nanoset_core.stages.shards.verify import verify_shards

        return verify_shards(project, key.subject, deep=deep, run=run)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return tokenized_summary(project, manifest)

    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        """Return what is wrong with the tokens of a corpus as they are stored, or None.

        `nanoset status` shows it, and a build repairs it or stops with an error. For example:

            a file of tokens was deleted or truncated        a shard is missing or damaged
            3 % of the lines were no documents, and since    too many lines are no documents: …
            then the user has changed the limit to 1 %

        Args:
            project: Its outputs and limits are read.
            key: The corpus.
            manifest: Manifest of the tokenized corpus. It lists the shards, which have the tokens
                of parts of the corpus.

        Returns:
            One line, for messages.
        """
        corpus = key.subject
        try:
            shards = losing_shards(project, manifest)  # this checks the files of all shards
            losses = recorded_losses(project.outputs, manifest, shards)
            # This reads the lists of rejected lines, which may be missing or damaged, too.
            error_if_too_much = error_of_losses(project, corpus, losses)
        except MissingError:
            return "a shard is missing or damaged"
        except NanosetError as error:
            return one_line(error)
        if error_if_too_much is None:
            return None
        return one_line_with_remedy(error_if_too_much)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe | None, reading: ReadingBudget
    ) -> str | None:
        """Return why a build of these tokens would certainly fail, or None if it may start.

        An earlier build may have tokenized all of the text, and then failed because too many lines
        were no documents, or all documents empty. The next one would fail, too, unless text or
        settings have changed.

        Args:
            project: Its output root and limits for lost text are read.
            key: The corpus.
            recipe: What the build would make: which text, and with which settings; None if the text
                was not read yet.
            reading: Limits how much may be read. Nothing of the text is read here.

        Returns:
            One line, such as "too many lines are no documents: …".
        """
        if recipe is None:
            return None
        losses = expected_losses(project, key.subject, recipe)
        if losses is None:  # not all of the text was tokenized, so they are not known
            return None
        error = error_of_losses(project, key.subject, losses)
        if error is None and losses.facts.tokens == 0:
            error = no_text_error(project, key.subject, losses)
        if error is None:
            return None
        return one_line_with_remedy(error)

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        """Estimate how many bytes of tokens a build would add to the disk.

            text that is not tokenized yet         10 GB, for example
            tokens in each byte of it              0.25, as measured in a sample
            bytes of a token                       2
            already made by a build that stopped   1 GB
            to add                                 10 GB * 0.25 * 2 - 1 GB = 4 GB

        Args:
            project: Its settings, tokenizer and existing shards are read.
            key: The corpus.
            text_of: Function that estimates the text of a corpus, given its name.
        """
        text = text_of(key.subject)
        text_bytes = self._bytes_to_tokenize(project, key, text)  # 10 GB
        if text_bytes == 0:
            return 0
        bytes_per_token = project.tokenizer.dtype.itemsize  # 2
        token_bytes = int(text_bytes * text.tokens_per_byte * bytes_per_token)  # 5 GB
        existing_bytes = _reusable_bytes(project, key.subject, text.tokenized)  # 1 GB
        return max(0, token_bytes - existing_bytes)

    def _bytes_to_tokenize(self, project: Project, key: Key, text: TextEstimate) -> int:
        """Return how many bytes of text the next build would tokenize, about.

            the corpus was never tokenized                   all of its text
            settings have changed, such as the tokenizer     all of its text
            text was added                                   the text that was added

        Args:
            project: Its settings and tokenizer are read.
            key: The corpus.
            text: The text as it is now, and the current tokens, which may be of earlier text.
        """
        if text.tokenized is None or self._settings_have_changed(project, key, text.tokenized):
            return text.stored_bytes
        old_bytes = int(text.tokenized.facts["stored_bytes"])
        return max(0, text.stored_bytes - old_bytes)  # usually, text is only added

    def _settings_have_changed(self, project: Project, key: Key, tokenized: Manifest) -> bool:
        """Return whether a corpus was tokenized with other settings than those of today.

        The digest of a tokenized corpus depends on the text and the settings. So a digest is
        computed from the old text and today's settings, and compared with that of the corpus.

        Args:
            project: Its settings and tokenizer are read.
            key: The corpus.
            tokenized: Manifest of the tokenized corpus.
        """
        old_text = tokenized.recipe["parents"]
        return self.recipe(project, key, old_text).digest != tokenized.digest

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        """Return the digests of the shards."""
        return map(str, manifest.facts[SHARDS])


def _reusable_bytes(project: Project, corpus: str, tokenized: Manifest | None) -> int:
    """Return how many bytes of tokens the next build finds, although no build has completed them.

    The tokens of a corpus are stored in parts (shards), each in a folder of its own. At the end of
    a build, they are listed. So if a build was stopped, its last shards are in no list:

        shards/web/3f9c…    listed
        shards/web/a07e…    not listed, and made with the present settings: its bytes count
        shards/web/b2d4…    not listed, and made with another tokenizer: of no use

    Args:
        project: Its settings and outputs are read.
        corpus: Name of the corpus.
        tokenized: Manifest of the current list; None if there is none.
    """
    outputs = project.outputs
    folder = outputs.folder / SHARDS_FOLDER / corpus
    unlisted_digests = outputs.access.names(folder)
    if tokenized is not None:
        unlisted_digests = unlisted_digests.difference(tokenized.facts[SHARDS])
    if not unlisted_digests:
        return 0

    n_bytes = 0
    for digest in unlisted_digests.intersection(_digests_of_next_build(project, corpus)):
        size = outputs.access.size(folder / digest / BIN)
        if size is not None:  # a shard may have no file of tokens
            n_bytes += size
    return n_bytes


def _digests_of_next_build(project: Project, corpus: str) -> Iterable[str]:
    """Return the digests of the shards that a build would make of the files that were listed last.

    Each build lists the files of the corpus first, also one that is stopped later. If there is no
    such list, or it is damaged, no digests are returned.

    Args:
        project: Its settings and outputs are read.
        corpus: Name of the corpus.
    """
    # Imported here: every command imports this module, but few of them estimate sizes.
    from nanoset_core.stages.inventory.make import current_inventory

    try:
        _, inventory = current_inventory(project, corpus)
    except NanosetError:
        return ()
    return shard_digests(project, inventory, range_bytes(project))


TOKENIZED = TokenizedStage()
SHARD = InternalStage(Layout(SHARDS_FOLDER), TOKENIZED)
"""Shards, whose recipes are those of `shard_recipe`."""
