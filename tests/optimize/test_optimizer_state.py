"""The optimizer's state on disk: rows that any number of ranks can read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mugrpo.optimize.optimizer_state import _rows


@pytest.mark.parametrize("cuts", [[7], [4, 3], [3, 3, 1], [2, 0, 5], [7, 0]])
@pytest.mark.parametrize(
    "wanted", [slice(0, 7), slice(0, 4), slice(4, 7), slice(2, 5), slice(6, 7), slice(7, 7)]
)
def test_wanted_rows_come_from_whichever_files_hold_them(
    tmp_path: Path, cuts: list[int], wanted: slice
):
    whole = torch.arange(14.0).reshape(7, 2)
    names = [tmp_path / f"{number}.safetensors" for number in range(len(cuts))]
    for name, rows in zip(names, whole.split(cuts), strict=True):
        save_file({"moment": rows.contiguous()}, name)
    files = [safe_open(name, framework="pt") for name in names]
    torch.testing.assert_close(_rows(files, "moment", wanted), whole[wanted], rtol=0, atol=0)
