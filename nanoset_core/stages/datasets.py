"""Open a dataset by its name or by its manifest, whether it is a corpus, a view or packs.

A corpus has all documents of a folder of raw text, a view is a selection of them, and packs are
sequences of one length that are filled with them. Readers need not know which it is:

    dataset = dataset_of(project.outputs, current_dataset(project, "web"))
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from weakref import WeakValueDictionary

from nanoset_core.errors import MissingError, StaleError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import BUILD_AGAIN, OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.dataset.dataset import CorpusDataset, Dataset
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.packs.dataset import PacksDataset
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.stage import Key, Node, require
from nanoset_core.stages.views.dataset import ViewDataset
from nanoset_core.stages.views.settings import base_of
from nanoset_core.stages.views.stage import VIEW, unpacked_node

_CLASS_BY_FOLDER: dict[str, type[Dataset]] = {
    DATASET.layout.folder: CorpusDataset,
    VIEW.layout.folder: ViewDataset,
    PACKS.layout.folder: PacksDataset,
}
_SHOWN_DIGITS = 12
"""Number of digits of a tokenizer's fingerprint that messages show."""


class Datasets:
    """Opens the datasets of one output root, each version once."""

    def __init__(
        self, outputs: OutputRoot, *, is_sampled: bool = False, keeps_open: bool = True
    ) -> None:
        """Start without any open dataset.

        Args:
            outputs: The output root.
            is_sampled: Whether little is read of each dataset. From a bucket, small blocks are then
                fetched instead of large ones.
            keeps_open: Whether datasets stay open as long as this object exists. Otherwise, a
                dataset is closed as soon as nobody uses it any more.
        """
        self.outputs = outputs
        self.is_sampled = is_sampled
        self._by_folder: MutableMapping[Path, Dataset] = {}
        if not keeps_open:
            self._by_folder = WeakValueDictionary()

    def open(self, manifest: Manifest, sequences: MMapIndexedDataset | None = None) -> Dataset:
        """Return the dataset that a manifest describes, and remember it for the next call.

        There are three kinds of datasets. The folder of the manifest says which one it is:

            datasets/web/…     all documents of the corpus `web`
            views/best/…       a view: a selection of the documents of a corpus
            packs/filled/…     packs: sequences of one length that are filled with documents

        The files of the dataset are only opened when something is read.

        Args:
            manifest: Manifest of the dataset.
            sequences: Its .bin and .idx files, if the caller has opened them already.
        """
        dataset = self._by_folder.get(manifest.folder)
        if dataset is None:
            dataset_class = _CLASS_BY_FOLDER[manifest.stage]
            dataset = dataset_class(self, manifest, sequences)
            self._by_folder[manifest.folder] = dataset
        return dataset

    def at(self, prefix: str, sequences: MMapIndexedDataset | None = None) -> Dataset:
        """Return the dataset whose files have some path, such as
        `datasets/web/3f9c…/web_text_document`.

        Trainers name a dataset in this way: by the path of its .bin and .idx files, without the
        endings. The manifest in the same folder says which dataset it is.

        Args:
            prefix: The path.
            sequences: The .bin and .idx files, if the caller has opened them already.

        Raises:
            MissingError: The folder contains no manifest.
            FormatError: The manifest is damaged.
        """
        # Each version of a dataset has a folder of its own, with its manifest.
        folder = Path(prefix).parent
        dataset = self._by_folder.get(folder)
        if dataset is not None:
            return dataset
        manifest = self.outputs.manifest_at(folder)
        if manifest is None:
            raise MissingError(
                "the dataset has no manifest",
                where=self.outputs.access.url(folder),
                remedy="run `nanoset build`: it rebuilds the dataset",
            )
        return self.open(manifest, sequences)

    def version(
        self, name: str, digest: str, what_if_missing: str, remedy: str = BUILD_AGAIN
    ) -> Dataset:
        """Return a certain version of a dataset, which need not be the current one.

        A training run has to read the version that it was started with, although a newer one has
        been built. It has noted the name and the digest, such as `web` and `3f9c…`. The version is
        in one of three folders, which are looked for in this order:

            views/web/3f9c…       a selection of documents
            packs/web/3f9c…       documents in sequences of one length
            datasets/web/3f9c…    all documents of a corpus

        Args:
            name: Name of the dataset.
            digest: Digest of the version, by which its folder is named.
            what_if_missing: What the error says if the version was deleted, such as "the dataset of
                this nanoset was deleted".
            remedy: What the user should do in that case.

        Raises:
            MissingError: The version was deleted.
            FormatError: Its manifest is damaged.
        """
        outputs = self.outputs
        for stage in (VIEW, PACKS):
            manifest = outputs.manifest_at(outputs.folder / stage.layout.folder / name / digest)
            if manifest is not None:
                return self.open(manifest)

        # The last place: this raises the error if the version is not there either.
        manifest = outputs.version(DATASET.layout.folder, name, digest, what_if_missing, remedy)
        return self.open(manifest)

    def copied_by(self, copy: Manifest, config: ProjectConfig) -> Dataset:
        """Return the version of a dataset that an export or a `.pbin` is a copy of.

        It need not be the current one, and nanoset.yaml may name another dataset by now.

        Args:
            copy: Manifest of the export or `.pbin`.
            config: The settings of nanoset.yaml. They say where to look first, which saves requests
                to a bucket.

        Raises:
            MissingError: The version was deleted.
            FormatError: Its manifest is damaged.
        """
        # An export has recorded the name of its dataset. A .pbin has the name of its dataset.
        name = copy.facts.get("of", copy.name)
        digest = copy.recipe["parents"]["dataset"]
        outputs = self.outputs
        likely_folder = dataset_node(config, name).stage.layout.folder
        manifest = outputs.manifest_at(outputs.folder / likely_folder / name / digest)
        if manifest is not None:
            return self.open(manifest)
        return self.version(name, digest, "a dataset that was copied is missing")


