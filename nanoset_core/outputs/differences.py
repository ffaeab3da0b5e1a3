"""Describe for people how two recipes, or two sets of settings, differ: `seed: 7 → 8`.

`nanoset status` prints the differences between the recipe that made an output and the one of a new
build, and `nanoset diff` those between two versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from nanoset_core.outputs.manifest import Recipe
from nanoset_core.records.digests import digest_of
from nanoset_core.untrusted import shortened

_Input = TypeVar("_Input")

MADE_IN_OTHER_FORM = "made by a version of nanoset that records settings in another form"
"""Reason if what two outputs were made from differs, though no setting looks different.

The output has to be built again, too, since it would be stored under another digest.
"""
_MAX_VALUE_CHARACTERS = 40
"""Values in messages are cut to this length."""
_EQUAL_CHARACTERS = 12
"""If the start of two long values is left out, this many characters remain before they differ."""
_TEXT_BY_OPTION = {
    "trainer_path": "where trainers find the outputs (trainer_path, or else their location)",
    "purged": "documents that are left out (nanoset purge)",
    "epochs_of": "what max_epochs limits",
    "after.phases": "the phases before (phases)",
    "after.handoff": "the run that it continues (continue_from)",
    "after.consumed_samples": "samples that the run has consumed (continue_from)",
    "index_files": "where the index files of train and the others are",
    "framing.before": "token ids before each document",
    "framing.after": "token ids after each document (EOD)",
}
"""Text for options of recipes that are not named like a key of nanoset.yaml."""
NUMBERS_OF_SCHEDULE = ("iterations", "global_batch_size", "eval_interval", "eval_iters")
"""Names of the numbers in the option `schedule` of a recipe, which is a list, in its order."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why an output is stale."""

    text: str
    """Text for users, such as `seed: 7 → 8`."""
    input: str | None = None
    """Name of the input that has changed, if that is the reason."""
    is_of_link: bool = False
    """Whether only the link to the current version is wrong, so that a build writes no files."""

    def changed_input(self, inputs: Mapping[str, _Input]) -> _Input | None:
        """Return the input that has changed, or None for other reasons, such as a changed setting.

        Args:
            inputs: The present inputs of the output: name → input, such as {"dataset": …}.
        """
        if self.input is None:
            return None
        return inputs.get(self.input)


def differences(recipe: Mapping[str, Any], expected: Recipe) -> list[Reason]:
    """Return what differs between two recipes: first inputs, then the algorithm, then settings.

    A recipe says what an output is made from. If nothing differs, two outputs are equal.

    Args:
        recipe: The recipe that made an output, from its manifest.
        expected: The recipe that a build would use.

    Returns:
        The differences, such as `web changed`, `algorithm 1 → 2` and `seed: 7 → 8`. At least one if
        the recipes have different digests.
    """
    reasons = list(_input_differences(recipe["parents"], expected.parents))
    if recipe["version"] != expected.version:
        reasons.append(Reason(f"algorithm {recipe['version']} → {expected.version}"))
    for difference in setting_differences(recipe["options"], expected.options):
        reasons.append(Reason(difference))

    # Digests also differ if an option that is null was not recorded earlier, or if 1 became 1.0.
    if not reasons and digest_of(recipe) != expected.digest:
        reasons.append(Reason(MADE_IN_OTHER_FORM))
    return reasons


def _input_differences(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Reason]:
    """Yield the inputs that differ between two recipes, which say what an output is made from.

    Args:
        before: Name → digest of the inputs of the recipe that made an output, such as {"web":
            "91fe", "books": "77ab"}.
        now: Those of the recipe that a build would use, such as {"web": "3b0c", "code": "4c2e"}.

    Yields:
        One reason for each input: here "web changed", "code is new", "books is no longer used".
    """
    for name in dict.fromkeys([*now, *before]):
        if name not in before:
            yield Reason(f"{name} is new", name)
        elif name not in now:
            yield Reason(f"{name} is no longer used")
        elif before[name] != now[name]:
            yield Reason(f"{name} changed", name)


def setting_differences(
    before: Mapping[str, Any], now: Mapping[str, Any], words: Mapping[str, str] = _TEXT_BY_OPTION
) -> list[str]:
    """Return the settings that differ, each as `name: before → now`.

        before    {"seed": 7, "framing": {"before": [], "after": [0]}}
        now       {"seed": 8, "framing": {"before": [], "after": [1]}}
        result    ["seed: 7 → 8", "framing.after: [0] → [1]"]

    Args:
        before: Earlier settings.
        now: Later settings.
        words: Name of a setting → text that replaces the name, for names that users do not know.
            By default, `framing.after` is "token ids after each document (EOD)", for example.
    """
    flat_before = _flatten(before)
    flat_now = _flatten(now)
    lines = []
    for name in dict.fromkeys([*flat_before, *flat_now]):
        value_before = flat_before.get(name)
        value_now = flat_now.get(name)
        if value_before != value_now:
            lines.append(f"{words.get(name, name)}: {_format_change(value_before, value_now)}")
    return lines


