"""Seconds, MFU and peak memory of updates: trees in turn.

    python -m card.update [--big] [--old FOLDER] [--tiny]

Weights are random, and so are rollouts: groups of eight responses of up to 512 tokens. All sides
of a repetition get the same ones. Peak memory includes weights, gradients and AdamW's state. MFU is
the counted work of the forward and backward pass (README.md), without what checkpointing computes
twice, over the seconds and the best bf16 rate of large square matrices, measured just before.
Last, the places at which the host waits for the GPU in one update are counted. --big trains 7 B by
an adapter: all of it would take 137 GB.
"""

import collections
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from card.decode import kernels
from card.turns import NEW, OLD, in_turn, processes, serve, trees_parser
from card.work import (
    DEVICE,
    LARGE,
    MEDIUM,
    SMALL,
    model_config,
    random_experience,
    random_groups,
    random_policy,
    run_config,
    shape_of,
    stand_in,
    update_flop,
)
from ceilings import Ceilings
from device import clocked, forget_peak, peak_gib
from mugrpo.optimize.budget import TokenBudget
from mugrpo.optimize.trainer import Trainer
from side_by_side import Measured, Ratio, Row, publish

# The ways to update: whose tree, and what `Updates.turn` is told. A new way is a line here.
WAYS: dict[str, tuple[str, Mapping[str, bool]]] = {
    "old": (OLD, {}),
    "new": (NEW, {}),
    "new, not compiled": (NEW, {"compiled": False}),
    "new, masks, not compiled": (NEW, {"packed": False, "compiled": False}),
    "new, checkpointing": (NEW, {"checkpointing": True}),
    "new, a prompt for each response": (NEW, {"shared": False}),
}
FEW = tuple(WAYS)[:2]
ROWS = {  # form: ways, groups, tokens of a micro-batch
    MEDIUM: (tuple(WAYS), 8, 8192),
    SMALL: (FEW, 8, 16_384),
    LARGE: (("old", "new", "new, checkpointing"), 4, 4096),
}
METRICS = ("loss", "grad_norm", "skipped", "computed_tokens", "padding_share")


class Updates:
    """A trainer with random weights, and random experiences with other lengths in each update."""

    def __init__(self, form: str, *, tiny: bool, precision: str = "bf16") -> None:
        _, self.groups, micro = ROWS[form]
        self.tiny = tiny
        self.groups, self.lengths = (2, (24, 32)) if tiny else (self.groups, (200, 512))
        self.rank = 16 if form == LARGE else 0
        config = run_config(
            precision,
            model={"gradient_checkpointing": True},  # allowed; `turn` says whether
            lora={"rank": self.rank},
            engine={"name": "vllm"},  # none is made; the trainer may leave the GPU to it: `rest`
            schedule={"problems_per_update": self.groups, "group_size": 8},
            rollouts={"max_new_tokens": self.lengths[1]},
            # the weights do not change, so sides stay comparable
            optimizer={"lr": 1e-12, "micro_batch_tokens": 512 if tiny else micro},
        )
        self.shape = shape_of(form, tiny=tiny)
        self.policy = random_policy(model_config(form, tiny=tiny), config)
        self.notices: list[str] = []  # why the packed kernel is not used, and lowered budgets
        budget = TokenBudget(config.optimizer, self.notices.append)
        self.trainer = Trainer(self.policy, config, budget)
        self.kernel = self.policy.kernel if DEVICE.type == "cuda" else stand_in
        self.micro_batch_tokens = budget.tokens
        self.compiled = getattr(self.policy, "compiled", False)  # an old tree compiles nothing

    def turn(
        self,
        repetition: int,
        *,
        shared: bool = True,
        packed: bool = True,
        compiled: bool = True,
        checkpointing: bool = False,
    ) -> dict[str, Any]:
        """Make one update. `packed` and `compiled` apply only if the trainer's trials passed."""
        groups = random_groups(self.groups, *self.lengths, seed=2 + repetition)
        experience = random_experience(self.shape.vocab, groups)
        self.trainer.budget.tokens = self.micro_batch_tokens  # another way may have lowered it
        self.policy.can_share_prompts = self.trainer.share = shared
        self.policy.kernel = self.kernel if packed else None
        self.policy.compiled = self.compiled and compiled
        self.policy.working().train(checkpointing)  # transformers checkpoints in training only
        forget_peak(DEVICE)
        metrics, seconds = clocked(lambda: self.trainer.step(experience), DEVICE)
        notes = {
            "seconds": seconds,
            "tokens": sum(group.useful for group in groups),
            "flop": update_flop(self.shape, groups, shared=shared, adapter=bool(self.rank)),
            "peak_gib": peak_gib(DEVICE),
            "micro_batch_tokens": self.trainer.budget.tokens,
            "lowered": self.trainer.budget.tokens < self.micro_batch_tokens,
            "kernel": self.policy.kernel is not None,
            "compiled": self.policy.compiled,
            **{name: metrics[name] for name in METRICS},
        }
        self.trainer.optimizer.zero_grad()
        return notes

    def wake(self) -> None:
        self.trainer.wake()
        self.policy.working()  # its copy in bf16 is made here, not while seconds are counted

    def rest(self) -> None:
        """Leave the GPU to the other tree: two of 1.5 B, with their moments, may not fit."""
        self.trainer.sleep()
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()

    def waits(self) -> dict[str, int]:
        """Return how often the host waits for the GPU in an update, by the place in the code."""
        seen = collections.Counter[str]()

        def note(*_: Any, **__: Any) -> None:
            # a checkout may be called mugrpo as well
            frames = [f for f in traceback.extract_stack() if "/src/mugrpo/" in f.filename]
            last = frames[-1] if frames else None
            where = last and f"{last.filename.rpartition('/src/mugrpo/')[2]}:{last.lineno}"
            seen[where or "elsewhere"] += 1

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note
            _warn_of_waits("warn")
            try:
                self.turn(-2)
            finally:
                _warn_of_waits("default")
        return dict(seen.most_common())


