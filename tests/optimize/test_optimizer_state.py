"""The optimizer's state on disk: rows that any number of ranks can read."""

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mugrpo.disk.publishing import sha256_of
from mugrpo.optimize.optimizer_state import _rows, write_optimizer
from tests.cases import table


@table("cuts", [[7], [4, 3], [3, 3, 1], [2, 0, 5], [7, 0]])
@table("wanted", [slice(0, 7), slice(0, 4), slice(4, 7), slice(2, 5), slice(6, 7), slice(7, 7)])
def test_wanted_rows_come_from_whichever_files_hold_them(tmp_path, cuts, wanted):
    whole = torch.arange(14.0).reshape(7, 2)
    names = [tmp_path / f"{number}.safetensors" for number in range(len(cuts))]
    for name, rows in zip(names, whole.split(cuts), strict=True):
        save_file({"moment": rows.contiguous()}, name)
    files = [safe_open(name, framework="pt") for name in names]
    torch.testing.assert_close(_rows(files, "moment", wanted), whole[wanted], rtol=0, atol=0)


def test_safetensors_reads_what_is_written_and_the_checksum_is_the_files(tmp_path: Path):
    """A name with a character of two bytes, a scalar, no rows, and bytes before larger numbers."""
    tensors = {
        "rng/cpu": torch.arange(5, dtype=torch.uint8),
        "größe/exp_avg": torch.randn(3, 2),
        "w/step": torch.tensor(7.0),
        "w/exp_avg": torch.zeros(0, 4),
    }
    sums = write_optimizer(tmp_path, tensors, (1, 2))
    file = tmp_path / "optimizer-00002-of-00002.safetensors"
    assert sums == {file.name: sha256_of(file)}
    loaded = load_file(file)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(loaded[name], tensor, rtol=0, atol=0)
