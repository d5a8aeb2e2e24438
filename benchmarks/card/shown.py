"""pytest -p card.shown: tests/conftest.py hides the GPUs; show them before anything asks CUDA."""

import os
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests() -> Iterator[None]:
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    yield
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if shown is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = shown
