"""How `nanoset init` chooses lengths of samples, splits and schedules: by how much text there is.

A first build must succeed with any amount of text, so every split needs samples. What is known is
an estimate from the first MiB of each corpus. So the choices leave a margin: the smallest part of a
split is expected to hold _MIN_EXPECTED samples and documents.

Example: the smaller of two corpora has about 100,000 tokens in 400 documents. With samples of 512
tokens it has about 195 samples, and 195 / 20 = 9.75 parts of it would hold enough. The split
"80,20,0" needs 5 parts, "90,10,0" needs 10: the first one is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nanoset_core.project.first_config.corpora import FoundCorpus
from nanoset_core.project.first_config.template import CommentedOut, ExplainedValue
from nanoset_core.project.first_config.tokenizer import FirstTokenizer
from nanoset_core.sampling.config import DEFAULT_SPLIT
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.text.sampling import Measure, measure

USUAL_LENGTH = 2048
"""Tokens of a sample, if there is enough text."""
MIN_LENGTH = 256
"""Samples are not made shorter than this to make room for a split."""
_USUAL_TOKEN_BYTES = 4
"""Bytes of a token, if no tokenizer is known."""
_MAX_TOKEN_BYTES = 16
"""Hardly any text has longer tokens on average."""
_MIN_EXPECTED = 20
"""Samples, and documents, that the smallest part of a split is expected to hold: documents differ
in length, and with fewer there might be none.
"""
_SPLITS = (
    (1000, DEFAULT_SPLIT),
    (100, "98,1,1"),
    (20, "90,5,5"),
    (10, "90,10,0"),
    (5, "80,20,0"),
    (0, "1,0,0"),
)
"""(parts into which the text can be cut, at least; split), the first that applies is chosen."""
_EVALUATIONS = 10
"""Times that a first run evaluates, unless it is long."""
_MAX_EVAL_INTERVAL = 1000
"""Iterations between two evaluations, at most: a long run evaluates more often."""
_MIN_PARTS = 5
"""The parts that the smallest split with two parts needs."""
_MIN_STEPS = 250
"""Steps that a first run has at least, if there is text for them."""
_MAX_BATCH = 512
"""Samples of a training step that are chosen at most."""
_EPOCH_SHARE = 0.95
"""Share of an epoch that a first run takes: the epoch is an estimate, and few texts should be read
twice.
"""


@dataclass(frozen=True, slots=True)
class TextAmount:
    """How much text a corpus has, estimated from its first MiB."""

    documents: float
    """Estimated number of its documents."""
    tokens: float
    """Estimated number of its tokens; 0 if no text was found."""
    least_tokens: float
    """How many tokens it certainly has: those of the first MiB, counted with caution."""


class LengthAndSplit(NamedTuple):
    """How a nanoset is cut into samples."""

    length: int
    """Tokens of a sample."""
    split: str
    """Shares of train, valid and test."""


def estimate_amount(raw: Path, corpus: FoundCorpus, tokenizer: FirstTokenizer) -> TextAmount:
    """Estimate how many documents and tokens a text collection (corpus) has, from its first MiB.

    Suppose that this MiB (1,048,576 bytes) has 200 documents, that a token has 4 bytes on average,
    and that all files are 10 times larger. Then the estimate is:

        documents       200 * 10                    2,000
        tokens          1,048,576 / 4 bytes * 10    about 2,620,000
        least_tokens    1,048,576 / 8 bytes         about 131,000

    The last number is a safe lower bound. It counts the first MiB alone, and assumes that a token
    has twice as many bytes as measured.

    Args:
        raw: The folder that has a folder for each corpus.
        corpus: The corpus.
        tokenizer: Tokenizes some of the text, to find how many bytes a token has. If there is no
            tokenizer yet, the usual number is assumed.

    Raises:
        EncodingError: The tokenizer fails on a text.
    """
    folder = raw / corpus.folder
    sample = measure(folder, corpus.contents, corpus.text_key or "text")
    # The scale is the size of all files divided by that of the sample, such as 10.
    n_documents = sample.documents * sample.scale
    if sample.text_bytes == 0:
        return TextAmount(n_documents, tokens=0, least_tokens=0)

    token_bytes = _measured_token_bytes(sample, tokenizer, folder)  # such as 4.2
    return TextAmount(
        n_documents,
        tokens=_likely_tokens(sample, token_bytes),
        least_tokens=_least_tokens(sample, token_bytes),
    )


def _measured_token_bytes(sample: Measure, tokenizer: FirstTokenizer, folder: Path) -> float | None:
    """Return how many bytes of a text are one token, on average, such as 4.2.

    Args:
        sample: Some of the text of a collection, which is tokenized for this.
        tokenizer: The tokenizer. A new project may not have one yet.
        folder: Folder of the text, for errors.

    Returns:
        The number; None without a tokenizer, or without text.

    Raises:
        EncodingError: The tokenizer fails on the text.
    """
    from nanoset_core.tokenizers.engines.engine import EncodingError

    if not sample.text:
        return None
    try:
        return tokenizer.bytes_per_token(sample.text)
    except EncodingError as error:
        raise error.at(f"{folder}, in its first texts") from error


def _likely_tokens(sample: Measure, token_bytes: float | None) -> float:
    """Estimate how many tokens all files of a text collection have, from a sample of the text.

    For example, a sample of 1,000,000 bytes in 200 documents, with 4 bytes for each token, has
    250,000 tokens, and 200 more, which mark the ends of documents. If all files are 10 times
    larger, they have about 2,502,000.

    Args:
        sample: The sample.
        token_bytes: Bytes of a token; None if they are not known, so that the usual number is
            assumed.
    """
    tokens_of_text = sample.text_bytes * sample.scale / (token_bytes or _USUAL_TOKEN_BYTES)
    return tokens_of_text + sample.documents * sample.scale


def _least_tokens(sample: Measure, token_bytes: float | None) -> float:
    """Return how many tokens the first MiB of a text collection has at the very least.

    Only a part of it was tokenized. Suppose that the tokens in the rest are twice as long.

    Args:
        sample: Describes the first MiB: its documents, and the bytes of their text.
        token_bytes: Bytes of a token on average, such as 4; None if nothing was tokenized.
    """
    long_token_bytes: float = _MAX_TOKEN_BYTES  # 16: hardly any text has longer tokens
    if token_bytes:
        long_token_bytes = 2 * token_bytes
    end_tokens = sample.documents  # each document ends with a special token
    return sample.text_bytes / long_token_bytes + end_tokens


def longest_length(amounts: Sequence[TextAmount]) -> int:
    """Return how long samples can be, so that every text collection has at least one.

    It is a power of two, and not more than USUAL_LENGTH (2,048 tokens). For example:

        tokens of the smallest collection     700    5,000
        length                                512    2,048

    Args:
        amounts: How much text each collection has. Those without tokens do not count.
    """
    least_tokens = [int(amount.least_tokens) for amount in amounts if amount.tokens]
    if not least_tokens:
        return USUAL_LENGTH

    # A sample of length n needs n + 1 tokens: a trainer reads tokens 0 to n - 1 as input, and
    # tokens 1 to n as labels.
    longest = min(least_tokens) - 1
    if longest >= USUAL_LENGTH:
        return USUAL_LENGTH
    length = 1
    while 2 * length <= longest:
        length *= 2
    return length


def choose_length_and_split(amounts: Sequence[TextAmount], longest: int) -> LengthAndSplit:
    """Choose how long samples are, and which share of them is for training, validation and test.

    With little text, the smallest shares would have no sample, so they are larger, or left out:

        "98,1,1"     98 % for training, and 1 % each for validation and test
        "90,10,0"    no test
        "1,0,0"      training alone

    Args:
        amounts: How much text each collection of texts has.
        longest: The longest possible length, a power of two. Samples are made shorter if that makes
            room for validation.

    Returns:
        For example 2048 tokens and the split "98,1,1".
    """
    length = _length_with_room(amounts, longest)

    # Into how many parts of a useful size can the text be divided? "98,1,1" needs 100 parts.
    n_possible_parts = _n_parts(amounts, length)
    split = "1,0,0"
    for n_needed_parts, possible_split in _SPLITS:  # those that need many parts come first
        if n_needed_parts <= n_possible_parts:
            split = possible_split
            break
    return LengthAndSplit(length, split)


def _length_with_room(amounts: Sequence[TextAmount], longest: int) -> int:
    """Return the longest length of samples with which there are enough of them for validation.

    There must be at least 5 parts of 20 samples: four for training, and one for validation. The
    shorter samples are, the more there are. For example, of 100,000 tokens:

        length    samples    parts of 20 samples
        2,048     49         2.4
        1,024     98         4.9
        512       195        9.8                    at least 5, so the result is 512

    Args:
        amounts: How much text each collection has.
        longest: The longest possible length, a power of two.

    Returns:
        The length. If even samples of MIN_LENGTH (256) tokens are too few, it is `longest`: there
        will be no validation, so shorter samples are of no use.
    """
    length = longest
    while length >= MIN_LENGTH:
        # This also takes into account how many documents there are.
        n_parts = _n_parts(amounts, length)
        if n_parts >= _MIN_PARTS:  # 5
            return length
        length //= 2
    return longest


def _n_parts(amounts: Sequence[TextAmount], length: int) -> float:
    """Return into how many parts of useful size each collection of texts can be divided.

    The parts are for training, validation and test. A part is useful if it has at least 20 samples
    and 20 documents. For example, of two collections, with samples of 512 tokens:

        tokens     documents    samples    parts by samples    parts by documents
        100,000    400          195        9.8                 20
        300,000    100          586        29                  5

    The smallest number counts, here 5.

    Args:
        amounts: How much text each collection has.
        length: Tokens of a sample.

    Returns:
        The number, which need not be an integer; infinite if there is no collection.
    """
    n_parts = math.inf
    for amount in amounts:
        n_samples = amount.tokens / length
        parts_by_samples = n_samples / _MIN_EXPECTED
        parts_by_documents = amount.documents / _MIN_EXPECTED
        n_parts = min(n_parts, parts_by_samples, parts_by_documents)
    return n_parts


def smallest_corpus(amounts: Mapping[str, TextAmount]) -> str | None:
    """Return the collection of texts with the fewest tokens, which decides the length of samples.

    Args:
        amounts: Name of each collection → how much text it has. Those without tokens do not count.

    Returns:
        Its name, or None if there are not several, or nothing is known of their text.
    """
    if len(amounts) < 2:
        return None
    names = [name for name, amount in amounts.items() if amount.tokens]
    return min(names, key=lambda name: amounts[name].tokens, default=None)


def scarcest_corpus(amounts: Mapping[str, TextAmount], length: int) -> str | None:
    """Return the collection of texts that can be divided into the fewest parts of useful size.

    It decides which share of the text is for validation and test. It may have many tokens, but only
    few documents.

    Args:
        amounts: Name of each collection → how much text it has.
        length: Tokens of a sample.

    Returns:
        Its name, or None if there are not several.
    """
    if len(amounts) < 2:
        return None
    return min(amounts, key=lambda name: _n_parts([amounts[name]], length))


def little_text(corpus: str | None) -> str:
    """Return the beginning of a comment: "There is little text in books", for example.

    Args:
        corpus: The collection of texts that has little text; None if there are not several.
    """
    if corpus is None:
        return "There is little text"
    return f"There is little text in {corpus}"


def explained_split(split: str, scarce_corpus: str | None) -> str | ExplainedValue:
    """Return the setting `split` with a comment that explains it, if it is not the usual one.

    For example, "1,0,0" gets the comment "There is little text in books: valid and test are left
    out, since there might be no sample. With more text, use …".

    Args:
        split: The shares of the text for training, validation and test.
        scarce_corpus: The collection of texts that decides them; None if there are not several.
    """
    if split == DEFAULT_SPLIT:
        return split

    shares = zip(SPLITS, parse_split(split), strict=True)  # ("train", 1), ("valid", 0), …
    empty_splits = [name for name, share in shares if not share]  # ["valid", "test"]
    if not empty_splits:  # the smallest shares are just larger than usual
        reason = "a smaller part might have no sample."
    else:
        names = " and ".join(empty_splits)
        verb = "is" if len(empty_splits) == 1 else "are"
        reason = f"{names} {verb} left out, since there might be no sample."
    return ExplainedValue(
        split, f"{little_text(scarce_corpus)}: {reason} With more text, use {DEFAULT_SPLIT}."
    )


def _batch_size(train_samples: int) -> int:
    """Choose how many samples a training step reads, for a first training.

    Large batches are usual, but with few samples, there would be few steps. So take the largest
    power of two, up to 512 (_MAX_BATCH), that gives at least 250 steps (_MIN_STEPS). For 10,000
    samples:

        batch size    16     32     64
        steps         625    312    156     so the batch size is 32

    Args:
        train_samples: Number of samples for training. If even batches of 2 give fewer steps, the
            batch size is 1.
    """
    batch = 1
    while 2 * batch <= _MAX_BATCH:
        n_steps = train_samples / (2 * batch)
        if n_steps < _MIN_STEPS:
            break
        batch *= 2
    return batch


def _eval_iterations(samples: Mapping[SplitName, int], evaluations: int, batch: int) -> int:
    """Return how many batches each evaluation of a training reads.

    During the training, the samples for validation are divided among the evaluations. At the end,
    the samples for test are read by one evaluation of the same size. For example, with 10
    evaluations and batches of 8 samples:

        950 samples for validation    95 for each evaluation    11 batches
        76 samples for test           76                        9 batches: the result is 9

    Args:
        samples: About how many samples train, valid and test have.
        evaluations: Number of evaluations during the training.
        batch: Samples of a batch.

    Returns:
        From 1 to 100; 0 if there are no samples for validation.
    """
    if not samples.get("valid"):
        return 0
    # The numbers of samples are estimates. If there are fewer, none should be read twice, so use
    # only 95 % of them (_EPOCH_SHARE).
    samples_per_evaluation = samples["valid"] * _EPOCH_SHARE / evaluations
    if samples.get("test"):
        samples_of_test = samples["test"] * _EPOCH_SHARE
        samples_per_evaluation = min(samples_per_evaluation, samples_of_test)

    n_batches = int(samples_per_evaluation / batch)
    return min(max(n_batches, 1), 100)


def choose_schedule(
    tokens: Mapping[SplitName, float], length: int
) -> CommentedOut | ExplainedValue:
    """Suggest the length of a first training, in which each text is read about once.

    For example, with 10,000 samples for training:

        schedule:
          iterations: 296
          global_batch_size: 32
          eval_interval: 29
          eval_iters: …

    Args:
        tokens: About how many tokens train, valid and test have.
        length: Number of tokens in a sample.

    Returns:
        The section, with a comment that says where the numbers come from. If there is too little
        text for a sample, the whole section is a comment, with usual numbers as an example.
    """
    samples = {split: int(count / length) for split, count in tokens.items()}
    train_samples = samples["train"]
    if train_samples < 1:
        return CommentedOut({"iterations": 100_000, "global_batch_size": 512})

    batch_size = _batch_size(train_samples)
    iterations = _iterations(train_samples, batch_size)
    eval_interval = _eval_interval(iterations)
    # Trainers evaluate once more after the last iteration.
    n_evaluations = iterations // eval_interval + 1
    schedule = {
        "iterations": iterations,
        "global_batch_size": batch_size,
        "eval_interval": eval_interval,
        "eval_iters": _eval_iterations(samples, n_evaluations, batch_size),
    }
    return ExplainedValue(schedule, _origin_of_schedule(tokens["train"], train_samples))


def _iterations(train_samples: int, batch_size: int) -> int:
    """Return how many iterations a run has: slightly less than one epoch, but at least one.

    Args:
        train_samples: Number of samples for training. It is an estimate: if there are fewer, a
            whole epoch would read some twice.
        batch_size: Samples of an iteration.
    """
    return max(1, int(train_samples * _EPOCH_SHARE / batch_size))


def _eval_interval(iterations: int) -> int:
    """Return after how many iterations to evaluate: ten times, or more often in a long run."""
    return max(1, min(iterations // _EVALUATIONS, _MAX_EVAL_INTERVAL))


def _origin_of_schedule(train_tokens: float, train_samples: int) -> str:
    """Return the comment on the length of a first training, which is chosen by an estimate.

    For example: "About one epoch, by the first MiB of each corpus: 12,000 tokens, 23 samples."

    Args:
        train_tokens: About how many tokens there are for training. Only two digits are shown:
            12,345 becomes 12,000.
        train_samples: Number of samples for training.
    """
    rounded_tokens = float(f"{train_tokens:.2g}")
    return (
        "About one epoch, by the first MiB of each corpus: "
        f"{rounded_tokens:,.0f} tokens, {train_samples:,} samples."
    )
