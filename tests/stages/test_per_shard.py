"""Outputs of single shards: those that exist are reused, the others are made, all are summed up.

The shards of these tests are words, and their outputs are the numbers of letters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from helpers.building import output_root
from helpers.progress import RecordingDisplay
from nanoset_core.execution.progress import Amount, PartReport, report_progress
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.per_shard import MadePerShard, PerShard, PerShardTask, make_per_shard


class UnlikedWordError(Exception):
    """A word cannot be counted, but others can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountLetters(PerShardTask):
    """Counts the letters of a word."""

    deferred_errors = (UnlikedWordError,)

    word: str

    def write(self, folder: Path) -> Written:
        """Report progress, and return the number of letters as a fact."""
        report_progress(PartReport(self.recipe.digest, Amount(1)))
        if self.word == "unliked":
            raise UnlikedWordError(self.word)
        if self.word == "broken":
            raise ValueError(self.word)
        return Written({"letters": len(self.word)})


@dataclass(frozen=True, slots=True)
class LetterCounts(PerShard[str, int]):
    """The number of letters of each word."""

    root: OutputRoot
    words: list[str]
    counted_words: list[str] = field(default_factory=list)
    """Words for which a task was created."""

    def shards(self) -> Iterable[str]:
        """Return the words."""
        return iter(self.words)

    def recipe(self, shard: str) -> Recipe:
        """Return the recipe of a word's output."""
        return Recipe("letters", "words", 1, {"shard": shard})

    def task(self, shard: str, recipe: Recipe) -> CountLetters:
        """Return the task that counts the letters of a word, and remember the word."""
        self.counted_words.append(shard)
        return CountLetters(root=self.root, recipe=recipe, word=shard)

    def result(self, manifest: Manifest) -> int:
        """Return the number of letters of a word."""
        letters: int = manifest.facts["letters"]
        return letters

    def amount(self, shard: str, result: int) -> Amount:
        """Return the progress that a finished word is."""
        return Amount(result)


def count_letters(
    outputs: LetterCounts,
    display: RecordingDisplay | None = None,
    *,
    look_first: bool = True,
) -> MadePerShard[int]:
    """Count the letters of all words.

    Args:
        outputs: The words.
        display: Records the progress.
        look_first: Whether this process finds out which outputs exist, and not the workers.
    """
    display = display or RecordingDisplay()
    n_letters = sum(len(word) for word in outputs.words)
    work = display.progress.work("count", "words", n_letters, "letters")
    return make_per_shard(
        outputs, outputs.root, work, workers=1, executor=None, look_first=look_first
    )


@pytest.fixture
def root(tmp_path: Path) -> OutputRoot:
    """An empty output root."""
    return output_root(tmp_path)


def test_results_are_in_the_order_of_the_shards(root):
    letter_counts = count_letters(LetterCounts(root, ["one", "three", "four"]))

    assert letter_counts == MadePerShard(results=[3, 5, 4], existing=[])


def test_without_shards_there_are_no_results(root):
    letter_counts = count_letters(LetterCounts(root, []))

    assert letter_counts == MadePerShard(results=[], existing=[])


def test_only_missing_outputs_are_made(root):
    count_letters(LetterCounts(root, ["one", "four"]))
    outputs = LetterCounts(root, ["one", "three", "four"])

    letter_counts = count_letters(outputs)

    assert letter_counts == MadePerShard(results=[3, 5, 4], existing=[0, 2])
    assert outputs.counted_words == ["three"]


def test_after_an_error_the_next_run_makes_the_remaining_outputs(root):
    with pytest.raises(ValueError, match="broken"):
        count_letters(LetterCounts(root, ["one", "broken", "four"]))
    outputs = LetterCounts(root, ["one", "three", "four"])

    count_letters(outputs)

    assert outputs.counted_words == ["three", "four"]


def test_a_rebuild_makes_all_outputs(root):
    count_letters(LetterCounts(root, ["one", "four"]))
    outputs = LetterCounts(OutputRoot(root.access, rebuild=True), ["one", "four"])

    letter_counts = count_letters(outputs)

    assert letter_counts.existing == []
    assert outputs.counted_words == ["one", "four"]


def test_workers_find_existing_outputs_if_this_process_does_not_look(root):
    count_letters(LetterCounts(root, ["one"]))
    [manifest] = root.folder.rglob("manifest.json")
    time_of_writing = manifest.stat().st_mtime_ns

    letter_counts = count_letters(LetterCounts(root, ["one"]), look_first=False)

    assert letter_counts.results == [3]
    assert manifest.stat().st_mtime_ns == time_of_writing


def test_deferred_errors_are_raised_after_all_other_outputs_were_made(root):
    with pytest.raises(ExceptionGroup) as caught:
        count_letters(LetterCounts(root, ["unliked", "one", "unliked", "four"]))

    assert [str(error) for error in caught.value.exceptions] == ["unliked", "unliked"]
    letter_counts = count_letters(LetterCounts(root, ["one", "four"]))
    assert letter_counts.existing == [0, 1]


def test_progress_counts_existing_outputs_first_and_the_parts_of_others_while_they_are_made(root):
    count_letters(LetterCounts(root, ["one"]))
    display = RecordingDisplay()

    count_letters(LetterCounts(root, ["one", "three", "four"]), display)

    # Three letters exist. Each of the other words reports one letter before it is finished.
    assert [work.done for work in display.works] == [3, 4, 8, 9, 12]
    assert {work.total for work in display.works} == {12}
