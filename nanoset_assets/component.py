"""A project as a component of any Dagster: `type: nanoset_assets.NanosetComponent` in a defs.yaml."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, Field, ValidationError, WithJsonSchema, create_model, model_validator
from pydantic_core import InitErrorDetails

from nanoset_assets.definitions import definitions_of
from nanoset_assets.hosted import Automation, ProjectDefs
from nanoset_assets.last_valid import check_file, definitions_from_file
from nanoset_assets.names import names_of
from nanoset_assets.stages_table import AssetRun
from nanoset_core.errors import ConfigError, raised
from nanoset_core.project.settings import ProjectConfig, check_config, config_from, load_config
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.records.settings import json_schema

_INLINE = "project"
_TEMPLATE = "{{"


def _rendered(context: dg.ResolutionContext, value: Any) -> Any:
    """Fill in a value's templates; text without one stays as it is, and "80,15,5" does not become a tuple."""
    if isinstance(value, Mapping):
        return {key: _rendered(context, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rendered(context, item) for item in value]
    return context.resolve_value(value) if isinstance(value, str) and _TEMPLATE in value else value


def _checked(attributes: Any) -> Any:
    """Point to invalid keys; a value with templates is checked once they are filled in."""
    if not isinstance(attributes, Mapping):
        return attributes
    value = attributes.get(_INLINE)
    prefix, group = (attributes.get(name) for name in ("key_prefix", "group_prefix"))
    named = [name for name in ("config", _INLINE) if attributes.get(name) is not None]
    wrong: list[tuple[ConfigError, tuple[str | int, ...]]] = []
    if len(named) != 1:
        wrong.append((_no_project(named), tuple(named[1:])))
    for error in raised(names_of, prefix, group) if _TEMPLATE not in f"{prefix} {group}" else ():
        wrong.append((error, ("group_prefix" if error.found == repr(group) else "key_prefix",)))
    if isinstance(value, Mapping) and _TEMPLATE not in str(value):
        for error in check_config(value, Path(_INLINE))[1]:
            wrong.append((error, (_INLINE, *_key_path(value, error.where or ""))))
    if wrong:
        details = [
            InitErrorDetails(type="value_error", loc=place, input=attributes, ctx={"error": error})
            for error, place in wrong
        ]
        raise ValidationError.from_exception_data(NanosetComponent.__name__, details)
    return attributes


def _no_project(named: Sequence[str]) -> ConfigError:
    found, remedy = (
        ("both `config` and `project`", "remove one of them")
        if named
        else ("neither `config` nor `project`", f"run `nanoset init` to write a {CONFIG_FILE}, and name it by `config`")
    )
    expected = "`config`, the path of a nanoset.yaml, or its keys under `project`"
    return ConfigError("a component has one project", found=found, expected=expected, remedy=remedy)


def _located(context: dg.ResolutionContext, value: str | None) -> str | None:
    """Return the path of a nanoset.yaml; it is read here, so that an error points to the line that names it."""
    path: str | None = _rendered(context, value)
    if path is not None:
        check_file(context.resolve_source_relative_path(path))
    return path


def _folder_of(path: Path) -> Path:
    """Return the folder of a component, given the path of its folder or of its defs.yaml."""
    return path if path.is_dir() else path.parent


def _key_path(value: Any, where: str) -> tuple[str | int, ...]:
    """Return the keys of a place such as `project: nanosets.pretrain.blend`, as deep as they exist."""
    rest, path = where.removeprefix(f"{_INLINE}: "), list[str | int]()
    while isinstance(value, Mapping) and rest:
        key = next((key for key in value if rest == key or rest.startswith((f"{key}.", f"{key}["))), None)
        if key is None:
            break
        path.append(key)
        value, rest = value[key], rest[len(key) :].lstrip(".")
    return tuple(path)


class CorpusUpstream(dg.Resolvable, dg.Model):
    """The assets that land the text of a corpus."""

    deps: Sequence[dg.ResolvedAssetKey] = Field(
        default=(),
        description="Assets that land the text: when one was materialised, the corpus is built at once. One that "
        "no definition has is shown as an external asset.",
    )


class ScaffoldParams(BaseModel):
    """Options of `dg scaffold defs`."""

    config: str | None = Field(default=None, description="A nanoset.yaml that is there; default: a new one.")
    key_prefix: str | None = Field(
        default=None, description="Before all asset keys; default: what the project says, or the folder's name."
    )


class NanosetScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes a defs.yaml, and a nanoset.yaml to start from where none is named."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        from nanoset_core.project.first_config import write_config

        folder, params = request.target_path, request.params
        names = names_of(params.key_prefix or folder.name, None, "the key prefix; by default the folder's name")
        attributes: dict[str, Any] = {}
        if params.config is None:
            config = write_config((request.project_root or folder) / folder.name, key_prefix=names.key_prefix).path
        else:
            config = Path(params.config).absolute()
            if params.key_prefix or not load_config(config).dagster.key_prefix:
                attributes = {"key_prefix": list(names.key_prefix)}
        root = request.project_root
        place = Path(os.path.relpath(config, folder)).as_posix()
        if root is not None and config.is_relative_to(root):
            place = f"{{{{ context.project_root }}}}/{config.relative_to(root).as_posix()}"
        dg.scaffold_component(request, {"config": place} | attributes)


@dg.scaffold_with(NanosetScaffolder)
class NanosetComponent(dg.Component, dg.Resolvable, dg.Model):
    """A nanoset project: raw text of corpora, tokenized, indexed, blended and shuffled for trainers."""

    config: Annotated[str | None, dg.Resolver(_located, model_field_type=str | None)] = Field(
        default=None, description="Path of a nanoset.yaml; relative paths start in the folder of this file."
    )
    project: Annotated[Mapping[str, Any] | None, dg.Resolver(_rendered, model_field_type=dict[str, Any])] = Field(
        default=None,
        description="The keys of a nanoset.yaml, instead of `config`; relative paths start in the folder of this file.",
    )
    key_prefix: str | Sequence[str] | None = Field(
        default=None,
        description="Before the key of every asset, and in all other names; default: what the project says, or none.",
        examples=[["llm"]],
    )
    group_prefix: str | None = Field(
        default=None, description="Before the name of every group of assets; default: made of key_prefix."
    )
    corpora: dict[str, CorpusUpstream] = Field(
        default_factory=dict, description="Corpus → the assets that land its text."
    )
    automation: Automation = Field(
        default="own",
        description="own: sensors and a schedule of this project; host: a condition on each asset, for an "
        "automation-condition sensor of yours; none: neither.",
    )
    owners: Sequence[str] = Field(default=(), description="Owners of all its assets.")
    tags: Mapping[str, str] = Field(default_factory=dict, description="Tags of all its assets.")
    pool: str | None = Field(
        default=None,
        description="Pool of the assets that use a whole machine; default: <key_prefix>/workers. Projects that name "
        "the same one share its limit.",
    )
    run_tags: Mapping[str, str] = Field(default_factory=dict, description="Tags of all runs of its jobs.")
    op_tags: Mapping[str, str] = Field(default_factory=dict, description="Tags of the ops of all its assets.")
    retries: int = Field(default=0, ge=0, description="How often an asset that fails is made again within its run.")
    translation: Annotated[
        TranslationFn[Mapping[str, str]] | None,
        TranslationFnResolver[Mapping[str, str]](lambda node: {"node": node}),
    ] = Field(
        default=None,
        description="What is said of each asset, from its `spec` and its `node.name` and `node.subject`; not its key.",
    )

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the model that attributes are checked with: Dagster's own, and each key of an inline project."""
        return _model(cls)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Make the definitions of the project.

        Raises:
            ConfigError: neither or both of `config` and `project` are given, or what they say cannot be.
        """
        if self.config is None or self.project is not None:
            return definitions_of(self.hosted(context.path), self.automation)

        def make(config: ProjectConfig) -> dg.Definitions:
            return definitions_of(self._hosted(config, None), self.automation)

        return definitions_from_file(_folder_of(context.path) / self.config, make)

    def get_asset_spec(self, spec: dg.AssetSpec, node: Mapping[str, str]) -> dg.AssetSpec:
        """Return what is said of an asset; override it to say something else, under the same key.

        Args:
            spec: As the project says it.
            node: Its `name`, such as pretrain/blend, and its `subject`: the nanoset or webdataset, or nothing.
        """
        return spec if self.translation is None else self.translation(spec, node)

    def execute(self, run: AssetRun) -> Iterator[dg.MaterializeResult[Any]]:
        """Make one output of an asset; override it to do something before or after."""
        yield from run.results()

    def hosted(self, folder: Path) -> ProjectDefs:
        """Return the project, with paths that start in a folder."""
        place = _folder_of(folder)
        named = [name for name in ("config", _INLINE) if getattr(self, name) is not None]
        if len(named) != 1:
            raise _no_project(named)
        if self.config is not None:
            config, reread = load_config(place / self.config), None
        else:
            fixed = config_from(self.project, place / "defs.yaml")
            config, reread = fixed, lambda: fixed
        return self._hosted(config, reread)

    def _hosted(self, config: ProjectConfig, reread: Callable[[], ProjectConfig] | None) -> ProjectDefs:
        """Return the project of a configuration; `reread` gives it as it is now, None: its file is read."""
        return ProjectDefs.of(
            config,
            self.key_prefix,
            self.group_prefix,
            reread=reread,
            upstream={name: tuple(corpus.deps) for name, corpus in self.corpora.items() if corpus.deps},
            translation=self.get_asset_spec,
            execute=self.execute,
            **{name: getattr(self, name) for name in ("owners", "tags", "pool", "run_tags", "op_tags", "retries")},
        )


@cache
def _model(component: type[NanosetComponent]) -> type[BaseModel]:
    # Not "or null, or text", as Dagster would have it: of several possibilities no checker says which line is wrong.
    keys = Annotated[dict[str, Any], WithJsonSchema(json_schema(ProjectConfig, templates=True))]
    model = create_model(
        component.__name__,
        __base__=component.model(),
        __validators__={"check_project": cast("Callable[..., Any]", model_validator(mode="before")(_checked))},
        project=(keys, Field(default=None)),
        automation=(Automation, Field(default="own")),  # and no other text, as Dagster would have it
    )
    for name, field in component.model_fields.items():  # which Dagster leaves out, and editors show
        model.model_fields[name].description = field.description
    model.model_rebuild(force=True)
    return model
