"""One rank of FSDP2: does the model compute with its own weights after a sleep?

    python -m card.sleep [--tiny]

Each gap is the largest difference between the logprobs of the split model and those of a plain
model with the weights that a checkpoint would hold: before a move to host memory and back, after
one, after one and an update. In fp32 it is about 0, in bf16 below 0.05. On a CPU, clones stand for
moves.
"""

import copy
import gc
import os
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM

from card.work import DEVICE, MEDIUM, model_config, tell
from mugrpo.model.dtensors import full, local, moved, tensors_of
from mugrpo.model.half import HalfCopy
from mugrpo.model.host_memory import HostMemory
from mugrpo.model.logprobs import response_logprobs
from mugrpo.optimize.fsdp import _Logprobs, shard_over
from side_by_side import parser

GPU = DEVICE.type == "cuda"
IDS = (torch.arange(24, device=DEVICE) % 50 + 1).view(3, 8)
LENGTHS = torch.tensor([3, 3, 5], device=DEVICE)
MASK = torch.arange(3, device=DEVICE) < torch.tensor([[3], [1], [2]], device=DEVICE)
ROWS, HOW = (IDS, LENGTHS, MASK), {"temperature": 1.0, "chunk": 16}


class Split:
    """A model that one rank holds, its optimizer, and the plain model that it is compared with."""

    def __init__(self, *, half: bool, tiny: bool) -> None:
        torch.manual_seed(0)
        config = model_config(MEDIUM, tiny=tiny)
        config.num_hidden_layers = 2
        with DEVICE:
            self.model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        self.plain = copy.deepcopy(self.model)
        mesh = init_device_mesh(DEVICE.type, (1,), mesh_dim_names=("shards",))
        self.whole, self.half = _Logprobs(self.model), half
        shard_over(mesh, self.whole, self.model, half=half)
        self.host = HostMemory()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)

    def step(self) -> None:
        logprobs, _ = self.whole(*ROWS, **HOW)
        logprobs.sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def gap(self) -> float:
        ours, _ = self.whole(*ROWS, **HOW)
        for module in self.whole.modules():
            if hasattr(module, "reshard"):
                module.reshard()
        weights = {name: full(tensor) for name, tensor in tensors_of(self.model).items()}
        self.plain.load_state_dict(weights, strict=False)
        working = HalfCopy(self.plain).working if self.half else self.plain
        theirs, _ = response_logprobs(working, *ROWS, **HOW)
        return float((ours - theirs).abs().max())

    @torch.no_grad()
    def move(self, to: str) -> float:
        """Move weights and moments, and return the seconds."""
        began, target = time.perf_counter(), torch.device(to)
        states = list(self.optimizer.state.values())
        rooms = moment_rooms = None
        if to == "cpu":
            rooms = self.host.rooms(local(t).nbytes for t in tensors_of(self.model).values())
            moments = (local(value).nbytes for state in states for value in state.values())
            moment_rooms = self.host.rooms(moments)
        self.whole._apply(lambda t: moved(t, target, rooms) if GPU else t.clone())
        for state in states:
            for key, value in state.items():
                state[key] = moved(value, target, moment_rooms)
        if GPU:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return time.perf_counter() - began


def measured(*, half: bool, tiny: bool) -> dict[str, Any]:
    gc.collect()  # the model before is garbage in cycles: it would count as left
    split = Split(half=half, tiny=tiny)
    split.step()
    before, asleep = split.gap(), split.move("cpu")
    left = (torch.cuda.memory_allocated() >> 20) if GPU else 0
    left -= sum(p.nbytes for p in split.plain.parameters()) >> 20 if GPU else 0
    awake = split.move(DEVICE.type)
    after = split.gap()
    split.step()
    row = {"": "bf16" if half else "fp32", "before": before, "after": after, "updated": split.gap()}
    return row | {"asleep in s": asleep, "MiB left": left, "awake in s": awake}


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    options = parser(__doc__ or "", output="folder for the JSON file").parse_args(argv)
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29655")
    dist.init_process_group("cpu:gloo,cuda:nccl" if GPU else "gloo")
    rows = [measured(half=half, tiny=options.tiny) for half in (False, True)]
    found = tell("sleep", "A model of one rank, before and after a sleep", rows, options)
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    main()
