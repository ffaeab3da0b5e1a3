"""What decides the tokens of a corpus, by nanoset.yaml and by what is recorded below the root."""

from __future__ import annotations

from typing import Any

from nanoset_core.project.project import Project
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.framing import Framing, make_framing, special_tokens_notices
from nanoset_core.stages.shards.make import ShardSettings
from nanoset_core.tokenizers import distrust
from nanoset_core.tokenizers.files import define


def token_options(project: Project, corpus: str) -> dict[str, Any]:
    """Return the options that decide a corpus's tokens, with those of erased documents."""
    erased = purged.read_erased(project.outputs, corpus)
    return shard_options(project, corpus) | purged.recipe_options(erased)


def shard_options(project: Project, corpus: str) -> dict[str, Any]:
    """Return the options of a shard's recipe: settings, and engines that are not trusted."""
    fingerprint = project.tokenizer.fingerprint
    distrusted = distrust.load_records(project.outputs, fingerprint)
    return shard_settings(project, corpus).recipe_options(fingerprint) | distrust.recipe_options(
        distrusted
    )


def shard_settings(project: Project, corpus: str) -> ShardSettings:
    """Return how the documents of a corpus become tokens, from nanoset.yaml.

    Args:
        project: The project.
        corpus: Name of the corpus, which may have settings of its own.

    Raises:
        MissingError: The tokenizer is missing.
        FormatError: The tokenizer is damaged.
        ConfigError: The tokenizer lacks a token that nanoset.yaml names.
    """
    config = project.config
    documents = config.documents_of(corpus)
    return ShardSettings(
        tokenizer_file=config.tokenizer_file,
        engine=config.tokenization.engine,
        audit=config.tokenization.audit,
        dtype=project.tokenizer.dtype.name,
        max_id=project.tokenizer.max_id,
        framing=framing(project),
        text_key=documents.text_key,
        id_key=documents.id_key,
        max_line_bytes=int(documents.max_line_mib * (1 << 20)),
        fail_on_reject=documents.on_reject == "fail",
    )


def framing(project: Project) -> Framing:
    """Return the special tokens that are put around each document."""
    settings = project.config.tokenization
    return make_framing(
        settings.preset,
        project.config.tokenizer_file,
        bos=project.special("bos") if settings.prepend_bos else None,
        eod=project.special("eod") if settings.append_eod else None,
        special_tokens=settings.special_tokens,
    )


def range_bytes(project: Project) -> int:
    """Return about how many bytes of stored text become one shard."""
    return int(project.config.tokenization.range_mib * (1 << 20))


def check_tokenizer(project: Project) -> None:
    """Check that a build could use the tokenizer.

    Raises:
        MissingError, FormatError, ConfigError: It is missing, damaged, or lacks a token that is
            named.
    """
    shard_settings(project, "")


def tokenizer_notices(project: Project) -> list[str]:
    """Return notices on a project's tokenizer, such as special tokens that it adds by itself."""
    settings = project.config.tokenization
    tokenizer = project.config.tokenizer
    special_tokens = special_tokens_notices(
        settings.preset,
        project.tokenizer.file,
        settings.special_tokens,
        bos=tokenizer.bos if settings.prepend_bos else None,
        eod=tokenizer.eod if settings.append_eod else None,
    )
    return [*define(project.tokenizer.file).notices, *special_tokens]


def end_of_documents_notice(project: Project) -> str:
    """Return which token ends documents, for the log of a build."""
    if not project.config.tokenization.append_eod:
        return "no token ends documents (tokenization.append_eod: false)"
    return f"EOD {project.config.tokenizer.eod!r} (id {project.special('eod')})"
