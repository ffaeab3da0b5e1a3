"""Settings with a range or a choice of values take these values and no others."""

from __future__ import annotations

from typing import Literal, get_args, get_origin

from nanoset_core.project.written import WrittenConfig
from nanoset_core.records.parsing import parse_or_errors
from nanoset_core.records.settings import alternatives, bare, range_of, settings


def errors_of(section, value):
    _, errors = parse_or_errors(section, value, "", "f")
    return errors


def test_every_range_and_every_choice_is_checked():
    ranges, choices = set(), set()
    for one in settings(WrittenConfig):
        name, hints = one.key.rpartition(".")[2], alternatives(one.hint)
        between = next((found for found in map(range_of, hints) if found is not None), None)
        good: tuple = ()
        if get_origin(hints[0]) is Literal:
            choices.add(one.key)
            good, wrong = get_args(hints[0]), ("wrong",)
        elif between is not None:
            ranges.add(one.key)
            ends = [end for end in (between.low, between.high) if end is not None]
            good = tuple(map(bare(hints[0]), ends))
            wrong = (good[0] - 1, *(end + 1 for end in good[1:]))
        for value in good:
            assert not [
                found
                for found in errors_of(one.section, {name: value})
                if found.where == f"f: {name}"
            ]
        for value in wrong if good else ():
            (error,) = (
                found
                for found in errors_of(one.section, {name: value})
                if found.where == f"f: {name}"
            )
            assert error.what in ("this value is out of range", "this value is not known")
            assert error.remedy
    assert len(ranges) > 25
    assert len(choices) > 10
    assert {
        "nanosets.<name>.max_epochs",
        "webdatasets.<name>.memory_mib",
        "tokenization.range_mib",
    } <= ranges
