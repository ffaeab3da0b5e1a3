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

from nanoset_core.project.corpora_found import FoundCorpus
from nanoset_core.project.first_tokenizer import FirstTokenizer
from nanoset_core.project.template import CommentedOut, ExplainedValue
from nanoset_core.sampling.config import DEFAULT_SPLIT
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.text.measure import Measure, measure

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
    tokens: float
    least_tokens: float
    """Lower bound of its tokens, even if the estimate is wrong."""


class LengthAndSplit(NamedTuple):
    """How a nanoset is cut into samples."""

    length: int
    """Tokens of a sample."""
    split: str
    """Shares of train, valid and test."""


def estimate_amount(raw: Path, corpus: FoundCorpus, tokenizer: FirstTokenizer) -> TextAmount:
    """Estimate how many documents and tokens a text collection (corpus) has, from its first MiB.

    `nanoset init` needs the numbers to suggest settings, before anything is tokenized. Suppose that
    the first MiB has 200 documents, that a token has 4 bytes on average, and that all files are 10
    times larger:

        documents      2,000
        tokens         about 2,600,000
        least_tokens   about 130,000, which the first MiB alone certainly has

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
    n_documents = sample.documents * sample.scale  # scale: size of all files / size of the sample
    if sample.text_bytes == 0:
        return TextAmount(n_documents, tokens=0, least_tokens=0)

    token_bytes = _measured_token_bytes(sample, tokenizer, folder)  # such as 4.2
    return TextAmount(
        n_documents,
        tokens=_likely_tokens(sample, token_bytes),
        least_tokens=_certain_tokens(sample, token_bytes),
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


def _certain_tokens(sample: Measure, token_bytes: float | None) -> float:
    """Return how many tokens the text of a sample has at least.

    If a token has 4 bytes on average in what was tokenized, it hardly has more than 8 in the rest.
    So a sample of 1,000,000 bytes in 200 documents has at least 125,200 tokens, of which 200 mark
    the ends of documents.

    Args:
        sample: The sample, of which only some text was tokenized.
        token_bytes: Bytes of a token; None if they are not known. Hardly any text has tokens of
            more than 16 bytes.
    """
    longest_token_bytes = 2 * token_bytes if token_bytes else _MAX_TOKEN_BYTES
    return sample.text_bytes / longest_token_bytes + sample.documents


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

    `nanoset init` suggests this. Every split should have some samples. So with little text, the
    splits for evaluation get a larger share, or none:

        "98,1,1"     98 % for training, and 1 % each for validation and test
        "90,10,0"    no test
        "1,0,0"      training alone

    Samples are made shorter than `longest` if that makes room for one more split.

    Args:
        amounts: How much text each collection of texts has.
        longest: The longest length that is possible, a power of two.

    Returns:
        For example 2048 tokens and the split "98,1,1".
    """
    length = _length_with_room(amounts, longest)

    # If the smallest split has 1 of 100 samples, the text must have room for 100 parts with enough
    # samples each.
    n_possible_parts = _n_parts(amounts, length)
    possible_splits = []
    for n_needed_parts, split in _SPLITS:
        if n_needed_parts <= n_possible_parts:
            possible_splits.append(split)
    return LengthAndSplit(length, possible_splits[0])  # "1,0,0" is the last, and always possible


def _length_with_room(amounts: Sequence[TextAmount], longest: int) -> int:
    """Choose how many tokens a sample has, so that there are enough samples for evaluation.

    The smaller the samples are, the more there are. Training data are divided into parts for
    training and validation, and the smallest division needs 5 parts of at least 20 samples, so 100
    samples. For example, 100,000 tokens are

        samples of 2,048 tokens     49
        samples of 1,024 tokens     98
        samples of 512 tokens       195     enough, so the length is 512

    Args:
        amounts: How much text each collection of texts has. Each of them needs that many samples.
        longest: The longest length that is possible, a power of two.

    Returns:
        The length. If samples of MIN_LENGTH tokens are still too long, there is no validation data,
        for which samples could be short: then the result is `longest`.
    """
    length = longest
    while length >= MIN_LENGTH:
        has_room = _n_parts(amounts, length) >= _MIN_PARTS
        if has_room:
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


def explained_split(split: str) -> str | ExplainedValue:
    """Return the setting `split` with a comment that explains it, if it is not the usual one.

    It says which shares of the text are for training, validation and test. With little text, the
    usual shares would be too small for a sample. For example, "1,0,0" gets the comment "There is
    little text: valid and test are left out, since there might be no sample. With more text, use
    …".

    Args:
        split: The shares.
    """
    if split == DEFAULT_SPLIT:
        return split
    # Either some splits are left out, or the smallest ones get a larger share than usual.
    shares = zip(SPLITS, parse_split(split), strict=True)
    empty_splits = [name for name, share in shares if not share]
    reason = "a smaller part might have no sample."
    if empty_splits:
        verb = "is" if len(empty_splits) == 1 else "are"
        names = " and ".join(empty_splits)
        reason = f"{names} {verb} left out, since there might be no sample."
    return ExplainedValue(
        split, f"There is little text: {reason} With more text, use {DEFAULT_SPLIT}."
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
    """Return how many batches an evaluation reads, so that no sample is read twice if possible.

    During a training, the samples for validation are read in several evaluations, each of which
    reads other samples. At the end, the samples for test are read in a single evaluation, which has
    the same number of batches. For example, for 10 evaluations and batches of 8 samples:

                                         valid        test
        estimated number of samples      1,000        80
        used: 95 %                       950          76
        for each evaluation              95           76
        batches                          11           9         so the result is 9

    As the number of samples is only an estimate, which may be too high, 5 % of them are not used.

    Args:
        samples: About how many samples train, valid and test have.
        evaluations: Number of evaluations during the training.
        batch: Samples of a batch.

    Returns:
        From 1 to 100; 0 if there are no samples for validation. It is 1 even if samples have to be
        read twice for that.
    """
    if not samples.get("valid"):
        return 0
    samples_per_evaluation = samples["valid"] * _EPOCH_SHARE / evaluations  # 95

    if samples.get("test"):
        samples_of_test = samples["test"] * _EPOCH_SHARE  # 76
        samples_per_evaluation = min(samples_per_evaluation, samples_of_test)

    n_batches = int(samples_per_evaluation / batch)  # 9
    return min(max(n_batches, 1), 100)  # at least 1, at most 100


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
