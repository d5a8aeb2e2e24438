"""The time that an objective adds to an update of 64k response tokens: `make objective-cost`.

The claim: an objective that declares no extra forward pass adds at most 2 % to the time of the
plain update, which is `reinforce` with every mask, correction and penalty off. The claim is tested
in the hardest case, on the embedded model (0.53 M parameters): the less the model computes per
token, the larger the objective's share. There are two measurements, each with the same rollouts for
all variants:

own part   Every variant's part (token loss, reduction, backward pass down to the logprobs,
           statistics) is run and timed on each micro-batch of plain updates of 64k tokens, in
           random order. "added" is that time minus the plain part's, as a share of the plain
           update. The claim is judged by this number: noise of several percent is a few percent of
           a part that is itself under 2 % of an update.
pairs      Whole updates are timed, each variant's next to a plain one, with the order alternating.
           They include what the own part leaves out (advantages, collating stored logprobs, the
           optimizer), but the spread of a ratio is larger than the effect. They have fewer tokens
           to save time, because nearly all of an update is linear in its tokens.

Costs that the claim excludes are marked: a pre-pass (a forward pass without gradient over the
update), and stored logprobs, which take one forward pass over each rollout per stage or per period
of the proximal policy. Exits with status 1 if the claim fails.

"bytes" is a sanity check: the bytes per response token that the own part's tensor operations read
and write. At 5 GB/s a kilobyte takes 0.2 us, while the model's 6 x 0.53 M operations per token take
about 80 us. An objective that takes much longer than "bytes" explains spends the time on dispatch
rather than on arithmetic.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mugrpo.config.run import ModelOptions
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.batching import MicroBatch, collate
from mugrpo.optimize.diagnostics import TokenStatistics
from mugrpo.optimize.experience import Experience, Responses
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.optimize.gradient import prepass
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.reduction import reduced_loss
from mugrpo.optimize.trainer import Trainer
from objective_variants import GROUP, PLAIN, VARIANTS, config_of, needed, stored_of, synthetic

LIMIT = 0.02
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "objective_cost.json"


@dataclass
class OwnPart:
    """A variant's part of an update, and the seconds that it has taken."""

    loss: UpdateLoss
    keeps: tuple[str, ...]
    statistics: TokenStatistics = field(init=False)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.statistics = TokenStatistics(self.loss.metrics)

    def add(self, batch: MicroBatch, logprobs_BT: torch.Tensor) -> None:
        batch = replace(batch, stored={name: batch.stored[name] for name in self.keeps})
        extra = self._extra(batch, logprobs_BT)
        leaf_BT = logprobs_BT.detach().requires_grad_()
        entropy_BT = torch.zeros_like(logprobs_BT)
        began = time.perf_counter()
        loss_BT, metrics = self.loss(batch, leaf_BT, extra)
        reduced_loss(loss_BT, batch.mask, "token_mean", 65536).backward()
        self.statistics.add(batch, leaf_BT, entropy_BT, metrics)
        self.seconds += time.perf_counter() - began

    def end(self, tokens: int) -> None:
        began = time.perf_counter()
        self.statistics.values(tokens)
        self.seconds += time.perf_counter() - began

    @torch.no_grad()
    def _extra(self, batch: MicroBatch, logprobs_BT: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a pre-pass over this micro-batch alone. Only the shapes of the result matter."""
        if self.loss.objective.prepass is None:
            return {}
        names = ("behavior_logprobs", "advantages", "mask")
        return self.loss.prepass(logprobs_BT, {name: getattr(batch, name) for name in names})


class Traffic(TorchDispatchMode):
    """A counter of the bytes that tensor operations read and write. Views move none."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
            self.bytes += sum(t.untyped_storage().nbytes() for t in tensors)
        return out


Seconds = dict[str, list[float]]


def measured_update(
    plain: Trainer, whole: Experience, parts: dict[str, OwnPart], order: list[str]
) -> tuple[float, list[MicroBatch]]:
    """Make one plain update and measure every part on its micro-batches.

    Return the update's seconds without the measurement, and the micro-batches.
    """
    nothing = torch.zeros(len(whole.rollouts))
    everything = Responses(whole.rollouts, nothing, nothing.bool(), nothing.long(), whole.stored)
    batches: list[MicroBatch] = []
    measuring = 0.0

    def watch(batch: MicroBatch, logprobs_BT: torch.Tensor, _: Any) -> None:
        nonlocal measuring
        began = time.perf_counter()
        policy = plain.policy
        full = collate(
            everything, batch.places, pad_id=policy.pad_id, device=policy.device, share=False
        )
        batches.append(replace(batch, stored=full.stored))
        random.shuffle(order)
        for name in order:
            parts[name].add(batches[-1], logprobs_BT)
        measuring += time.perf_counter() - began

    metrics = plain.step(needed(whole, plain.config), watch)
    return metrics["time/update"] - measuring, batches


def own_parts(policy: Policy, whole: Experience, repetitions: int) -> tuple[Seconds, Seconds]:
    """Return the seconds of each variant's own part in each plain update, and related seconds.

    The related ones are "update", the plain update without the measurement, "rescoring", a forward
    pass over all rollouts, and under a variant's name its pre-pass, if it declares one.
    """
    configs = {name: config_of(name) for name in VARIANTS}
    plain = Trainer(policy, configs[PLAIN])
    tokens = sum(len(r.response_ids) for r in whole.rollouts)
    own: Seconds = {name: [] for name in VARIANTS}
    beside: Seconds = {"update": [], "rescoring": []}
    for repetition in range(repetitions + 1):
        parts = {n: OwnPart(UpdateLoss.of(c), stored_of(c)) for n, c in configs.items()}
        seconds, batches = measured_update(plain, whole, parts, list(VARIANTS))
        if repetition == 0:  # the warm-up
            continue
        beside["update"].append(seconds)
        rescore = partial(rollout_logprobs, policy, whole.rollouts, configs[PLAIN])
        beside["rescoring"].append(timed(rescore))
        for name, part in parts.items():
            part.end(tokens)
            own[name].append(part.seconds)
            if part.loss.objective.prepass is not None:
                again = partial(prepass, policy, batches, part.loss, configs[name])
                beside.setdefault(name, []).append(timed(again))
    return own, beside


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def paired_ratios(policy: Policy, part: Experience, repetitions: int) -> Seconds:
    """Return variant -> seconds of each of its updates over those of the plain one next to it."""
    trainers = {name: Trainer(policy, config_of(name)) for name in VARIANTS}
    few = Experience(
        part.rollouts[:GROUP],
        part.scores[:GROUP],
        {name: rows[:GROUP] for name, rows in part.stored.items()},
    )
    for trainer in trainers.values():  # the first step allocates the optimizer's state
        trainer.step(needed(few, trainer.config))
    ratios: Seconds = {name: [] for name in VARIANTS}
    twin = Trainer(policy, config_of(PLAIN))
    twin.step(needed(few, twin.config))
    for repetition in range(repetitions):
        for name, trainer in trainers.items():
            two = [twin, trainer] if repetition % 2 else [trainer, twin]
            took = {id(t): t.step(needed(part, t.config))["time/update"] for t in two}
            ratios[name].append(took[id(trainer)] / took[id(twin)])
    return ratios


def bytes_a_token(policy: Policy, few: Experience) -> dict[str, float]:
    """Return variant -> bytes per token that its own part and its pre-pass read and write."""
    batches: list[tuple[MicroBatch, torch.Tensor]] = []
    plain = Trainer(policy, config_of(PLAIN))
    plain.step(few, lambda batch, logprobs_BT, _: batches.append((batch, logprobs_BT.detach())))
    moved = {}
    for name in VARIANTS:
        config = config_of(name)
        part = OwnPart(UpdateLoss.of(config), stored_of(config))
        with Traffic() as traffic:
            for batch, logprobs_BT in batches:
                part.add(batch, logprobs_BT)
        moved[name] = traffic.bytes / sum(int(batch.mask.sum()) for batch, _ in batches)
    return moved


def summary(values: list[float]) -> dict[str, float]:
    ends = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: float(f"{value:.4g}") for name, value in ends.items()}


