"""Updates and generation on one big GPU: `make bench-gpu`, in ten minutes.

Models have random weights in the shapes of configs/recipes/forms. Prompts are random, with 256 to
512 tokens, and groups have 8 responses of 256 to 512 tokens. The precision is bf16; weights and
optimizer are in fp32.

    update      Trainer.step with and without shared prompts, checkpointing on and off. All sides of
                a repetition get the same random rollouts, and each repetition others of other
                lengths. Peak memory includes weights, gradients and AdamW's state. MFU is the
                counted work of a side's forward and backward pass (README.md), divided by its
                seconds and by the best bf16 rate of large square matrices, which is measured
                just before. A model of 7B is trained by an adapter: all of it would take 137 GB.
    generation  Our engine against `model.generate` with bf16 weights; generation.py says what is
                compared. Random weights almost never end a sequence, so all responses are equally
                long. Batches have no gaps that continuous batching could fill, and the ratio shows
                only the speed of decoding and the gain from computing each prompt once.

Steps run in this order, each in a process of its own, for at most its share of the time, and each
writes its JSON file as soon as it is done: a step that fails, hangs or takes the GPU's context with
it does not keep the others from running. --tiny
shows on any machine that the steps run, with a stand-in for the kernel that only GPUs have.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpu_steps import generation, update
from gpu_work import BIG, TINY, Model, Sizes
from side_by_side import RESULTS, Row, machine, parser, publish, shown, spread

SMALL = Model("Qwen2.5-0.5B", "qwen2.5-0.5b")
MEDIUM = Model("R1-Distill-Qwen-1.5B", "r1-distill-qwen-1.5b")
LARGE = Model("Qwen2.5-7B", "qwen2.5-7b", rank=16)
NO_GPU = 3  # exit status of the first process


@dataclass(frozen=True)
class Step:
    """A measurement, and the seconds after which it starts no further repetition.

    It is ended when twice these seconds are over.
    """

    measure: Callable[[Model, Sizes, Namespace, Callable[[], bool]], Row]
    model: Model
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.measure.__name__}, {self.model.name}"


STEPS = (
    Step(update, MEDIUM, 90),
    Step(update, LARGE, 90),
    Step(generation, MEDIUM, 70),
    Step(generation, SMALL, 60),
)


def in_child(work: Callable[[], object], seconds: float) -> str | None:
    """Do `work` in a copy of this process. Return how it failed, or None.

    After `seconds` the copy is killed. This process must not have used the GPU.
    """
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
        return f"killed after {seconds:.0f} s"
    return f"exit status {child.exitcode}" if child.exitcode else None


def look(tiny: bool) -> None:
    """Print what the machine is, and exit with NO_GPU if torch sees no GPU."""
    print(json.dumps(machine()), flush=True)
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        print(f"GPU memory: {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free", flush=True)
    elif not tiny:
        sys.exit(NO_GPU)


def do(step: Step, sizes: Sizes, options: Namespace, folder: Path, end: float) -> None:
    """Measure a step, print its table and write its file. `end` is when to start no more."""
    began = time.monotonic()
    row = step.measure(step.model, sizes, options, lambda: time.monotonic() < end)
    publish(row, folder / f"{row.name}.json")
    print(f"{step.name}: {time.monotonic() - began:.0f} s\n", flush=True)


def summary(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return all rows in one table: medians, with the least and the greatest."""
    lines = [
        "| | side | seconds | per second | MFU | peak GiB |",
        "| - | - | - | - | - | - |",
    ]
    for document in documents:
        for name, side in document["sides"].items():
            cells = [document["title"], name, shown(side["seconds"]), shown(side["rate"])]
            cells += [noted(side, "mfu"), noted(side, "peak_gib")]
            lines.append(f"| {' | '.join(cells)} |")
    for document in documents:
        details = document["details"]
        lines += ["", document["title"]]
        if "ceiling_tflops" in details:
            lines.append(f"  MFU relative to {details['ceiling_tflops']:.4g} TFLOP/s, measured")
        lines += [f"  {ratio['label']}: {shown(ratio)}" for ratio in document["ratios"]]
        lines += [f"  {notice}" for notice in details.get("notices", ())]
    return "\n".join(lines)


def noted(side: Mapping[str, Any], name: str) -> str:
    """Return the spread of a note over a side's repetitions, or "" if it has no such note."""
    values = [note[name] for note in side["notes"] if note.get(name) is not None]
    return shown(spread(values)) if values else ""


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__, output="folder for the JSON files")
    cli.add_argument(
        "--seconds", type=float, default=540, help="end everything after so many seconds"
    )
    options = cli.parse_args(argv)
    scratch = tempfile.TemporaryDirectory()
    folder = options.output or (Path(scratch.name) if options.tiny else RESULTS)
    end = time.monotonic() + options.seconds
    began = time.time()
    if fault := in_child(partial(look, options.tiny), 120):
        no_gpu = fault == f"exit status {NO_GPU}"
        raise SystemExit("torch sees no GPU; --tiny runs on any machine" if no_gpu else fault)
    ended_badly, skipped = [], []
    for step in STEPS:
        left = end - time.monotonic()
        if left <= 0:
            skipped.append(step.name)
            continue
        soft = time.monotonic() + min(step.seconds, left)
        work = partial(do, step, TINY if options.tiny else BIG, options, folder, soft)
        if fault := in_child(work, min(2 * step.seconds, left)):
            ended_badly.append(f"{step.name} ({fault})")
    files = sorted(folder.glob("gpu_*.json"), key=os.path.getmtime)
    documents = [json.loads(f.read_text()) for f in files if f.stat().st_mtime >= began - 1]
    print(summary(documents))
    for what, names in (("skipped, out of time", skipped), ("failed", ended_badly)):
        for name in names:
            print(f"\n{what}: {name}")
    if ended_badly:
        raise SystemExit(1)
    return documents


if __name__ == "__main__":
    main()
