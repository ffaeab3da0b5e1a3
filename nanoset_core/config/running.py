"""How builds run: when they begin by themselves, and what they are called in Dagster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nanoset_core.errors import ConfigError
from nanoset_core.serialization.settings import Between

_CRON = re.compile(r"[0-9*/,-]+( +[0-9A-Za-z*/,#?-]+){4}")
"""The shape of a cron line; whether its numbers can be is known to the scheduler."""

LEAST_SETTLE_SECONDS = 2
"""A file that was written a moment ago could change again without a trace in its times."""


@dataclass(frozen=True, slots=True)
class AutomationSpec:
    """When the platform looks for new text, and builds what is missing or stale."""

    enabled: bool = True
    """Whether sensors and schedule run unless switched off in the UI; false: none runs unless switched on there."""
    sensor_seconds: Annotated[int, Between(1, 86_400)] = 30
    """Seconds between two looks at the raw folder, and between two at what is missing or stale."""
    settle_seconds: Annotated[float, Between(LEAST_SETTLE_SECONDS, 7 * 86_400)] = 30.0
    """Seconds for which a file must have been left alone before it is read, save in a build by hand."""
    reconcile: str | None = "0 3 * * *"
    """When everything is compared with what it should be: a cron line; null = never."""
    timezone: str = "UTC"
    """Time zone of the cron line, such as Europe/Vienna."""


@dataclass(frozen=True, slots=True)
class DagsterSpec:
    """What the project is called in Dagster, so that it can live beside other projects and other people's assets."""

    key_prefix: tuple[str, ...] = ()
    """Before the key of every asset, and in the names of partitions, jobs, sensors and schedule."""
    group_prefix: str | None = None
    """Before the name of every group of assets; absent = made of key_prefix."""


def check_automation(file: Path, spec: AutomationSpec) -> None:
    """Check the cron line and the time zone.

    Raises:
        ConfigError: one of them is not one.
    """
    if spec.reconcile is not None and not _CRON.fullmatch(spec.reconcile):
        raise no_cron_line(file, spec.reconcile)
    if spec.timezone != "UTC":
        _check_timezone(file, spec.timezone)


def no_cron_line(file: Path, found: str) -> ConfigError:
    """The error for a `reconcile` that is no cron line."""
    return ConfigError(
        "this is not a cron line",
        where=f"{file}: automation.reconcile",
        found=repr(found),
        expected='minute, hour, day, month and weekday, such as "0 3 * * *" for every night at three; or null',
        remedy='write five fields in quotes, such as "0 3 * * *"',
    )


def _check_timezone(file: Path, name: str) -> None:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigError(
            "this timezone is not known",
            where=f"{file}: automation.timezone",
            found=repr(name),
            expected="a name of the IANA database, such as UTC or Europe/Vienna",
            remedy="look the name up in that database, or remove the key to get UTC",
        ) from error
