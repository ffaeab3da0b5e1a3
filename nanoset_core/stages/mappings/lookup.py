"""Look up a nanoset: its settings, the current versions of its datasets, and its folders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from nanoset_core.loading.layout import CACHE, STAGE
from nanoset_core.outputs.manifest import Manifest, digest_of
from nanoset_core.project.project import Project
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.sampling.splits import SplitName
from nanoset_core.stages.datasets import current_dataset
from nanoset_core.stages.mappings.run_before import handoff_named
from nanoset_core.stages.mappings.settings import BlendSpec, corpora_of
from nanoset_core.stages.views.settings import base_of, chain_of


def cache_folder(project: Project, name: str) -> Path:
    """Return the folder with the index files of all splits and versions of a nanoset.

    Versions share it, since the trainer's file names contain a hash of what the files are made
    from.
    """
    return project.outputs.folder / STAGE / name / CACHE


class NanosetLookup:
    """One nanoset of a project, with its current datasets.

    Each dataset is looked up once. So all answers are about the same versions, even if a dataset is
    replaced meanwhile.
    """

    def __init__(
        self,
        project: Project,
        name: str,
        reader: LengthReader | None = None,
        datasets: dict[str, Manifest] | None = None,
        *,
        exact: bool = True,
    ) -> None:
        """Look up a nanoset by name.

        Args:
            project: The project.
            name: Name of the nanoset.
            reader: Reads .idx files; may be shared, so that each file is read once.
            datasets: Datasets that are known already, by corpus; others are added.
            exact: Count exactly what earlier phases of a run read. False is faster, and right
                within a sample or two of each corpus.

        Raises:
            ConfigError: There is no such nanoset.
        """
        self.project = project
        self.name = name
        self.spec = project.nanoset(name)
        self.exact = exact
        self.reader = LengthReader(project.outputs.access) if reader is None else reader
        self._datasets: dict[str, Manifest] = {} if datasets is None else datasets

    # The datasets.

    def dataset(self, corpus: str) -> Manifest:
        """Return the dataset of a corpus, in the version that was current at the first call.

        Raises:
            MissingError: It has not been built.
        """
        if corpus not in self._datasets:
            self._datasets[corpus] = current_dataset(self.project, corpus)
        return self._datasets[corpus]

    def digests(self, corpora: Iterable[str]) -> dict[str, str]:
        """Return corpus → digest of its dataset; raises MissingError as `dataset` does."""
        return {corpus: self.dataset(corpus).digest for corpus in corpora}

    def prefix(self, corpus: str) -> str:
        """Return the path of the dataset of a corpus, without .bin and .idx."""
        dataset = self.dataset(corpus)
        return str(dataset.folder / dataset.facts["prefix"])

    def trainer_prefix(self, corpus: str) -> str:
        """Return the path of the dataset as the trainer spells it, which its file names contain."""
        dataset = self.dataset(corpus)
        prefix = dataset.facts["prefix"]
        folder = f"{dataset.stage}/{dataset.name}/{dataset.digest}"
        return f"{self.trainer_root}/{folder}/{prefix}"

    # The folders.

    @property
    def trainer_root(self) -> str:
        """The output root as the trainer spells it."""
        config = self.project.config
        root = str(config.root_folder) if config.root_place is None else config.root_place.url()
        return (self.spec.trainer_path or root).rstrip("/")

    @property
    def cache(self) -> Path:
        """The nanoset's `cache_folder`."""
        return cache_folder(self.project, self.name)

    @property
    def index_folder(self) -> str:
        """The folder below `cache` with the index files of all splits, with a slash at its end.

        It is empty if the trainer's own file names differ between versions. NeMo's do not: the next
        version of a corpus would replace the files that a run over the present version is reading.
        And no trainer's names say where a run continues.
        """
        # These names must not change, nor what the digests are made of: trainers look for files of
        # earlier builds in such folders.
        if self.spec.continues_run:
            train_digests = self.digests(self.spec.corpora_of("train"))
            return f"goes-on-{digest_of([train_digests, self._settings('train')])}/"
        if get_preset(self.spec.preset).index_names_have_versions:
            return ""

        # A digest of what the index files are made from.
        made_from: list[object] = [self.digests(self.spec.corpora), self.spec.shares]
        if self.compensated_sums:
            made_from.append("compensated sums")
        return f"{digest_of(made_from)}/"

    # The options.

    @property
    def compensated_sums(self) -> bool:
        """Whether the trainer's Python adds up shares with compensation, as it does from 3.12."""
        return get_preset(self.spec.preset).compensates(self.spec.trainer_python)

    @property
    def tokenizer_identifiers(self) -> dict[str, Any]:
        """The identifiers of the trainer's tokenizer, which its cache names contain."""
        return dict(self.spec.tokenizer_identifiers)

    def options(self, split: SplitName) -> dict[str, Any]:
        """Return the settings that decide the bytes and paths of a split's index files.

        Args:
            split: The split.

        Returns:
            Name → value that JSON can express: the options of the split's recipe.
        """
        options = self._settings(split)
        # The folder of a run that continues is named after the settings of train (see
        # `index_folder`). They decide the place of the other splits' files, too.
        if self.spec.continues_run and split != "train":
            options["index_files"] = digest_of(self._settings("train"))
        return options

    def _settings(self, split: SplitName) -> dict[str, Any]:
        """Return the settings that decide the bytes of a split's index files.

        They are part of a recipe, whose digest names the built version. Settings that were added in
        later versions of this program have a key only if a nanoset uses them: other nanosets keep
        their digests, and need not be built again.

        Args:
            split: The split.
        """
        spec = self.spec
        options: dict[str, Any] = {
            "preset": spec.preset,
            "sequence_length": spec.sequence_length,
            "split": spec.shares,
            "seed": spec.seed,
            "trainer_path": self.trainer_root,
            "tokenizer_identifiers": self.tokenizer_identifiers,
        }
        run_before = self._run_before()
        if run_before is not None:
            options["after"] = run_before
        if not get_preset(spec.preset).index_names_have_versions:
            options["index_files"] = "a folder for each version"
        if self.compensated_sums:
            options["sums"] = "compensated"
        options |= self._limit_options(split)
        if spec.mixture is not None:
            # The weights are worked out for train, and the blend has the order of the tree.
            options |= spec.mixture.to_json()
            options["mix_samples"] = spec.samples.get("train")
        options["samples"] = spec.samples.get(split)
        options["blend"] = _blend_option(spec.blend_of(split))
        return options

    def _limit_options(self, split: SplitName) -> dict[str, Any]:
        """Return the options of a recipe that say how often documents may be read, if any.

        Such limits are `max_epochs` of the nanoset, and of the parts of its mixture.

        Args:
            split: The split.
        """
        spec = self.spec
        limits = spec.max_epochs
        options: dict[str, Any] = {}
        if limits is not None:
            # The samples of all splits are included: splits may share one set of weights, which
            # the limits change by what each split requests.
            options["epochs"] = {
                "most": dict(limits) if isinstance(limits, Mapping) else limits,
                "then": spec.on_exhaustion,
                "samples": dict(spec.samples),
            }
        has_limits = limits is not None
        if spec.mixture is not None and spec.mixture.epoch_limits():
            has_limits = True
        if has_limits and self.may_share_documents(split):
            # Earlier versions of this program counted the epochs of each dataset by itself, which
            # makes a difference if datasets have documents in common. So the digest changes.
            options["epochs_of"] = "documents"
        return options

    def may_share_documents(self, split: SplitName) -> bool:
        """Return whether a split may read several copies of a document.

        This is judged by the settings alone: by datasets of the same corpus, and by views that
        repeat documents.

        Args:
            split: The split.
        """
        config = self.project.config
        derived = config.derived
        names = self.spec.corpora
        if self.spec.blend is None:
            names = corpora_of(self.spec.blend_of(split))
        if split == "train":
            names = tuple(dict.fromkeys((*names, *self.spec.earlier)))

        # Several datasets of one corpus may have documents in common.
        corpora = {base_of(derived, name) for name in names}
        if len(corpora) < len(names):
            return True

        # A view that repeats documents has several copies of each, and so has a view of it.
        views: list[str] = []
        for name in names:
            if name in derived:
                views += chain_of(derived, name)
        return any(config.repeats(view) for view in views)

    # What the run has read before.

    def phase_before(self) -> Self | None:
        """Return the phase that this one continues, or None if it does not continue a phase."""
        if self.spec.after is None:
            return None
        return type(self)(
            self.project, self.spec.after, self.reader, self._datasets, exact=self.exact
        )

    def _run_before(self) -> dict[str, Any] | None:
        """Return the option of the recipe that says what the run has read before.

        Returns:
            None if the run starts with this nanoset. If nanoset.yaml has `continue_from`: the
            handoff (files that start a trainer) that the run was started with, and the samples
            consumed since. If the nanoset is a phase: a digest of the previous phase's options.
        """
        continue_from = self.spec.continue_from
        if continue_from is not None:
            handoff = "/".join(handoff_named(continue_from))
            return {"handoff": handoff, "consumed_samples": continue_from.consumed_samples}
        phase = self.phase_before()
        if phase is not None:
            return {"phases": digest_of(phase.options("train"))}
        return None


def _blend_option(blend: BlendSpec | None) -> Any:
    """Return a blend as JSON. The order of corpora stays: the trainer breaks ties by it."""
    if isinstance(blend, Mapping):
        return [[corpus, weight] for corpus, weight in blend.items()]
    return list(blend) if isinstance(blend, tuple) else blend
