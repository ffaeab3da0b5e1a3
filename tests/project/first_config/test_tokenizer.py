"""What `nanoset init` asks of the tokenizer of a new project."""

from __future__ import annotations

import shutil

from nanoset_core.project.first_config.tokenizer import FirstTokenizer
from nanoset_core.tokenizers.engines import reference, tokenizers_library
from nanoset_core.tokenizers.files import tokenizer_path


def test_the_tokenizer_is_loaded_once_for_all_texts(tokenizer_file, tmp_path, monkeypatch):
    # Other tests of this process may have loaded the file itself.
    copy_of_file = tmp_path / "tokenizer.json"
    shutil.copy(tokenizer_file, copy_of_file)
    loaded_files = []

    def load_and_note(file):
        loaded_files.append(file)
        return tokenizers_library.load_tokenizer(file)

    monkeypatch.setattr(reference, "load_tokenizer", load_and_note)
    tokenizer = FirstTokenizer({}, file=tokenizer_path(copy_of_file))

    for text in ("The cat sat.", "It rains."):
        assert tokenizer.bytes_per_token(text) > 0

    assert len(loaded_files) == 1
