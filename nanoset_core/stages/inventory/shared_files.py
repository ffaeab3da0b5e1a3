"""Find corpora that hold the same files of text although one training set or webdataset reads both of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path

from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.inventory.corpora import list_contents
from nanoset_core.stages.mappings.settings import corpora_of
from nanoset_core.stages.views.settings import base_of
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.contents import FileStat


def check_all_files(project: Project) -> None:
    """Check every nanoset and webdataset of a project; raises as `check_no_shared_files`."""
    for name in project.config.nanosets:
        check_nanoset_files(project, name)
    for name in project.config.webdatasets:
        check_webdataset_files(project, name)


def check_nanoset_files(project: Project, name: str) -> None:
    """Check the corpora of each split of a nanoset; raises as `check_no_shared_files`."""
    for split in SPLITS:
        check_split_files(project, name, split)


def check_split_files(project: Project, name: str, split: SplitName) -> None:
    """Check the corpora of one split of a nanoset; raises as `check_no_shared_files`."""
    blend = project.nanoset(name).blend_of(split)
    check_no_shared_files(project, corpora_of(blend), f"nanosets.{name}")


def check_webdataset_files(project: Project, name: str) -> None:
    """Check the corpora of a webdataset; raises as `check_no_shared_files`."""
    check_no_shared_files(project, project.webdataset(name).names, f"webdatasets.{name}")


def check_no_shared_files(project: Project, names: Iterable[str], where: str) -> None:
    """Raise ConfigError if two of these corpora take the same text out of the same file.

    That happens if both read one folder without `files` and `exclude` that part it, and if a folder or a file of one is
    a link to that of the other. Two text keys of the same files are two texts. Views of one corpus are not compared:
    reading some of its documents more often is what they are for.

    Args:
        project: the project, whose folders of raw text are listed.
        names: corpora, views and packs that are read together.
        where: the key of nanoset.yaml that names them.
    """
    config = project.config
    corpora = dict.fromkeys(base_of(config.derived, name) for name in names)
    candidates = [corpus for corpus in corpora if _may_share_files(config, corpus, corpora)]
    corpus_by_text: dict[tuple[str, Hashable], tuple[str, str]] = {}
    for corpus in candidates:
        text_key = config.documents_of(corpus).text_key
        for identity, path in _files(project, corpus):
            other, other_path = corpus_by_text.setdefault((text_key, identity), (corpus, path))
            if other != corpus:
                raise ConfigError(
                    "two corpora that are read together hold the same file",
                    where=f"{config.file}: {where}",
                    found=f"{_path(config, other, other_path)} of {other} is {_path(config, corpus, path)} of {corpus}",
                    expected="each file in one of them, so that its documents are not read twice as often",
                    remedy=f"leave {corpus} out; or divide the files by `files` and `exclude` of the corpora; "
                    "weights, mix or a view's `repeat` read text more often",
                )


def _may_share_files(config: ProjectConfig, corpus: str, corpora: Iterable[str]) -> bool:
    """Return whether a corpus has to be listed. Objects of a bucket have no links: only a folder can be shared."""
    text_keys = Counter(config.documents_of(other).text_key for other in corpora)
    folders = Counter(config.folder_name(other) for other in corpora)
    is_shared = folders[config.folder_name(corpus)] > 1
    has_links = isinstance(config.raw_folder, Path)
    return text_keys[config.documents_of(corpus).text_key] > 1 and (is_shared or has_links)


def _files(project: Project, corpus: str) -> Iterator[tuple[Hashable, str]]:
    """Yield what identifies each file of a corpus, and its path. What cannot be listed is reported by its inventory."""
    try:
        files = list_contents(project, corpus).ordered
    except NanosetError:
        return
    folder = project.config.corpus_folder(corpus)
    for file in files:
        if file.size:
            yield _identity(folder, file), file.path


def _identity(folder: RawFolder, file: FileStat) -> Hashable:
    """Return the same as `storage.identity.file_identity`, out of what a listing said."""
    if not isinstance(folder, Path):
        return str(folder / file.path)
    return file.inode, file.size, file.mtime_ns, file.changed_ns


def _path(config: ProjectConfig, corpus: str, path: str) -> str:
    return f"{config.folder_name(corpus)}/{path}"
