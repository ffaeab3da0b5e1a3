"""Try to connect to a cluster until it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from nanoset_core.execution.progress import Wait

Client = TypeVar("Client")

_PAUSE_SECONDS = 0.5
"""Time between two attempts to connect."""


def connect_when_running(
    connect: Callable[[], Client],
    waiting: Wait,
    is_final: Callable[[OSError], bool] | None = None,
) -> Client:
    """Try again and again to connect to a cluster, which may be started later than this program.

    Args:
        connect: Makes one attempt, and returns the client.
        waiting: Limits the time, and shows the user how long was waited.
        is_final: Returns whether an error will not pass by itself. By default, all may pass: an
            OSError means that nothing answers yet.

    Raises:
        OSError: The error of the last attempt: it is final, or the time is over.
        Exception: Any other error of an attempt, at once.
    """
    waiting.start()
    while True:
        try:
            client = connect()
        except OSError as error:
            will_stay = is_final is not None and is_final(error)
            if will_stay or not waiting.has_time_left():
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            waiting.end()
            return client
