"""What a foreign model's files make libraries print."""

from __future__ import annotations

import io
import json
import logging
import shutil
import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from mugrpo.model.loading import load_model, visibly
from tests.runs import MODEL


def test_the_names_of_tensors_do_not_command_the_terminal(tmp_path: Path):
    """transformers lists an unexpected tensor by its name; an escape in it clears the screen."""
    shutil.copytree(MODEL, tmp_path / "model")
    [weights] = (tmp_path / "model").glob("*.safetensors")
    evil = "model.layers.0.\x1b[2J\x1b]0;title\x07\u202e"
    save_file({**load_file(weights), evil: torch.ones(1)}, weights, {"format": "pt"})
    said = io.StringIO()
    logger, handler = logging.getLogger("transformers"), logging.StreamHandler(said)
    logger.addHandler(handler)
    try:
        load_model(tmp_path / "model")
    finally:
        logger.removeHandler(handler)
    assert "model.layers.0.\\x1b[2J\\x1b]0;title\\x07\\u202e" in said.getvalue()
    assert said.getvalue().replace("\n", "").isprintable()
    assert handler.stream is said


def test_prints_and_warnings_within_are_escaped(capsys, monkeypatch):
    before = (sys.stdout, sys.stderr)
    monkeypatch.setattr(warnings, "showwarning", lambda m, *_: sys.stderr.write(f"{m}\n"))
    with visibly():
        print("\x1b[31mred\x1b[0m", json.loads('"\\u009b2J"'))
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("\x1b[2J", stacklevel=1)
    assert (sys.stdout, sys.stderr) == before
    out, err = capsys.readouterr()
    assert out == "red \\x9b2J\n" and "\x1b" not in err
