"""The contract of stores, for memory, and for emulators of Google Storage and Azure if there are any."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from storage.stores.contract import StoreContract

from nanoset_core.errors import ConfigError
from nanoset_core.storage.stores.azure import AzureStore
from nanoset_core.storage.stores.google import GoogleStore
from nanoset_core.storage.stores.memory import MemoryStore

# gcsfs sends bytes as they are, which aiohttp advises against if they are more than 1 MiB.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
PART_BYTES = 5 << 20
"""Objects are written in parts of this size, so that small ones have several."""


class TestMemory(StoreContract):
    """A folder in memory."""

    @pytest.fixture
    def store(self, memory_place: MemoryStore) -> MemoryStore:
        """A new folder."""
        return replace(memory_place, part_bytes=PART_BYTES)

    test_a_pickled_store_is_the_same_store = None  # another process has another memory

    def test_a_store_in_memory_is_not_sent_to_another_process(self, store):
        with pytest.raises(ConfigError, match=r"one process only[\s\S]*--workers 1"):
            pickle.dumps(store)


class TestGoogle(StoreContract):
    """A bucket of an emulator of Google Storage."""

    @pytest.fixture
    def store(self, google_place: GoogleStore) -> GoogleStore:
        """A new bucket."""
        return replace(google_place, part_bytes=PART_BYTES)


class TestAzure(StoreContract):
    """A container of an emulator of Azure."""

    @pytest.fixture
    def store(self, azure_place: AzureStore) -> AzureStore:
        """A new container."""
        return replace(azure_place, part_bytes=PART_BYTES)
