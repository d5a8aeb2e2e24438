"""Text as TOML."""

from __future__ import annotations

import tomllib

import pytest

from mugrpo.config.describe import as_toml


@pytest.mark.parametrize("text", ["\U0001f600 plain", 'a "b"\n\t\\', "\x7f and \x01", "é"])
def test_any_text_is_valid_toml(text: str):
    assert tomllib.loads(f"value = {as_toml(text)}") == {"value": text}
