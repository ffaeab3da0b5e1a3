"""The lists of formats agree: the settings name them without importing their code."""

from __future__ import annotations

from typing import get_args

from nanoset_core.stages.exports.formats import FORMATS
from nanoset_core.stages.exports.samples import SampledFormat
from nanoset_core.stages.exports.settings import IN_SAMPLES, FormatName


def test_nanoset_yaml_accepts_exactly_the_formats_that_exist():
    assert get_args(FormatName) == tuple(FORMATS)


def test_the_settings_know_which_formats_consist_of_samples():
    sampled = [name for name, item in FORMATS.items() if isinstance(item, SampledFormat)]

    assert list(IN_SAMPLES) == sampled
