"""Read a nanoset.yaml, check it, and resolve it to the settings that stages use.

    the file → WrittenConfig → ProjectConfig

1. Each value is checked on its own, by its type, range and choices (`records/parsing.py`). The
   result is a `WrittenConfig`: what the user wrote, and defaults. Mixtures that divide a corpus by
   a column are replaced by views (`mappings/value_groups.py`).
2. Values are checked together, by the rules that are defined next to their keys.
3. Shorthands are resolved: a training run with phases becomes a nanoset for each phase, and the key
   `packing` becomes packs. The result is a `ProjectConfig`.

All mistakes of a step are reported at once, each with its line. No object changes after it is made:
each step makes new ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, MissingError, combined
from nanoset_core.execution.resources import available_processors
from nanoset_core.outputs.names import AssetName, CorpusName
from nanoset_core.project.written import WrittenConfig
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.records.parsing import CONFIG_FILE, parse_or_errors
from nanoset_core.records.rules import rule_errors
from nanoset_core.records.yaml_text import located, read_yaml
from nanoset_core.stages.mappings.resolved import ResolvedNanoset, resolve_nanosets
from nanoset_core.stages.mappings.scaled_runs import expand_scales
from nanoset_core.stages.mappings.settings import ExpandedNanosets
from nanoset_core.stages.mappings.value_groups import expand_value_groups
from nanoset_core.stages.packs.packing_key import resolve_packing
from nanoset_core.stages.packs.settings import PacksSpec
from nanoset_core.stages.pbin.settings import warn_of_former_key
from nanoset_core.stages.shards.settings import (
    CorpusSpec,
    DocumentsSpec,
)
from nanoset_core.stages.views.settings import base_of
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.location import (
    RemoteFolder,
    is_remote,
)
from nanoset_core.storage.paths import check_utf_8, expanded
from nanoset_core.text.choice import FileChoice
from nanoset_core.tokenizers.files import TokenizerFile, TokenizerPath, as_source, local_tokenizer


@dataclass(frozen=True, slots=True)
class ProjectConfig(WrittenConfig):
    """The settings of a project as its stages use them: those of nanoset.yaml, resolved.

    In place of nanosets with `phases`, there is a nanoset for each phase. In place of the key
    `packing`, there are packs under `packs`, which nanosets and webdatasets name. What
    `nanoset.yaml` lists under `packed`, the former name of `pbin`, is in `pbin`.
    """

    nanosets: Mapping[AssetName, ResolvedNanoset] = field(default_factory=FrozenDict)
    """Name → a training set."""

    def folder_name(self, corpus: str) -> str:
        """Return the folder below `raw` that a corpus is read from.

        Args:
            corpus: Name of the corpus. Unless nanoset.yaml names another folder, it has this name.
        """
        return self._corpus_spec(corpus).folder or corpus

    def corpus_folder(self, corpus: str) -> Path | RemoteFolder:
        """Return the folder that a corpus is read from, whether it exists or not.

        Args:
            corpus: Name of the corpus.

        Returns:
            A path such as raw/web, or a folder in a bucket.
        """
        return self.raw_folder / self.folder_name(corpus)

    def choice_of(self, corpus: str) -> FileChoice:
        """Return which files of its folder a corpus is made from.

        Args:
            corpus: Name of the corpus. By default, it has all files.
        """
        return self._corpus_spec(corpus).choice

    def _corpus_spec(self, corpus: str) -> CorpusSpec:
        """Return the settings of a corpus: defaults if nanoset.yaml does not name it."""
        return self.corpora.get(corpus, CorpusSpec())

    def trains_on(self, corpus: str) -> bool:
        """Return whether the settings let a model learn from a collection of texts (corpus).

        If so, `nanoset status` mentions files in it whose names say that they are for validation. A
        trainer may read the corpus itself, a view (a selection of its documents), or packs (its
        documents, joined to longer samples):

            blend: {web: 1.0}                       it is trained on web
            blend: {best-web: 1.0}                  also on web, if best-web is a view of web
            blend_per_split: {valid: web, …}        not on web, if train reads something else
            pbin: [web]                             it is trained on web: a .pbin file has all of it

        Args:
            corpus: Name of the corpus, such as web.
        """
        # The datasets that have text of this corpus: its own, and its views and packs. A view may
        # be made from another view; `base_of` follows them down to the corpus.
        names = {corpus}
        for name in self.derived:
            if base_of(self.derived, name) == corpus:
                names.add(name)  # {"web", "best-web"}

        # Is one of them in the list of those that a trainer reads to the end, as a .pbin file?
        if not names.isdisjoint(self._datasets_read_completely()):
            return True
        # A nanoset may use a dataset only for validation, which is not training.
        for nanoset in self.nanosets.values():
            if any(nanoset.trains_on(name) for name in names):
                return True
        return False

    def _datasets_read_completely(self) -> list[str]:
        """Return the datasets that .pbin files, exports and webdatasets are made from.

        Trainers read all of these, while of a nanoset they read a split.
        """
        names = [*self.pbin]
        names += [export.of for export in self.exports.values()]
        for webdataset in self.webdatasets.values():
            names += webdataset.corpora
        return names

    def repeats(self, name: str) -> bool:
        """Return whether a dataset is a view that has documents other than exactly once each.

        Args:
            name: Name of a corpus, a view or packs.
        """
        view = self.views.get(name)
        return view is not None and view.repeat != 1

    def section_of(self, name: str) -> str:
        """Return the section of nanoset.yaml in which a view or packs is configured.

        Args:
            name: Name of the view or packs.

        Returns:
            "packs" or "views".
        """
        return "packs" if self.is_packed(name) else "views"

    def unpacked_name(self, name: str) -> str:
        """Return the name of the dataset that packs are made from.

        Args:
            name: Name of a dataset, such as the packs web-packs-2048. That of a corpus or view is
                returned as it is.
        """
        if self.is_packed(name):
            return self.packs[name].of
        return name

    def documents_of(self, corpus: str) -> DocumentsSpec:
        """Return how the lines of a collection of texts (corpus) become documents.

        Settings in a corpus's own section override those for all corpora:

            documents: {text_key: text}
            corpora:
              chat: {text_key: body}

        Here, the text of `chat` is that of the key `body`, and that of all others that of `text`.

        Args:
            corpus: Name of the corpus.
        """
        spec = self._corpus_spec(corpus)
        overrides: dict[str, Any] = {
            "text_key": spec.text_key,
            "id_key": spec.id_key,
            "columns": spec.columns,
            "csv_values": spec.csv_values,
        }
        corpus_settings = {key: value for key, value in overrides.items() if value is not None}
        return replace(self.documents, **corpus_settings)

    @property
    def root_access(self) -> FileAccess:
        """Access to the files of the outputs, on a disk or in a bucket."""
        place = self.root_place
        if place is None:
            return FileAccess(self.root_folder)
        return self.storage.access_to(place, self.root_folder)

    @property
    def tokenizer_file(self) -> TokenizerPath:
        """The tokenizer on this machine: the path of its file, or several files and settings.

        For most tokenizers, the path is enough. Others have a second file with merges (which parts
        of words are joined to tokens), or a pattern by which text is split into words:

            tokenizer: {path: gemma/tokenizer.json}              a Path
            tokenizer: {path: vocab.json, merges: merges.txt}    a `TokenizerFile` with both paths

        Files in a bucket are downloaded first.
        """
        spec = self.tokenizer
        merges_path: Path | None = None
        if spec.merges is not None:
            merges_path = self._tokenizer_path(spec.merges, "merges")
        as_written = TokenizerFile(
            path=self._tokenizer_path(spec.path, "path"),
            merges=merges_path,
            pattern=spec.pattern,
            special_tokens=spec.special_tokens,
            num_special_tokens=spec.num_special_tokens,
            vocab_size=spec.vocab_size,
            legacy=spec.legacy,
        )
        tokenizer = as_source(as_written)  # if the path is a folder, this finds the file in it
        needs_more_than_path = bool(tokenizer.settings)
        if needs_more_than_path:
            return tokenizer
        return tokenizer.path

    def _tokenizer_path(self, location: str, key: str) -> Path:
        """Return the path on this machine of a tokenizer's file, which may have to be downloaded.

            gemma/tokenizer.json          the file in the folder of nanoset.yaml
            s3://bucket/tokenizer.json    a copy on this machine, which is downloaded

        Args:
            location: The path or URL, as it is written in nanoset.yaml.
            key: The key below `tokenizer` that has it, for errors, such as "path".
        """
        if not is_remote(location):
            return self.local(location, f"tokenizer.{key}")
        from nanoset_core.tokenizers.files.source import tokenizer_here

        return tokenizer_here(self._remote(location, f"tokenizer.{key}"), self._mirror)

    def with_copies_in(self, folder: Path) -> ProjectConfig:
        """Return the same settings with another folder for local copies of files in buckets.

        Args:
            folder: The folder, which is created when it is needed.
        """
        return replace(self, storage=replace(self.storage, mirror=str(folder)))

    def for_worker(self, folder: Path) -> ProjectConfig:
        """Return the settings with which a worker of a cluster can do a task of this project.

        The settings name files on the machine that sent the task, which the worker may not see. For
        the tokenizer, there are two cases:

            its path is /home/ann/tokenizer.json     a copy was sent with the task. The settings
                                                     name it now, such as /tmp/copies/tokenizer.json
            its path is s3://models/gemma            it is in a bucket: the worker downloads it

        Other files, such as outputs in a bucket, are downloaded into the folder of the copies.

        Args:
            folder: The worker's folder for copies of files.
        """
        worker_config = self.with_copies_in(folder)
        is_in_bucket = is_remote(self.tokenizer.path)
        if is_in_bucket:
            return worker_config  # the worker downloads the tokenizer itself

        # `worker_config` knows the folder with copies. Look up the copy of the tokenizer in it.
        copy = as_source(local_tokenizer(worker_config.tokenizer_file))
        merges_path: str | None = None  # a second file, which some tokenizers have
        if copy.merges is not None:
            merges_path = str(copy.merges)
        tokenizer = replace(self.tokenizer, path=str(copy.path), merges=merges_path)
        return replace(worker_config, tokenizer=tokenizer)

    @property
    def workers(self) -> int:
        """How many worker processes there are; by default one for each available processor."""
        return self.tokenization.workers or available_processors()


def config_file(path: Path) -> Path:
    """Return the nanoset.yaml that a path names.

    Args:
        path: The file itself, which need not exist, or a folder that contains it.
    """
    return path / CONFIG_FILE if path.is_dir() else path


def load_config(path: str | os.PathLike[str]) -> ProjectConfig:
    """Read and check a nanoset.yaml, the settings of a project.

    All mistakes are reported at once, each with its line.

    Args:
        path: The file, or the folder that contains it.

    Returns:
        The settings. They are immutable, as are all mappings and sequences in them.

    Raises:
        MissingError: There is no such file.
        ConfigError: It is not YAML, or has mistakes.
    """
    file = config_file(expanded(path, "the configuration")).resolve()
    check_utf_8(file)
    try:
        value, text = read_yaml(file, remedy="correct the line; `nanoset init` writes an example")
    except FileNotFoundError as error:
        raise MissingError(
            "no such configuration",
            where=file,
            remedy="run `nanoset init` to write one, or `nanoset demo` for an example",
        ) from error
    except OSError as error:
        raise ConfigError(
            "the configuration cannot be read",
            where=file,
            found=error.strerror,
            remedy="give the path of a text file",
        ) from error
    return config_from(value, file, text)


def config_from(value: object, file: Path, text: str | None = None) -> ProjectConfig:
    """Check the content of a nanoset.yaml, the settings of a project, and return them as an object.

        {"raw": "corpora", …}     config.raw is "corpora", and so on
        {"row": "corpora", …}     an error: there is no key `row`

    Args:
        value: The content of the file: mappings, lists, text and numbers.
        file: Its path. Relative paths in the settings start in its folder.
        text: The file as text, by which errors say in which line a mistake is; None if the settings
            do not come from a file.

    Raises:
        ConfigError: There are mistakes. The error lists all of them.
    """
    config, errors = check_config(value, file)
    if config is not None:
        return config  # there are no errors
    if text is None:
        raise combined(errors, file)
    raise located(file, text, errors)  # with the line of each mistake


def check_config(value: object, file: Path) -> tuple[ProjectConfig | None, list[ConfigError]]:
    """Check the content of a nanoset.yaml, and find all mistakes in it at once.

    There are several kinds of mistakes. Later kinds are looked for only if there are none before:

        seed: x                          "x" is not a number
        blend: {web: {by: lang, …}}      a shorthand that cannot be resolved
        blend: best-web                  no section describes `best-web`
        packing: …                       it needs a name that is taken

    Args:
        value: The content: mappings, lists, text and numbers.
        file: Path of the file.

    Returns:
        The settings and no errors, or None and at least one error.
    """
    if value is None:
        return None, [_empty_config_error(file)]

    # 1. Check each value on its own: its type, its range, its choices.
    parsed, errors = parse_or_errors(WrittenConfig, value, "", file)
    if errors:
        return None, errors

    # 2. Some keys are shorthands for further entries of a section. Add these entries.
    expanded = _expand_nanosets(parsed, file)
    if expanded.errors:
        return None, expanded.errors
    written = replace(parsed, file=file, nanosets=expanded.nanosets, views=expanded.views)

    # 3. Check values together, such as whether an entry names another one that does not exist.
    errors = _distinct(rule_errors(WrittenConfig, written, file))
    if errors:
        return None, errors

    # 4. Resolve the other shorthands, which these rules are still about. One of them, the key
    #    `packing` of a nanoset, adds packs: check these as well.
    try:
        config = resolve(written)
    except ConfigError as error:
        return None, [error]
    errors = _errors_of_packs(config)
    if errors:
        return None, errors

    if config.packed:  # the former name of a key, which is still allowed
        warn_of_former_key(file)
    return config, []


def _empty_config_error(file: Path) -> ConfigError:
    """Return the error that a nanoset.yaml has no content.

    Args:
        file: Its path.
    """
    return ConfigError(
        "the configuration is empty",
        where=file,
        expected="raw, root and tokenizer at the least",
        remedy="remove it, and run `nanoset init` here to write one to start from",
    )


def _expand_nanosets(parsed: WrittenConfig, file: Path) -> ExpandedNanosets:
    """Replace two shorthands in the settings by what they stand for.

    A nanoset is what a training reads: a mixture of text collections (corpora) such as `web`. A
    view is a selection of documents.

    1. The mixture may divide a corpus by the values of a column, such as the language. That stands
       for a view for each value: one with the English documents of `web`, one with the German ones.
    2. `scales: [0.1, 0.01]` asks for smaller variants of the nanoset, for experiments. That stands
       for two further nanosets, of views with 10 % and 1 % of the documents.

    Args:
        parsed: The settings. Each value in them is valid on its own.
        file: Path of the nanoset.yaml, for errors.

    Returns:
        All nanosets and views, also those that the user wrote; or errors.
    """
    without_columns = expand_value_groups(parsed.nanosets, parsed.views, file)
    if without_columns.errors:
        return without_columns
    return expand_scales(without_columns.nanosets, without_columns.views, file)


def _errors_of_packs(config: ProjectConfig) -> list[ConfigError]:
    """Return an error for each mistake in packs, also in those that the key `packing` added.

    Args:
        config: The resolved settings.
    """
    # Names that are made of the name of a corpus may be too long for a dataset.
    name_errors = rule_errors(Mapping[CorpusName, PacksSpec], config.packs, config.file, "packs")
    return _distinct([*name_errors, *config.broken_pack_rules()])


def resolve(written: WrittenConfig) -> ProjectConfig:
    """Return the settings of a nanoset.yaml in a simpler form, without its shorthands.

    A nanoset is what a training reads. Two shorthands are replaced, so that no other code has to
    know them:

        nanoset `run` with two phases             two nanosets, run-phase-1 and run-phase-2
        nanoset `chat` with `packing: …`          a dataset of packs, which `chat` reads. Packs are
                                                  samples of whole documents, while other samples
                                                  are cut from one long text

    Args:
        written: The settings. They were checked, and follow all rules.

    Raises:
        ConfigError: A file that the settings name is not what it should be, or the packs need a
            name that is taken.
    """
    nanosets = resolve_nanosets(written.nanosets, written.file)
    resolved = resolve_packing(written.file, nanosets, written.webdatasets, written.packs)

    # All other settings stay as they are.
    values = {key.name: getattr(written, key.name) for key in fields(written)}
    values["nanosets"] = resolved.nanosets
    values["webdatasets"] = resolved.webdatasets
    values["packs"] = resolved.packs
    # The key `pbin` was named `packed` in earlier versions. A file has at most one of them.
    values["pbin"] = written.pbin or written.packed
    return ProjectConfig(**values)


def _distinct(errors: Iterable[ConfigError]) -> list[ConfigError]:
    """Return errors without repetitions, since a rule may be broken once for several names.

    Args:
        errors: The errors. Those with the same message are equal; the last of them is returned.
    """
    return list({str(error): error for error in errors}.values())
