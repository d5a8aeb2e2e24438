"""Imported once by the fork server of tests.runs: what a run imports late, imported before it."""

from __future__ import annotations

import pyarrow
import torch

import mugrpo.cli
import mugrpo.pipeline  # noqa: F401
from mugrpo.config.run import ModelOptions
from mugrpo.model.policy import load_policy
from mugrpo.run import provenance

pyarrow.Table.from_pydict({"imports": ["pandas, where there is one"]})
provenance.code_sha256(provenance.HOME)
torch.optim.AdamW(load_policy(ModelOptions()).model.parameters())
