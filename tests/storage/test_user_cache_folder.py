"""Working copies of buckets and facts about tokenizers are stored in the user's cache folder."""

from __future__ import annotations

import pwd

import pytest

from nanoset_core.errors import ConfigError
from nanoset_core.storage.location import copies_folder, remote_location, store_of
from nanoset_core.storage.paths import user_cache_folder
from nanoset_core.tokenizers.cache import cache_folder


@pytest.fixture
def without_home(monkeypatch):
    """Let the user have no home folder, as in some containers."""

    def unknown_user(user_id):
        raise KeyError(user_id)

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown_user)


def test_a_variable_names_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert user_cache_folder() == tmp_path


def test_the_variable_may_begin_with_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "~/caches")

    assert user_cache_folder() == tmp_path / "caches"


def test_without_the_variable_the_cache_folder_is_in_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")

    assert user_cache_folder() == tmp_path / ".cache"


@pytest.mark.usefixtures("without_home")
def test_without_a_home_folder_facts_about_tokenizers_are_not_stored():
    assert cache_folder() is None


@pytest.mark.usefixtures("without_home")
def test_without_a_home_folder_it_is_an_error_if_a_bucket_needs_working_copies():
    store = store_of(remote_location("memory://texts/web", where="a test"))

    with pytest.raises(ConfigError, match="the home folder is not known"):
        copies_folder(store)


def test_working_copies_are_in_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    folder = copies_folder(store_of(remote_location("memory://texts/web", where="a test")))

    assert folder.parent == tmp_path / "nanoset" / "mirror"
