"""What decides the tokens of a corpus, by nanoset.yaml and by what is recorded below the root.

The recipe of an output lists everything that it is made from. The functions here return the options
for the recipes of shards: settings such as the key of the text, the fingerprint of the tokenizer,
engines that gave wrong tokens, and documents that were erased.
"""

from __future__ import annotations

from typing import Any

from nanoset_core.project.project import Project
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.framing import Framing, make_framing, special_tokens_notices
from nanoset_core.stages.shards.one_shard import ShardSettings
from nanoset_core.tokenizers import distrust
from nanoset_core.tokenizers.files import define


def token_options(project: Project, corpus: str) -> dict[str, Any]:
    """Return everything, apart from the text, that decides the tokens of a corpus.

    If one of these values differs from those of the stored tokens, the corpus is tokenized again.
    They are the tokenizer and settings, and if users have erased documents, a digest of these:

        {"tokenizer": "9a3f…", "dtype": "uint16", "text_key": "text", …, "purged": "77cd…"}

    Args:
        project: Its settings, tokenizer, and records of erased documents are read.
        corpus: Name of the corpus.

    Returns:
        Name → value.

    Raises:
        MissingError: The tokenizer is missing.
        FormatError: The tokenizer, or a record of erased documents, is damaged.
        ConfigError: The tokenizer lacks a token that nanoset.yaml names.
    """
    options = shard_options(project, corpus)  # all but the last one
    erased_documents = purged.read_erased(project.outputs, corpus)
    options.update(purged.recipe_options(erased_documents))
    return options


def shard_options(project: Project, corpus: str) -> dict[str, Any]:
    """Return the settings that decide which tokens a text of a corpus becomes.

        {"tokenizer": "9a3f…", "dtype": "uint16", "text_key": "text", …}

    If some implementations of the tokenizer gave wrong tokens, and must not be used, there is one
    more entry that names them.

    Args:
        project: Its settings, tokenizer, and records of wrong tokens are read.
        corpus: Name of the corpus, which may have settings of its own.

    Raises:
        MissingError: The tokenizer is missing.
        FormatError: The tokenizer is damaged.
        ConfigError: The tokenizer lacks a token that nanoset.yaml names.
    """
    tokenizer_digest = project.tokenizer.fingerprint
    options = shard_settings(project, corpus).recipe_options(tokenizer_digest)
    wrong_implementations = distrust.load_records(project.outputs, tokenizer_digest)
    options.update(distrust.recipe_options(wrong_implementations))
    return options


def shard_settings(project: Project, corpus: str) -> ShardSettings:
    """Return how the documents of a corpus become tokens, from nanoset.yaml.

        documents: {text_key: text, max_line_mib: 64}
        tokenization: {engine: auto, append_eod: true}

    Args:
        project: Its settings and tokenizer are read.
        corpus: Name of the corpus, which may have settings of its own.

    Raises:
        MissingError: The tokenizer is missing.
        FormatError: The tokenizer is damaged.
        ConfigError: The tokenizer lacks a token that nanoset.yaml names.
    """
    tokenizer = project.tokenizer
    tokenization = project.config.tokenization
    documents = project.config.documents_of(corpus)
    return ShardSettings(
        tokenizer_file=project.config.tokenizer_file,
        engine=tokenization.engine,  # the implementation of the tokenizer
        audit=tokenization.audit,  # share of documents that a second one tokenizes, to compare
        dtype=tokenizer.dtype.name,
        max_id=tokenizer.max_id,
        framing=framing(project),  # the special tokens around each document
        text_key=documents.text_key,
        id_key=documents.id_key,
        max_line_bytes=int(documents.max_line_mib * (1 << 20)),
        fail_on_reject=documents.on_reject == "fail",
    )


def framing(project: Project) -> Framing:
    """Return the special tokens that nanoset.yaml puts around each document.

    With `prepend_bos: true` and `append_eod: true`, "the cat" may become the ids 1, 5, 9 and 2, of
    which 1 begins the document (bos) and 2 ends it (eod).

    Args:
        project: Its settings and tokenizer are read.

    Returns:
        The ids before and after each document, and what becomes of an empty one.

    Raises:
        ConfigError: The tokenizer lacks a token that nanoset.yaml names, or its own special tokens
            depend on the text.
    """
    settings = project.config.tokenization
    bos_id = None  # added before each document
    if settings.prepend_bos:
        bos_id = project.special("bos")
    eod_id = None  # added after each document
    if settings.append_eod:
        eod_id = project.special("eod")
    return make_framing(
        settings.preset,
        project.config.tokenizer_file,
        bos=bos_id,
        eod=eod_id,
        special_tokens=settings.special_tokens,
    )


def range_bytes(project: Project) -> int:
    """Return about how many bytes of text a worker tokenizes at a time, into files of their own.

    `tokenization.range_mib: 256` gives 268,435,456. For compressed files, compressed bytes count.

    Args:
        project: Its settings are read.
    """
    return int(project.config.tokenization.range_mib * (1 << 20))


def check_tokenizer(project: Project) -> None:
    """Check that the tokenizer exists and has the special tokens that nanoset.yaml names.

    A build reads much text before it needs the tokenizer. A missing file, or a misspelt name of a
    special token, should be reported earlier.

    Args:
        project: Its settings and tokenizer are read.

    Raises:
        MissingError: The tokenizer is missing.
        FormatError: The tokenizer is damaged.
        ConfigError: The tokenizer lacks a token that nanoset.yaml names.
    """
    # Read the settings as a build does, which raises these errors. The corpus does not matter: all
    # have the same tokenizer.
    any_corpus = ""
    shard_settings(project, any_corpus)


def tokenizer_notices(project: Project) -> list[str]:
    """Return what a user should know about the tokenizer, such as tokens that are added twice.

        each document begins with '<s>' twice: the tokenizer's template adds it, and so does
        prepend_bos (--bos); one of them is enough

    Args:
        project: Its settings and tokenizer are read.

    Returns:
        Sentences without a full stop; empty if there is nothing to say.

    Raises:
        MissingError: The tokenizer is missing.
        FormatError: The tokenizer is damaged.
    """
    tokenizer_file = project.tokenizer.file
    notices = list(define(tokenizer_file).notices)  # what is unusual about the file itself

    # The tokens that nanoset.yaml puts around each document may also be added by the tokenizer.
    settings = project.config.tokenization
    token_names = project.config.tokenizer
    notices += special_tokens_notices(
        settings.preset,
        tokenizer_file,
        settings.special_tokens,
        bos=token_names.bos if settings.prepend_bos else None,
        eod=token_names.eod if settings.append_eod else None,
    )
    return notices


def end_of_documents_notice(project: Project) -> str:
    """Say which token marks the end of each document, for the log of a build.

    A wrong token here spoils a training run, so users should see it:

        EOD '<|endoftext|>' (id 50256)
        no token ends documents (tokenization.append_eod: false)

    Args:
        project: Its settings and tokenizer are read.

    Raises:
        ConfigError: The tokenizer has no such token.
    """
    if not project.config.tokenization.append_eod:
        return "no token ends documents (tokenization.append_eod: false)"
    return f"EOD {project.config.tokenizer.eod!r} (id {project.special('eod')})"
