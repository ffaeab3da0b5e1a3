"""What Modalities takes for the size of a tokenizer's vocabulary."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from nanoset_core.tokenization.tokenizer import stamp


def packing_vocab_size(tokenizer_file: Path) -> int:
    """Tokens of a tokenizer.json's model, without those added to it: `vocab_size` of Hugging Face's fast tokenizers.

    Modalities asks for this number in `PackedDataGenerator`. Raises as load_tokenizer.
    """
    return _vocab_size(tokenizer_file, stamp(tokenizer_file))


@lru_cache(maxsize=16)
def _vocab_size(file: Path, _stamp: object) -> int:
    from nanoset_core.tokenization.bpe.reference import load_tokenizer

    return load_tokenizer(file).get_vocab_size(with_added_tokens=False)