def _warn_of_waits(mode: str) -> None:
    if DEVICE.type == "cuda":  # a CPU's work is done when its call returns
        torch.cuda.set_sync_debug_mode(mode)


class Server:
    """Answers for one model after the other."""

    def __init__(self) -> None:
        self.form, self.updates = "", None

    def __call__(self, what: str, form: str, tiny: bool, **how: Any) -> dict[str, Any]:
        if what == "ceiling":
            size = 64 if tiny else 8192
            ceilings = Ceilings(device=DEVICE.type, dtype=torch.bfloat16)
            return {"flops": ceilings.matmul("forward", size, size, size)}
        if self.updates is None:
            self.updates = Updates(form, tiny=tiny)
        updates = self.updates
        updates.wake()
        try:
            if what == "last":
                return {
                    "notices": updates.notices,
                    "waits": updates.waits(),
                    "kernels": kernels(lambda: updates.turn(-2), 16),
                }
            return updates.turn(**how)
        finally:
            updates.rest()


def measure(form: str, options: Any) -> dict[str, Any]:
    """Measure the ways of a model and publish the row."""
    names, *_ = ROWS[form]
    told = {"form": form, "tiny": options.tiny}
    with processes("card.update", options, (OLD, NEW)) as trees:
        ceiling = trees[NEW].ask(what="ceiling", **told)["flops"]

        def side(way: str, repetition: int) -> Measured:
            tree, how = WAYS[way]
            notes = trees[tree].ask(what="turn", repetition=repetition, **told, **how)
            if repetition < 0 and notes["lowered"]:  # other micro-batches are not comparable
                tokens = notes["micro_batch_tokens"]
                raise RuntimeError(f"memory suffices only for micro-batches of {tokens} tokens")
            notes["mfu"] = notes["flop"] / (notes["seconds"] * ceiling)
            return Measured(notes["seconds"], notes["tokens"], notes)

        sides = {way: partial(side, way) for way in names if WAYS[way][0] in trees}
        found = in_turn(sides, options.repetitions)
        details: dict[str, Any] = {"ceiling_tflops": ceiling / 1e12}
        for tree, process in trees.items():
            try:
                last = process.ask(what="last", **told).items()
                details |= {f"{name}, {tree}": value for name, value in last}
            except RuntimeError as error:
                print(f"{tree}: {error}")
    peers = [way for way in found if way != "new"] if "new" in found else []
    labels = {way: f"Update of {form}, new against {way.removeprefix('new, ')}" for way in peers}
    ratios = [Ratio("new", way, label, kind="own") for way, label in labels.items()]
    name = f"gpu_update_{form.replace('-', '_').replace('.', '_')}"
    row = Row(name, f"Updates on a GPU, {form}", "tokens/s", found, ratios, details, options.tiny)
    document = publish(row, options.output and options.output / f"{name}.json")
    for way, measured in found.items():
        notes = measured[-1].notes
        names = ("peak_gib", "micro_batch_tokens", "lowered", "kernel", "compiled", "grad_norm")
        shown = {name: notes[name] for name in names}
        print(f"  {way}: {notes['mfu']:.1%} MFU of {ceiling / 1e12:.4g} TFLOP/s, {shown}")
    for key, value in details.items():
        if isinstance(value, list):
            print(f"{key}:", *value, sep="\n    ")
        elif isinstance(value, dict):
            print(f"{key}: {sum(value.values())}, {value}")
    return document


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    cli = trees_parser(__doc__ or "")
    cli.add_argument("--big", action="store_true", help="7 B with an adapter instead")
    options = cli.parse_args(argv)
    return [measure(form, options) for form in ([LARGE] if options.big else [MEDIUM, SMALL])]


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(Server())
    else:
        main()
