"""Whether a run fits a machine: what updates and engines hold, and checkpoints on the disk."""

import shutil
from collections.abc import Iterator
from functools import cache

from torch import nn

from mugrpo.config.cores import host_memory
from mugrpo.config.engines import OwnEngineOptions, VLLMOptions
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.config.training import MICRO_BATCH_TOKENS
from mugrpo.disk.errors import UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.engines import engines_on_a_gpu, reserved_gpus
from mugrpo.model.hardware import device, gpu_memory, precision_of
from mugrpo.model.loading import sketched
from mugrpo.model.quantized import BYTES
from mugrpo.model.sizes import LOGITS, Widths, activation_bytes, cache_bytes, head_bytes, widths_of

GIB = 1 << 30
# Of a GPU's memory. CUDA's own, the products' workspaces and gaps between blocks have the rest.
_SHARE = 0.85


@cache
def parameters(options: ModelOptions) -> tuple[int, Widths]:
    """Return the number of a model's parameters, and its widths. No weight is read."""
    model = sketched(options)
    return sum(p.numel() for p in model.parameters()), widths_of(model.config)


def itemsize(config: RunConfig) -> int:
    """Return the bytes of a number of the model's arithmetic."""
    return 4 if precision_of(config.model) == "fp32" else 2


def held(config: RunConfig, weights: int) -> tuple[int, int]:
    """Return the bytes of a model of so many weights, and those with what its updates keep."""
    if config.lora.rank:  # the adapter is a few percent, and the rest is in bf16 only
        model = itemsize(config) * weights
        if config.lora.quantize:  # all linear layers but the head, which comes last
            *layers, _ = (m for m in sketched(config.model).modules() if isinstance(m, nn.Linear))
            model -= round((itemsize(config) - BYTES) * sum(m.weight.numel() for m in layers))
        return model, model
    model = (4 if precision_of(config.model) == "fp32" else 6) * weights  # fp32, and a copy in bf16
    return model, model + 12 * weights  # gradient and two moments


def engine_weights(config: RunConfig) -> float:
    """Return the bytes of an engine's weights on each of its GPUs."""
    weights, options = parameters(config.model)[0], config.engine
    if isinstance(options, VLLMOptions):
        return itemsize(config) * weights / options.tensor_parallel
    if config.engine_in_process or config.lora.rank:  # the trainer's model, or one like it
        return held(config, weights)[0]
    return itemsize(config) * weights


def left_for_updates(config: RunConfig, memory: float, share: int = 1) -> float:
    """Return what engines that stay on an update's GPU leave it of its memory.

    `share` own engines are on each GPU.
    """
    options = config.engine
    if not config.shares_gpus or not reserved_gpus(config):
        return memory
    if isinstance(options, VLLMOptions):
        return memory * (1 - options.gpu_memory_utilization * (options.rest == "stay"))
    return memory - share * engine_weights(config)  # they never sleep


