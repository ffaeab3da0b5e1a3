"""How many requests are sent to servers at the same time, and how often each is repeated.

The stores of all clouds use this module. Why a request failed, and whether it is worth repeating,
each store decides itself, as `stores/s3/requests.py` does for S3.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

from nanoset_core.storage.stores.unanswered import warn
from nanoset_core.untrusted import without_secrets

T = TypeVar("T")
R = TypeVar("R")
SMALL_REQUESTS_AT_ONCE = 32
"""Requests of few bytes to one server that may be pending at the same time.

Such a request looks up, lists or deletes an object, or reads a small one. It takes as long as the
server needs to answer, so that many at a time are faster. No client opens more connections.
"""
TRANSFERS_AT_ONCE = 8
"""Uploads, downloads and copies that may run at the same time.

Few of them use all of the network. Each may have 8 MiB or more in memory.
"""
ATTEMPTS = 10
"""How often a request is sent at most."""
FIRST_WAIT_SECONDS = 0.1
"""Half of the longest possible pause after the first attempt; it doubles with each attempt."""
LONGEST_WAIT_SECONDS = 20.0
"""Longest possible pause between two attempts."""
TOLD_AFTER_SECONDS = 5.0
"""How long a request may fail before a warning reports it."""
_MAX_QUEUED = 1024
"""Items that `in_parallel` queues at most, since there may be a hundred thousand."""
_jitter = random.Random()
"""Chooses the pauses. A seed that is set for Python's random numbers has no effect on it."""


class DamagedTransferError(Exception):
    """Bytes were damaged on their way to or from a server, so another attempt is worthwhile."""


def check_length(data: bytes, expected_bytes: int) -> None:
    """Check that an answer of a server has all requested bytes.

    Args:
        data: The bytes of the answer.
        expected_bytes: Their expected number.

    Raises:
        DamagedTransferError: There are fewer or more, so that the request is sent again.
    """
    if len(data) != expected_bytes:
        raise DamagedTransferError(f"{len(data):,} bytes instead of {expected_bytes:,}")


class Attempts:
    """Counts the attempts to send one request, and pauses between them.

    The longest possible pause doubles with each attempt, and the actual one is random ("full
    jitter"), so that many clients do not return to an overloaded server at the same moment.
    """

    def __init__(self, where: str) -> None:
        """Begin with the first attempt.

        Args:
            where: Address that the request is sent to, for messages.
        """
        self.number = 1
        """Number of the current attempt, from 1."""
        self._where = where
        self._started_at = time.monotonic()

    @property
    def is_last(self) -> bool:
        """Whether no attempt may follow the current one."""
        return self.number >= ATTEMPTS

    def pause(self, reason: str) -> None:
        """Wait after an attempt that failed, and begin the next one.

        The pause is random, and its upper limit doubles each time:

            after attempt      1      2      3      4     ...   8 and later
            seconds up to      0.2    0.4    0.8    1.6         20

        Args:
            reason: Why the attempt failed. It is logged if the request has failed for five seconds
                (TOLD_AFTER_SECONDS).
        """
        seconds = time.monotonic() - self._started_at
        if seconds >= TOLD_AFTER_SECONDS:
            warn(
                "%s: no good answer for %.0f s, attempt %d of %d: %s",
                self._where,
                seconds,
                self.number,
                ATTEMPTS,
                reason,
            )
        longest_pause = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**self.number)
        time.sleep(_jitter.uniform(0, longest_pause))
        self.number += 1


def description_of(error: BaseException, code: str = "") -> str:
    """Return the kind and the text of an error, without passwords.

    Args:
        error: What a request raised.
        code: What the server calls this kind of error, such as "SlowDown". By default, the kind is
            the name of the error's class.

    Returns:
        A description, such as "TimeoutError: no answer".
    """
    kind = code or type(error).__name__
    return without_secrets(f"{kind}: {error}".removesuffix(": "))


def in_parallel(
    work: Callable[[T], R],
    items: Iterable[T],
    threads: int,
    *,
    window: int = _MAX_QUEUED,
) -> list[R]:
    """Call a function for each item, in several threads, and return the results in order.

    For example, this looks up many objects of a bucket at the same time:

        in_parallel(store.stat, ["web/a.bin", "web/b.bin"], SMALL_REQUESTS_AT_ONCE)

    Args:
        work: The function. If it raises an error, no further calls are started, and the first
            error, in the order of the items, is raised.
        items: The items, which may come from a long iterator.
        threads: Number of threads. For requests, it is one of the two constants above.
        window: Items that are taken from `items` at most before their results are available. It
            limits the memory if the items are large.
    """
    # A single item needs no other thread.
    remaining = iter(items)
    first_items = list(islice(remaining, 2))
    if len(first_items) < 2:
        return [work(item) for item in first_items]

    results: list[R] = []
    queue: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in chain(first_items, remaining):
                # Wait for the oldest call if too many are queued.
                if len(queue) == window:
                    results.append(queue.popleft().result())
                queue.append(pool.submit(work, item))
            for future in queue:
                results.append(future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results
