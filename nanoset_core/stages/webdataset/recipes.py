"""Recipes of the plan and of the tars of a webdataset.

They are in a module of their own, since `nanoset status` needs them, but not what makes tars.
"""

from __future__ import annotations

from collections.abc import Mapping

from nanoset_core.formats.tars.members import compressor_identity
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.project import Project
from nanoset_core.stages.webdataset.names import FOLDER, PLANS_FOLDER, VERSION
from nanoset_core.stages.webdataset.plan_settings import shared_settings


def plan_recipe(project: Project, name: str, digest_by_corpus: Mapping[str, str]) -> Recipe:
    """Return everything that decides which training sample goes into which tar of a dataset.

    From this, a digest is computed, which names the version of the plan. If a setting changes, such
    as the seed, there is a new version. So it has no settings that do not change the tars, such as
    how much memory is used.

    Args:
        project: Its settings are read, and the ids of its special tokens.
        name: Name of the dataset.
        digest_by_corpus: Name of each text collection (corpus) → digest of its tokens.

    Returns:
        A record with the digests, and the settings such as {"seed": 42, "sequence_length": 2049}.
    """
    spec = project.webdataset(name)
    options = shared_settings(spec) | {
        "corpora": list(spec.names),  # a list, since their order numbers the samples
        "numbers": spec.number_by_corpus,  # such as {"web": 2.5}; `mix` says what they mean
        "contexts": spec.contexts,
        "sequence_length": spec.sequence_length,
        # The following are None if they are not used. Then they do not change the tars either.
        # Are the numbers shares of the corpora ("weights"), or how often each is read?
        "mix": None if spec.number_by_corpus is None else spec.mix,
        "pad": project.special("pad") if spec.tail == "pad" else None,
        "bos": project.special("bos") if spec.bos else None,
        "compressor": compressor_identity() if spec.member == "json.gz" else None,
    }
    return Recipe(PLANS_FOLDER, name, VERSION, digest_by_corpus, options)


def webdataset_recipe(name: str, plan_digest: str) -> Recipe:
    """Return everything that decides the bytes of a webdataset's tars, as a recipe.

    Args:
        name: Name of the webdataset.
        plan_digest: Digest of the recipe of the plan that they are made from.
    """
    return Recipe(FOLDER, name, VERSION, {"plan": plan_digest})
