"""Published times beside plans: `python benchmarks/planning_published.py`. Needs no GPU.

Each set-up is planned from what its source says, with the numbers of machines that are assumed in
`src/mugrpo/tools/plan/machines`. Nothing is fitted to the published times. What the source leaves
open is assumed, and the table says so. Writes the table of docs/planning.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugrpo.config.load import build_config, load_config
from mugrpo.config.run import RunConfig
from mugrpo.extensions.evals.tables import markdown
from mugrpo.extensions.lab.plan.counts import Shape
from mugrpo.extensions.lab.plan.lengths import Lengths, assumed
from mugrpo.extensions.lab.plan.machine import load_machine
from mugrpo.extensions.lab.plan.schedules import Planner
from mugrpo.extensions.lab.plan.setting import Measured, Setting, with_updates
from planning import put
from side_by_side import ROOT

RECIPES = ROOT / "configs" / "recipes"
LLAMA_8B = Shape(4096, 32, 32, 8, 128, 14336, 128256, False)
QWEN3_32B = Shape(5120, 64, 64, 8, 128, 25600, 151936, False)
NEMO = "NeMo RL v0.4, docs/about/performance-summary.md at commit 06beed9"
SIGMA = 0.8
# Model, form, longest response (assumed), then hours on 4 H200 of Mu-GRPO's rollouts, Mu-GRPO in
# total, GRPO's rollouts, GRPO in total: Table 1 of the project page of arXiv 2605.17570.
TABLE_1 = (
    ("Llama-3.2-3B-Instruct", "llama-3.2-3b", 2560, (12.7, 18.6, 15.1, 22.7)),
    ("Qwen2.5-Math-7B", "qwen2.5-math-7b", 2560, (4.7, 18.1, 8.8, 23.7)),
    ("Qwen3-1.7B-Base", "qwen3-1.7b", 2560, (5.2, 12.4, 11.2, 20.5)),
    ("Qwen3-8B-Base", "qwen3-8b", 2560, (7.9, 25.9, 21.3, 58.2)),
    ("DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b", 8192, (21.4, 51.3, 26.0, 61.9)),
)
_SENT = 1.0  # seconds in which 7 billion weights reach an engine; 32 billion take 2.3 elsewhere


@dataclass(frozen=True)
class Published:
    """A set-up, what its source reports, and what was planned."""

    name: str
    source: str
    reported: str
    planned: str
    assumed: str


def with_mean(mean: float, limit: int, prompt: int) -> Lengths:
    """Return lognormal lengths with a mean after the cut, by bisection of the median."""
    low, high = 1.0, float(limit)
    for _ in range(30):
        middle = (low + high) / 2
        made = assumed(limit, prompt=prompt, median=middle, sigma=SIGMA)
        low, high = (middle, high) if made.seen[0].responses.mean() < mean else (low, middle)
    return made


def nemo(parallel: int, micro_batch: int) -> RunConfig:
    """Return NeMo's step: 2,048 rollouts, four updates of 512, logprobs of policy and reference."""
    raw: dict[str, Any] = {
        "preset": "grpo",
        "model": {"path": "published", "precision": "bf16"},
        "schedule": {
            "stages": 1,
            "batches_per_stage": 4,
            "growth": 1.0,
            "problems_per_update": 16,
            "group_size": 32,
        },
        "rollouts": {"max_new_tokens": 4096, "shard_rollouts": 2048},
        "engine": {"name": "vllm", "tensor_parallel": parallel, "rest": "sleep"},
        "optimizer": {"micro_batch_tokens": micro_batch},
        "reference": {"name": "kl", "coefficient": 0.01},
        "correction": {"name": "truncated"},
        "evaluation": {"every": 0},
        "distributed": {"processes": 8},
    }
    return build_config(raw, "published")


