"""Find the corpora of a project.

Each folder of raw text is a corpus. Corpora that nanoset.yaml declares read some files of such a
folder, which may have another name. For example, `corpora: {web_valid: {folder: web, files:
["valid*"]}}` is a corpus of the files of the folder `web` whose names begin with `valid`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nanoset_core.errors import ConfigError, MissingError, NanosetError, one_of, remedy_for_name
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.storage.location import Location
from nanoset_core.text.files.contents import Contents, contents_of
from nanoset_core.text.files.survey import RawText, check_raw_text, list_corpora, no_text


def corpus_names(project: Project) -> list[str]:
    """Return the names of all corpora, sorted.

    Args:
        project: The project. Its raw folder is searched.

    Raises:
        ConfigError: The name of a corpus stands for two folders.
        MissingError, InputError: The raw folder, or a folder in it, cannot be read.
    """
    return list(scan_names(project).corpora)


def scan_names(project: Project) -> RawText:
    """Find the names of all corpora of a project: the folders of raw text with at least one file.

        raw/web/a.jsonl      → the corpus "web"
        raw/books/b.txt      → the corpus "books"
        raw/empty/           not a corpus

    Args:
        project: The project.

    Returns:
        The corpora, without their files: only the names are looked up, which takes less time.

    Raises:
        ConfigError: The name of a corpus stands for two folders.
        MissingError: There is no raw folder.
        InputError: The raw folder, or a folder in it, cannot be read.
    """
    text = scan_corpora(project, names_only=True)
    check_raw_text(project.config.raw_folder, text)
    return text


def scan_corpora(project: Project, *, names_only: bool = False) -> RawText:
    """Find all corpora of a project, and list the files of each.

    A corpus is a folder in the raw folder, or an entry of nanoset.yaml, which may name a folder and
    patterns of files:

        raw/web/a.jsonl                                          the corpus web
        corpora: {news: {folder: web, files: ["news*"]}}         the corpus news

    If the files of one corpus cannot be listed, its error is returned with the other corpora.

    Args:
        project: The project.
        names_only: Whether only the names of the corpora are needed. Then the search in a folder
            ends at the first file that is read, and no files are returned.

    Returns:
        The corpora, the errors, and files and folders that belong to no corpus.

    Raises:
        MissingError: There is no raw folder.
        InputError: The raw folder cannot be listed.
    """
    config = project.config
    folders = list_corpora(config.raw_folder, names_only=names_only)
    text = _with_declared_corpora(config, folders, names_only=names_only)

    # A folder and an entry of nanoset.yaml may have the same name, but mean different files. That
    # is an error of the corpus with this name.
    folder_names = {*folders.corpora, *folders.faults}
    errors_of_ambiguous = _ambiguous_corpora(config, folder_names)
    corpora = {}
    for name in sorted(text.corpora):
        if name not in errors_of_ambiguous:
            corpora[name] = text.corpora[name]
    return RawText(corpora, {**text.faults, **errors_of_ambiguous}, text.unread_entries)


def _with_declared_corpora(config: ProjectConfig, folders: RawText, *, names_only: bool) -> RawText:
    """Add the corpora that nanoset.yaml declares to those that are whole folders of raw text.

    A declared corpus has the files of a folder that match its patterns. For example, the folders
    web and books have a.jsonl and news1.jsonl each:

        declared in nanoset.yaml               corpora
        news: {folder: web, files: [news*]}    news: news1.jsonl, and web: all files of the folder
        books: {files: [b*]}                   an error: no file of the folder books matches

    Args:
        config: The settings of nanoset.yaml.
        folders: Each folder of raw text as a corpus; or its fault, which is an error, such as that
            it cannot be listed.
        names_only: Whether the files of the folders were not listed, so that it is not known which
            of them match. Then some are supposed to match.

    Returns:
        All corpora, and the faults of those that have no files or cannot be listed.
    """
    # Start with the folders, except for those whose corpus is declared.
    corpora: dict[str, Contents] = {}
    for folder, contents in folders.corpora.items():
        if folder not in config.corpora:
            corpora[folder] = contents

    faults = dict(folders.faults)
    for name in config.corpora:
        folder = config.folder_name(name)
        if folder in folders.faults:
            faults[name] = folders.faults[folder]
        elif folder in folders.corpora:
            contents = _matching_files(config, name, folders.corpora[folder])
            if names_only or contents.texts:
                corpora[name] = contents
            else:
                faults[name] = no_text(config.corpus_folder(name), contents)
    return RawText(corpora, faults, folders.unread_entries)


def _matching_files(config: ProjectConfig, corpus: str, folder: Contents) -> Contents:
    """Return those files of a folder that belong to a corpus, by its patterns in nanoset.yaml.

    With `news: {folder: web, files: [news*]}`, these are the files of the folder web whose names
    begin with "news".

    Args:
        config: The settings of nanoset.yaml.
        corpus: Name of the corpus.
        folder: All files of its folder.
    """
    return replace(folder, corpus=corpus).chosen(config.choice_of(corpus))


def _ambiguous_corpora(config: ProjectConfig, folders: Collection[str]) -> dict[str, NanosetError]:
    """Return an error for each corpus whose name stands for two folders.

    With `corpora: {web: {folder: crawl}}`, the corpus web reads the folder `crawl`. If there is
    also a folder `web`, its corpus would have the same name.

    Args:
        config: The settings of nanoset.yaml.
        folders: Names of the folders in the raw folder.

    Returns:
        Name of the corpus → error.
    """
    errors: dict[str, NanosetError] = {}
    for name in config.corpora:
        folder = config.folder_name(name)
        if folder != name and name in folders:
            other_folder = config.raw_folder / name
            errors[name] = ConfigError(
                "this corpus could be either of two folders",
                where=f"{config.file}: corpora.{name}",
                found=f"folder: {folder}, and {other_folder}, a corpus of the same name",
                expected="a name that no folder of text has",
                remedy="give the corpus, or that folder, another name",
            )
    return errors


def corpus_folder(project: Project, corpus: str) -> Location:
    """Return the folder of a corpus, a collection of texts, after checking that it exists.

        a corpus has no folder of raw text
        where: /data/raw/wbe
        expected: books, web
        remedy: …, with corpora of similar names

    Args:
        project: The project.
        corpus: Name of the corpus.

    Raises:
        MissingError: The folder does not exist.
    """
    folder = project.config.corpus_folder(corpus)
    if folder.is_dir():
        return folder
    names = corpus_names(project)
    remedy = f"put its files there, or take {corpus!r} out of {project.config.file.name}"
    raise MissingError(
        "a corpus has no folder of raw text",
        where=folder,
        expected=one_of(names, "none: the raw folder is empty"),
        remedy=remedy_for_name(corpus, [*names, *project.config.derived], remedy),
    )


def list_contents(project: Project, corpus: str) -> Contents:
    """List the present files of a corpus, a folder of texts, as its settings select them.

    For example, with `web: {files: ["*.jsonl"], exclude: ["test*"]}` in nanoset.yaml:

        a.jsonl, b.jsonl         are the files of web
        test.jsonl, notes.txt    are left out

    Args:
        project: The project.
        corpus: Name of the corpus.

    Returns:
        The files, with their sizes, and what was left out.

    Raises:
        MissingError: The corpus has no folder.
        InputError: The folder cannot be listed.
    """
    folder = project.config.corpus_folder(corpus)
    try:
        contents = contents_of(folder, folder.parent)
    except MissingError:
        corpus_folder(project, corpus)  # raises an error that says more about a missing folder
        raise
    return replace(contents, corpus=corpus).chosen(project.config.choice_of(corpus))
