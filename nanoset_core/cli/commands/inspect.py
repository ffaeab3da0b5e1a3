"""`nanoset inspect`: print what an indexed dataset holds.

For the pair of files web.bin and web.idx, `nanoset inspect web` prints the number of documents,
sequences and tokens, and the first tokens of some sequences. With a tokenizer, these are shown as
text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.lengths import describe_lengths
from nanoset_core.cli.options import ANY_PATH, ManyValued, option
from nanoset_core.cli.tokenizer_options import tokenizer_options

if TYPE_CHECKING:
    from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
    from nanoset_core.storage.location import Location
    from nanoset_core.tokenizers.files import TokenizerPath
    from tokenizers import Tokenizer

SHOWN_TOKENS = 24
"""Largest number of tokens that are shown of a sequence."""
SHOWN_CHARACTERS = 160
"""Largest number of characters that are shown of the text of these tokens."""
_DEFAULT_SPECIAL_TOKENS = (
    "the tokenizer is Megatron-LM's tiktoken JSON, read with the default of 1,000 ids for special "
    "tokens; if the tokens were made with another number, name it with "
    "--tiktoken-num-special-tokens"
)


@click.command("inspect", cls=ManyValued, short_help="Show what an indexed dataset holds.")
@click.argument("prefix", type=ANY_PATH)
@tokenizer_options("to show text instead of ids")
@option("--sequences", "How many sequences to show.", default=3, show_default=True)
def command(prefix: Location, tokenizer: TokenizerPath | None, sequences: int) -> None:
    """Show the size and the first sequences of an indexed dataset.

    PREFIX is the path of the .bin and .idx of a dataset, without the ending. If it is a folder, the
    command shows every dataset in the folder.
    """
    from nanoset_core.formats.indexed.folder import pairs_at

    for pair in pairs_at(prefix):
        for line in describe_dataset(pair, tokenizer, sequences):
            echo(line)


def describe_dataset(
    prefix: Location, tokenizer_file: TokenizerPath | None = None, sequences: int = 3
) -> Iterator[str]:
    """Yield lines that describe an indexed dataset: its counts, and its first sequences.

    Args:
        prefix: Path of the .bin and .idx without the ending.
        tokenizer_file: The tokenizer that decodes the tokens; without it, their ids are shown.
        sequences: How many sequences to show.

    Yields:
        Lines such as "web: 1,200 documents, 1,200 sequences, uint16" and "[0] 64 tokens: '…'".

    Raises:
        MissingError: A file is missing.
        FormatError: A file is damaged.
    """
    from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
    from nanoset_core.tokenizers.files import tokenizer_path

    dataset = MMapIndexedDataset(str(prefix))
    yield from _count_lines(prefix, dataset)

    decoder = None
    if tokenizer_file is not None:
        file = tokenizer_path(tokenizer_file)
        decoder = _Decoder.load(file)
        if _has_default_special_tokens(file):
            yield _DEFAULT_SPECIAL_TOKENS
    for index in range(min(sequences, len(dataset))):
        yield _sequence_line(dataset, index, decoder)


def _count_lines(prefix: Location, dataset: MMapIndexedDataset) -> Iterator[str]:
    """Yield lines with the number of documents, sequences and tokens of a dataset."""
    import numpy as np

    lengths = dataset.sequence_lengths  # (n_sequences,) tokens of each
    n_documents = len(dataset.document_indices) - 1
    yield f"{prefix}: {n_documents:,} documents, {len(dataset):,} sequences, {dataset.dtype}"
    if len(lengths):
        n_tokens = int(lengths.sum(dtype=np.int64))
        yield f"{n_tokens:,} tokens; a sequence has {describe_lengths(lengths)}"


def _sequence_line(dataset: MMapIndexedDataset, index: int, decoder: _Decoder | None) -> str:
    """Return the length of a sequence, and its first tokens: as text, or as ids without a decoder.

    Args:
        dataset: The opened .bin/.idx pair.
        index: Number of the sequence, from 0.
        decoder: Decodes the tokens, if their tokenizer is known.

    Returns:
        A line such as "[0] 64 tokens: 'Once upon a time' …".
    """
    length = int(dataset.sequence_lengths[index])
    ids = dataset.get(index, 0, min(SHOWN_TOKENS, length)).tolist()
    shown = " ".join(map(str, ids)) if decoder is None else decoder.decode(ids)
    if length > SHOWN_TOKENS:
        shown += " …"
    return f"[{index}] {length:,} tokens: {shown}"


def _has_default_special_tokens(file: TokenizerPath) -> bool:
    """Return whether the number of a tokenizer's special tokens is a default, stated nowhere."""
    from nanoset_core.tokenizers.files import define

    definition = define(file)
    is_tiktoken_json = definition.kind == "tiktoken JSON"
    return is_tiktoken_json and definition.source.num_special_tokens is None


@dataclass(frozen=True, slots=True)
class _Decoder:
    """Converts tokens to the text that is shown."""

    file: TokenizerPath
    tokenizer: Tokenizer
    max_id: int
    """Largest id of the vocabulary."""

    @staticmethod
    def load(file: TokenizerPath) -> _Decoder:
        """Load a tokenizer, which can take seconds.

        Args:
            file: The tokenizer's file, perhaps with further settings.

        Returns:
            A decoder for its tokens.

        Raises:
            FormatError: The file is not a tokenizer.
        """
        from nanoset_core.tokenizers.engines.tokenizers_library import load_tokenizer
        from nanoset_core.tokenizers.tokenizer import tokenizer_facts

        return _Decoder(file, load_tokenizer(file), tokenizer_facts(file).max_id)

    def decode(self, ids: list[int]) -> str:
        """Return the text of tokens as it is shown: quoted, escaped, and only its first characters.

        Args:
            ids: Ids of the tokens.

        Returns:
            The text. If a token is not in the vocabulary, the ids, with the one that is wrong.
        """
        import numpy as np

        from nanoset_core.formats.indexed.ids import first_foreign
        from nanoset_core.tokenizers.engines.tokenizers_library import decode_tokens

        # Position of the first id that is not in the vocabulary.
        position = first_foreign(np.array(ids, np.int64), self.max_id)
        if position is None:
            text = decode_tokens(self.tokenizer, ids, self.file)
            return repr(text[:SHOWN_CHARACTERS])
        shown_ids = " ".join(map(str, ids))
        fault = f"token {position}, {ids[position]}, is not in the vocabulary, 0 to {self.max_id}"
        return f"{shown_ids} ({fault})"
