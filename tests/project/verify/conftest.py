"""The built project of all tests of this room, and datasets of given sequences."""

import numpy as np

from helpers.built_project import built, copy, project
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset

__all__ = ["built", "copy", "project", "write_sequences"]


def write_sequences(prefix, sequences):
    """A dataset of uint16 tokens, each sequence a document."""
    builder = MMapIndexedDatasetBuilder(prefix, np.uint16)
    for sequence in sequences:
        builder.add_document(np.array(sequence, np.uint16), [len(sequence)])
    builder.finalize()
    return MMapIndexedDataset(prefix)
