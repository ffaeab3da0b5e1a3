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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, MissingError, NanosetError, combined
from nanoset_core.execution.resources import available_processors
from nanoset_core.outputs.names import AssetName, CorpusName
from nanoset_core.project.written import WrittenConfig
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.records.parsing import CONFIG_VARIABLE, config_file, parse_or_errors
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
from nanoset_core.storage.location import is_remote
from nanoset_core.storage.paths import check_utf_8, expanded
from nanoset_core.storage.remote_path import RemotePath
from nanoset_core.text.files.choice import FileChoice
from nanoset_core.tokenizers.files import TokenizerFile, TokenizerPath, as_source, local_tokenizer


@dataclass(frozen=True, slots=True)
class ProjectConfig(WrittenConfig):
    """The settings of a project as its stages use them: those of nanoset.yaml, resolved.

    `load_config` makes it. The fields have the names of the keys of nanoset.yaml, which are
    described in docs/configuration.md.

    In place of nanosets with `phases`, there is a nanoset for each phase. In place of the key
    `packing`, there are packs under `packs`, which nanosets and webdatasets name. What
    `nanoset.yaml` lists under `packed`, the former name of `pbin`, is in `pbin`.
    """

    nanosets: Mapping[AssetName, ResolvedNanoset] = field(default_factory=FrozenDict)
    """Name → a nanoset."""

    def folder_name(self, corpus: str) -> str:
        """Return the folder below `raw` that a corpus is read from.

        Args:
            corpus: Name of the corpus. Unless nanoset.yaml names another folder, it has this name.
        """
        return self._corpus_spec(corpus).folder or corpus

    def corpus_folder(self, corpus: str) -> Path | RemotePath:
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
        """Return whether a model is trained on a collection of texts (corpus), by these settings.

        It may be trained on the corpus itself, or on a selection of its documents:

            blend: {web: 1.0}                       it is trained on web
            blend: {best-web: 1.0}                  also on web, if best-web selects from web
            blend_per_split: {valid: web, …}        not on web, if train reads something else

        Args:
            corpus: Name of the corpus, such as web.
        """
        names = self._datasets_of(corpus)
        # Some trainers read a dataset from start to end, without a mixture.
        if not names.isdisjoint(self._datasets_read_completely()):
            return True
        # Others read a mixture of datasets, a nanoset. It may use a dataset only for validation.
        for nanoset in self.nanosets.values():
            if not names.isdisjoint(nanoset.trained_corpora):
                return True
        return False

    def may_train_on(self, corpus: str) -> bool:
        """Return whether a model may be trained on a collection of texts (corpus).

        It may not if these settings use the corpus for validation or tests alone:

            settings of the nanosets (data of trainings)    result for web
            blend: {web: 1.0}                               True
            blend_per_split: {train: code, valid: web}      False
            none of them mentions web                       True: a trainer may read its dataset
                                                            without a nanoset

        Args:
            corpus: Name of the corpus, such as web.
        """
        if self.trains_on(corpus):
            return True

        # None of the nanosets reads the corpus for train. If one of them reads the corpus, or a
        # selection of its documents, that is for valid or test.
        datasets_of_corpus = self._datasets_of(corpus)  # such as {"web", "best-web"}
        datasets_for_evaluation: set[str] = set()
        for nanoset in self.nanosets.values():
            datasets_for_evaluation.update(nanoset.corpora)
        return datasets_of_corpus.isdisjoint(datasets_for_evaluation)

    def _datasets_of(self, corpus: str) -> set[str]:
        """Return all datasets with text of a corpus: its own, and those that are made from it.

        For example, {"web", "best-web"}, if best-web selects documents of web.

        Args:
            corpus: Name of the corpus.
        """
        names = {corpus}
        for name in self.derived:
            # A selection may be made from another one. Both are made from the same corpus.
            if base_of(self.derived, name) == corpus:
                names.add(name)
        return names

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
        """The tokenizer on this machine: its path, or its path with further files and settings.

            tokenizer: {path: gemma/tokenizer.json}              a `Path`
            tokenizer: {path: vocab.json, merges: merges.txt}    a `TokenizerFile` with both paths

        Files in a bucket are downloaded first.
        """
        tokenizer = as_source(self._written_tokenizer)  # finds the file, if it is a folder
        path_says_everything = not tokenizer.settings
        return tokenizer.path if path_says_everything else tokenizer

    @property
    def _written_tokenizer(self) -> TokenizerFile:
        """The section `tokenizer` of nanoset.yaml, with the paths of the files on this machine."""
        spec = self.tokenizer
        merges_path: Path | None = None
        if spec.merges is not None:
            merges_path = self._tokenizer_path(spec.merges, "merges")
        return TokenizerFile(
            path=self._tokenizer_path(spec.path, "path"),
            merges=merges_path,
            pattern=spec.pattern,
            special_tokens=spec.special_tokens,
            num_special_tokens=spec.num_special_tokens,
            vocab_size=spec.vocab_size,
            legacy=spec.legacy,
        )

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
        """Return these settings for a worker of a cluster, which may not see this machine's files.

        This runs on the worker, to which copies of the files were sent with the task. For example:

                                 here                     for the worker
            tokenizer.path       /home/ann/gemma.json     /tmp/worker/gemma.json, the copy
            files of buckets     downloaded to a folder   downloaded to `folder`

        Args:
            folder: The worker's folder with the copies, and with what it downloads from buckets.
        """
        worker_config = self.with_copies_in(folder)
        is_in_bucket = is_remote(self.tokenizer.path)
        if is_in_bucket:
            return worker_config  # the worker downloads the tokenizer itself

        copy = as_source(local_tokenizer(worker_config.tokenizer_file))  # the worker's copy
        merges_path: str | None = None
        if copy.merges is not None:  # a few tokenizers have this second file
            merges_path = str(copy.merges)
        tokenizer_of_worker = replace(self.tokenizer, path=str(copy.path), merges=merges_path)
        return replace(worker_config, tokenizer=tokenizer_of_worker)

    @property
    def workers(self) -> int:
        """How many worker processes there are; by default one for each available processor."""
        return self.tokenization.workers or available_processors()


