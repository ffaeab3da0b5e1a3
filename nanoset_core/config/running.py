"""Settings of automation, and of the project's names in Dagster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nanoset_core.errors import ConfigError
from nanoset_core.serialization.settings import Range

_CRON = re.compile(r"[0-9*/,-]+( +[0-9A-Za-z*/,#?-]+){4}")
"""The shape of a cron line; whether its numbers can be is known to the scheduler."""

LEAST_SETTLE_SECONDS = 2
"""A file written later than that could change again without a trace in its times."""


@dataclass(frozen=True, slots=True)
class AutomationSpec:
    """When new text is looked for, and what is missing or stale is built."""

    enabled: bool = True
    """Whether sensors and schedule run unless switched off in the UI; false: none runs unless switched on there."""
    sensor_seconds: Annotated[int, Range(1, 86_400)] = 30
    """Seconds between two looks at the raw folder, and between two at what is missing or stale."""
    settle_seconds: Annotated[float, Range(LEAST_SETTLE_SECONDS, 7 * 86_400)] = 30.0
    """Seconds for which a file must have been left alone before it is read, save in a build by hand."""
    reconcile: str | None = "0 3 * * *"
    """When everything is compared with what it should be: a cron line; null = never."""
    timezone: str = "UTC"
    """Time zone of the cron line, such as Europe/Vienna."""


@dataclass(frozen=True, slots=True)
class DagsterSpec:
    """Names of the project in Dagster, so that they differ from those of other projects and assets."""

    key_prefix: tuple[str, ...] = ()
    """Before the key of every asset, and in the names of partitions, jobs, sensors and schedule."""
    group_prefix: str | None = None
    """Before the name of every group of assets; absent = made of key_prefix."""


def automation_errors(file: Path, spec: AutomationSpec) -> Iterator[ConfigError]:
    """Yield an error for a cron line, and for a time zone, that is none."""
    if spec.reconcile is not None and not _CRON.fullmatch(spec.reconcile):
        yield no_cron_line(file, spec.reconcile)
    if spec.timezone != "UTC":
        from zoneinfo import ZoneInfo

        try:
            ZoneInfo(spec.timezone)
        except (KeyError, ValueError, OSError):
            what, expected = "this timezone is not known", "a name of the IANA database, such as UTC or Europe/Vienna"
            place, remedy = f"{file}: automation.timezone", "look the name up there, or remove the key to get UTC"
            yield ConfigError(what, where=place, found=repr(spec.timezone), expected=expected, remedy=remedy)


def no_cron_line(file: Path, found: str) -> ConfigError:
    """Return the error for a `reconcile` that is no cron line."""
    what, where = "this is not a cron line", f"{file}: automation.reconcile"
    expected = 'minute, hour, day, month and weekday, such as "0 3 * * *" for every night at three; or null'
    remedy = 'write five fields in quotes, such as "0 3 * * *"'
    return ConfigError(what, where=where, found=repr(found), expected=expected, remedy=remedy)