def _name_numbers_of_schedule(schedule: Any) -> Any:
    """Return the numbers of the setting `schedule`, a list, with their names.

    A message about a change can then say which number has changed: "schedule.iterations: 100 →
    200".

    Args:
        schedule: The value of the setting, such as [100, 8]. Anything but a list with items is
            returned unchanged.

    Returns:
        For [100, 8], {"iterations": 100, "global_batch_size": 8}. A number without a name gets its
        index in the list.
    """
    if not isinstance(schedule, list | tuple) or not schedule:
        return schedule
    # Recipes of other versions may have fewer numbers, or more.
    number_by_name = {}
    for index, number in enumerate(schedule):
        has_name = index < len(NUMBERS_OF_SCHEDULE)
        name = NUMBERS_OF_SCHEDULE[index] if has_name else str(index)
        number_by_name[name] = number
    return number_by_name


def _flatten(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings without nesting, so that the settings of two builds can be compared one by
    one.

        {"seed": 7, "framing": {"after": [0]}}    →  {"seed": 7, "framing.after": [0]}
        {"schedule": [100, 8]}                    →  {"schedule.iterations": 100,
                                                      "schedule.global_batch_size": 8}

    Args:
        options: Settings, whose values may be mappings again.
        prefix: What precedes each name. The function calls itself for the inner mapping, here with
            "framing.".
    """
    flat: dict[str, Any] = {}
    for name, value in options.items():
        path = f"{prefix}{name}"
        if name == "schedule":
            value = _name_numbers_of_schedule(value)
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{path}.")
        elif isinstance(value, tuple):
            flat[path] = list(value)  # so that it is equal to a list that was read from JSON
        else:
            flat[path] = value
    return flat


def _format_change(before: Any, now: Any) -> str:
    """Return the text `before → now` for a setting that has changed, with shortened values.

        7, 8                                         "7 → 8"
        None, 8                                      "none → 8": it was not set
        two lists of 100 names, one name differs     "['web'] → ['books']": only what differs

    Args:
        before: The earlier value.
        now: The later value.
    """
    if _are_long_lists(before, now):
        removed = [item for item in before if item not in now]
        added = [item for item in now if item not in before]
        # If there are none, only the order has changed, which the whole lists show.
        if removed or added:
            return _format_values(removed, added)
    return _format_values(before, now)


def _format_values(before: Any, now: Any) -> str:
    """Return two values as text `before → now`, both shortened such that the difference is shown.

        /projects/language/models/llama/tokenizer-a
        /projects/language/models/llama/tokenizer-b    …a/tokenizer-a → …a/tokenizer-b

    Args:
        before: The earlier value.
        now: The later value.
    """
    short_before = _shorten(before)
    short_now = _shorten(now)
    look_equal = short_before == short_now
    if look_equal and (before is None) != (now is None):
        return _format_unset_and_none_text(before, short_now)
    if look_equal and str(before) != str(now):
        return _format_ends(str(before), str(now))
    return f"{short_before} → {short_now}"


def _format_unset_and_none_text(before: Any, short_text: str) -> str:
    """Return a value that is not set, and one that looks like it, as text `before → now`.

    Args:
        before: The earlier value: None if it was not set.
        short_text: How both values would be shown, such as "none".
    """
    if before is None:
        return f"not set → {short_text}"
    return f"{short_text} → not set"


def _format_ends(before: str, now: str) -> str:
    """Return two texts as `before → now`, without most of the start that both have.

    /a/long/path/tokenizer-a
    /a/long/path/tokenizer-b    …h/tokenizer-a → …h/tokenizer-b
    """
    start = max(_equal_characters(before, now) - _EQUAL_CHARACTERS, 0)
    return f"…{_shorten(before[start:])} → …{_shorten(now[start:])}"


def _equal_characters(first: str, second: str) -> int:
    """Return how many characters at the start of two texts are equal: 2 for abc and abd."""
    n_equal = 0
    for first_character, second_character in zip(first, second, strict=False):
        if first_character != second_character:
            break
        n_equal += 1
    return n_equal


def _are_long_lists(before: Any, now: Any) -> bool:
    """Return whether two values are lists, at least one of which is too long for a message."""
    if not isinstance(before, list) or not isinstance(now, list):
        return False
    return max(len(str(before)), len(str(now))) > _MAX_VALUE_CHARACTERS


def _shorten(value: Any) -> str:
    """Return a value of a setting as text for a message, cut to 40 characters
    (_MAX_VALUE_CHARACTERS).

    Args:
        value: The value. None, which means that the setting is not set, becomes `none`.
    """
    text = "none" if value is None else str(value)
    return shortened(text, _MAX_VALUE_CHARACTERS)
