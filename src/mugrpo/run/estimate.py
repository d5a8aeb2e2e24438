"""About how long a run takes at most, from a product of matrices that is timed here."""

import math
import time

import torch

from mugrpo.config.engines import slots_for
from mugrpo.config.run import RunConfig
from mugrpo.model.hardware import device, precision_of
from mugrpo.model.sizes import MOST_SLOTS
from mugrpo.run.memory import parameters

# Shares of a product's rate that decoding and updates reach, least seconds of a layer in a step:
# of two cores and, in CUDA graphs, an H200 (benchmarks/results). Eager steps take six times that.
_DECODING, _UPDATE, _LAYER = 0.3, 0.5, 2e-4
_H200 = 0.41 * 780e12 / _UPDATE  # the rate in bf16 whose share that an update reached there
_FP32 = 1 / 15  # of it, by the data sheet


def longest_seconds(config: RunConfig, prompt: float, held_out: int, *, h200s: int = 0) -> float:
    """Return about the seconds of the run if every response has `rollouts.max_new_tokens`.

    `prompt` is the mean tokens of a prompt, `held_out` the number of problems of an evaluation. The
    engine is taken to be one of this process, or `h200s` engines on H200s with ranks there.
    Refreshes and judges are left out.
    """
    schedule, evaluation = config.schedule, config.evaluation
    weights, widths = parameters(config.model)
    precision = precision_of(config.model)
    rate = _H200 * (_FP32 if precision == "fp32" else 1) if h200s else _rate(precision)
    tokens = config.rollouts.max_new_tokens
    # On a GPU as many as fit, which is not known here: taken to be the most.
    fits = MOST_SLOTS if h200s or device() == "cuda" else slots_for(tokens)
    slots = getattr(config.engine, "slots", 0) or fits

    def generating(responses: int, prompts: float) -> float:
        responses, prompts = math.ceil(responses / (h200s or 1)), prompts / (h200s or 1)
        rows = min(slots, responses)
        step = max(widths.layers * _LAYER, 2 * weights * rows / (_DECODING * rate))
        return math.ceil(responses / slots) * tokens * step + 2 * weights * prompts * prompt / rate

    total, passes = schedule.total_updates, schedule.passes_per_batch
    seconds = 0.0
    for stage in range(schedule.stages):
        problems = schedule.updates(stage) // passes * schedule.problems_per_update
        problems = math.ceil(config.sampling.surplus * problems)
        seconds += generating(problems * schedule.group_size, problems)
    if evaluation.every and held_out:
        ends = (evaluation.end_samples or evaluation.samples) + evaluation.greedy
        between = max(0, math.ceil(total / evaluation.every) - 1)
        seconds += 2 * generating(held_out * ends, held_out)
        seconds += between * generating(held_out * evaluation.samples, held_out)
    of_update = schedule.problems_per_update * (prompt + schedule.group_size * tokens)
    flop = (8 if config.model.gradient_checkpointing else 6) * weights * of_update
    return seconds + total * flop / (_UPDATE * rate * config.distributed.processes)


def _rate(precision: str) -> float:
    """Return the operations per second of a large product in `precision`, here."""
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    matrix = torch.ones(1024, 1024, dtype=dtype, device=device())
    best = math.inf
    for _ in range(4):  # the first one is slower
        began = time.perf_counter()
        float((matrix @ matrix)[0, 0])  # waits for a GPU
        best = min(best, time.perf_counter() - began)
    return 2 * 1024**3 / best
