"""The section `contamination` of nanoset.yaml: evaluation texts that corpora are searched for.

For example, `contamination: {evals: {files: evals/*.jsonl, policy: block}}` searches all corpora
that training reads for the texts in these files, and refuses a training that would read one of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from nanoset_core.errors import ConfigError, one_of, raised, remedy_for_name
from nanoset_core.outputs.names import check_corpora
from nanoset_core.records.rules import Section
from nanoset_core.records.settings import Range
from nanoset_core.stages.views.settings import ViewSpec


@dataclass(frozen=True, slots=True)
class ContaminationSpec(Section):
    """Evaluation files, and the corpora in which their texts are searched for."""

    files: tuple[str, ...] | str = field(metadata={"example": "evals/*.jsonl"})
    """JSON Lines, Parquet or Arrow files, local or s3://…; patterns are allowed."""
    text_keys: tuple[str, ...] | str = "text"
    """Keys of the texts, which are joined in this order; a key may also have a list of texts."""
    of: tuple[str, ...] = ()
    """Corpora that are searched; absent = all that training reads."""
    ngram: Annotated[int, Range(3, 64)] = 5
    """Length of a run of words that counts if a document and a text have it in common."""
    threshold: Annotated[float, Range(0.1, 1)] = 0.55
    """Share of a text's letters, 0 to 1, that must be in such runs near one another."""
    policy: Literal["warn", "block", "exclude"] = "warn"
    """What happens if a document is contaminated: `warn` reports it, `block` refuses to make
    anything that trains on it, and `exclude` reports it unless every view that training reads
    leaves it out by `clean_of`.
    """

    @property
    def patterns(self) -> tuple[str, ...]:
        """File names and patterns, as the section lists them."""
        return (self.files,) if isinstance(self.files, str) else self.files

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the texts, in order."""
        return (self.text_keys,) if isinstance(self.text_keys, str) else self.text_keys

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error if there is nothing to search for, or if `of` is not a list of corpora.

        Args:
            where: Place of this section, such as "nanoset.yaml: contamination.evals".
        """
        if self.of:
            yield from raised(check_corpora, self.of, f"{where}.of")
        if not self.patterns:
            yield _empty_section(f"{where}.files", "no file")
        if not self.keys:
            yield _empty_section(f"{where}.text_keys", "no key")


def contamination_errors(
    file: Path, sections: Mapping[str, ContaminationSpec], views: Mapping[str, ViewSpec]
) -> Iterator[ConfigError]:
    """Yield an error for each wrong name in the settings of evaluations and of views.

    Evaluations and views name one another. A view is a selection of a corpus's documents:

        contamination:
          evals: {files: quiz.jsonl, of: [web]}       search the corpus web for the texts of evals
        views:
          clean: {of: web, clean_of: [evals]}         web without documents that have such texts

    `of` of an evaluation must not name a view, and `clean_of` must name an evaluation.

    Args:
        file: Path of nanoset.yaml, for messages.
        sections: Name → section of `contamination`.
        views: Name → view.
    """
    yield from _searched_views(file, sections, views)
    yield from _unknown_sections(file, sections, views)


def _searched_views(
    file: Path, sections: Mapping[str, ContaminationSpec], views: Mapping[str, ViewSpec]
) -> Iterator[ConfigError]:
    """Yield an error for each view that is named where only corpora can be searched.

    A corpus is searched for evaluation texts, as in `{files: quiz.jsonl, of: [web]}`. A view is a
    selection of a corpus's documents, and is not searched by itself.

    Args:
        file: Path of nanoset.yaml, for messages.
        sections: Name → such a section of `contamination`.
        views: Name → view.
    """
    for name, spec in sections.items():
        for view_name in set(spec.of) & views.keys():
            yield ConfigError(
                "a view is searched by way of its corpus",
                where=f"{file}: contamination.{name}.of",
                found=view_name,
                remedy=f"name {views[view_name].of}",
            )


def _unknown_sections(
    file: Path, sections: Mapping[str, ContaminationSpec], views: Mapping[str, ViewSpec]
) -> Iterator[ConfigError]:
    """Yield an error for each evaluation that a view names, but that the settings do not have.

    For example, a view with `clean_of: [evals]` leaves out all documents with texts of `evals`. So
    there must be a section `evals` of `contamination`.

    Args:
        file: Path of nanoset.yaml, for messages.
        sections: Name → section of `contamination`.
        views: Name → view, a selection of documents.
    """
    for name, view in views.items():
        for section in view.clean_of:
            if section not in sections:
                yield ConfigError(
                    "no such section of contamination",
                    where=f"{file}: views.{name}.clean_of",
                    found=section,
                    expected=one_of(sections, "none: there is no contamination"),
                    remedy=remedy_for_name(
                        section, sections, "correct the name, or add the section"
                    ),
                )


def _empty_section(where: str, found: str) -> ConfigError:
    """Return the error for an evaluation in the settings that names no file, or no key of texts.

    Args:
        where: The setting that is empty.
        found: What it has: "no file" or "no key".
    """
    return ConfigError(
        "there is nothing to look for",
        where=where,
        found=found,
        remedy="name a file and a key, or remove the section",
    )
