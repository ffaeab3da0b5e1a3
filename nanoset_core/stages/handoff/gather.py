"""Gather everything that the files of a handoff contain about a built nanoset.

A handoff is the folder of files with which a trainer is started. What they mention is read from the
outputs of the nanoset, for example that train has 25,600 samples, and its paths are converted to
those of the machine where the trainer runs. The result is a `Handoff`, from which the files for
each trainer are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nanoset_core.formats.indexed.layout import idx_path, read_idx
from nanoset_core.loading.layout import CACHE, HANDOFF, NANOSETS_FOLDER
from nanoset_core.loading.plan_file import read_split
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.sampling.config import Blend, NanosetConfig
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.handoff.description import DatasetCounts, Handoff
from nanoset_core.stages.handoff.tokenizer import tokenizer_arguments, tokenizer_note
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.mappings.settings import corpora_of
from nanoset_core.stages.mappings.show import reason_without_samples
from nanoset_core.tokenizers.files import define


@dataclass(frozen=True, slots=True)
class BuiltSplit:
    """One split as it was built.

    It is read from its output. Planning it again could give another result, since it may have been
    built by an earlier version of this project.
    """

    manifest: Manifest
    """Manifest of its blend, or of its index mappings if it has no blend."""
    plan: SplitPlan | None
    """None if the split has no data."""
    config: NanosetConfig
    """The settings that it was built with."""

    @property
    def n_samples(self) -> int:
        """Number of its samples: 0 if it has no data."""
        return 0 if self.plan is None else self.plan.samples

    @staticmethod
    def read(manifest: Manifest, root: Path) -> BuiltSplit:
        """Read how a split was built from the files of its output.

        Args:
            manifest: Manifest of its blend, or of its index mappings if it has no blend.
            root: The output root, below which the files are.

        Returns:
            The split with its plan and settings.
        """
        plan, config = read_split(manifest, root)
        return BuiltSplit(manifest, plan, config)


def gather(
    nanoset: NanosetContext,
    digest: str,
    built: Mapping[SplitName, Manifest],
    exports: Mapping[str, Manifest],
    warnings: list[str],
) -> Handoff:
    """Collect everything that the files for a trainer contain.

    Trainers are started with different files, but with the same facts: where the datasets and the
    index files are, how many samples each split has, how the tokenizer is loaded, and so on. All
    paths are those by which the trainer reaches the files, perhaps on another machine.

    Args:
        nanoset: The nanoset: a weighted blend of datasets, with its settings in nanoset.yaml.
        digest: Digest of the files, which is the name of their folder.
        built: Split → manifest of its output.
        exports: Name of a corpus or view → manifest of the export that the trainer reads instead.
        warnings: Clauses about settings that are allowed but rarely intended.

    Returns:
        The description from which the files are written.
    """
    project = nanoset.project
    root = project.outputs.folder
    splits = {split: BuiltSplit.read(manifest, root) for split, manifest in built.items()}
    tokenizer = define(project.config.tokenizer_file)
    padding_token = _padding_token(nanoset)

    # The folder of the nanoset's outputs, such as /data/nanosets/pretrain.
    folder = f"{nanoset.trainer_root}/{NANOSETS_FOLDER}/{nanoset.name}"
    return Handoff(
        name=nanoset.name,
        spec=nanoset.spec,
        config=_config_of_all(splits),
        samples={split: built_split.n_samples for split, built_split in splits.items()},
        empty=_reasons_without_samples(splits),
        folder=f"{folder}/{HANDOFF}/{digest}",
        cache=f"{folder}/{CACHE}/{nanoset.index_folder}".rstrip("/"),
        datasets=_counts_by_prefix(nanoset),
        vocab_size=project.tokenizer.max_id + 1,
        tokenizer=trainer_tokenizer(nanoset),
        tokenizer_note=tokenizer_note(tokenizer, project.config.tokenizer.eod, padding_token),
        padding_token=padding_token,
        end_token=project.config.tokenizer.eod,
        token_ids=_token_ids(nanoset, padding_token),
        indexes=_indexes(splits, nanoset.index_folder),
        # A trainer that reads exports does not read the .idx of a view.
        views=[] if exports else views_of(nanoset),
        warnings=warnings,
        exports=_folders_by_prefix(nanoset, exports),
        tokenizer_name=_tokenizer_name(exports),
    )


def _folders_by_prefix(nanoset: NanosetContext, exports: Mapping[str, Manifest]) -> dict[str, str]:
    """Return the folder that the trainer reads in place of each dataset.

    Some trainers read exports, which are copies of the datasets in another format:

        {"/data/datasets/web/1a2b/web": "/data/exports/web/5e6f"}

    Args:
        nanoset: Knows the paths on the machine where the trainer runs.
        exports: Name of a dataset → the record of its export.

    Returns:
        Path of a dataset without .idx → folder of its export. Empty if the trainer reads datasets.
    """
    folder_by_path: dict[str, str] = {}
    for dataset, export in exports.items():
        dataset_path = nanoset.trainer_prefix(dataset)
        folder = f"{nanoset.trainer_root}/{export.stage}/{export.name}/{export.digest}"
        folder_by_path[dataset_path] = folder
    return folder_by_path


def _tokenizer_name(exports: Mapping[str, Manifest]) -> str | None:
    """Return the name of the tokenizer of some exports; None if there are no exports."""
    # All exports of a project have the same tokenizer, so the first one is enough.
    for export in exports.values():
        name: str = export.recipe["options"]["tokenizer_name"]
        return name
    return None


def trainer_tokenizer(nanoset: NanosetContext) -> tuple[str, ...]:
    """Return the options with which Megatron-LM loads the tokenizer of the data.

    Args:
        nanoset: A mixture of datasets, with its settings.

    Returns:
        Options with their values, such as ("--tokenizer-type GPT2BPETokenizer", "--vocab-file …").
        Empty if it is not known how Megatron-LM loads the tokenizer.

    Raises:
        ConfigError: The settings of `trainer` do not fit the version of Megatron-LM.
    """
    # The section `trainer` of nanoset.yaml has these options, if the user has written one.
    trainer = nanoset.spec.trainer
    if trainer is not None:
        return trainer.arguments()
    # Otherwise they follow from the file of the tokenizer with which the text was tokenized.
    tokenizer_file = nanoset.project.config.tokenizer_file
    definition = define(tokenizer_file)  # reads the file
    return tokenizer_arguments(definition)


def views_of(nanoset: NanosetContext) -> list[str]:
    """Return the names of a nanoset's datasets that are views: selections of documents.

    Args:
        nanoset: The nanoset. Its blend names corpora and views.

    Returns:
        The names of the views, in the order of the blend.
    """
    views = nanoset.project.config.views  # name of each view in nanoset.yaml → its settings
    return [name for name in nanoset.spec.corpora if name in views]


def _padding_token(nanoset: NanosetContext) -> str | None:
    """Return the padding token of the packs that a nanoset reads, such as "<pad>".

    Packs are samples of one length that are filled with documents, and then with padding.

    Args:
        nanoset: The nanoset. Its blend names corpora, views and packs.

    Returns:
        None if it reads no packs, or if these are filled with the token that ends documents.
    """
    config = nanoset.project.config
    reads_packs = any(name in config.packs for name in nanoset.spec.corpora)
    if not reads_packs or config.tokenizer.pad == config.tokenizer.eod:
        return None
    return config.tokenizer.pad


def _token_ids(nanoset: NanosetContext, padding_token: str | None) -> dict[str, int]:
    """Return the ids of the tokens that the trainer may have to recognize in the samples.

    Args:
        nanoset: The nanoset, whose project names the tokens.
        padding_token: The padding token of its packs, if they have one of their own.

    Returns:
        {"eod": 0, "pad": 1}, without tokens that the samples do not have.
    """
    token_ids: dict[str, int] = {}
    # A trainer needs the end of documents for some masks, which may also be set on its command
    # line. So it is returned whatever the settings are.
    end_id = nanoset.project.special("eod")
    if end_id is not None:
        token_ids["eod"] = end_id
    padding_id = nanoset.project.special("pad")
    if padding_token is not None and padding_id is not None and _is_padded(nanoset):
        token_ids["pad"] = padding_id
    return token_ids


def _is_padded(nanoset: NanosetContext) -> bool:
    """Return whether a nanoset reads packs that contain padding (`tail: pad`).

    With `tail: carry`, only the very last sample is padded: that is no reason to stop a job.

    Args:
        nanoset: The nanoset. Its blend names corpora, views and packs.
    """
    packs = nanoset.project.config.packs
    return any(name in packs and packs[name].tail == "pad" for name in nanoset.spec.corpora)


def _counts_by_prefix(nanoset: NanosetContext) -> dict[str, DatasetCounts]:
    """Return how many sequences and documents each dataset has that the trainer will read.

    Megatron-LM starts faster if it gets these numbers in a file, since it then need not open the
    datasets.

    Args:
        nanoset: The nanoset: a weighted blend of datasets for each split (train, valid and test).

    Returns:
        Path of a dataset where the trainer runs, without .idx → counts. A dataset that several
        splits read is listed once.
    """
    counts: dict[str, DatasetCounts] = {}
    for split in SPLITS:
        for corpus in corpora_of(nanoset.spec.blend_of(split)):
            prefix = nanoset.trainer_prefix(corpus)
            if prefix not in counts:  # several splits may read one dataset
                counts[prefix] = _counts(nanoset.dataset(corpus))
    return counts


def _counts(dataset: Manifest) -> DatasetCounts:
    """Read the counts of a dataset from its .idx file, which may be in a bucket."""
    path = dataset.access.fetch(idx_path(dataset.folder / dataset.facts["prefix"]))
    # Not validated: that would read the whole file, and only its lengths are needed.
    index = read_idx(path, validate=False)
    return DatasetCounts(
        sequences=len(index.sequence_lengths),
        document_indices=len(index.document_indices),
        dtype=index.dtype.name,
    )


def _indexes(splits: Mapping[SplitName, BuiltSplit], folder: str) -> dict[str, list[str]]:
    """Return the index files that a trainer will look for, by the file that describes each index.

    An index says in which order samples are read. For example:

        {"1a2b-description.txt": ["1a2b-shuffle_index.npy", "1a2b-sample_index.npy", …]}

    The description lists what the index was made from. Before a training, it is compared with what
    the trainer is going to ask for.

    Args:
        splits: The built splits: train, valid and test.
        folder: The folder of the files, with a slash at its end. The result does not contain it.

    Returns:
        File with the description → the other files of the index. Empty if the trainer uses no
        descriptions.
    """
    indexes: dict[str, list[str]] = {}
    for plan in _index_plans(splits):
        files = {kind: path.removeprefix(folder) for kind, path in plan.files.items()}
        description = files.pop("description", None)
        if description is not None:
            indexes[description] = list(files.values())  # such as that of the kind "shuffle_index"
    return indexes


def _index_plans(splits: Mapping[SplitName, BuiltSplit]) -> Iterator[MemberPlan | BlendPlan]:
    """Yield the plans of all indexes: one of each dataset, and one of the order of their mixture.

    Args:
        splits: The built splits: train, valid and test.
    """
    for split in splits.values():
        if split.plan is not None:
            yield from split.plan.members
            if split.plan.blend is not None:
                yield split.plan.blend


def _reasons_without_samples(splits: Mapping[SplitName, BuiltSplit]) -> dict[SplitName, str]:
    """Return why splits of the data have no samples although they should have some.

    For example, if valid should get 1 % of the data, and that is less than a sample: {"valid":
    "…"}. The reason was recorded when the split was built.

    Args:
        splits: The built splits: train, valid and test.

    Returns:
        Split → the reason, only for splits that are empty for this reason.
    """
    reasons: dict[SplitName, str] = {}
    for split, built in splits.items():
        reason = reason_without_samples(built.manifest)
        if reason is not None:
            reasons[split] = reason
    return reasons


def _config_of_all(splits: Mapping[SplitName, BuiltSplit]) -> NanosetConfig:
    """Merge the settings that train, valid and test were built with into one.

    The three splits are built one by one, and each has recorded its settings. Most of these are the
    same, and can be taken from train. Three differ:

        samples       each split was built with its own number: train 1,000, valid 50, test 20
        paths         each split knows the paths of the datasets that it reads
        blends        each split may read its own blend, that is, datasets with weights

    The blends are a list for train, valid and test. Of each recorded list, only the blend of the
    split itself counts. Suppose that test has no data:

        recorded with train    [A, …, …]
        recorded with valid    […, B, …]
        merged                 [A, B, None]

    Args:
        splits: The built splits: train, valid and test, in this order.

    Returns:
        The common settings, with the numbers, paths and blends of all splits.
    """
    trainer_paths: dict[str, str] = {}
    for built in splits.values():
        trainer_paths |= built.config.trainer_paths

    samples = {split: built.config.samples(split) for split, built in splits.items()}
    config = splits["train"].config.with_samples(samples)
    config = replace(config, trainer_paths=trainer_paths)
    if config.blend_per_split is None:  # all splits share one blend
        return config

    # Each split has its own blend. Take blend 0 as recorded with train, 1 as recorded with valid,
    # and 2 as recorded with test.
    blends: list[Blend | None] = []
    for index, built in enumerate(splits.values()):
        recorded_blends = built.config.blend_per_split
        has_data = built.plan is not None
        if recorded_blends and has_data:
            blends.append(recorded_blends[index])
        else:
            blends.append(None)
    return replace(config, blend_per_split=blends)
