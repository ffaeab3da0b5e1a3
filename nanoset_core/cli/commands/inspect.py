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
from nanoset_core.wording import format_count

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


@click.command("inspect", cls=ManyValued, short_help="Show what an indexed dataset contains.")
@click.argument("prefix", type=ANY_PATH)
@tokenizer_options("to show text instead of ids")
@option(
    "--sequences",
    "How many sequences to show.",
    type=click.IntRange(0),
    default=3,
    show_default=True,
)
def command(prefix: Location, tokenizer: TokenizerPath | None, sequences: int) -> None:
    """Show the size and the first sequences of an indexed dataset.

    PREFIX is the path of the .bin and .idx of a dataset, without the ending. If it is a folder, the
    command shows every dataset in the folder.
    """
    from nanoset_core.formats.indexed.pairs import pairs_at

    for pair in pairs_at(prefix):
        for line in describe_dataset(pair, tokenizer, sequences):
            echo(line)


def describe_dataset(
    prefix: Location, tokenizer_file: TokenizerPath | None = None, sequences: int = 3
) -> Iterator[str]:
    """Describe a tokenized dataset in lines: its counts, and its first sequences.

        web: 1,200 documents, 1,200 sequences, uint16
        61,000 tokens; a sequence has 3 to 2,048 tokens, median 40
        [0] 64 tokens: 'Once upon a time' …

    Args:
        prefix: Path of the dataset's two files, .bin and .idx, without the ending.
        tokenizer_file: The tokenizer with which the dataset was made. Without it, the numbers (ids)
            of the tokens are shown instead of text.
        sequences: How many sequences to show.

    Raises:
        MissingError: A file is missing.
        FormatError: A file is damaged, or the two do not belong together.
    """
    from nanoset_core.stages.dataset.named_pair import open_pair
    from nanoset_core.tokenizers.files import tokenizer_path

    dataset = open_pair(prefix)
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
    """Say in lines how many documents, sequences and tokens a dataset has.

        web: 1,200 documents, 1,200 sequences, uint16
        61,000 tokens; a sequence has 3 to 2,048 tokens, median 40

    Args:
        prefix: Path of the dataset's two files, .bin and .idx, without the ending.
        dataset: The opened dataset. A document may have several sequences, such as its sentences.
    """
    import numpy as np

    lengths = dataset.sequence_lengths  # (n_sequences,) tokens of each
    n_documents = len(dataset.document_indices) - 1
    documents = format_count(n_documents, "document")
    sequences = format_count(len(dataset), "sequence")
    yield f"{prefix}: {documents}, {sequences}, {dataset.dtype}"
    if len(lengths):
        n_tokens = int(lengths.sum(dtype=np.int64))
        yield f"{format_count(n_tokens, 'token')}; a sequence has {describe_lengths(lengths)}"


def _sequence_line(dataset: MMapIndexedDataset, index: int, decoder: _Decoder | None) -> str:
    """Show the length of a sequence and its first tokens in a line.

        [0] 64 tokens: 'Once upon a time' …       with a tokenizer
        [0] 64 tokens: 9038 2501 263 931 …        without one: the ids of the tokens

    Args:
        dataset: The opened dataset.
        index: Number of the sequence, from 0.
        decoder: Converts the ids to text; None if the tokenizer is not known.
    """
    length = int(dataset.sequence_lengths[index])
    n_shown = min(SHOWN_TOKENS, length)
    ids = dataset.get(index, 0, n_shown).tolist()
    if decoder is None:
        shown = " ".join(str(token_id) for token_id in ids)
    else:
        shown = decoder.decode(ids)
    if length > SHOWN_TOKENS:
        shown += " …"
    return f"[{index}] {format_count(length, 'token')}: {shown}"


def _has_default_special_tokens(file: TokenizerPath) -> bool:
    """Return whether the number of a tokenizer's special tokens is only assumed.

    Files in Megatron-LM's tiktoken format do not contain it. If the user does not give it, 1,000 is
    assumed. If that is wrong, all text is wrong, so the user is told.

    Args:
        file: The tokenizer's file, perhaps with settings such as this number.
    """
    from nanoset_core.tokenizers.files import define

    definition = define(file)
    is_tiktoken_json = definition.kind == "tiktoken JSON"
    is_number_given = definition.source.num_special_tokens is not None
    return is_tiktoken_json and not is_number_given


@dataclass(frozen=True, slots=True)
class _Decoder:
    """Converts tokens to the text that is shown."""

    file: TokenizerPath
    tokenizer: Tokenizer
    max_id: int
    """Largest id of the vocabulary."""

    @staticmethod
    def load(file: TokenizerPath) -> _Decoder:
        """Load a tokenizer, to convert the ids of tokens to text. This can take seconds.

        Args:
            file: The tokenizer's file, perhaps with further settings.

        Raises:
            FormatError: The file is not a tokenizer.
        """
        from nanoset_core.tokenizers.engines.tokenizers_library import load_tokenizer
        from nanoset_core.tokenizers.tokenizer import tokenizer_facts

        return _Decoder(file, load_tokenizer(file), tokenizer_facts(file).max_id)

    def decode(self, ids: list[int]) -> str:
        """Convert the ids of tokens to text as it is shown: quoted, and at most 160 characters.

            [9038, 2501, 263]    'Once upon a'
            [9038, 70000]        9038 70000 (token 1, 70000, is not in the vocabulary, 0 to 31999)

        The second case shows that the dataset was made with another tokenizer.

        Args:
            ids: Ids of the tokens.
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
