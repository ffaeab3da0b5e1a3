"""Look up a nanoset: its settings, the current versions of its datasets, and its folders.

A nanoset is the data of a training run, such as `pretrain: {blend: {web: 0.7, code: 0.3}}`. To plan
it, one needs the versions of the datasets `web` and `code` that are current now, the paths by which
the trainer will find them, and the settings that decide the bytes of its index files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from nanoset_core.loading.layout import CACHE, NANOSETS_FOLDER
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.digests import digest_of
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.sampling.splits import SplitName
from nanoset_core.stages.datasets import current_dataset
from nanoset_core.stages.mappings.run_before import handoff_named
from nanoset_core.stages.mappings.settings import BlendSpec, corpora_of
from nanoset_core.stages.views.settings import base_of, chain_of


def cache_folder(project: Project, name: str) -> Path:
    """Return the folder with the index files of a nanoset (a mixture of data for training).

    An index file says in which order the trainer reads samples. All versions of the nanoset share
    the folder: the names of the files contain a hash of the data and settings, so that they do not
    collide.

    Args:
        project: Its output root contains the folder.
        name: Name of the nanoset.

    Returns:
        A path such as `<root>/nanosets/pretrain/cache`, which need not exist.
    """
    return project.outputs.folder / NANOSETS_FOLDER / name / CACHE


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

        Its datasets are looked up when they are first needed.

        Args:
            project: Its nanoset.yaml has the settings, and its outputs the datasets.
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
        """Return the tokenized dataset of a corpus, as it was at the first call.

        A dataset may be rebuilt while this program works. All later calls still return the version
        of the first call, so that nothing is computed from a mixture of versions.

        Args:
            corpus: Name of a corpus (a collection of texts), of a view, which selects some of its
                documents, or of a dataset that was packed into sequences of one length.

        Returns:
            Manifest of the dataset: its files, and counts such as that of its tokens.

        Raises:
            MissingError: It has not been built.
        """
        if corpus not in self._datasets:
            self._datasets[corpus] = current_dataset(self.project, corpus)
        return self._datasets[corpus]

    def digests(self, corpora: Iterable[str]) -> dict[str, str]:
        """Return the digest of the current version of each of some datasets: `{"web": "3f9c…"}`.

        Args:
            corpora: Names of corpora, views or packed datasets.

        Returns:
            Name → digest, in the order of the names.

        Raises:
            MissingError: A dataset has not been built.
        """
        return {corpus: self.dataset(corpus).digest for corpus in corpora}

    def prefix(self, corpus: str) -> str:
        """Return the path of a dataset on this machine, without .bin and .idx.

            /data/datasets/web/3f9c…/web_text_document

        Args:
            corpus: Name of a corpus or view, or of a packed dataset.

        Returns:
            An absolute path in the local folder of the outputs, in which files in a bucket have
            their copies.

        Raises:
            MissingError: The dataset has not been built.
        """
        dataset = self.dataset(corpus)
        return str(dataset.folder / dataset.facts["prefix"])

    def trainer_prefix(self, corpus: str) -> str:
        """Return the path of a dataset on the machine that trains.

        That machine may have the outputs in another folder than this one. Trainers hash this path
        into the names of their index files, so it has to be the right one.

            here                     /data/datasets/web/3f9c…/web_text_document
            where it is trained      /mnt/data/datasets/web/3f9c…/web_text_document

        Args:
            corpus: Name of a corpus or view, or of a packed dataset.

        Returns:
            The path below `trainer_root`, without .bin and .idx.

        Raises:
            MissingError: The dataset has not been built.
        """
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
    def folder(self) -> Path:
        """The folder of all that is built of the nanoset: its cache, splits and handoffs."""
        return self.cache.parent

    @property
    def cache(self) -> Path:
        """The nanoset's `cache_folder`."""
        return cache_folder(self.project, self.name)

    @property
    def index_folder(self) -> str:
        """The folder of the trainer's cache that has the index files; "" for the cache itself.

        A new build must not replace files that a running training reads. For most trainers, it
        cannot: the name of a file contains a hash of all that the file was made from, so that new
        files have new names. In two cases the names are not enough, and each version of the files
        has a folder of its own, named by a digest:

            "0a1b2c/"            for NeMo, whose file names contain no hash
            "goes-on-0a1b2c/"    for a run that continues with other data: its files depend on what
                                 it has read before, but the hash in their names does not
        """
        # The names of the folders must not change: trainers look there for files of earlier builds.
        if self.spec.continues_run:
            return self._folder_of_continued_run()
        if not get_preset(self.spec.preset).index_names_have_versions:
            return self._folder_of_version()
        return ""

    def _folder_of_continued_run(self) -> str:
        """Return the folder for the index files of a run that continues, such as "goes-on-0a1b2c/".

        The file names do not say at which sample it continues, so the folder keeps its files apart
        from those of a run that starts at the first sample.
        """
        train_datasets = self.digests(self.spec.corpora_of("train"))
        digest = digest_of([train_datasets, self._settings("train")])
        return f"goes-on-{digest}/"

    def _folder_of_version(self) -> str:
        """Return the folder, such as "0a1b2c/", for the index files of one version for NeMo.

        NeMo's file names are the same for each version of a dataset. Without the folder, a new
        build would replace files that a running training is reading.
        """
        inputs: list[object] = [self.digests(self.spec.corpora), self.spec.shares]
        if self.compensated_sums:
            # From Python 3.12 on, NeMo rounds shares differently, so that splits may differ.
            inputs.append("compensated sums")
        return f"{digest_of(inputs)}/"

    # The options.

    @property
    def compensated_sums(self) -> bool:
        """Whether the trainer's Python corrects rounding errors when it adds up shares of splits.

        Python does so from 3.12 on.
        """
        return get_preset(self.spec.preset).compensates(self.spec.trainer_python)

    @property
    def tokenizer_identifiers(self) -> dict[str, Any]:
        """The identifiers of the trainer's tokenizer, which its cache names contain."""
        return dict(self.spec.tokenizer_identifiers)

    def options(self, split: SplitName) -> dict[str, Any]:
        """Return the settings on which the content and the paths of a split's index files depend.

        If one of them changes, the files are built again. Paths are only an issue for a training
        run that changes its data. All its index files are in one folder, whose name depends on the
        settings of train. So if only these change, the files of valid move, too:

            a usual run                {"seed": 1234, "sequence_length": 2048, …}
            a run that has changed     {"seed": 1234, "sequence_length": 2048, …,
              its data, for valid       "index_files": digest of the settings of train}

        Args:
            split: `train`, `valid` or `test`.

        Returns:
            Name → value that JSON can express.
        """
        options = self._settings(split)
        if self.spec.continues_run and split != "train":
            options["index_files"] = digest_of(self._settings("train"))
        return options

    def _settings(self, split: SplitName) -> dict[str, Any]:
        """Return the settings on which the content of a split's index files depends.

        They are stored with the files. If one of them changes, the files are built again:

            {"preset": "megatron", "sequence_length": 2048, "seed": 1234, "split": "98,1,1", …}

        Args:
            split: `train`, `valid` or `test`.
        """
        spec = self.spec
        return {
            "preset": spec.preset,  # the trainer
            "sequence_length": spec.sequence_length,
            "split": spec.shares,
            "seed": spec.seed,
            "trainer_path": self.trainer_root,
            "tokenizer_identifiers": self.tokenizer_identifiers,
            **self._rare_settings(),
            **self._limit_options(split),  # how often data may be read
            **self._mixture_options(),  # a tree of shares, from which weights are computed
            "samples": spec.samples.get(split),
            "blend": _blend_option(spec.blend_of(split)),
        }

    def _rare_settings(self) -> dict[str, Any]:
        """Return settings on which the content of index files depends in a few cases only.

            the run has read other data before        "after": which data, and how much of it
            the trainer is NeMo, for example          "index_files": "a folder for each version"
            the trainer has Python 3.12 or newer,     "sums": "compensated"
              whose `sum` corrects rounding errors

        In other cases a setting is left out, and not stored with a value such as False. The reason
        is that index files are built again if their stored settings change. The settings above were
        added in the course of time, and this must not rebuild the files of everybody.
        """
        options: dict[str, Any] = {}
        data_read_before = self._data_read_before()
        if data_read_before is not None:
            options["after"] = data_read_before
        if not get_preset(self.spec.preset).index_names_have_versions:
            options["index_files"] = "a folder for each version"
        if self.compensated_sums:
            options["sums"] = "compensated"
        return options

    def _mixture_options(self) -> dict[str, Any]:
        """Return the tree of shares (the key `mix`) as options of the recipe, if there is one.

        If an option changes, the digest of the recipe does, and the index files are built again.
        The number of train's samples is one of them: "books: 1 billion tokens" is another weight in
        a run of twice the length. Valid and test have the same weights as train.
        """
        mixture = self.spec.mixture
        if mixture is None:
            return {}
        return {**mixture.to_json(), "mix_samples": self.spec.samples.get("train")}

    def _limit_options(self, split: SplitName) -> dict[str, Any]:
        """Return the settings that limit how often a split may read data.

        They decide which samples an index file has. So they are stored with the file, and if they
        change, it is built again:

            "epochs"       how often each dataset may be read (the key `max_epochs`)
            "epochs_of"    always "documents": several datasets may have the same document, and the
                           limit is for the document. It is left out if there is no limit, or if no
                           document is read twice in an epoch

        Early versions of this program had no `epochs_of`, and applied limits to each dataset alone.
        So their files for such data are built again.

        Args:
            split: `train`, `valid` or `test`.
        """
        options: dict[str, Any] = {}
        if self.spec.max_epochs is not None:
            options["epochs"] = self._epoch_option()
        if self._has_epoch_limit and self.may_repeat_documents(split):
            options["epochs_of"] = "documents"
        return options

    @property
    def _has_epoch_limit(self) -> bool:
        """Whether nanoset.yaml limits how often data is read.

        The limit is that of all datasets, as in `max_epochs: 4`, or that of a part of a mixture, as
        in `mix: {web: {max_epochs: 4}, code: {}}`.
        """
        mixture = self.spec.mixture
        part_has_limit = mixture is not None and bool(mixture.epoch_limits())
        return self.spec.max_epochs is not None or part_has_limit

    def _epoch_option(self) -> dict[str, Any]:
        """Return what decides how the limit `max_epochs` changes the index files of a split.

        For example, web may be read four times at most, and otherwise weights are changed:

            {"most": {"web": 4.0}, "then": "redistribute", "samples": {"train": 1000, "valid": 100}}

        The samples of all splits are included, even for the files of valid. The reason is that
        train and valid may share the weights of web and other data. If train requests more samples,
        the weight of web becomes smaller to keep the limit, and valid reads less of web, too.
        """
        limits: Any = self.spec.max_epochs
        if isinstance(limits, Mapping):  # a limit for each corpus
            limits = dict(limits)
        return {
            "most": limits,
            "then": self.spec.on_exhaustion,  # what is done if a limit would be exceeded
            "samples": dict(self.spec.samples),
        }

    def may_repeat_documents(self, split: SplitName) -> bool:
        """Return whether a split may read a document several times even if it reads only one epoch.

        There are two reasons for that:

        - its datasets share documents, or have some of them twice;
        - no number of samples is requested, and datasets with large weights are read several times
          in an epoch.

        True may be wrong, but False is certain.

        Args:
            split: `train`, `valid` or `test`.
        """
        reads_one_epoch = self.spec.samples.get(split) is None
        if reads_one_epoch and self._weights_repeat_datasets(split):
            return True
        return self.may_share_documents(split)

    def _weights_repeat_datasets(self, split: SplitName) -> bool:
        """Return whether the trainer reads datasets with large weights several times in one epoch.

        Trainers differ in when an epoch ends. Suppose that web and code have 100 samples each, and
        the weights 0.9 and 0.1:

            most trainers             when the first dataset is used up: it has 100 samples of web
                                      and 11 of code
            nanotron's main branch    after as many samples as web and code have together, 200: 180
              (`shuffles_blend`)      of them are of web, which is read 1.8 times

        Args:
            split: `train`, `valid` or `test`.
        """
        trainer = get_preset(self.spec.preset)
        # Some trainers take no number of samples for valid and test, but read all of these once.
        always_reads_once = not trainer.takes_samples(split)
        if always_reads_once:
            return False
        has_weights = isinstance(self.spec.blend_of(split), Mapping)
        return has_weights and trainer.shuffles_blend

    def may_share_documents(self, split: SplitName) -> bool:
        """Return whether a split may read a document several times in one epoch.

        It may if two of its datasets were made from one corpus, or if one has documents twice:

            web, code            no
            web, best-web        yes: best-web is a selection of web's documents
            web-twice            yes: made from web with `repeat: 2`

        This is decided by the settings alone. So True may be wrong, but False is certain.

        Args:
            split: `train`, `valid` or `test`.
        """
        config = self.project.config
        datasets = self._dataset_names(split)
        corpora = {base_of(config.derived, name) for name in datasets}  # {"web"} for web, best-web
        if len(corpora) < len(datasets):
            return True

        # Look for `repeat` in the settings of each dataset, and of those that it was made from.
        sources: list[str] = []
        for name in datasets:
            if name in config.derived:
                sources += chain_of(config.derived, name)
        return any(config.repeats(source) for source in sources)

    def _dataset_names(self, split: SplitName) -> tuple[str, ...]:
        """Return the names of the datasets that a split reads: of corpora, or of views of corpora.

        Those of train include the datasets that earlier phases of the run have read.
        """
        names = self.spec.corpora
        if self.spec.blend is None:  # each split has a blend of its own
            names = corpora_of(self.spec.blend_of(split))
        if split != "train":
            return names
        return tuple(dict.fromkeys((*names, *self.spec.earlier_corpora)))

    # What the run has read before.

    def phase_before(self) -> Self | None:
        """Return the phase of a training run that comes before this one, or None for the first.

        A run may have phases with different data: `pretrain-phase-1` and `pretrain-phase-2`. If
        they do not continue one another (`continue: true` in nanoset.yaml), this is None, too.

        Returns:
            The phase before. What has been read of the datasets is shared with it.
        """
        name = self.spec.previous_phase
        if name is None:
            return None
        return type(self)(self.project, name, self.reader, self._datasets, exact=self.exact)

    def _data_read_before(self) -> dict[str, Any] | None:
        """Return which data a training run has read before it continues with this data, or None.

        Index files depend on it, since they leave out samples that were read before. A run may
        change its data in two ways:

            the user has stopped it after     {"handoff": "pretrain/0a1b…",  its files
              2,000 samples                    "consumed_samples": 2000}
            it has phases, and this is        {"phases": digest of the settings of the first}
              the second one
            it starts with this data          None
        """
        continue_from = self.spec.continue_from
        if continue_from is not None:
            # A handoff is the folder with which the run was started.
            handoff = "/".join(handoff_named(continue_from.handoff))
            return {"handoff": handoff, "consumed_samples": continue_from.consumed_samples}

        previous_phase = self.phase_before()
        if previous_phase is not None:
            # The settings of that phase contain the digest of the phase before it, and so on.
            return {"phases": digest_of(previous_phase.options("train"))}
        return None


def _blend_option(blend: BlendSpec | None) -> Any:
    """Return a blend as JSON, as an option of a recipe: `[["web", 0.7], ["code", 0.3]]`.

    It is a list, since JSON mappings are sorted, and the order of corpora counts: if two of them
    are equally due, the trainer takes the next sample from the first.

    Args:
        blend: A corpus, a tuple of corpora, or a mapping of corpora to weights; or None.
    """
    if isinstance(blend, Mapping):
        return [[corpus, weight] for corpus, weight in blend.items()]
    return list(blend) if isinstance(blend, tuple) else blend