def load_config(path: str | os.PathLike[str]) -> ProjectConfig:
    """Read and check a nanoset.yaml, the settings of a project.

    All mistakes are reported at once, each with its line.

    Args:
        path: The file, or the folder that contains it.

    Returns:
        The settings. They are immutable, as are all mappings and sequences in them.

    Raises:
        MissingError: There is no such file.
        ConfigError: It is not YAML, has mistakes, or is in a bucket.
    """
    if is_remote(os.fspath(path)):
        raise ConfigError(
            "only local files can be used here",
            where="the configuration",
            found=os.fspath(path),
            expected="the path of a nanoset.yaml on a local or mounted file system",
            remedy="copy the file to this machine",
        )
    file = config_file(expanded(path, "the configuration")).resolve()
    check_utf_8(file)
    try:
        value, text = read_yaml(file, remedy="correct the line; `nanoset init` writes an example")
    except FileNotFoundError as error:
        raise MissingError(
            "no such configuration",
            where=file,
            remedy=_remedy_for_missing_file(file),
        ) from error
    except OSError as error:
        raise ConfigError(
            "the configuration cannot be read",
            where=file,
            found=error.strerror,
            remedy="give the path of a text file",
        ) from error
    return config_from(value, file, text)


def _remedy_for_missing_file(file: Path) -> str:
    """Return what to do if there is no nanoset.yaml.

    Args:
        file: Its absolute path. The user need not have given it on the command line.
    """
    remedy = (
        "name the nanoset.yaml of your project (--config), or run `nanoset init` to write one, "
        "or `nanoset demo` for an example"
    )
    path_in_environment = os.environ.get(CONFIG_VARIABLE)
    if path_in_environment and config_file(Path(path_in_environment)).resolve() == file:
        return f"correct {CONFIG_VARIABLE}, which names this file, or unset it; or {remedy}"
    return remedy


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


def with_lines(errors: Sequence[ConfigError], file: Path) -> ConfigError:
    """Join errors about settings in one error that says in which lines of the file they are.

    This is for mistakes that are found after the file was read, such as a corpus that does not
    exist. The file is read again, to find the lines. If they cannot be found, the error names only
    the keys.

    Args:
        errors: At least one error. The place of each is the file and a key.
        file: The file that the settings come from.
    """
    try:
        value, text = read_yaml(file, remedy="correct the line")
    except (NanosetError, OSError):
        return combined(errors, file)
    # The settings may also be a part of the file (in a defs.yaml), and nanoset adds some sections,
    # such as `packs` if the file has `packing`. Then the lines are not known.
    has_all_sections = isinstance(value, dict) and _sections_of(errors, file).issubset(value)
    if not has_all_sections:
        return combined(errors, file)
    return located(file, text, errors)


def _sections_of(errors: Iterable[ConfigError], file: Path) -> set[str]:
    """Return the sections of a file of settings that errors are about.

    For example, an error at "nanoset.yaml: nanosets.pretrain" is about the section "nanosets".

    Args:
        errors: The errors. The place of each is the file and a key.
        file: The file.
    """
    sections: set[str] = set()
    for error in errors:
        key = str(error.where).removeprefix(f"{file}: ")
        sections.add(key.partition(".")[0])
    return sections


