"""The base class of the stages `views` and `packs`, whose outputs are datasets with names."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.stage import Key, Stage
from nanoset_core.stages.views.settings import base_of


class DerivedStage(Stage):
    """A stage of datasets that are made from the documents of a corpus and have their own names."""

    section: str
    """The section of nanoset.yaml that has an entry for each dataset, such as views."""

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        """Return which datasets of this stage of the pipeline the settings ask for.

        For example, `views: {clean: {of: web}}` asks for the dataset `clean`, which is made from
        the corpus `web`: this is Key("web", "clean").

        Args:
            config: The settings of nanoset.yaml.
            corpora: All corpora, which are not needed here.
        """
        keys: list[Key] = []
        for name in getattr(config, self.section):
            corpus = base_of(config.derived, name)  # also if it is made from another view
            keys.append(Key(corpus, name, requested_at=f"{self.section}.{name}.of"))
        return keys