def steps() -> list[Published]:
    """Return NeMo's steps of dense models on H100s."""
    prompt, found = 150, []
    rows = (
        ("Llama 3.1 8B", LLAMA_8B, 16, 1, 1060, 97.7, "colocated"),
        ("Llama 3.1 8B, one step off", LLAMA_8B, 16, 1, 1129, 74.6, "overlapped"),
        ("Qwen3 32B", QWEN3_32B, 32, 4, 3206, 393.0, "colocated"),
        ("Qwen3 32B, one step off", QWEN3_32B, 64, 4, 3207, 215.0, "overlapped"),
    )
    for name, shape, devices, parallel, mean, seconds, pool in rows:
        lengths = with_mean(mean - prompt, 4096 - prompt, prompt)
        machine = load_machine(f"{devices}xH100")
        # Its step time is training, generation, logprobs and refit, which writes no file.
        own = Measured(refresh=machine.overheads.refresh, start=0.0, score=0.0, checkpoint=0.0)
        setting = Setting(nemo(parallel, 8192), shape, machine, lengths, measured=own)
        planner = Planner(setting)
        if pool == "colocated":
            taken = planner.planned([4], pool, devices, devices).seconds
        else:  # generation of the next step beside the updates of this one
            split = [
                max(made.parts["generate"], made.parts["optimize"] + made.parts["logprobs"])
                + made.parts["refresh"]
                for part in (2, 3, 4, 5, 6)
                for made in [
                    planner.planned([4], "separate", devices * part // 8, devices * (8 - part) // 8)
                ]
            ]
            taken = min(split)
        note = "prompts of 150 tokens, sigma 0.8, two passes for logprobs, refit of 10 s"
        found.append(
            Published(
                f"a step of 2,048 rollouts, {name}, {devices} H100",
                NEMO,
                f"{seconds:g} s",
                f"{taken:.0f} s ({taken / seconds - 1:+.0%})",
                note,
            )
        )
    return found


def table_1() -> list[list[str]]:
    """Return rows of Mu-GRPO's Table 1: hours of rollouts and in total, reported and planned.

    The authors' page gives no batch and no lengths. The batch is the recipe's, which is inferred.
    The median length is fitted, so that the rollouts of Mu-GRPO take as long as reported. The other
    three numbers are planned with it.
    """
    config, rows = load_config(RECIPES / "mu_grpo.toml"), []
    for name, form, longest, reported in TABLE_1:
        shape, asked = Shape.read(RECIPES / "forms" / form), 3600 * reported[0]
        longer = config.rollouts.model_copy(update={"max_new_tokens": longest})
        own = config.model_copy(update={"rollouts": longer})

        def planner(median: float, own: RunConfig = own, shape: Shape = shape) -> Planner:
            limit = own.rollouts.max_new_tokens
            lengths = assumed(limit, prompt=150, median=median, sigma=SIGMA)
            return Planner(Setting(own, shape, load_machine("4xH200"), lengths))

        median = longest / 4
        for _ in range(4):  # generation takes about as long as responses are
            few = planner(median).plans(with_updates(own, 1024))[0]
            median = min(median * asked / few.parts["generate"], longest)
        often = planner(median).plans(with_updates(own, 4))[0]
        told = [few.parts["generate"], few.seconds, often.parts["generate"], often.seconds]
        hours = [seconds / 3600 for seconds in told]
        cells = [
            f"{hour:.1f} for {there:g} ({hour / there - 1:+.0%})"
            for hour, there in zip(hours, reported, strict=True)
        ]
        ratios = f"{hours[3] / hours[1]:.2f} for {reported[3] / reported[1]:.2f}"
        rows.append([name, f"{median:.0f} of {longest}", *cells, ratios])
    return rows


def ratio() -> Published:
    """Return the ratio of wall-clock of off-policy GRPO."""
    words = ["--schedule.stages", "24", "--evaluation.every", "0"]
    config = load_config(RECIPES / "off_policy_deepscaler.toml", words)
    lengths = assumed(4096, prompt=150, median=1500, sigma=SIGMA)
    shape = Shape.read(RECIPES / "forms" / "qwen2.5-7b")
    # docs/papers.md: one GPU generates, seven make the updates. Such engines never sleep.
    sent = Measured(refresh=_SENT, start=0.0)
    setting = Setting(config, shape, load_machine("8xH100"), lengths, measured=sent)
    lagged, fresh = (
        Planner(setting).planned(with_updates(config, n), "separate", 1, 7).seconds for n in (10, 1)
    )
    return Published(
        "v = 1 : v = 10, 1 + 7 GPUs, a model of 7 billion",
        "off-policy GRPO, arXiv 2505.22257",
        "1.35",
        f"{fresh / lagged:.2f}",
        f"H100s, batch, lengths, refresh of {_SENT:g} s",
    )


def main(argv: Sequence[str] | None = None) -> str:
    argparse.ArgumentParser(description=__doc__).parse_args(argv)
    np.seterr(all="raise")
    head = ["set-up", "source", "reported", "planned", "assumed"]
    body = [[p.name, p.source, p.reported, p.planned, p.assumed] for p in [*steps(), ratio()]]
    text = markdown(head, body)
    put(ROOT / "docs" / "planning.md", "published", text, "planning_published.py")
    hours = ["Mu-GRPO, rollouts", "Mu-GRPO", "GRPO, rollouts", "GRPO", "GRPO : Mu-GRPO"]
    table = markdown(["model", "median tokens, fitted", *hours], table_1())
    put(ROOT / "docs" / "planning.md", "table 1", table, "planning_published.py")
    print(text, table, sep="\n\n")
    return text


if __name__ == "__main__":
    main()
