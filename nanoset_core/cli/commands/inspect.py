"""`nanoset inspect`: what an indexed dataset holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import ANY_PATH, ManyValued, option, tokenizer_options
from nanoset_core.cli.terminal import spread

if TYPE_CHECKING:
    from nanoset_core.storage.location import Location
    from nanoset_core.tokenizers.files import TokenizerPath

SHOWN_TOKENS = 24
SHOWN_CHARACTERS = 160


@click.command("inspect", cls=ManyValued, short_help="Show what an indexed dataset holds.")
@click.argument("prefix", type=ANY_PATH)
@tokenizer_options("to show text instead of ids")
@option("--sequences", "How many sequences to show.", default=3, show_default=True)
def command(prefix: Location, tokenizer: TokenizerPath | None, sequences: int) -> None:
    """Show what the indexed dataset at PREFIX (.bin/.idx), or each one in a folder, holds, and its
    first sequences.
    """
    from nanoset_core.formats.indexed.folder import pairs_at

    for pair in pairs_at(prefix):
        for line in describe_dataset(pair, tokenizer, sequences):
            echo(line)


def describe_dataset(
    prefix: Location, tokenizer_file: TokenizerPath | None = None, sequences: int = 3
) -> Iterator[str]:
    """Yield lines on counts, lengths, dtype, and the first sequences, decoded where there is a
    tokenizer.

    Raises:
        MissingError, FormatError: see MMapIndexedDataset.
    """
    import numpy as np

    from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
    from nanoset_core.formats.indexed.ids import first_foreign
    from nanoset_core.tokenizers.engines.reference import decode_tokens, load_tokenizer
    from nanoset_core.tokenizers.files import define, tokenizer_path
    from nanoset_core.tokenizers.tokenizer import tokenizer_facts

    dataset, file = (
        MMapIndexedDataset(str(prefix)),
        None if tokenizer_file is None else tokenizer_path(tokenizer_file),
    )
    tokenizer, lengths = None if file is None else load_tokenizer(file), dataset.sequence_lengths
    yield f"{prefix}: {len(dataset.document_indices) - 1:,} documents, {len(dataset):,} sequences, {dataset.dtype}"
    if len(lengths):
        yield f"{int(lengths.sum(dtype=np.int64)):,} tokens; a sequence has {spread(lengths)}"
    made = None if file is None else define(file)
    if made is not None and made.kind == "tiktoken JSON" and made.source.num_special_tokens is None:
        yield (
            "the tokenizer is Megatron-LM's tiktoken JSON, taken with 1,000 ids for special tokens, as by default: "
            "where the tokens were made with another number, name it with --tiktoken-num-special-tokens"
        )
    for index in range(min(sequences, len(dataset))):
        ids = dataset.get(index, 0, min(SHOWN_TOKENS, lengths[index])).tolist()
        shown = " ".join(map(str, ids))
        if tokenizer is not None and file is not None:
            greatest = tokenizer_facts(file).max_id
            foreign = first_foreign(np.array(ids, np.int64), greatest)
            if foreign is None:
                shown = repr(decode_tokens(tokenizer, ids, file)[:SHOWN_CHARACTERS])
            else:  # ids that no tokenizer can decode
                shown = f"{shown} (token {foreign}, {ids[foreign]}, is not in the vocabulary, 0 to {greatest})"
        yield f"[{index}] {lengths[index]:,} tokens: {shown}{' …' if lengths[index] > SHOWN_TOKENS else ''}"
