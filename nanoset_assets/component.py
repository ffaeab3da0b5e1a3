"""A Dagster component that adds a nanoset project to any Dagster code location.

A defs.yaml names it by `type: nanoset_assets.NanosetComponent`; its attributes are the fields of
`NanosetComponent`. For example, with `config: nanoset.yaml` and `key_prefix: llm`, the code
location gets the assets `llm/raw_jsonl`, `llm/indexed_dataset` and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, Field, WithJsonSchema, create_model, model_validator

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.code_location.component_attributes import (
    checked,
    checked_path,
    not_one_project,
    project_attributes,
    rendered,
    rendered_texts,
)
from nanoset_assets.code_location.last_valid import definitions_from_file
from nanoset_assets.code_location.scaffold import NanosetScaffolder
from nanoset_assets.definitions import definitions_of
from nanoset_assets.project_defs import Automation, ProjectDefs
from nanoset_core.project.settings import ProjectConfig, config_from, load_config
from nanoset_core.project.written import WrittenConfig
from nanoset_core.records.settings import json_schema

# Without `inject_before_resolve`, Dagster calls the function with a number if it can.
_TEXTS = dg.Resolver(rendered_texts, inject_before_resolve=False)
"""Fills in the templates of an attribute whose values are texts, even if they look like numbers."""


class CorpusUpstream(dg.Resolvable, dg.Model):
    """The assets that land the text of a corpus."""

    deps: Sequence[dg.ResolvedAssetKey] = Field(
        default=(),
        description="Assets that land the text. When one of them is materialised, the corpus is "
        "built at once. An asset that is not defined here is shown as an external asset.",
    )


@dg.scaffold_with(NanosetScaffolder)
class NanosetComponent(dg.Component, dg.Resolvable, dg.Model):
    """A nanoset project: raw text, tokenized, indexed, blended and shuffled for trainers."""

    config: Annotated[str | None, dg.Resolver(checked_path, model_field_type=str | None)] = Field(
        default=None,
        description="Path of a nanoset.yaml; relative paths start in the folder of this file.",
    )
    project: Annotated[
        Mapping[str, Any] | None, dg.Resolver(rendered, model_field_type=dict[str, Any])
    ] = Field(
        default=None,
        description="The keys of a nanoset.yaml, instead of `config`; relative paths start in the "
        "folder of this file.",
    )
    key_prefix: Annotated[str | Sequence[str] | None, _TEXTS] = Field(
        default=None,
        description="Prefix of the key of every asset, and of all other names; default: that of "
        "the project, or none.",
        examples=[["llm"]],
    )
    group_prefix: Annotated[str | None, _TEXTS] = Field(
        default=None,
        description="Prefix of the name of every asset group; default: derived from key_prefix.",
    )
    corpora: dict[str, CorpusUpstream] = Field(
        default_factory=dict, description="Corpus → the assets that land its text."
    )
    automation: Automation = Field(
        default="own",
        description="What builds missing and stale outputs. own: sensors and a schedule of this "
        "project; host: an automation condition on each asset, which a sensor of yours evaluates; "
        "none: neither.",
    )
    owners: Annotated[Sequence[str], _TEXTS] = Field(
        default=(), description="Owners of all its assets."
    )
    tags: Annotated[Mapping[str, str], _TEXTS] = Field(
        default_factory=dict, description="Tags of all its assets."
    )
    pool: Annotated[str | None, _TEXTS] = Field(
        default=None,
        description="Pool of the assets that use a whole machine; default: <key_prefix>/workers. "
        "Projects that name the same pool share its limit.",
    )
    run_tags: Annotated[Mapping[str, str], _TEXTS] = Field(
        default_factory=dict, description="Tags of all runs of its jobs."
    )
    op_tags: Annotated[Mapping[str, str], _TEXTS] = Field(
        default_factory=dict, description="Tags of the ops of all its assets."
    )
    retries: int = Field(
        default=0, ge=0, description="How many times an asset that fails is retried within its run."
    )
    translation: Annotated[
        TranslationFn[Mapping[str, str]] | None,
        TranslationFnResolver[Mapping[str, str]](lambda node: {"node": node}),
    ] = Field(
        default=None,
        description="Changes the spec of each asset, except its key. The template has access to "
        "`spec`, `node.name` and `node.subject`.",
    )

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the pydantic model with which the attributes in a defs.yaml are checked.

        Unlike the model that Dagster derives from this class, it knows the keys of an inline
        project.
        """
        return _attribute_model(cls)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Make the definitions of the project: its assets, checks, jobs, sensors and schedules.

        Dagster calls this for each defs.yaml that names the component. The attributes of the
        component say what the project is:

            config: nanoset.yaml        the path of a file with the settings
            project: {raw: …, …}        the settings themselves

        Args:
            context: Says in which folder the component is.

        Raises:
            ConfigError: Not exactly one of `config` and `project` is given, or the settings are
                invalid.
        """
        self._check_one_project()
        if self.config is None:  # the settings are in the defs.yaml itself
            return definitions_of(self.project_defs(context.path), self.automation)

        # The file is edited independently of Dagster, and may have a mistake for a while. Then use
        # its last valid version, so that the assets do not disappear from Dagster.
        def make_definitions(config: ProjectConfig) -> dg.Definitions:
            """Return the definitions for certain settings."""
            return definitions_of(self._defs_from(config), self.automation)

        file = _folder_of(context.path) / self.config
        return definitions_from_file(file, make_definitions)

    def get_asset_spec(self, spec: dg.AssetSpec, node: Mapping[str, str]) -> dg.AssetSpec:
        """Return what Dagster shows of an asset: its description, group, owners, tags and so on.

        A subclass may override this method to change anything of it but the key. Without a
        subclass, the attribute `translation` of a defs.yaml can do the same; if there is none,
        nothing is changed.

        Args:
            spec: What the project says of the asset.
            node: The asset's `name`, such as pretrain/blend, and its `subject`: the data mixture
                (nanoset) or webdataset, or "" for an asset of all text collections.
        """
        if self.translation is None:
            return spec
        return self.translation(spec, node)

    def execute(self, run: AssetRun) -> Iterator[dg.MaterializeResult[Any]]:
        """Make one output of an asset, in a run of Dagster.

        A subclass may override this method to do something before or after it, such as sending a
        message.

        Args:
            run: The run, which knows the output and how to make it.

        Yields:
            What Dagster records about the output; nothing if there was nothing to make.

        Raises:
            dg.Failure: The output could not be made.
        """
        yield from run.results()

    def project_defs(self, folder: Path) -> ProjectDefs:
        """Return the settings of this component's project, and its names in Dagster.

        A user writes one of two attributes into the defs.yaml of the component:

            config: nanoset.yaml     the path of a file with the settings
            project: {raw: …, …}     the settings themselves

        Args:
            folder: The component's folder, in which relative paths start; or its defs.yaml.

        Raises:
            ConfigError: Not exactly one of `config` and `project` is given, or the settings are
                invalid.
            MissingError: The file that `config` names does not exist.
        """
        folder = _folder_of(folder)
        self._check_one_project()
        if self.config is not None:
            # Each run and each call of a sensor reads the file again.
            return self._defs_from(load_config(folder / self.config))

        # These settings stay as they are until Dagster loads the defs.yaml again. So where a file
        # would be read again, the same settings are returned.
        settings = config_from(self.project, folder / "defs.yaml")
        return self._defs_from(settings, reread=lambda: settings)

    def _check_one_project(self) -> None:
        """Check that the defs.yaml has either `config` or `project`, and not both or neither.

        Raises:
            ConfigError: It has both, or neither.
        """
        attributes = project_attributes({"config": self.config, "project": self.project})
        if len(attributes) != 1:
            raise not_one_project(attributes)

    def _defs_from(
        self, config: ProjectConfig, reread: Callable[[], ProjectConfig] | None = None
    ) -> ProjectDefs:
        """Return a project's settings, combined with the attributes of this component.

        Dagster's assets, jobs and sensors are made from the result. The settings say what is made,
        such as data mixtures. The component says how it appears in Dagster and how it is executed.
        A subclass may override two methods: `get_asset_spec` changes how an asset looks in Dagster,
        and `execute` does something before or after a run.

        Args:
            config: The settings of the project.
            reread: A function that returns the current settings. Each run calls it, and each call
                of a sensor or schedule. None: read the file of `config` again.
        """
        return ProjectDefs.of(
            config,
            self.key_prefix,
            self.group_prefix,
            reread=reread,
            upstream=self._upstream_assets(),
            translation=self.get_asset_spec,
            execute=self.execute,
            owners=self.owners,
            tags=self.tags,
            pool=self.pool,  # limits how many runs of it are executed at once
            run_tags=self.run_tags,
            op_tags=self.op_tags,
            retries=self.retries,
        )

    def _upstream_assets(self) -> dict[str, tuple[dg.AssetKey, ...]]:
        """Return which assets of other teams write the raw text of each corpus (text collection).

        For example, `{"web": (AssetKey("crawl/pages"),)}`. Corpora whose text no asset writes are
        left out.
        """
        upstream: dict[str, tuple[dg.AssetKey, ...]] = {}
        for name, corpus in self.corpora.items():
            if corpus.deps:
                upstream[name] = tuple(corpus.deps)
        return upstream


def _folder_of(path: Path) -> Path:
    """Return the folder of a component, given the path of its folder or of its defs.yaml."""
    return path if path.is_dir() else path.parent


@cache
def _attribute_model(component: type[NanosetComponent]) -> type[BaseModel]:
    """Return a pydantic model that says what a user may write about a component in a defs.yaml.

    Editors and commands such as `dg check yaml` use it to report mistakes. Dagster can make such a
    model from the component's class, but allows too much:

        attribute     Dagster's model        this model
        automation    any text               own, host or none
        project       any mapping, or text   the keys of a nanoset.yaml

    Args:
        component: `NanosetComponent`, or a subclass of it with further attributes.
    """
    # `create_model` is like a `class` statement, whose names and types are computed.
    model = create_model(
        component.__name__,  # the name of the class
        __base__=component.model(),  # its base class: Dagster's model
        __validators__={"check_project": _attributes_validator()},  # called with all values
        project=(_inline_project_type(), Field(default=None)),  # type and default of a field
        automation=(Automation, Field(default="own")),
    )

    # Add the descriptions, which editors show.
    for name, field in component.model_fields.items():
        model.model_fields[name].description = field.description
    model.model_rebuild(force=True)  # pydantic ignores changes of fields without this
    return model


def _attributes_validator() -> Callable[..., Any]:
    """Return a function that pydantic calls with all attributes, before it looks at single ones.

    It finds mistakes that concern several attributes, such as a defs.yaml without any project.
    """

    def check(attributes: Any) -> Any:
        """Return the attributes of a component, after a check that they are valid."""
        return checked(NanosetComponent.__name__, attributes)

    return cast("Callable[..., Any]", model_validator(mode="before")(check))


def _inline_project_type() -> Any:
    """Return the type of the attribute `project`, which has the keys of a nanoset.yaml.

    Editors check the attribute by the JSON schema of this type. Dagster's own type also allows text
    and null. With such alternatives, an editor could only report that none of them matches. With
    this one, it can say which key is wrong.
    """
    # Any value may also be a template, which Dagster fills in.
    schema = json_schema(WrittenConfig, templates=True)
    return Annotated[dict[str, Any], WithJsonSchema(schema)]