def dataset_of(outputs: OutputRoot, manifest: Manifest, *, is_sampled: bool = False) -> Dataset:
    """Open a single dataset, which is closed as soon as the caller no longer uses it.

    To open several datasets of one project, use `Datasets`, which opens each of them only once.

    Args:
        outputs: The folder (or bucket) of all outputs.
        manifest: Manifest of the dataset, the file that describes it.
        is_sampled: Whether little of the dataset will be read. From a bucket, small blocks are then
            downloaded instead of large ones.
    """
    # A `Datasets` usually keeps the datasets that it has opened. Since each dataset refers to it,
    # too, Python would free them only when its garbage collector runs, some time later. Until then,
    # blocks that were downloaded from a bucket would take space on the disk. So it keeps none here.
    opener = Datasets(outputs, is_sampled=is_sampled, keeps_open=False)
    return opener.open(manifest)


def dataset_node(config: ProjectConfig, name: str) -> Node:
    """Return the output that is the dataset of a corpus, a view or packs, given its name.

    Args:
        config: The settings of nanoset.yaml, which say whether the name is that of a view or packs.
        name: Name of the dataset.
    """
    if name in config.packs:
        return Node(PACKS, Key(base_of(config.derived, name), name))
    return unpacked_node(config, name)


def current_dataset(project: Project, name: str) -> Manifest:
    """Return the manifest of a dataset's current version, the one that training should use.

    The dataset may be that of a corpus, or a view (a selection of its documents), or packs
    (sequences of one length that are filled with its documents). The settings of the project say
    which of these a name belongs to.

    The version may be older than the settings. For example, it may have been made with another
    tokenizer: call `check_tokenizer` before you decode its tokens.

    Args:
        project: The project.
        name: Name of the dataset, such as `web`.

    Returns:
        Manifest of the version, the file that describes it.

    Raises:
        MissingError: The dataset has not been built.
    """
    node = dataset_node(project.config, name)
    return require(project, node.stage, node.key, remedy=_build_remedy(node))


def check_tokenizer(project: Project, dataset: Dataset) -> None:
    """Check that a dataset was tokenized with the project's tokenizer, so that it can be decoded.

    The recipe of a view or of packs names only the dataset that it was made from, and no tokenizer.
    So this looks at the dataset of the corpus, from which all their tokens come:

        packs `full`  →  view `best`  →  corpus `web`: the tokenizer 9a3f…

    Args:
        project: The project, whose nanoset.yaml names the tokenizer.
        dataset: The dataset of a corpus, a view or packs.

    Raises:
        StaleError: Another tokenizer has made its tokens.
        MissingError: A dataset from which it was made was deleted, or the tokenizer is missing.
    """
    made_with = dataset.corpus.manifest.recipe["options"]["tokenizer"]
    present = project.tokenizer.fingerprint
    if made_with == present:
        return
    raise StaleError(
        "another tokenizer has made these tokens, so they cannot be decoded",
        where=dataset.manifest.url(),
        found=f"tokenizer {made_with[:_SHOWN_DIGITS]}",
        expected=f"{present[:_SHOWN_DIGITS]}, the present one",
        remedy="run `nanoset build` first",
    )


def _build_remedy(node: Node) -> str:
    """Return which command builds a dataset that is missing.

        dataset                                      command
        the corpus web                               nanoset build --select web
        a view (some documents) of web               nanoset build --select web/views
        packs (documents put together) of web,
            which nanoset.yaml calls `whole`         nanoset build --select web/whole

    A build without --select would also make everything that is made from the dataset.

    Args:
        node: The dataset. Its `key` has the corpus as `subject`, and the name of a view or of packs
            as `part`.
    """
    selection = node.key.subject
    if node.stage is VIEW:
        # A mixture may read many views of a corpus. This builds all of them.
        selection = f"{node.key.subject}/{VIEW.layout.folder}"
    elif node.key.part is not None:
        selection = f"{node.key.subject}/{node.key.part}"
    return f"run `nanoset build --select {selection}`, or `nanoset build` for everything"
