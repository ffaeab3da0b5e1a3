"""Keep a code location loaded while its nanoset.yaml has a mistake.

A code location may also contain another team's assets, and every run loads all definitions again.
So a mistake in nanoset.yaml must not keep definitions from loading: they are made from the last
version of the file that was valid. Only the steps and sensors of this project read the file itself,
and fail with its ConfigError until it is corrected.

The last valid version is stored in two places:

- With each run that Dagster launches, as *reconstruction metadata* of the code location. The
  processes of a run, on any machine, load what the code server had loaded when it launched the run.
- In a file `.nanoset/last_valid/<name>-<hash>.yaml` next to nanoset.yaml, or below DAGSTER_HOME if
  that folder cannot be written. It is read when a code server starts or reloads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import dagster as dg

from nanoset_assets.dagster_compat import is_run_loading, remember_for_runs, remembered_for_run
from nanoset_core.errors import NanosetError
from nanoset_core.project.settings import ProjectConfig, config_from, load_config
from nanoset_core.records.yaml_text import parse_yaml
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.untrusted import Multiline, safe_logger

_FOLDER = Path(".nanoset", "last_valid")
"""Folder of the copies, relative to that of nanoset.yaml or to DAGSTER_HOME."""
_VALIDATION = "DAGSTER_IS_DEFS_VALIDATION_CLI"
"""Environment variable that `dg check defs` and `dagster definitions validate` set.

These commands exist to report a mistake, so they get no older version.
"""
_logger = safe_logger(__name__)


def definitions_from_file(
    path: str | os.PathLike[str], make: Callable[[ProjectConfig], dg.Definitions]
) -> dg.Definitions:
    """Make the Dagster definitions of a settings file, or of its last version without mistakes.

    Dagster loads the definitions (assets, jobs and sensors) of several teams together. If a mistake
    in this one file raised an error, none of them would be loaded. So after an edit with a mistake,
    the text from before the edit is used, and a warning is logged.

    A run loads the definitions in a process of its own. It must use the same text as the server
    that started it, even if the file was edited in between:

        10:00    the server loads the file            nanosets: {pretrain: …}
        10:05    the user renames the nanoset         nanosets: {main: …}
        10:06    the server starts a run of `pretrain`, which uses the text of 10:00

    Args:
        path: The settings file, nanoset.yaml.
        make: Makes the definitions from settings. If it raises an error, the file has a mistake,
            too.

    Returns:
        What `make` returns.

    Raises:
        ConfigError: The file has mistakes, and no version without mistakes is known; or a command
            that looks for mistakes is running.
        MissingError: The file does not exist, and no earlier version is known.
    """
    file = _absolute(path)
    # In a process of a run, use the text that Dagster has stored with the run.
    text_of_run = remembered_for_run(_key(file))  # None in a server
    if text_of_run is not None:
        return make(_parsed(text_of_run, file))

    try:
        config = load_config(file)
        definitions = make(config)
    except (NanosetError, dg.DagsterError) as error:
        last_valid_text = _last_valid_text(file)
        if last_valid_text is None:
            raise
        return _definitions_of_last_version(file, last_valid_text, error, make)

    # The file has no mistakes. Keep its text for the time after an edit with a mistake, and for the
    # runs of these definitions.
    text = _text_of(file, config)  # None if somebody has just changed the file
    if text is not None:
        _store_copy(file, text)
        remember_for_runs(_key(file), text)
    return definitions


def _definitions_of_last_version(
    file: Path, text: str, error: Exception, make: Callable[[ProjectConfig], dg.Definitions]
) -> dg.Definitions:
    """Make the Dagster definitions of an older version of the settings, and log a warning.

    This is for a settings file in which the last edit has made a mistake.

    Args:
        file: Absolute path of the file, for the warning.
        text: The last text of the file without mistakes.
        error: What is wrong with its present text.
        make: Makes the definitions from settings.
    """
    definitions = make(_parsed(text, file))
    warning = f"{file} is not loaded; its last valid version is used instead:\n{error}"
    _logger.warning(Multiline(warning))
    # The process of a run makes the definitions again. It has to use the same text.
    remember_for_runs(_key(file), text)
    return definitions


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise an error if Dagster cannot load a project, because of its settings file.

    A mistake in the file is no error if its last text without mistakes can be used:

        settings file       last text without mistakes     result
        has no mistake                                     nothing happens
        has a mistake       is known                       nothing happens: it is used instead
        has a mistake       is not known                   ConfigError

    Args:
        path: The settings file, nanoset.yaml.

    Raises:
        ConfigError: The file has a mistake, and no older text can be used. A command that looks for
            mistakes, such as `dg check defs`, never uses an older text.
        MissingError: The file does not exist, and no older text can be used.
    """
    if is_run_loading():
        return  # a run does not use the file, but the text with which it was started
    file = _absolute(path)
    try:
        load_config(file)
    except NanosetError:
        if _last_valid_text(file) is None:
            raise


def _last_valid_text(file: Path) -> str | None:
    """Return the text that a settings file had before an edit made a mistake, if it may be used.

    Args:
        file: Absolute path of the settings file.

    Returns:
        The text, from a copy that was stored when the file was loaded. None if there is none, or if
        a command such as `dg check defs` is running: this should report the mistake.
    """
    command_looks_for_mistakes = _VALIDATION in os.environ  # such a command sets this variable
    if command_looks_for_mistakes:
        return None
    return _text_of_copy(file)


