"""What the shards of a plan will weigh, before they are written."""

from __future__ import annotations

import numpy as np

from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.tar import ARCHIVE_BYTES, BLOCK_BYTES, end_of_archive, record_bytes

_NPY_HEADER_BYTES = 128
_JSON_GZ_BYTES = 2.0
"""a token of text as gzipped JSON: 1.7 to 2.1 bytes, by vocabulary and language"""


def output_bytes(plan: ShufflePlan) -> tuple[int, bool]:
    """Bytes of all tars, and whether that is exact (``npy``) or about right for text (``json.gz``)."""
    if plan.member == "npy":
        record = record_bytes(_NPY_HEADER_BYTES + plan.sequence_length * np.dtype(plan.dtype).itemsize)
        sizes = {end - begin for begin, end in (plan.shard_ranks(0), plan.shard_ranks(plan.shards - 1))}
        weight = {count: record * count + len(end_of_archive(record * count)) for count in sizes}
        first, last = (end - begin for begin, end in (plan.shard_ranks(0), plan.shard_ranks(plan.shards - 1)))
        return weight[first] * (plan.shards - 1) + weight[last], True
    body = plan.tokens / max(plan.contexts, 1) * _JSON_GZ_BYTES + BLOCK_BYTES / 2
    return int(plan.contexts * (BLOCK_BYTES + body)) + plan.shards * ARCHIVE_BYTES // 2, False
