"""Find handoffs of a run whose samples have another order than those of today.

The phases of a run (`continue: true`) are planned together: phase 2 begins where phase 1 ends. If
text is added, a build plans all of them again, in another order. nanoset cannot know whether the
run has begun. If it has, the new phase 2 reads samples again that the old phase 1 has read, so the
run has to continue with the old handoff of phase 2. For example:

    handoff of phase 1    a434… (old)    29c6… (new)
    handoff of phase 2    3125… (old)    e37f… (new)

Old handoffs remain until `nanoset gc` deletes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from nanoset_core.errors import MissingError, NanosetError
from nanoset_core.loading.layout import HANDOFF, NANOSETS_FOLDER
from nanoset_core.loading.plan_file import read_split
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.sampling.planned import MemberPlan
from nanoset_core.stages.mappings.run_before import mappings_of_handoff, split_of_handoff

_WHAT_TO_DO = (
    "If this phase has begun, or an earlier one with the same warning, start each phase from its "
    "old handoff, and list these handoffs in `storage.keep_runs`; or restore what has changed, and "
    "build again (see docs/phases.md, What if the text has changed during a run?)"
)
"""What the user should do if phases of a run were planned again.

The order of a phase depends on what the earlier phases have read. But the earlier phases do not
depend on the later ones: these may be changed before they begin.
"""


def replaced_order_warning(project: Project, handoff: Manifest) -> str | None:
    """Return the warning that earlier handoffs of a phase have another order of samples.

    A handoff is a folder with the arguments for the trainer. It belongs to a version of train, the
    samples to read and their order. When text was added, a build makes new versions of both, and
    the old ones remain. For example, these are the handoffs of phase 2 of a training run:

        handoff           train    order of samples
        e37f (current)    4410     B
        d201              4410     not compared, since train is the same: only valid was another
        3125              77cd     A, so the warning names 3125

    If phase 2 was started with 3125, it must not continue with e37f.

    Args:
        project: Its outputs have all versions of the handoff.
        handoff: The current handoff of a nanoset.

    Returns:
        One or more sentences without the last full stop. None if the order has never changed, or if
        it does not matter: the nanoset is not a phase of a run, or the phases of the run do not
        skip what earlier phases have read.
    """
    if not _is_of_continuing_phase(project, handoff):
        return None

    compared_digests = {handoff.recipe["parents"]["train"]}  # versions of train: {"4410"}
    order: _Order | None = None
    for earlier in project.outputs.versions(NANOSETS_FOLDER, handoff.name, before=handoff):
        train_digest = earlier.recipe["parents"]["train"]
        if train_digest in compared_digests:
            continue
        compared_digests.add(train_digest)

        # Read the present order only if there is another version, since plans may be large.
        if order is None:
            order = _order_of(project.outputs, handoff)
        if order is None:
            return None
        earlier_order = _order_of(project.outputs, earlier)
        if earlier_order is not None and earlier_order != order:
            reason = _reason_of_change(earlier_order, order)
            return (
                f"old handoffs of this phase, such as {earlier.digest}, may have another order of "
                f"samples, since {reason}. {_WHAT_TO_DO}"
            )
    return None


def planned_order_warning(project: Project, handoff: Manifest) -> str | None:
    """Return the warning that a build is going to replace the handoff of a phase.

    Args:
        project: The project, with its settings.
        handoff: The current handoff of a nanoset. The build makes another one, and index files.

    Returns:
        Sentences without the last full stop; None if the nanoset is no phase of a run whose phases
        continue each other.
    """
    if not _is_of_continuing_phase(project, handoff):
        return None
    return (
        f"its handoff {handoff.digest} would be replaced, and the samples may get another order. "
        f"{_WHAT_TO_DO}"
    )


def planned_length_warning(project: Project, handoff: Manifest) -> str | None:
    """Return the warning that a build is going to replace the handoff of a run of another length.

    How many samples a run reads decides how many epochs of each dataset are shuffled, and so the
    order of the samples. A resumed run would read some of them again, and others not at all.

    Args:
        project: The project, with its settings.
        handoff: The current handoff of a nanoset. The build makes another one, and index files.

    Returns:
        Sentences without the last full stop; None if the nanoset reads as many samples as before,
        if its samples continue an order that another handoff has begun, or if the index files of
        the handoff were deleted.
    """
    spec = project.nanoset(_nanoset_of(handoff))
    is_phase = spec.span is not None
    if is_phase or spec.continues_run:
        return None

    # The settings may give the number as `samples`, or as a `schedule`. None stands for one epoch.
    try:
        mappings = mappings_of_handoff(project.outputs, handoff, "train")
    except MissingError:
        return None
    if mappings.recipe["options"].get("samples") == spec.samples.get("train"):
        return None
    return (
        f"its handoff {handoff.digest} would be replaced, and the samples may get another order, "
        "since a run of another length repeats other documents. If a run has begun with this "
        "handoff, let it continue its order (see docs/phases.md, Make a run longer or change its "
        "batch size)"
    )


def _is_of_continuing_phase(project: Project, handoff: Manifest) -> bool:
    """Return whether a handoff is that of a phase, in a run whose phases continue each other.

    Args:
        project: Its settings have the phases.
        handoff: A version of the handoff of any nanoset.
    """
    spec = project.nanoset(_nanoset_of(handoff))
    return spec.continue_ and spec.span is not None


def _nanoset_of(handoff: Manifest) -> str:
    """Return the name of the nanoset that a handoff belongs to."""
    return handoff.name.removesuffix(f"/{HANDOFF}")


class _Order(NamedTuple):
    """All that decides which samples a trainer reads, and when.

    Names of files do not count. A view may have another `.idx` with the same documents, after its
    corpus has changed. Then two orders that are the same differ here.

    How many samples the phase has does not count either: if it ends earlier or later, because
    another phase was added, it still begins with the same samples.
    """

    trainer: str
    """The preset: each trainer shuffles in its own way."""
    random_seed: int
    """Decides how the samples of each dataset are shuffled."""
    sequence_length: int
    """Tokens of a sample, which decide where samples start."""
    blend_weights: Sequence[float] | None
    """How the datasets are mixed; None for a single dataset."""
    blend_seed: int | None
    """Decides how the mixture is shuffled; None if it is not shuffled."""
    dataset_orders: dict[str, Any]
    """Name of each dataset → its documents, how they are shuffled, and where the phase begins."""
    idx_sha256_by_dataset: dict[str, str]
    """Name of each dataset → digest of its `.idx` file, which says where its documents are."""


def _order_of(outputs: OutputRoot, handoff: Manifest) -> _Order | None:
    """Return the order in which a training run reads its samples, to compare it with another order.

    Two runs read the same samples in the same order if all values of the result are equal.

    Args:
        outputs: The output root, which has the plan of train: which samples are read of each
            dataset, and how the datasets are mixed.
        handoff: A version of the arguments for the trainer. It names the version of train.

    Returns:
        The order; None if the plan was deleted, or cannot be read.
    """
    try:
        train = split_of_handoff(outputs, handoff, "train")
        plan, config = read_split(train, outputs.folder)
    except NanosetError:
        return None
    if plan is None:
        return None

    # How the datasets are mixed.
    blend_weights: Sequence[float] | None = None
    blend_seed: int | None = None
    if plan.blend is not None:
        blend_weights = plan.blend.weights
        blend_seed = plan.blend.seed

    # What is read of each dataset.
    dataset_orders: dict[str, Any] = {}
    idx_sha256_by_dataset: dict[str, str] = {}
    for facts, dataset in zip(train.facts["members"], plan.members, strict=True):
        name = facts["corpus"]
        dataset_orders[name] = _order_of_dataset(dataset)
        idx_sha256_by_dataset[name] = dataset.idx_sha256
    return _Order(
        trainer=plan.preset,
        random_seed=config.random_seed,
        sequence_length=config.sequence_length,
        blend_weights=blend_weights,
        blend_seed=blend_seed,
        dataset_orders=dataset_orders,
        idx_sha256_by_dataset=idx_sha256_by_dataset,
    )


def _order_of_dataset(member: MemberPlan) -> Any:
    """Return what decides the order in which a phase reads a dataset.

    Args:
        member: The plan of the dataset. If earlier phases have read it, they have decided the
            order. Then it does not matter how many further epochs are planned.
    """
    if member.order is not None:
        return member.order, member.begin
    return member.rows, member.epochs, member.separate_last_epoch


def _reason_of_change(earlier: _Order, order: _Order) -> str:
    """Return why two orders differ: "web has changed", or "settings of the run have changed".

    Args:
        earlier: The old order.
        order: The new one.
    """
    changed_datasets: list[str] = []
    for name, idx_sha256 in order.idx_sha256_by_dataset.items():
        earlier_sha256 = earlier.idx_sha256_by_dataset.get(name)
        if earlier_sha256 is not None and earlier_sha256 != idx_sha256:
            changed_datasets.append(name)
    if not changed_datasets:
        return "settings of the run have changed"
    verb = "have" if len(changed_datasets) > 1 else "has"
    return f"{' and '.join(changed_datasets)} {verb} changed"
