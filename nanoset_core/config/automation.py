"""How the platform acts by itself, as nanoset.yaml holds it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.names import check_within

_CRON = re.compile(r"[0-9*/,-]+( +[0-9A-Za-z*/,#?-]+){4}")
"""The shape of a cron line; whether its numbers can be is known to the scheduler."""

LEAST_SETTLE_SECONDS = 2
"""A file that was written a moment ago could change again without a trace in its times."""


@dataclass(frozen=True, slots=True)
class AutomationSpec:
    """When the platform looks for new text, and builds what is missing or stale."""

    enabled: bool = True
    """whether sensors and schedule run unless switched off in the UI; false: none runs unless switched on there"""
    sensor_seconds: int = 30
    """between two looks at the raw folder, and between two at what is missing or stale"""
    settle_seconds: float = 30.0
    """how long the files of a corpus must have been left alone before they are read"""
    reconcile: str | None = "0 3 * * *"
    """when everything is compared with what it should be: a cron line; null = never"""
    timezone: str = "UTC"
    """of the cron line, such as Europe/Vienna"""


def check_automation(file: Path, spec: AutomationSpec) -> None:
    """Raise ConfigError for the first value that cannot be."""
    check_within(file, "automation.sensor_seconds", spec.sensor_seconds, 1, 86_400)
    check_within(file, "automation.settle_seconds", spec.settle_seconds, LEAST_SETTLE_SECONDS, 7 * 86_400)
    if spec.reconcile is not None and not _CRON.fullmatch(spec.reconcile):
        raise no_cron_line(file, spec.reconcile)
    if spec.timezone != "UTC":
        _check_timezone(file, spec.timezone)


def no_cron_line(file: Path, found: str) -> ConfigError:
    """The error for a `reconcile` that is no cron line."""
    return ConfigError(
        "this is no cron line",
        where=f"{file}: automation.reconcile",
        found=repr(found),
        expected='minute, hour, day, month and weekday, such as "0 3 * * *" for every night at three; or null',
        remedy="correct it",
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
            remedy="correct it",
        ) from error
