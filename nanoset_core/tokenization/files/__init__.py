"""The files in which people have tokenizers, read into one description that every engine takes."""

from nanoset_core.tokenization.files.definition import Definition, define
from nanoset_core.tokenization.files.source import (
    TokenizerFile,
    TokenizerPath,
    as_source,
    local_tokenizer,
    stat_signature,
    tokenizer_files,
    tokenizer_path,
)

__all__ = [
    "Definition",
    "TokenizerFile",
    "TokenizerPath",
    "as_source",
    "define",
    "local_tokenizer",
    "stat_signature",
    "tokenizer_files",
    "tokenizer_path",
]
