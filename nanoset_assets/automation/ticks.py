"""Make the result of a sensor's tick: the runs that it requests, or why there are none.

Every sensor ends in `tick_result`, which escapes what messages quote, such as names of files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg

from nanoset_core.untrusted import visible


def tick_result(
    context: dg.SensorEvaluationContext,
    requests: Sequence[dg.RunRequest] = (),
    notes: Sequence[str] = (),
    idle_reason: str = "",
    **more: Any,
) -> dg.SensorResult:
    """Return what a sensor tells Dagster at the end of a call: runs to start, or why it has none.

    For example:

        requests          notes                     what Dagster shows
        a run of `web`    "books: waits for web"    the run, and the note in the log
        none              "books: waits for web"    skipped: books: waits for web
        none              none                      skipped: nothing has changed (`idle_reason`)

    Args:
        context: Dagster's context of the call.
        requests: The runs that Dagster shall start.
        notes: What else the user may want to know.
        idle_reason: Why no run is requested, if there are no notes either.
        more: Further arguments of `dg.SensorResult`, such as `cursor`.
    """
    for note in notes:
        context.log.info(visible(note))
    skip_reason = None
    if not requests:
        skip_reason = visible("; ".join(notes) or idle_reason)
    return dg.SensorResult(list(requests), skip_reason, **more)
