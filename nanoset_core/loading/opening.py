"""Open a built nanoset: from an output root to samples, with nothing but numpy.

train = load_nanoset("s3://bucket/outputs", "pretrain", "train")
train[0]["tokens"]
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nanoset_core.errors import (
    ConfigError,
    MissingError,
    NoSamplesError,
    StaleError,
    one_of,
    remedy_for_name,
)
from nanoset_core.loading.blended_nanoset import BlendedNanoset, open_split
from nanoset_core.loading.layout import (
    BLEND,
    CACHE,
    HANDOFF,
    LACKING,
    MAPPINGS,
    MASKS_OPTION,
    NANOSETS_FOLDER,
)
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.plan_file import read_split
from nanoset_core.outputs.manifest import MANIFEST, Manifest
from nanoset_core.outputs.root import CURRENT, OutputRoot, open_root
from nanoset_core.records.arguments import boolean
from nanoset_core.sampling.config import Blend, NanosetConfig
from nanoset_core.sampling.planned import SplitPlan
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.settings import StorageSpec

_ROOT = "the folder of the outputs, which nanoset.yaml names under `root`"


def load_nanoset(
    root: str | os.PathLike[str] | OutputRoot,
    name: str,
    split: str,
    storage: StorageSpec | None = None,
    *,
    reset_position_ids: bool | None = None,
    reset_attention_mask: bool | None = None,
    eod_mask_loss: bool | None = None,
    create_attention_mask: bool | None = None,
    inter_document_masking: bool | None = None,
) -> Nanoset | BlendedNanoset:
    """Open the current version of one split of a nanoset.

    A mask option that is None has the value that nanoset.yaml had when the current handoff was
    made. The loss leaves out the padding of packs if the trainer does so, which is the case for
    Megatron-LM if `tokenizer.pad` is set in nanoset.yaml.

    Args:
        root: The project's output root, wherever it is now. If it is in a bucket
            (s3://bucket/prefix, gs:// or abfs://), the index files are downloaded, and those blocks
            of the tokens that contain the samples that are read.
        name: Name of the nanoset.
        split: train, valid or test.
        storage: How a bucket is accessed; by default as the AWS configuration says.
        reset_position_ids: Whether positions restart after an end of document.
        reset_attention_mask: Whether attention stops at an end of document; needs
            `create_attention_mask`.
        eod_mask_loss: Whether the loss leaves out end-of-document tokens.
        create_attention_mask: Whether samples contain their attention mask, bool, shape (1,
            sequence_length, sequence_length).
        inter_document_masking: Whether samples contain the borders of documents, and positions
            restart there.

    Raises:
        ConfigError: The root is a file, `storage` is something else, the preset's samples do not
            have one of the masks, a mask needs another one that is not set, or the documents have
            no end token.
        NoSamplesError: The split has no samples, for example because its share of the data is 0.
        MissingError: The split was not built, or a file was deleted.
        FormatError, StaleError: A file is not as it was written, or belongs to another version.
    """
    mask_values = {
        "reset_position_ids": reset_position_ids,
        "reset_attention_mask": reset_attention_mask,
        "eod_mask_loss": eod_mask_loss,
        "create_attention_mask": create_attention_mask,
        "inter_document_masking": inter_document_masking,
    }
    _check_is_no_file(root)
    _check_is_storage(storage)
    outputs = open_root(root, storage)
    with outputs.access.named():
        manifest = current_split(outputs, f"{name}/{split}")
        return _open_with_masks(outputs, manifest, mask_values)


def _check_is_no_file(root: str | os.PathLike[str] | OutputRoot) -> None:
    """Check that an output root is not a file, such as nanoset.yaml.

    Raises:
        ConfigError: It is a file.
    """
    if isinstance(root, OutputRoot) or not os.path.isfile(root):
        return
    raise ConfigError(
        "the output root is a file",
        where=os.fspath(root),
        expected=_ROOT,
        remedy="pass that folder, or its address in a bucket",
    )


def _check_is_storage(storage: object) -> None:
    """Check that the argument `storage` of `load_nanoset` says how a bucket is accessed.

    It is the last argument that can be passed without its name. So who forgets the name of a later
    one, such as `reset_position_ids=True`, calls `load_nanoset(root, "pretrain", "train", True)`,
    and `storage` is True. The error then says that masks are passed by their names.

    Args:
        storage: The argument, which should be a StorageSpec (address, region and such) or None.

    Raises:
        ConfigError: It is neither a StorageSpec nor None.
    """
    if storage is None or isinstance(storage, StorageSpec):
        return
    raise ConfigError(
        "not a description of how a bucket is accessed",
        where="storage",
        found=repr(storage),
        expected="a StorageSpec, or None",
        remedy="pass options for masks by their names, such as reset_position_ids=True",
    )


def open_version(outputs: OutputRoot, manifest: Manifest) -> Nanoset | BlendedNanoset:
    """Open the training samples of a split, in any version that was built, to look at their tokens.

    For example, which samples did a run read that was started with an older version? No mask is
    added to the samples, and the loss counts all tokens.

    Args:
        outputs: The project's outputs.
        manifest: The record of the version, named `pretrain/train/blend` for a split that mixes
            several datasets, and `pretrain/train/index_mappings` for a split of a single one.

    Raises:
        NoSamplesError: The split has no samples, such as `test` if nanoset.yaml divides the data by
            "98,2,0".
        MissingError: A file was deleted.
        FormatError, StaleError: A file is not as it was written, or belongs to another version.
    """
    plan, config = _plan_with_samples(outputs, manifest)
    return _open_samples(outputs, manifest, plan, config)


def _open_with_masks(
    outputs: OutputRoot, manifest: Manifest, masks: Mapping[str, bool | None]
) -> Nanoset | BlendedNanoset:
    """Open the training samples of a split as a trainer reads them: with the masks of its options.

    Args:
        outputs: The project's outputs.
        manifest: The record of the version, as in `open_version`.
        masks: Options of `load_nanoset` that change the masks in samples, such as
            {"reset_attention_mask": True, "eod_mask_loss": None}. None takes what nanoset.yaml said
            when files for the trainer were last made.

    Raises:
        ConfigError: The trainer has no such mask, a mask needs another one that is not set, or the
            documents have no end token.
        MissingError, FormatError, StaleError: As in `open_version`.
    """
    plan, config = _plan_with_samples(outputs, manifest)
    nanoset_name = manifest.name.split("/")[0]
    mask_names = _names_of_set_masks(outputs, nanoset_name, masks)
    if mask_names:
        # They depend on where documents end, which a token of the tokenizer marks.
        config = config.with_masks(mask_names, _end_token(outputs, plan))

    loss_leaves_out_padding = config.rules.pads != "never"
    if loss_leaves_out_padding:
        config = replace(config, pad_token=_padding_token(outputs, plan))
    return _open_samples(outputs, manifest, plan, config)


def _plan_with_samples(outputs: OutputRoot, manifest: Manifest) -> tuple[SplitPlan, NanosetConfig]:
    """Read which samples a split has, and the settings that it was built with.

    Args:
        outputs: The project's outputs.
        manifest: The record of the split.

    Raises:
        NoSamplesError: The split has no samples.
        MissingError: The file is missing.
        FormatError: The file is not as it was written.
    """
    plan, config = read_split(manifest, outputs.folder)
    if plan is None:
        name, split, _ = manifest.name.split("/")  # such as "pretrain", "train", "blend"
        raise _no_samples(name, split, manifest, config)
    return plan, config


def _open_samples(
    outputs: OutputRoot, manifest: Manifest, plan: SplitPlan, config: NanosetConfig
) -> Nanoset | BlendedNanoset:
    """Open the index files of a split, which are in the folder of its nanoset, and its datasets.

    Args:
        outputs: The project's outputs.
        manifest: The record of the split, named such as `pretrain/train/blend`.
        plan: Which samples the split has.
        config: Settings of the nanoset.
    """
    nanoset_name = manifest.name.split("/")[0]
    index_folder = outputs.folder / NANOSETS_FOLDER / nanoset_name / CACHE
    return open_split(plan, config, index_folder, outputs.access)


def _no_samples(name: str, split: str, manifest: Manifest, config: NanosetConfig) -> NoSamplesError:
    """Return the error for a split without samples, with the reason in terms of nanoset.yaml."""
    if manifest.facts.get(LACKING) is not None:
        return _too_small_error(name, split, manifest)
    if not config.rules.has_splits:
        return _only_train_error(name, split, manifest, config)
    if config.blend_per_split is None:
        return _no_share_error(name, split, manifest, config)
    return _no_blend_error(name, split, manifest, config.blend_per_split)


def _too_small_error(name: str, split: str, manifest: Manifest) -> NoSamplesError:
    """Return the error for a split whose share of the data is too small for a sample."""
    return NoSamplesError(
        f"the {split} split of {name} has no sample",
        where=manifest.url(),
        found=manifest.facts[LACKING],
        remedy="give it a share in nanoset.yaml, and build again",
    )


def _only_train_error(
    name: str, split: str, manifest: Manifest, config: NanosetConfig
) -> NoSamplesError:
    """Return the error for valid or test of a trainer that has only train."""
    return NoSamplesError(
        f"the {split} split of {name} has no samples",
        where=manifest.url(),
        found=f"preset {config.preset}, whose trainer reads only train",
        remedy="read train",
    )


def _no_share_error(
    name: str, split: str, manifest: Manifest, config: NanosetConfig
) -> NoSamplesError:
    """Return the error for a split with a share of 0 of the data that all splits share."""
    return NoSamplesError(
        f"the {split} split of {name} has no share of the data",
        where=manifest.url(),
        found=f"split: {config.split}",
        expected=f"a share for {split}",
        remedy="give it a share in nanoset.yaml and build again, or read another split",
    )


def _no_blend_error(
    name: str, split: str, manifest: Manifest, blend_per_split: Sequence[Blend | None]
) -> NoSamplesError:
    """Return the error for a split without data, in a nanoset whose splits have data of their own.

    For example, nanoset.yaml names datasets for train and valid, and test is to be read. The error
    says "blends for train and valid", and how to add test.

    Args:
        name: Name of the nanoset.
        split: Name of the split.
        manifest: Manifest of the split.
        blend_per_split: The data of train, valid and test.
    """
    blends = zip(SPLITS, blend_per_split, strict=True)
    blended_splits = [other for other, blend in blends if blend is not None]
    found = f"blends for {' and '.join(blended_splits)}" if blended_splits else "no blend"
    return NoSamplesError(
        f"the {split} split of {name} has no blend",
        where=manifest.url(),
        found=found,
        expected=f"a blend for {split}",
        remedy=f"add {split} to blend_per_split in nanoset.yaml and build again, or read one of "
        "the other splits",
    )


def _names_of_set_masks(
    outputs: OutputRoot, name: str, masks: Mapping[str, bool | None]
) -> tuple[str, ...]:
    """Return the names of the masks that training samples should contain.

    A mask tells the trainer, for example, not to look from one document into the next one. The
    caller of `load_nanoset` sets a mask to True or False, or leaves it to nanoset.yaml by None:

        reset_position_ids     True     is in the result
        eod_mask_loss          False    is not
        reset_attention_mask   None     is in the result if nanoset.yaml had it

    Args:
        outputs: The project's outputs.
        name: The nanoset.
        masks: Name of each mask → its value, as in the table.
    """
    # The file with the values of nanoset.yaml is read only if they matter.
    masks_of_yaml: Collection[str] = ()
    if None in masks.values():
        masks_of_yaml = _masks_of_handoff(outputs, name)

    names: list[str] = []
    for mask, value in masks.items():
        if value is None:
            is_set = mask in masks_of_yaml
        else:
            is_set = boolean(mask, value)
        if is_set:
            names.append(mask)
    return tuple(names)


def _masks_of_handoff(outputs: OutputRoot, name: str) -> Collection[str]:
    """Return the masks that nanoset.yaml had when files for the trainer were last made.

    These files are the handoff. If there is none, the result is empty.

    Args:
        outputs: The project's outputs.
        name: The nanoset.
    """
    handoff = outputs.current(NANOSETS_FOLDER, f"{name}/{HANDOFF}")
    if handoff is None:
        return ()
    masks: Collection[str] = handoff.recipe["options"].get(MASKS_OPTION, ())
    return masks


def _end_token(outputs: OutputRoot, plan: SplitPlan) -> int | None:
    """Return the token that ends every document of a split, or None if there is no such token.

    There is none if the datasets of the split have different end tokens.
    """
    end_tokens: set[int | None] = set()
    for member in plan.members:
        version_folder = Path(member.prefix).parent
        end_tokens.add(_end_token_of(outputs, version_folder))
    return end_tokens.pop() if len(end_tokens) == 1 else None


def _end_token_of(outputs: OutputRoot, folder: Path) -> int | None:
    """Return the token that ends every document of a dataset, such as 50256, or None.

    When a corpus (a collection of texts) is tokenized, the token may be appended to each document.
    The record of the tokenized corpus says which.

    Args:
        outputs: The project's outputs.
        folder: Folder of a version of the dataset.

    Returns:
        None if documents have no end token, or if a record was deleted.
    """
    corpus = _corpus_of(outputs, outputs.manifest_at(folder))
    return None if corpus is None else _appended_token(corpus)


def _corpus_of(outputs: OutputRoot, manifest: Manifest | None) -> Manifest | None:
    """Return the record of the tokenized corpus that a dataset was made from.

    Args:
        outputs: The project's outputs.
        manifest: The record of the dataset. It may be made from another dataset, for example by
            selecting documents. None if it was deleted.

    Returns:
        None if a record was deleted.
    """
    while manifest is not None and _is_derived(manifest):
        manifest = _parent_dataset(outputs, manifest)
    return manifest


def _appended_token(corpus: Manifest) -> int | None:
    """Return the token that ends every document of a tokenized corpus, or None."""
    appended_tokens = corpus.recipe["options"]["framing"]["after"]  # such as [50256], or []
    return appended_tokens[-1] if appended_tokens else None


def _padding_token(outputs: OutputRoot, plan: SplitPlan) -> int | None:
    """Return the token that training should ignore since it only fills up samples, or None.

    Some datasets consist of packs: samples that are filled with whole documents. What remains is
    filled up with the padding token of the tokenizer. If the tokenizer has none, this is the token
    that ends documents. A model has to learn where documents end, so that one is not returned:

        a pack                    padding    end of documents    result
        A B end C D end pad pad   pad        end                 pad
        A B end C D end end end   end        end                 None

    Args:
        outputs: The project's outputs.
        plan: The plan of the split, which names its datasets.

    Returns:
        Such as 1. None if there are no packs, or if they have different padding tokens. Also None
        if the record of a dataset was deleted, so that its end token is not known. (The copy of the
        outputs that a trainer reads may lack these.)
    """
    padding_tokens: set[int | None] = set()  # of all packs; usually they have the same one
    for packs_folder in _folders_of_packs(outputs, plan):
        packs = outputs.manifest_at(packs_folder)
        corpus = _corpus_of(outputs, packs)  # the text collection whose documents were packed
        if packs is None or corpus is None:  # a record was deleted
            return None
        padding_token = packs.recipe["options"]["pad"]
        end_token = _appended_token(corpus)
        if padding_token != end_token:
            padding_tokens.add(padding_token)
    return padding_tokens.pop() if len(padding_tokens) == 1 else None


def _folders_of_packs(outputs: OutputRoot, plan: SplitPlan) -> list[Path]:
    """Return the folder of each dataset of a split that consists of packs."""
    folders: list[Path] = []
    for member in plan.members:
        version_folder = Path(member.prefix).parent
        if version_folder.is_relative_to(outputs.folder / "packs"):
            folders.append(version_folder)
    return folders


def _is_derived(manifest: Manifest) -> bool:
    """Return whether a manifest is that of a view or packs, which name their corpus."""
    return "corpus" in manifest.facts


def _parent_dataset(outputs: OutputRoot, manifest: Manifest) -> Manifest | None:
    """Return the manifest of the dataset that a view or packs were made from; None if deleted."""
    corpus = manifest.facts["corpus"]
    source = manifest.facts.get("of", corpus)  # the view, if packs were made from one
    stage = "datasets" if source == corpus else "views"
    digest = manifest.recipe["parents"]["dataset"]
    return outputs.manifest_at(outputs.folder / stage / source / digest)


def current_split(outputs: OutputRoot, place: str) -> Manifest:
    """Return the manifest of the current version of a split's samples.

    A split, such as train, is built in two steps. The first one finds the samples of each of its
    datasets (the *index mappings*). The second one, if there are several datasets, mixes them (the
    *blend*). So the result is

        one dataset          the manifest of the index mappings
        several datasets     the manifest of the blend, which must be made from these mappings

    Args:
        outputs: The project's outputs.
        place: Nanoset and split, such as `pretrain/train`.

    Raises:
        MissingError: The split was not built.
        StaleError: The blend was made from other index mappings than the current ones: a build was
            interrupted between the two steps.
    """
    mappings = _current_mappings(outputs, place)
    if mappings is None:
        raise _not_built_error(outputs, place)
    if not mappings.facts["blended"]:
        return mappings
    blend = outputs.require(NANOSETS_FOLDER, f"{place}/{BLEND}", remedy="run `nanoset build`")
    _check_blend_is_of(blend, mappings)
    return blend


def _current_mappings(outputs: OutputRoot, place: str) -> Manifest | None:
    """Return the manifest of the current index mappings of a split, or None if there are none.

    A path such as `pretrain//train` or `./pretrain/train` leads to the folder of a split, too. But
    no split has this name, and its manifest would seem to be in a wrong folder.

    Args:
        outputs: The project's outputs.
        place: Nanoset and split, such as `pretrain/train`.
    """
    has_two_names = place.count("/") == 1 and is_inside(place)
    if not has_two_names:
        return None
    return outputs.current(NANOSETS_FOLDER, f"{place}/{MAPPINGS}")


def _check_blend_is_of(blend: Manifest, mappings: Manifest) -> None:
    """Check that the blend of a split was made from its current index mappings.

    A build writes the mappings first, and then the blend. If it was interrupted between the two,
    the blend is that of older mappings.

    Args:
        blend: Manifest of the blend.
        mappings: Manifest of the index mappings.

    Raises:
        StaleError: It was made from others.
    """
    digest_in_blend = blend.recipe["parents"][MAPPINGS]
    if digest_in_blend != mappings.digest:
        raise StaleError(
            "the blend belongs to other index mappings than the current ones",
            where=blend.url(),
            found=digest_in_blend,
            expected=mappings.digest,
            remedy="run `nanoset build`",
        )


def _not_built_error(outputs: OutputRoot, place: str) -> MissingError:
    """Return the error for a split that was not built.

    Args:
        outputs: The project's outputs.
        place: Nanoset and split, such as `pretrain/train`.
    """
    built_splits = _built_splits(outputs)
    if not built_splits:
        return MissingError(
            f"there is no {place}: no nanoset was built in this folder",
            where=outputs.access.url(outputs.folder),
            expected=_ROOT,
            remedy="pass that folder, or correct the names; if both are right, run `nanoset build`",
        )
    if place in built_splits:
        # The folder of the split exists, but the files that name its version do not.
        return MissingError(
            "the current version of this split is missing",
            where=outputs.access.url(outputs.folder / NANOSETS_FOLDER / place / MAPPINGS),
            expected=f"{CURRENT}, and the {MANIFEST} of the version that it names",
            remedy="run `nanoset build`",
        )
    return _unknown_split_error(outputs, place, built_splits)


def _unknown_split_error(
    outputs: OutputRoot, place: str, built_splits: Sequence[str]
) -> MissingError:
    """Return the error for the name of a split that does not exist, with those that do.

    A nanoset with phases is built as several ones, such as `pretrain-phase-1`. If `pretrain` was
    requested, the error names these.

    Args:
        outputs: The project's outputs.
        place: The requested nanoset and split, such as `pretrain/train`.
        built_splits: All splits that were built, each with its nanoset, such as `pretrain/train`.
    """
    name, _, split = place.rpartition("/")
    phases = [built for built in built_splits if _is_phase(built, name, split)]
    remedy = remedy_for_name(place, built_splits, "run `nanoset build`, or correct the names")
    if phases:
        remedy = f"{name} has phases, each of which is a nanoset: read one of them"
    return MissingError(
        "no such nanoset, or no such split of it",
        where=outputs.access.url(outputs.folder / NANOSETS_FOLDER),
        found=place,
        expected=one_of(phases or built_splits, "nothing"),
        remedy=remedy,
    )


def _is_phase(built_split: str, name: str, split: str) -> bool:
    """Return whether a split is that of a phase of a nanoset.

    Args:
        built_split: The split, such as `pretrain-phase-1/train`.
        name: Name of the nanoset, such as `pretrain`.
        split: Name of the split, such as `train`.
    """
    return built_split.startswith(f"{name}-phase-") and built_split.endswith(f"/{split}")


def _built_splits(outputs: OutputRoot) -> list[str]:
    """Return the splits that were built, each with its nanoset, such as `pretrain/train`."""
    splits: set[str] = set()
    for entry in outputs.access.store.list(NANOSETS_FOLDER):
        # Outputs are stored in <stage>/<nanoset>/<split>/<output>/…
        names = entry.name.split("/")
        if len(names) > 3 and names[3] == MAPPINGS:
            splits.add(f"{names[1]}/{names[2]}")
    return sorted(splits)
