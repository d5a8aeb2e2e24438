"""Load what a run would load late. The fork server of tests.runs imports this once."""

import gc
import os

import pyarrow
import torch

import mugrpo.cli
import mugrpo.pipeline  # noqa: F401
from mugrpo.config.run import ModelOptions
from mugrpo.model.policy import load_policy
from mugrpo.run import provenance

os.getloadavg = lambda: (0.0, 0.0, 0.0)  # runs say nothing of a busy machine
pyarrow.Table.from_pydict({"imports": ["pandas, if it is installed"]})
provenance.code_sha256(provenance._PACKAGE)
torch.optim.AdamW(load_policy(ModelOptions()).model.parameters())
gc.freeze()  # a collection in a fork need not go through what is imported here
