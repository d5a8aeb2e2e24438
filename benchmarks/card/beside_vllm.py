"""vLLM as mugrpo's engine: start, tokens/s beside ours, logprobs, sleep, wake and refresh.

    python -m card.beside_vllm [--eager] [--slots 1024] [--tiny]

The model has the size of 1.5 B and random weights. Its second weights have other norms, so that a
refresh shows. "apart" is the mean distance of logprobs from the trainer's own pass.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from card.decode import engine_of
from card.work import (
    DEVICE,
    MEDIUM,
    logprobs_apart,
    model_config,
    random_policy,
    random_requests,
    run_config,
    tell,
)
from device import clocked
from mugrpo.engines import make_engines
from side_by_side import parser

GPU = DEVICE.type == "cuda"
PRECISION = "bf16" if GPU else "fp32"


def two_folders(policy: Any, folder: Path) -> list[str]:
    """Save the policy's weights in a folder, and then others. The policy keeps the others."""
    found = []
    for number in range(2):
        with torch.no_grad():
            for parameter in policy.model.parameters():
                if number and parameter.ndim == 1:
                    parameter.mul_(1.05)
        policy.weights_changed()
        found.append(str(folder / f"weights-{number}"))
        policy.save(Path(found[-1]), dtype=torch.bfloat16 if GPU else None)
    return found


def measured(policy: Any, folder: Path, options: Any, new: int) -> dict[str, Any]:
    """Return what vLLM does with the policy."""
    first, second = two_folders(policy, folder)
    config = run_config(
        PRECISION,
        model={"path": first},
        task={"name": "chain"},
        engine={
            "name": "vllm",
            "slots": options.slots,
            "gpu_memory_utilization": 0.6 if GPU else 0.1,
            "arguments": {"max_model_len": 512, "enforce_eager": options.eager or not GPU},
        },
    )
    (engine,) = make_engines(
        config,
        vocabulary=policy.vocabulary,
        policy=None,
        log=lambda name: folder / name,
        notify=print,
        check=lambda: None,
    )
    requests = random_requests(policy.vocab_size, options.slots, 150)

    def sample(engine: Any = engine) -> dict[int, Any]:
        reports = engine.generate(requests, temperature=1.0, max_new_tokens=new)
        return {index: c for report in reports for index, c in report.completions}

    def rate(call: Callable[[], dict[int, Any]]) -> tuple[dict[int, Any], float]:
        call()
        got, seconds = clocked(call, DEVICE)
        return got, sum(len(c.ids) for c in got.values()) / seconds

    row: dict[str, Any] = {"slots": options.slots, "eager": options.eager}
    try:
        row["start in s"] = engine.refresh(0, lambda: second)
        got, row["vLLM tokens/s"] = rate(sample)
        row["apart"] = logprobs_apart(policy, requests, got)
        _, row["asleep in s"] = clocked(engine.sleep, DEVICE)
        row["GiB free then"] = torch.cuda.mem_get_info()[0] / 2**30 if GPU else 0.0
        ours = engine_of(policy, "made", options.slots)
        got, row["our tokens/s"] = rate(lambda: sample(ours))
        row["apart, ours"] = logprobs_apart(policy, requests, got)
        ours.sleep()  # frees its cache and graphs
        if GPU:
            torch.cuda.empty_cache()
        row["wake and refresh in s"] = engine.refresh(1, lambda: first)
        row["refresh in s"] = engine.refresh(2, lambda: second)
        row["apart after both"] = logprobs_apart(policy, requests, sample())
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
        for log in folder.glob("engine*"):
            print(log.read_text()[-3000:])
    engine.close()
    return row


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    cli = parser(__doc__ or "", output="folder for the JSON file")
    cli.add_argument("--eager", action="store_true", help="without vLLM's compiled graphs")
    cli.add_argument("--slots", type=int, default=1024)
    options = cli.parse_args(argv)
    options.slots = 8 if options.tiny else options.slots
    policy = random_policy(model_config(MEDIUM, tiny=options.tiny), run_config(PRECISION))
    with TemporaryDirectory() as folder:
        row = measured(policy, Path(folder), options, 8 if options.tiny else 128)
    name = "vllm_eager" if options.eager else "vllm"
    return tell(name, f"vLLM beside the engine of mugrpo, {MEDIUM}", [row], options)


if __name__ == "__main__":
    main()
