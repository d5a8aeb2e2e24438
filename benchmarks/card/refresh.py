"""What a refresh costs in parts: copies, checksums, writing and reading a model of bf16 weights.

python -m card.refresh [--billions 1.5] [--folders /tmp /dev/shm] [--tiny]
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from card.work import DEVICE, tell
from mugrpo.model.dtensors import moved
from mugrpo.model.host_memory import HostMemory
from side_by_side import parser

GPU = DEVICE.type == "cuda"
SIZE = 18944, 3584  # a matrix of Qwen2.5-7B


def pinned(weights: dict[str, torch.Tensor], timed: Callable[..., Any]) -> None:
    """Time copies to a block of pinned memory, which the second one finds pinned."""
    memory, cpu = HostMemory(), torch.device("cpu")

    def to_block() -> dict[str, torch.Tensor]:
        rooms = memory.rooms(w.nbytes for w in weights.values())
        return {name: moved(weight, cpu, rooms) for name, weight in weights.items()}

    timed("to a pinned block, pinning it", to_block)
    host = timed("to a pinned block, again", to_block)
    timed("back from it", lambda: [weights[n].copy_(h, non_blocking=True) for n, h in host.items()])


def parts(weights: dict[str, torch.Tensor], folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the seconds and GB/s of each part."""
    rows: list[dict[str, Any]] = []
    total = sum(w.nbytes for w in weights.values())

    def timed(name: str, work: Callable[[], Any], size: int = total) -> Any:
        if GPU:
            torch.cuda.synchronize()
        began = time.perf_counter()
        found = work()
        if GPU:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        rows.append({"part": name, "s": seconds, "GB/s": size / seconds / 1e9})
        return found

    def to_host() -> dict[str, torch.Tensor]:
        return {n: w.to("cpu", copy=True) for n, w in weights.items()}

    host = timed("to pageable memory", to_host)
    host = timed("again", to_host)
    timed("back from it", lambda: [weights[n].copy_(h) for n, h in host.items()])
    if GPU:
        pinned(weights, timed)
    first = next(iter(host.values()))
    array = first.view(-1).view(torch.uint8).numpy()
    timed("sha256 of a tensor", lambda: hashlib.sha256(array.data), first.nbytes)
    for folder in folders:
        path = folder / "refresh.safetensors"

        def read(path: Path = path) -> None:
            with safe_open(path, framework="pt", device=DEVICE.type) as file:
                for name in weights:
                    weights[name].copy_(file.get_tensor(name))

        timed(f"write to {folder}", lambda path=path: save_file(host, path))
        timed(f"read from {folder} into the device's tensors", read)
        path.unlink()
    return rows


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    cli = parser(__doc__ or "", output="folder for the JSON file")
    cli.add_argument("--billions", type=float, default=1.5)
    folders = [Path("/tmp"), Path("/dev/shm")]
    cli.add_argument("--folders", type=Path, nargs="+", default=folders)
    options = cli.parse_args(argv)
    size = (64, 32) if options.tiny else SIZE
    count = 4 if options.tiny else max(1, int(options.billions * 1e9 / (SIZE[0] * SIZE[1])))
    weights = {f"w{i}": torch.randn(size, device=DEVICE).bfloat16() for i in range(count)}
    title = f"Copies of {sum(w.nbytes for w in weights.values()) / 1e9:.1f} GB"
    return tell("refresh", title, parts(weights, options.folders), options)


if __name__ == "__main__":
    main()
