"""Check that corpora which are read together have no file in common.

For example, the corpora `web` and `web_2024` of a blend may both contain web/2024.jsonl. Its
documents would be read twice as often as the weights say. No other check finds that, since each
corpus by itself is correct.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.inventory.corpora import list_contents
from nanoset_core.stages.mappings.settings import corpora_of
from nanoset_core.stages.views.settings import base_of
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.location import Location
from nanoset_core.storage.places import is_here


class CorpusFile(NamedTuple):
    """A file of a corpus."""

    corpus: str
    """Name of the corpus."""
    path: str
    """Path of the file below the folder of the corpus."""
    identity: Hashable
    """Equal for two paths of the same file, such as a file and a link to it."""


def check_all_files(project: Project) -> None:
    """Check that no text is read twice because two corpora share a file.

    A corpus is a folder of texts, but links and settings can make one file part of two. Training
    data that consists of both would repeat its documents by mistake:

        raw/web/a.jsonl
        raw/news/a.jsonl → ../web/a.jsonl      an error if "web" and "news" are read together

    Args:
        project: The project. Its folders of raw text are listed.

    Raises:
        ConfigError: Two corpora that are read together share a file.
    """
    for name in project.config.nanosets:
        check_nanoset_files(project, name)
    for name in project.config.webdatasets:
        check_webdataset_files(project, name)


def check_nanoset_files(project: Project, name: str) -> None:
    """Check the corpora of each split of a nanoset: train, valid and test.

    Args:
        project: The project.
        name: Name of the nanoset.

    Raises:
        ConfigError: Two corpora of a split share a file.
    """
    for split in SPLITS:
        check_split_files(project, name, split)


def check_split_files(project: Project, name: str, split: SplitName) -> None:
    """Check that no text is repeated in a split of training data, because two corpora share a file.

    For example, train reads the corpora (folders of texts) `web` and `news`, and a file of `news`
    is a link to one of `web`: its documents would be read twice as often as they should.

    Args:
        project: The project.
        name: Name of the training data in nanoset.yaml.
        split: `train`, `valid` or `test`.

    Raises:
        ConfigError: Two corpora share a file.
    """
    blend = project.nanoset(name).blend_of(split)
    check_no_shared_files(project, corpora_of(blend), f"nanosets.{name}")


def check_webdataset_files(project: Project, name: str) -> None:
    """Check the corpora of a webdataset.

    Args:
        project: The project.
        name: Name of the webdataset.

    Raises:
        ConfigError: Two corpora share a file.
    """
    check_no_shared_files(project, project.webdataset(name).names, f"webdatasets.{name}")


def check_no_shared_files(project: Project, names: Iterable[str], where: str) -> None:
    """Check that no two corpora read the same text of the same file, which would be read twice.

    Two corpora may read one folder, or a link of one may lead to a file of the other: crawl/a.jsonl
    may be a link to web/a.jsonl.

    Args:
        project: The project. Its folders of raw text are listed.
        names: Names of the datasets that are read together.
        where: The key of nanoset.yaml that names them.

    Raises:
        ConfigError: Two corpora share a file.
    """
    config = project.config
    # Several datasets may be selections of the documents of one corpus: take each corpus once.
    corpora = list(dict.fromkeys(base_of(config.derived, name) for name in names))

    file_by_text: dict[_TextOfFile, CorpusFile] = {}
    for corpus in _corpora_that_may_share_files(config, corpora):
        text_key = config.documents_of(corpus).text_key
        for file in _files(project, corpus):
            text = _TextOfFile(text_key, file.identity)
            earlier = file_by_text.get(text)
            if earlier is None:
                file_by_text[text] = file
            elif earlier.corpus != corpus:
                raise _shared_file_error(config, where, earlier, file)


class _TextOfFile(NamedTuple):
    """The texts of a file that a corpus reads. Corpora with other keys read other texts of it."""

    text_key: str
    """Key of the texts in each line, such as "text"."""
    identity: Hashable
    """Equal for all paths of the same file, such as links to it."""


def _shared_file_error(
    config: ProjectConfig, where: str, first: CorpusFile, second: CorpusFile
) -> ConfigError:
    """Return the error that a file of one corpus is a file of another one as well.

        found: web/a.jsonl of web is crawl/a.jsonl of crawl

    Args:
        config: The settings of nanoset.yaml.
        where: The key of nanoset.yaml that names both corpora.
        first: The file as a file of one corpus.
        second: The same file as a file of the other corpus.
    """
    return ConfigError(
        "two corpora that are read together contain the same file",
        where=f"{config.file}: {where}",
        found=f"{_named(config, first)} is {_named(config, second)}",
        expected="each file in one of the corpora: otherwise its documents are read twice",
        remedy=f"leave {second.corpus} out, or divide the files by `files` and `exclude` of the "
        "corpora. To read text more often, use weights, mix or a view's `repeat`",
    )


def _corpora_that_may_share_files(config: ProjectConfig, corpora: Iterable[str]) -> list[str]:
    """Return the corpora that may read the same text of a file, judging by their settings.

    Text that two corpora share would be repeated in training by mistake. To find it, their files
    are listed, which takes long, so corpora that cannot share any text are left out. In a bucket:

        corpus        folder    key of the text
        web           web       text              returned
        web_valid     web       text              returned: it may have files of web
        titles        web       title             left out: it reads other texts of these files
        code          code      text              left out: it has a folder of its own

    Args:
        config: The settings of nanoset.yaml.
        corpora: Names of the corpora that are read together.
    """
    text_key_by_corpus = {name: config.documents_of(name).text_key for name in corpora}
    folder_by_corpus = {name: config.folder_name(name) for name in text_key_by_corpus}
    corpora_with_same_key = _with_shared_value(text_key_by_corpus)
    if is_here(config.raw_folder):
        # On a disk, `code` may share files, too: links may lead from one folder to another.
        return corpora_with_same_key
    corpora_with_same_folder = _with_shared_value(folder_by_corpus)
    return [name for name in corpora_with_same_key if name in corpora_with_same_folder]


def _with_shared_value(value_by_name: Mapping[str, Hashable]) -> list[str]:
    """Return the names whose value is also the value of another name.

    For example, `{"a": 1, "b": 2, "c": 1}` → `["a", "c"]`.
    """
    counts = Counter(value_by_name.values())
    return [name for name, value in value_by_name.items() if counts[value] > 1]


def _files(project: Project, corpus: str) -> Iterator[CorpusFile]:
    """Yield the files of a corpus, to be compared with those of other corpora.

    A file is known by its identity, which links to it share. Empty files are left out: they have no
    text that could be repeated. If the files cannot be listed, none is yielded, since making the
    inventory (the list of files for a build) reports that error.

    Args:
        project: The project.
        corpus: Name of the corpus, a folder of texts.
    """
    try:
        files = list_contents(project, corpus).ordered
    except NanosetError:
        return
    folder = project.config.corpus_folder(corpus)
    for file in files:
        if file.size:
            yield CorpusFile(corpus, file.path, _identity(folder, file))


def _identity(folder: Location, file: FileStat) -> Hashable:
    """Return a value that is equal for two paths of the same file, such as a file and a link to it.

    It uses what the listing contains, so that no file has to be looked up again. Two paths with the
    same inode number, size and times are the same file.

    Args:
        folder: Folder of the corpus.
        file: The file, as it was listed.
    """
    if not is_here(folder):
        return str(folder / file.path)  # an object has one name
    return file.inode, file.size, file.mtime_ns, file.changed_ns


def _named(config: ProjectConfig, file: CorpusFile) -> str:
    """Return what messages call a file, such as "web/a.jsonl of web".

    Args:
        config: The settings, by which a corpus may have a folder of another name.
        file: The file, and its corpus.
    """
    return f"{config.folder_name(file.corpus)}/{file.path} of {file.corpus}"
