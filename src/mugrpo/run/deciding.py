"""What a run decides when it begins, and what it says of the machine that it computes on."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from mugrpo.config.engines import OwnEngineOptions
from mugrpo.config.run import DECIDED, EMBEDDED_MODELS, OPEN, RunConfig
from mugrpo.config.training import MICRO_BATCH_TOKENS
from mugrpo.disk.errors import UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.engines import engines_on_a_gpu
from mugrpo.model.hardware import device, gpu_memory, precision_of, unusable_gpu, with_precision
from mugrpo.processes.launcher import launched_ranks
from mugrpo.run.memory import fitting_tokens, parameters
from mugrpo.run.progress import Progress

# vLLM takes a minute to start. It pays for models whose weights and caches fill a GPU, and for more
# tokens than the own engine makes in ten minutes (77,000/s with 1.5 billion weights on an H200).
_BIG, _MANY = 10**9, 46 * 10**6


def for_this_machine(folder: RunDir, config: RunConfig, progress: Progress) -> RunConfig:
    """Return `config` with what a run decides when it begins.

    That is a precision of "auto", a date, the tokens of a micro-batch. Say what was decided, and
    what makes the run slow here. Raises UsageError if torch cannot use this machine's GPU. Without
    CUDA, or for a model that the CPU trains in minutes, it is a warning.
    """
    clustered = config.backend.clustered
    if not clustered and (found := unusable_gpu()):
        small = config.model.path in EMBEDDED_MODELS and not torch.cuda.is_available()
        if torch.version.cuda and not small:
            raise UsageError("; ".join(found))
        progress.say(f"warning: {'; '.join(found)}")
    if (stored := folder.read_config()) is not None:
        config = _kept(config, stored["config"])
    else:
        config = decided(config, progress.say)
    for sentence in _advice(config, begins=stored is None) if _on_gpu(config) else ():
        progress.say(sentence)
    return config


def _on_gpu(config: RunConfig) -> bool:
    return device() == "cuda" and not config.backend.clustered


def decided(config: RunConfig, say: Callable[[str], None]) -> RunConfig:
    """Return the config of a run that begins here. The date is the prompt encoder's."""
    automatic, config = config.model.precision == "auto", with_precision(config)
    if automatic and config.model.precision == "bf16":
        say("precision: bf16; the GPU computes in it")
    if config.optimizer.micro_batch_tokens is not None:
        return config
    tokens = MICRO_BATCH_TOKENS
    if _on_gpu(config):
        launched = launched_ranks()
        ranks = int(launched["WORLD_SIZE"]) if launched else config.distributed.processes
        tokens = fitting_tokens(config, gpu_memory(), ranks, engines_on_a_gpu(config))
        say(f"micro-batches: {tokens:,} tokens, for which the GPU has memory")
    optimizer = config.optimizer.model_copy(update={"micro_batch_tokens": tokens})
    return config.model_copy(update={"optimizer": optimizer})


def _kept(config: RunConfig, stored: dict[str, Any]) -> RunConfig:
    """Return `config` with what the run decided when it began, where it leaves that open."""
    for group, name in DECIDED:
        options = getattr(config, group)
        if getattr(options, name) in OPEN:
            decided = options.model_copy(update={name: stored[group].get(name)})
            config = config.model_copy(update={group: decided})
    return config


def _advice(config: RunConfig, *, begins: bool) -> Iterator[str]:
    """Yield what would make a run on this GPU faster."""
    half = torch.cuda.is_bf16_supported(including_emulation=False)
    if half and precision_of(config.model) == "fp32":
        yield "precision: fp32; a new run without model.precision has bf16, much faster on this GPU"
    schedule, longest = config.schedule, config.rollouts.max_new_tokens
    batches = sum(map(schedule.batches, range(schedule.stages)))
    tokens = batches * schedule.rollouts_per_update * config.sampling.surplus * longest
    if not begins or not isinstance(config.engine, OwnEngineOptions) or tokens < _MANY:
        return
    if (weights := parameters(config.model)[0]) >= _BIG:
        yield (
            f"generation: up to {tokens / 1e6:,.0f} million tokens of {weights / 1e9:.1f} billion "
            "weights; vLLM may be faster: --engine.name vllm (`mugrpo vllm-env` installs it)"
        )