def fitting_tokens(config: RunConfig, memory: float, ranks: int, share: int = 1) -> int:
    """Return the tokens of a micro-batch for which each rank's GPU, with so much memory, has room.

    They are a multiple of 1,024 up to 16,384: with more, a GPU has no more to do at once. They are
    1,024 if even those have no room.
    """
    fixed = activations(config, 0)
    room = _SHARE * left_for_updates(config, memory, share) - lasting(config, ranks) - fixed
    return max(1, min(16, int(room // max(1, activations(config, 1) - fixed) // 1024))) * 1024


def lasting(config: RunConfig, ranks: int) -> float:
    """Return the bytes that updates hold on a rank's GPU beside a micro-batch's.

    Logprobs of other policies take a second model, which is not trained.
    """
    weights = parameters(config.model)[0]
    model, updates = held(config, weights)
    second = min(model, itemsize(config) * weights) if config.needs and ranks == 1 else 0
    return updates / ranks + second


def activations(config: RunConfig, tokens: int) -> int:
    """Return the bytes that a micro-batch of so many tokens takes."""
    checkpointing, widths = config.model.gradient_checkpointing, parameters(config.model)[1]
    each = activation_bytes(widths, itemsize(config), checkpointing=checkpointing)
    return head_bytes(widths, trained=not config.lora.rank) + tokens * each


def disk(config: RunConfig, folder: RunDir) -> str:
    """Return what the checkpoints take that a run will keep: a warning if the disk lacks room."""
    due = sum(map(config.checkpoint_due, range(1, config.schedule.total_updates + 1)))
    keep = config.checkpoint.keep
    kept = min(due, keep + 1) if keep else due  # one is written before the oldest is removed
    need = kept - len(folder.checkpoint_updates())
    need *= 0 if config.lora.rank else 12 * parameters(config.model)[0]  # fp32, and two moments
    free = shutil.disk_usage(folder.root).free
    found = f"{kept} checkpoints take {need / GIB:.1f} GiB more, and {free / GIB:.1f} are free in "
    if need <= free:
        return f"disk        {found}{folder.root}"
    fewer = "" if keep in (1, 2) else "keep fewer (--checkpoint.keep 2), "
    return (
        f"warning: {found}{folder.root}: {fewer}save less often (--checkpoint.every) or train an "
        "adapter (--lora.rank 16)"
    )


def require_room(config: RunConfig, folder: RunDir, prompt: int = 0) -> Iterator[str]:
    """Yield a warning of what may lack room: the checkpoints on the disk, a response in an update.

    Prompts have up to `prompt` tokens. Raises UsageError if what every update needs cannot fit this
    machine's memory: on a CPU the system would kill the process without a word. A GPU needs room
    for the smallest micro-batch too, and for an own engine's slots. That a larger micro-batch has
    room is not required: an update that runs out of memory is computed again in smaller parts.
    """
    if config.backend.clustered:  # its machines are others
        pass
    elif device() == "cpu":
        yield from require_memory(config, host_memory(), prompt)
    else:
        yield from require_gpu(config, gpu_memory(), prompt, engines_on_a_gpu(config))
    found = disk(config, folder)
    if found.startswith("warning"):
        yield found


def require_memory(config: RunConfig, memory: float, prompt: int = 0) -> Iterator[str]:
    """Yield a warning if an update may have no room in so much memory of a machine without a GPU.

    Raises UsageError if what is kept has none. A checkpoint is written from a copy.
    """
    lasts, option = lasting(config, 1), config.optimizer.micro_batch_tokens
    copy = 12 * parameters(config.model)[0] * (not config.lora.rank)
    _require(lasts + copy, memory, "weights, gradients, moments and a copy to save", "memory")
    row = prompt + config.rollouts.max_new_tokens
    option = min(option or MICRO_BATCH_TOKENS, row * config.schedule.rollouts_per_update)
    if (need := lasts + activations(config, tokens := max(option, row))) > memory:
        yield (
            f"warning: an update in micro-batches of {tokens:,} tokens takes about "
            f"{need / GIB:.0f} GiB of memory, where {memory / GIB:.0f} are: the system may kill "
            "the run; lower --optimizer.micro_batch_tokens, or use --model.gradient_checkpointing"
        )


def require_gpu(config: RunConfig, memory: float, prompt: int = 0, share: int = 1) -> Iterator[str]:
    """Yield a warning if a whole response may have no room on a GPU with so much memory.

    Raises UsageError as `require_room` does. `share` own engines are on each GPU.
    """
    if apart := bool(reserved_gpus(config)):
        require_engine(config, memory, prompt, share)
    left = left_for_updates(config, memory, share)
    lasts = lasting(config, ranks := config.distributed.processes)
    second = ", a second model" * bool(config.needs and ranks == 1)
    what = f"weights, gradients, moments{second} and a micro-batch of 1,024 tokens"
    first = "turn on --model.gradient_checkpointing, " * (not config.model.gradient_checkpointing)
    _require(lasts + activations(config, 1024), left, what, "memory of each GPU", first)
    if not apart:  # an engine in this process takes less than updates, unless ranks split those
        require_engine(config, memory, prompt, share)
    row = prompt + config.rollouts.max_new_tokens
    if (need := lasts + activations(config, row)) > left:
        yield (
            f"warning: an update on a response of {row:,} tokens takes about {need / GIB:.0f} GiB "
            f"of a GPU where {left / GIB:.0f} are free: turn on --model.gradient_checkpointing "
            "or lower --rollouts.max_new_tokens"
        )


def require_engine(config: RunConfig, memory: float, prompt: int = 0, share: int = 1) -> None:
    """Raise UsageError if an engine's weights, or an own engine's slots, have no room on a GPU."""
    options, row = config.engine, prompt + config.rollouts.max_new_tokens
    room, weights = memory / share, engine_weights(config)
    if isinstance(options, VLLMOptions):
        room = options.gpu_memory_utilization * memory
    if not options.runs_already and weights > room:
        raise UsageError(
            f"an engine's weights take {weights / GIB:.1f} GiB of each of its GPUs, where it has "
            f"{room / GIB:.1f}: use a smaller model, or vLLM with a larger --engine.tensor_parallel"
        )
    if not isinstance(options, OwnEngineOptions):
        return
    if config.engine_in_process and not config.shares_gpus:  # beside moments, without gradients
        number = parameters(config.model)[0]
        weights = held(config, number)[1] - 4 * number * (not config.lora.rank)
    widths = parameters(config.model)[1]
    each = row * cache_bytes(widths, itemsize(config)) + LOGITS * widths.vocabulary
    slots = options.slots or 1
    if (need := weights + slots * each) > room:
        most = int((room - weights) // each)
        use = (
            f"use --engine.slots {most}, or lower" if most > 0 else "use a smaller model, or lower"
        )
        raise UsageError(
            f"the engine takes {need / GIB:.1f} GiB of a GPU that has {room / GIB:.1f} for it: "
            f"weights, and caches of {slots:,} slot{'s' * (slots > 1)} with {row:,} tokens each; "
            f"{use} --rollouts.max_new_tokens"
        )


def _require(need: float, room: float, what: str, where: str, first: str = "") -> None:
    if need > room:
        raise UsageError(
            f"{what} take {need / GIB:.1f} GiB of {where}, which has {room / GIB:.1f}: {first}use "
            "a smaller model, more --distributed.processes with a GPU each, or train an adapter "
            "(--lora.rank 16)"
        )
