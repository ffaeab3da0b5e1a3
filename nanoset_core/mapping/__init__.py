"""Index mappings: documents, samples and shuffles of a split, blends of datasets, and the trainers' names for them."""

from nanoset_core.mapping.blending import build_blending_indices, build_exhaustive_blending_indices
from nanoset_core.mapping.indices import build_sample_index
from nanoset_core.mapping.plan import BlendPlan, MemberPlan, SplitPlan, largest_epoch_size, plan_split

__all__ = [
    "BlendPlan",
    "MemberPlan",
    "SplitPlan",
    "build_blending_indices",
    "build_exhaustive_blending_indices",
    "build_sample_index",
    "largest_epoch_size",
    "plan_split",
]
