"""Measure how well a plan shuffles: what is left of the sources' order and of their blocks."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.splits import plain_sum
from nanoset_core.stages.webdataset.contexts import SourceContexts
from nanoset_core.stages.webdataset.order import WINDOW, keys_of, ranks
from nanoset_core.stages.webdataset.plan import ShufflePlan

SAMPLE = 1_000_000
"""Contexts that are looked at, at the most."""
_LEAST = 5.0  # variance of a count from which a standard error says something
_CELLS = 4_000_000  # counts of a source in a shard, at the most


def shuffle_quality(plan: ShufflePlan) -> dict[str, Any]:
    """Measure a plan's order. Reads no tokens, and needs some 100 MB and a second at the most for a million contexts.

    Plans of more are sampled: evenly spread contexts for the correlation and the picture, the first shards for the
    rest, which are taken whole so that neighbours are neighbours.

    Returns:
        JSON values. All measures but the counts have no unit, and stand beside what an even shuffle gives:
        `same_source` and `neighbours` are shares of neighbours in the shards that come from one source, and that touch,
        or are the same, in their source. `rank_correlation` is Spearman's, of the places in the sources and in the
        shards, with its standard error. `mix_mean` and `mix_max` are the deviations of a source's count in a shard from
        its share, in standard errors. `picture` is a PNG in base64: places in the sources from left to right, in the
        shards from top to bottom. `even` says whether every measure is within four standard errors of chance, the
        largest deviation within some more.
    """
    size = plan.shard_size
    shards = max(1, min(plan.shards, SAMPLE // size, _CELLS // max(len(plan.table.sources), 1)))
    numbers = np.arange(shards)
    if plan.contexts <= WINDOW:  # all shards alike; of more contexts each window of the order takes seconds
        numbers = numbers * plan.shards // shards
    order = [ranks(plan.table.contexts, plan.settings.seed, *plan.shard_ranks(int(shard))) for shard in numbers]
    same, touching, pairs = _adjacency(plan, order)
    deviation = np.concatenate([_deviations(plan, contexts) for contexts in order])
    correlation, error, picture = _positions(plan)
    sources, possible = plan.table.sources, max(plan.table.contexts * (plan.table.contexts - 1), 1)
    found: dict[str, Any] = {
        "contexts": plan.contexts,
        "sampled": sum(map(len, order)),
        "same_source": same / pairs,
        "same_source_expected": sum(source.contexts * (source.contexts - 1) for source in sources) / possible,
        "neighbours": touching / pairs,
        "neighbours_expected": plain_sum(map(_touching, sources)) / possible,
        "rank_correlation": correlation,
        "rank_correlation_error": error,
        "shards": len(numbers),
        "mix_mean": float(deviation.mean()) if len(deviation) else 0.0,
        "mix_max": float(deviation.max(initial=0.0)),
        "mix_max_expected": math.sqrt(2 * math.log(2 * len(deviation))) if len(deviation) else 0.0,
    }
    looked_at = max(found["sampled"] - 1, 1)
    even = (
        abs(correlation) <= 4 * error
        and _within(found["same_source"], found["same_source_expected"], looked_at)
        and _within(found["neighbours"], found["neighbours_expected"], looked_at)
        and found["mix_max"] <= found["mix_max_expected"] + 1.5
    )
    return found | {"even": even, "picture": base64.b64encode(picture).decode()}


def _adjacency(plan: ShufflePlan, order: list[NDArray[np.int64]]) -> tuple[int, int, int]:
    same = touching = pairs = 0
    for contexts in order:
        source, start, _ = plan.table.locate(contexts)
        alike = source[1:] == source[:-1]
        same, pairs = same + int(alike.sum()), pairs + len(alike)
        touching += int((alike & (np.abs(np.diff(start)) <= plan.settings.row_tokens)).sum())
    return same, touching, max(pairs, 1)


def _deviations(plan: ShufflePlan, contexts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return by how many standard errors of the hypergeometric distribution each source's count in a shard is off."""
    counts = np.array([source.contexts for source in plan.table.sources], dtype=np.float64)
    total, drawn = counts.sum(), len(contexts)
    share = counts / total
    source = np.searchsorted(plan.table.first_contexts, contexts, side="right") - 1
    variance = drawn * share * (1 - share) * (total - drawn) / max(total - 1, 1)
    counted = variance >= _LEAST
    off = np.abs(np.bincount(source, minlength=len(counts)) - drawn * share)
    found: NDArray[np.float64] = off[counted] / np.sqrt(variance[counted])
    return found


def _positions(plan: ShufflePlan) -> tuple[float, float, bytes]:
    total = plan.table.contexts
    count = min(total, SAMPLE)
    numbers = np.arange(count) * total // count
    # the order is that of the keys, so ranks within the sample need no order of all contexts
    place = np.argsort(np.argsort(keys_of(numbers.astype(np.uint64), plan.settings.seed)))
    picture = scatter_png(numbers / total, place / count)
    if count < 2:
        return 0.0, 1.0, picture
    # Spearman's rho without ties: 1 - 6 sum(d^2) / (n (n^2 - 1)); the sum of a million squares needs more than float32
    distance = float(((place - np.arange(count)).astype(np.float64) ** 2).sum())
    return 1 - 6 * distance / (count * (count**2 - 1.0)), 1 / math.sqrt(count - 1), picture


def _touching(source: SourceContexts) -> float:
    """Return how many ordered pairs of a source's contexts hold the same row, or rows that touch, by chance."""
    rows, whole = source.rows, source.repeats
    if not rows:
        return 0.0
    part = source.chosen / rows
    alike = rows * ((1 - part) * whole * (whole - 1) + part * (whole + 1) * whole)
    return alike + 2 * (rows - 1) * (source.contexts / rows) ** 2


def _within(found: float, expected: float, pairs: int) -> bool:
    return abs(found - expected) <= 4 * math.sqrt(expected * (1 - expected) / pairs) + 2 / pairs


WIDTH, HEIGHT = 128, 64
MAX_BASE64 = 700
"""Characters of the picture; markdown metadata shows pictures inline below 1,000."""

_POINTS = 512


def scatter_png(across: NDArray[np.float64], down: NDArray[np.float64]) -> bytes:
    """Draw a black-on-white PNG, 128 x 64, of points at `across` and `down`, float64, shape (points,), in [0, 1).

    Only as many of the points, evenly chosen, are drawn as keep it below 700 characters in base64. Even noise shows an
    even shuffle; a line or blocks show what is left of the sources' order.
    """
    count = min(len(across), _POINTS)
    while True:
        chosen = np.arange(count) * len(across) // max(count, 1)
        ink = np.zeros((HEIGHT, WIDTH), dtype=bool)
        ink[(down[chosen] * HEIGHT).astype(int), (across[chosen] * WIDTH).astype(int)] = True
        png = one_bit_png(ink)
        if len(base64.b64encode(png)) <= MAX_BASE64 or not count:
            return png
        count = count * 15 // 16


def one_bit_png(ink: NDArray[np.bool_]) -> bytes:
    """Return PNG bytes (ISO/IEC 15948) of ink, bool, shape (height, width): one bit a pixel, no filter, one IDAT."""
    height, width = ink.shape
    # (height, width) -> (height, bytes); a zero in front of each row says that it has no filter
    rows = np.packbits(~ink, axis=1)
    lines = np.concatenate([np.zeros((height, 1), dtype=np.uint8), rows], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
