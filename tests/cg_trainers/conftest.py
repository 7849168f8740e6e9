"""The model that the trainers' tests start from, made once."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from training import save_start


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random three-block Llama and its tokenizer."""
    folder = save_start(tmp_path_factory.mktemp("start"))
    # accelerate collects garbage after each run, and walking through all of torch and transformers takes a second.
    gc.collect()
    gc.freeze()
    return folder