def _absolute(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path, without resolving links.

    The links of a Kubernetes ConfigMap point to another folder after each change.
    """
    return Path(os.path.abspath(Path(path).expanduser()))


def _key(file: Path) -> str:
    """Return the name under which Dagster stores the text of a settings file with each run.

    Args:
        file: Absolute path of the file: `/acme/nanoset.yaml` gives
            `nanoset/config//acme/nanoset.yaml`.
    """
    return f"nanoset/config/{file}"


def _parsed(text: str, file: Path) -> ProjectConfig:
    """Return the settings that a text contains, which was read from the settings file or its copy.

    Args:
        text: The text, in YAML.
        file: Path of the settings file, for messages. Paths in the settings are relative to its
            folder.

    Raises:
        ConfigError: The text has mistakes.
    """
    real_file = file.resolve()
    values = parse_yaml(text, real_file, remedy="correct the line")
    return config_from(values, real_file, text)  # with the text, an error names the line


def _text_of(file: Path, config: ProjectConfig) -> str | None:
    """Return the text of a settings file, to keep a copy of it, if it is the text that was loaded.

    The file was loaded a moment ago, and is read again here. If somebody has saved it in between,
    its text may have mistakes or other settings, and must not be kept.

    Args:
        file: Absolute path of the file.
        config: The settings that were loaded.

    Returns:
        The text; None if it no longer gives these settings.
    """
    try:
        text = file.read_bytes().decode("utf-8")
        return text if _parsed(text, file) == config else None
    except (OSError, UnicodeDecodeError, NanosetError):
        return None


def _copies(file: Path) -> list[Path]:
    """Return where a copy of a settings file may be stored: the first path that can be written.

    For the file /acme/nanoset.yaml and the folder /home/dagster of Dagster's own data:

        /acme/.nanoset/last_valid/nanoset-1f2e3d4c5b6a.yaml
        /home/dagster/.nanoset/last_valid/nanoset-1f2e3d4c5b6a.yaml    (/acme may be read-only)

    The second folder is used by several projects. So the name has a hash of the file's path.

    Args:
        file: Absolute path of the settings file.

    Returns:
        Both paths, or only the first one if DAGSTER_HOME is not set.
    """
    path_hash = hashlib.sha256(os.fsencode(file)).hexdigest()[:12]
    name = f"{file.stem}-{path_hash}.yaml"
    copies = [file.parent / _FOLDER / name]
    home = os.environ.get("DAGSTER_HOME")
    if home:
        copies.append(Path(home).expanduser() / _FOLDER / name)
    return copies


def _store_copy(file: Path, text: str) -> None:
    """Keep a copy of a settings file without mistakes, to be used after an edit with a mistake.

    There are two paths for it: next to the file, or in a folder of Dagster if that is not possible.
    If neither can be written, a warning is logged, since everything else works without a copy.

    Args:
        file: Absolute path of the settings file.
        text: Its content.
    """
    data = text.encode("utf-8")
    copy_paths = _copies(file)  # next to the file, or else below DAGSTER_HOME
    failures: list[str] = []
    for number, path in enumerate(copy_paths):
        try:
            _write_copy_if_changed(path, data, file)
        except OSError as error:
            failures.append(f"{path.parent}: {error.strerror}")
            continue
        # A copy at a later path is of an older version now. Delete it, since a copy there counts as
        # newer: see `_text_of_copy`.
        for outdated_path in copy_paths[number + 1 :]:
            outdated_path.unlink(missing_ok=True)
        return
    _logger.warning(
        f"no copy of {file} could be stored: if the file has a mistake when this code location is "
        f"loaded again, loading fails ({'; '.join(failures)})"
    )


def _write_copy_if_changed(copy: Path, data: bytes, original: Path) -> None:
    """Write a copy of the settings file, unless there is one with the same content already.

    The copy has the permissions of the file, since that may have secrets which only some users may
    read. A file .gitignore next to it keeps it from being committed.

    Args:
        copy: Where the copy is stored. Its folder is created if it is missing.
        data: The content of the file.
        original: The settings file.
    """
    is_stored = copy.is_file() and copy.read_bytes() == data
    if is_stored:
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    (copy.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    permissions = original.stat().st_mode & 0o777
    with atomic_file(copy) as target:
        os.fchmod(target.fileno(), permissions)
        target.write(data)


def _text_of_copy(file: Path) -> str | None:
    """Return the last text of a settings file without mistakes, from the copy that was kept of it.

    Args:
        file: Absolute path of the settings file.

    Returns:
        The text; None if there is no copy without mistakes.
    """
    # There may be a copy in the folder of the file, and another one in a folder of Dagster. The
    # second is only written if the first cannot be written, so it is newer: try it first.
    newest_first = reversed(_copies(file))
    for copy in newest_first:
        try:
            text = copy.read_bytes().decode("utf-8")
            _parsed(text, file)
        except (OSError, UnicodeDecodeError, NanosetError):
            continue  # there is no such copy, or it has mistakes
        return text
    return None