def check_config(value: object, file: Path) -> tuple[ProjectConfig | None, list[ConfigError]]:
    """Check the content of a nanoset.yaml, and find as many mistakes as possible at once.

    The content is checked in four steps. Each needs the result of the one before, so it finds all
    mistakes of its own kind, but is only taken if the steps before have found none:

        1. single values        seed: x                      "x" is not a number
        2. shorthands           blend: {web: {by: lang, …}}  the part for one language has the name
                                                             of another view
        3. values together      blend: best-web              there is no corpus or view `best-web`
        4. added packs          packing: …                   packs would be added to the section
                                                             `packs` under a name that exists there

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

    # 2. Some keys are shorthands for further entries of a section: with `scales: [0.1]`, a nanoset
    #    stands for a smaller one, too. Add these entries.
    expanded = _expand_nanosets(parsed, file)
    if expanded.errors:
        return None, expanded.errors
    written = replace(parsed, file=file, nanosets=expanded.nanosets, views=expanded.views)

    # 3. Check values together, such as whether an entry names another one that does not exist.
    errors = _distinct(rule_errors(WrittenConfig, written, file))
    if errors:
        # A mistake in a nanoset is also one in its added entries, which are not in the file.
        added_names = written.nanosets.keys() - parsed.nanosets.keys()
        return None, _without_runs(errors, added_names)

    # 4. Replace the other shorthands. (Step 3 needed them as the user has written them.) One of
    #    them, the key `packing` of a nanoset, adds packs: check these as well.
    try:
        config = resolve(written)
    except ConfigError as error:
        return None, [error]
    errors = _errors_of_packs(config)
    if errors:
        return None, errors

    if config.packed:  # the former name of the key `pbin`, which is still allowed
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
    """Replace two shorthands in the settings of trainings by what they stand for.

    1. A training may read a text collection by the values of a column, such as the language. That
       stands for a view (a selection of documents) for each value.
    2. `scales: [0.1, 0.01]` asks for smaller variants of a training, for experiments. That stands
       for two further trainings, on views with 10 % and 1 % of the documents.

    Args:
        parsed: The settings. Each value in them is valid on its own.
        file: Path of the nanoset.yaml, for errors.

    Returns:
        All trainings (nanosets) and views, also those that the user wrote; or errors.
    """
    with_views = expand_value_groups(parsed.nanosets, parsed.views, file)
    if with_views.errors:
        return with_views
    return expand_scales(with_views.nanosets, with_views.views, file)


def _errors_of_packs(config: ProjectConfig) -> list[ConfigError]:
    """Return an error for each mistake in packs, also in those that the key `packing` added.

    Args:
        config: The resolved settings.
    """
    # Names that are made of the name of a corpus may be too long for a dataset.
    name_errors = rule_errors(Mapping[CorpusName, PacksSpec], config.packs, config.file, "packs")
    return _distinct([*name_errors, *config.broken_pack_rules()])


def resolve(written: WrittenConfig) -> ProjectConfig:
    """Replace the shorthands in the settings of a nanoset.yaml, so that no other code knows them.

    For example, the training `run` with two phases becomes two trainings, run-phase-1 and
    run-phase-2.

    Args:
        written: The settings. They were checked, and follow all rules.

    Raises:
        ConfigError: A file that the settings name is not what it should be, or a shorthand needs a
            name that is taken.
    """
    nanosets = resolve_nanosets(written.nanosets, written.file)  # replaces phases
    # A training with the key `packing` reads packs (samples of whole documents), which it does not
    # have to define: add them to the settings.
    resolved = resolve_packing(written.file, nanosets, written.webdatasets, written.packs)

    values = {key.name: getattr(written, key.name) for key in fields(written)}
    values["nanosets"] = resolved.nanosets
    values["webdatasets"] = resolved.webdatasets
    values["packs"] = resolved.packs
    # The key `pbin` was named `packed` in earlier versions. A file has at most one of them.
    values["pbin"] = written.pbin or written.packed
    return ProjectConfig(**values)


def _without_runs(errors: Sequence[ConfigError], names: Collection[str]) -> list[ConfigError]:
    """Return errors without those of some training runs, unless there are no others.

    With `scales: [0.1]`, a mistake in the settings of the run `pretrain` is also one in those of
    `pretrain-scale-0_1`, a name that is not in the file:

        nanoset.yaml: nanosets.pretrain.seed               returned
        nanoset.yaml: nanosets.pretrain-scale-0_1.seed     left out

    Args:
        errors: The errors, at least one.
        names: Names of the runs to leave out: {"pretrain-scale-0_1"}.
    """
    errors_of_others = [error for error in errors if not _is_about_run(error, names)]
    return errors_of_others or list(errors)


def _is_about_run(error: ConfigError, names: Iterable[str]) -> bool:
    """Return whether an error is about the settings of one of some training runs.

    Args:
        error: The error. Its place is, for example, "nanoset.yaml: nanosets.pretrain.seed".
        names: Names of the runs, such as {"pretrain"}.
    """
    # The dot tells `pretrain` from `pretrain-2`. The error may be about the run as a whole, so that
    # its place ends with the name.
    place = f"{error.where}."
    return any(f"nanosets.{name}." in place for name in names)


def _distinct(errors: Iterable[ConfigError]) -> list[ConfigError]:
    """Return errors without repetitions, since a rule may be broken once for several names.

    Args:
        errors: The errors. Those with the same message are equal; the last of them is returned.
    """
    return list({str(error): error for error in errors}.values())
