"""Settings of what is looked for in the corpora: texts of evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from nanoset_core.errors import ConfigError, one_of, raised, remedy_for_name
from nanoset_core.outputs.names import check_asset_name, check_corpora
from nanoset_core.records.parsing import broken
from nanoset_core.records.settings import Range
from nanoset_core.stages.views.settings import ViewSpec

_TEXTS = {
    "nothing": ("there is nothing to look for", "name a file and a key, or remove the section")
}
"""Rule of a section → what is wrong, and the remedy; see `broken`."""


@dataclass(frozen=True, slots=True)
class ContaminationSpec:
    """Evaluation files whose texts are looked for in the documents of corpora."""

    files: tuple[str, ...] | str = field(metadata={"example": "evals/*.jsonl"})
    """Files of JSON lines, Parquet or Arrow, local or s3://…; patterns may be given."""
    text_keys: tuple[str, ...] | str = "text"
    """Keys whose texts are looked for, those of a line joined in this order; lists of texts are
    taken, too.
    """
    of: tuple[str, ...] = ()
    """Corpora that are looked through; absent = all that training reads."""
    ngram: Annotated[int, Range(3, 64)] = 5
    """Words that must be the same, one after the other, to count."""
    threshold: Annotated[float, Range(0.1, 1)] = 0.55
    """Share of a text's letters, 0 to 1, that must lie in such words near one another."""
    policy: Literal["warn", "block", "exclude"] = "warn"
    """What a contaminated document means: a warning; nothing is made that trains on it; or a
    warning, unless each view that training reads leaves it out by `clean_of`."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """Files, as they are named."""
        return (self.files,) if isinstance(self.files, str) else self.files

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of texts, in order."""
        return (self.text_keys,) if isinstance(self.text_keys, str) else self.text_keys


def contamination_errors(
    file: Path, sections: Mapping[str, ContaminationSpec], views: Mapping[str, ViewSpec]
) -> Iterator[ConfigError]:
    """Yield an error for each section that cannot be, and for each view that names none."""
    for name, spec in sections.items():
        where = f"{file}: contamination.{name}"
        yield from raised(check_asset_name, name, where)
        if spec.of:
            yield from raised(check_corpora, file, f"contamination.{name}.of", spec.of)
        empty = (
            (not spec.patterns, "nothing", "files", "no file"),
            (not spec.keys, "nothing", "text_keys", "no key"),
        )
        yield from broken(f"{where}.", _TEXTS, *empty)
        for view in set(spec.of) & views.keys():
            what, remedy = "a view is looked through by its corpus", f"name {views[view].of}"
            yield ConfigError(what, where=f"{where}.of", found=view, remedy=remedy)
    for name, one in views.items():
        for section in one.clean_of:
            if section not in sections:
                what = "no such section of contamination"
                remedy = remedy_for_name(section, sections, "correct the name, or add the section")
                expected = one_of(sections, "none: there is no contamination")
                where = f"{file}: views.{name}.clean_of"
                yield ConfigError(
                    what, where=where, found=section, expected=expected, remedy=remedy
                )