def rows_of(own: Seconds, beside: Seconds, ratios: Seconds, moved: dict[str, float]) -> list[Any]:
    rows = []
    for name in VARIANTS:
        updates, config = beside["update"], config_of(name)
        keeps = stored_of(config)
        extra = beside.get(name) or (beside["rescoring"] if keeps else None)
        plain = zip(own[name], own[PLAIN], updates, strict=True)
        rows.append(
            {
                "variant": name,
                "own_ms": round(1e3 * statistics.median(own[name]), 2),
                "own_share": summary([o / u for o, u in zip(own[name], updates, strict=True)]),
                "added": summary([(o - p) / u for o, p, u in plain]),
                "paired_ratio": summary(ratios[name]),
                "bytes_a_token": round(moved[name]),
                "declares": "pre-pass" if name in beside else ", ".join(keeps) or None,
                "extra_forward": extra
                and summary([e / u for e, u in zip(extra, updates, strict=True)]),
            }
        )
    return rows


def printed(rows: list[Any], update_seconds: float) -> None:
    def percent(share: dict[str, float]) -> str:
        return "{median:.2%} ({least:.2%} .. {most:.2%})".format(**share)

    print(f"plain update: {update_seconds:.2f} s")
    print("| variant | own, ms | added | whole update, ratio | bytes | extra forward |")
    print("| --- " * 6 + "|")
    for row in rows:
        extra = row["extra_forward"]
        forward = f"{row['declares']}: {extra['median']:.0%}" if extra else ""
        ratio = "{median:.3f} ({least:.3f} .. {most:.3f})".format(**row["paired_ratio"])
        print(
            f"| {row['variant']} | {row['own_ms']:.0f} | {percent(row['added'])} | {ratio} "
            f"| {row['bytes_a_token']:.0f} | {forward} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--pair-tokens", type=int, default=8192)
    parser.add_argument("--repetitions", type=int, default=7, help="measurements of the own parts")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of updates for each variant")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    policy = load_policy(ModelOptions(device="cpu"))
    part = synthetic(policy, options.pair_tokens)
    own, beside = own_parts(policy, synthetic(policy, options.tokens), options.repetitions)
    moved = bytes_a_token(policy, part)
    rows = rows_of(own, beside, paired_ratios(policy, part, options.pairs), moved)
    update_seconds = round(statistics.median(beside["update"]), 3)
    printed(rows, update_seconds)
    settings = {k: v for k, v in vars(options).items() if k != "json"}
    settings |= {"threads": torch.get_num_threads(), "update_seconds": update_seconds}
    options.json.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")
    over = [r["variant"] for r in rows if not r["declares"] and r["added"]["median"] > LIMIT]
    if over:
        raise SystemExit(f"these add more than {LIMIT:.0%} to a plain update: {', '.join(over)}")


if __name__ == "__main__":
    main()
