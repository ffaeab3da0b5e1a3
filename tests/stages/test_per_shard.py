"""Outputs of shards: those that exist are reused, the others are made, all are summed up."""

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
    made: list[str] = field(default_factory=list)
    """Words for which a task was created."""

    def shards(self) -> Iterable[str]:
        return iter(self.words)

    def recipe(self, shard: str) -> Recipe:
        return Recipe("letters", "words", 1, {"shard": shard})

    def task(self, shard: str, recipe: Recipe) -> CountLetters:
        self.made.append(shard)
        return CountLetters(root=self.root, recipe=recipe, word=shard)

    def result(self, manifest: Manifest) -> int:
        letters: int = manifest.facts["letters"]
        return letters

    def amount(self, shard: str, result: int) -> Amount:
        return Amount(result)


def count_letters(
    outputs: LetterCounts,
    shown: RecordingDisplay | None = None,
    *,
    look_first: bool = True,
) -> MadePerShard[int]:
    """Count the letters of all words."""
    shown = shown or RecordingDisplay()
    n_letters = sum(map(len, outputs.words))
    work = shown.progress.work("count", "words", n_letters, "letters")
    return make_per_shard(
        outputs, outputs.root, work, workers=1, executor=None, look_first=look_first
    )


def test_results_are_in_the_order_of_the_shards(tmp_path):
    made = count_letters(LetterCounts(output_root(tmp_path), ["one", "three", "four"]))
    assert made == MadePerShard(results=[3, 5, 4], existing=[])


def test_without_shards_there_are_no_results(tmp_path):
    assert count_letters(LetterCounts(output_root(tmp_path), [])) == MadePerShard([], [])


def test_only_missing_outputs_are_made(tmp_path):
    root = output_root(tmp_path)
    count_letters(LetterCounts(root, ["one", "four"]))
    outputs = LetterCounts(root, ["one", "three", "four"])
    made = count_letters(outputs)
    assert made == MadePerShard(results=[3, 5, 4], existing=[0, 2])
    assert outputs.made == ["three"]


def test_after_an_error_the_next_run_makes_the_rest(tmp_path):
    root = output_root(tmp_path)
    with pytest.raises(ValueError, match="broken"):
        count_letters(LetterCounts(root, ["one", "broken", "four"]))
    outputs = LetterCounts(root, ["one", "three", "four"])
    count_letters(outputs)
    assert outputs.made == ["three", "four"]


def test_a_rebuild_makes_all_outputs(tmp_path):
    count_letters(LetterCounts(output_root(tmp_path), ["one", "four"]))
    outputs = LetterCounts(OutputRoot(output_root(tmp_path).access, True), ["one", "four"])
    assert count_letters(outputs).existing == []
    assert outputs.made == ["one", "four"]


def test_workers_find_existing_outputs_if_this_process_does_not_look(tmp_path):
    root = output_root(tmp_path)
    count_letters(LetterCounts(root, ["one"]))
    [manifest] = root.folder.rglob("manifest.json")
    written_at = manifest.stat().st_mtime_ns
    made = count_letters(LetterCounts(root, ["one"]), look_first=False)
    assert made.results == [3]
    assert manifest.stat().st_mtime_ns == written_at


def test_deferred_errors_are_raised_after_all_other_outputs_were_made(tmp_path):
    root = output_root(tmp_path)
    with pytest.raises(ExceptionGroup) as caught:
        count_letters(LetterCounts(root, ["unliked", "one", "unliked", "four"]))
    assert [str(error) for error in caught.value.exceptions] == ["unliked", "unliked"]
    assert count_letters(LetterCounts(root, ["one", "four"])).existing == [0, 1]


def test_progress_counts_existing_outputs_from_the_start_and_parts_while_they_are_made(tmp_path):
    root = output_root(tmp_path)
    count_letters(LetterCounts(root, ["one"]))
    shown = RecordingDisplay()
    count_letters(LetterCounts(root, ["one", "three", "four"]), shown)
    assert [work.done for work in shown.works] == [3, 4, 8, 9, 12]
    assert {work.total for work in shown.works} == {12}
