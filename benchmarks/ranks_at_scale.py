"""What many ranks ask of the machine: `python benchmarks/ranks_at_scale.py`.

Counts, for one rank of 64 and of 1,024, how it uses the file system while it waits for an order and
for a checkpoint, and which files of the model it opens; and times the cut of an update. Other ranks
are stand-ins: a process group that moves nothing, and messages of the first rank that come once in
a pulse. Nothing here needs a GPU.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen2Config, Qwen2ForCausalLM

from mugrpo.config.distributed import DistributedOptions
from mugrpo.config.run import ModelOptions
from mugrpo.disk.publishing import publish_json
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.policy import Policy
from mugrpo.optimize import fsdp
from mugrpo.optimize.balance import Price, rounds
from mugrpo.optimize.checkpoint import Writing
from mugrpo.processes.ranks import Ranks
from mugrpo.stages.orders import orders

RESULT = Path(__file__).parent / "results" / "ranks_at_scale.json"
SECONDS = 3.0  # of each wait
RESPONSES = 64  # of a rank, at most: 4,096 on 64 ranks
SMOLLM2 = Price(logit=28.3 / 106.2, pair=2 * 30 * 9 * 64 / 106.2e6)


OVER = threading.Event()  # when a wait for an order is to end


class StandIn(Ranks):
    """One of many ranks, to which the others give the answers that it waits for."""

    def all(self, value: Any) -> list[Any]:
        return [value] * self.size

    def from_first(self, value: Any) -> Any:
        if OVER.wait(0.0 if self.first else 1.0):  # a pulse without an order
            return {"number": 2, "task": "end"}
        return {} if value is None else value


@contextmanager
def counted(root: Path) -> Iterator[Counter[str]]:
    """Count what is asked of the file system below `root` in the block."""
    counts: Counter[str] = Counter()
    opened: set[str] = set()
    stat, scandir, lockf = os.stat, os.listdir, fcntl.lockf
    counting = True

    def asked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(path: Any, *rest: Any, **named: Any) -> Any:
            counts[name] += counting and (name == "locks" or str(path).startswith(str(root)))
            return call(path, *rest, **named)

        return noted

    def audited(event: str, args: tuple[Any, ...]) -> None:
        if counting and event == "open" and str(args[0]).startswith(str(root)):
            counts["opens"] += 1
            opened.add(str(args[0]))

    os.stat, os.listdir = asked("looks", stat), asked("looks", scandir)  # type: ignore[assignment]
    fcntl.lockf = asked("locks", lockf)  # type: ignore[assignment]
    sys.addaudithook(audited)
    try:
        yield counts
    finally:
        counting = False
        os.stat, os.listdir, fcntl.lockf = stat, scandir, lockf
        counts["files"] = len(opened)


def waiting_for_an_order(root: Path, rank: int, size: int) -> dict[str, float]:
    """Return the looks and opens per second of a rank that waits for its next order."""
    folder = RunDir(root)
    folder.ranks.mkdir(parents=True)
    publish_json(folder.ranks / "order.json", {"number": 1, "task": "optimize"})
    publish_json(folder.ranks / "done.json", {"number": 1, "update": 1, "starts": [0]})
    ranks = StandIn(rank, size, driven=True)
    stop = SimpleNamespace(signal_name=None)

    def check() -> None:
        raise InterruptedError

    run: Any = SimpleNamespace(folder=folder, ranks=ranks, stop=stop, check=check)

    def wait() -> None:
        with suppress(InterruptedError):
            next(orders(run))

    thread = threading.Thread(target=wait, daemon=True)
    with counted(root) as counts:
        thread.start()
        time.sleep(SECONDS)
    OVER.set()
    folder.stop_request.touch()
    thread.join()
    OVER.clear()
    return {name: counts[name] / SECONDS for name in ("looks", "opens")}


def model_written(root: Path, size: int) -> dict[str, int]:
    """Return what rank 1 opens and locks to write its part of a model with 28 layers."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=size)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 28}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model: Any = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=256, **shape, **heads, tie_word_embeddings=False)
    )
    tokenizer: Any = SimpleNamespace(eos_token_id=1, pad_token_id=0, save_pretrained=lambda _: None)
    policy = Policy(model, tokenizer, ModelOptions(device="cpu"))
    policy.ranks = Ranks(1, size)
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,), mesh_dim_names=("shards",))
    fsdp.cut_over(mesh, fsdp._Logprobs(model), model, DistributedOptions(), half=False)
    policy.shard, policy.files = (1, size), size
    root.mkdir()
    weights = policy.weights(copied=False)
    with counted(root) as counts:
        policy.save(root, weights)
    tensors = len(model.state_dict())
    dist.destroy_process_group()
    return {"files": counts["files"], "locks": counts["locks"], "tensors": tensors}


def waiting_for_a_checkpoint(root: Path, size: int) -> dict[str, float]:
    """Return the looks per second of rank 1, 20 s after it has written its part.

    The first rank has not published yet, as while a large checkpoint is on its way.
    """
    snapshot: Any = SimpleNamespace(
        state={"update": 8},
        policy=SimpleNamespace(ranks=Ranks(1, size)),
        write_model=lambda _: {},
        write_rest=lambda _: {},
    )
    path = RunDir(root).checkpoint(8)
    writing = Writing(snapshot, path, {"starts": (0,)}, first_pid=1, then=lambda: None)
    writing.folder.mkdir(parents=True)
    time.sleep(20)
    with counted(root) as counts:
        time.sleep(SECONDS)
    for file in writing.folder.iterdir():
        file.unlink()
    writing.folder.rename(path)
    with suppress(Exception):
        writing.published(wait=True)
    return {"looks": counts["looks"] / SECONDS}


def cut(size: int, responses: int) -> dict[str, float]:
    """Return the seconds that cutting an update of so many responses takes."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.optimize.test_balance import lognormal

    rows = lognormal(responses // 8, 8, 200, 1000, 0.8)
    began = time.process_time()
    rounds(rows, 24_576, share=True, ranks=size, price=SMOLLM2)
    return {"responses": len(rows), "seconds": round(time.process_time() - began, 3)}


def main(argv: Sequence[str] | None = None) -> None:
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--output", type=Path, default=RESULT)
    cli.add_argument("--name", default="now", help="of this version in the result")
    cli.add_argument("--sizes", type=int, nargs="+", default=[64, 1024])
    options = cli.parse_args(argv)
    found: dict[str, Any] = {}
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            found[str(size)] = {
                "first rank, waiting for an order": waiting_for_an_order(folder / "0", 0, size),
                "another, waiting for an order": waiting_for_an_order(folder / "1", 1, size),
                "another, waiting for a checkpoint": waiting_for_a_checkpoint(folder / "2", size),
                "another, writing its part of the model": model_written(folder / "3", size),
                "cut": cut(size, min(size, 256) * RESPONSES),
            }
        print(size, json.dumps(found[str(size)], indent=1), flush=True)
    versions = json.loads(options.output.read_text()) if options.output.exists() else {}
    options.output.write_text(json.dumps(versions | {options.name: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
