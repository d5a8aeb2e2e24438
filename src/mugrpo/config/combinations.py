"""Combinations of options that do not work together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mugrpo.config import mixture, stages

if TYPE_CHECKING:
    from mugrpo.config.run import RunConfig


def faults(config: RunConfig) -> Iterator[str]:
    """Yield a message for each combination of options that does not work, with the way out."""
    yield from config.engine.faults(
        temperatures=(config.rollouts.temperature, config.evaluation.temperature),
        lora=config.lora,
        precision=config.model.precision,
        corrected=config.correction.name != "off",
    )
    yield from _with_ranks(config)
    if config.model.compile and config.model.gradient_checkpointing:
        yield "model.compile needs model.gradient_checkpointing = false, which rules it out"
    yield from config.replay.faults(
        config.schedule, config.stage_until.name, config.reference_period
    )
    yield from config.environment.faults(config.prompt.form, mixture.asks_environment(config.task))
    if config.reference_period and not config.checkpoint.stage_end:
        yield (
            "reference.period takes the reference from the checkpoint at a stage's end, so it "
            "needs checkpoint.stage_end"
        )
    names = [use.label for use in config.evaluation.suites]
    if config.checkpoint.best is not None and config.checkpoint.best not in names:
        yield (
            f"checkpoint.best = {config.checkpoint.best!r} is not among evaluation.suites; "
            f"name one of them ({', '.join(names) or 'there is none'})"
        )
    if twice := {name for name in names if names.count(name) > 1}:
        yield f"evaluation.suites has {min(twice)} twice; results are kept by name"
    if config.overlap and config.engine_in_process:
        yield (
            "overlap = true needs an engine outside this process (engine.processes = 1 or "
            "more, or vLLM)"
        )
    if config.overlap and not isinstance(config.sampling, stages.EveryGroup):
        yield "overlap = true needs sampling.name = 'every'"
    if config.overlap and not config.checkpoint.stage_end:
        yield "overlap = true needs checkpoint.stage_end"
    if config.overlap and config.needs and config.distributed.ranks > 1:
        yield (
            "overlap = true needs distributed.processes = 1 with an objective or reference "
            "that needs logprobs of other policies"
        )


def _with_ranks(config: RunConfig) -> Iterator[str]:
    if config.distributed.machines > 1 and config.backend.name == "ray":
        yield "distributed.machines needs backend.name = 'local': Ray chooses its machines"
    if config.proximal_period > 1 and config.distributed.ranks > 1:
        yield "objective.proximal_period > 1 needs distributed.processes = 1"
    if config.lora.quantized and config.distributed.ranks > 1:
        yield (
            "lora.quantization needs distributed.processes = 1, as ranks do not split weights "
            "in 4 bits"
        )
    if config.model.compile and config.distributed.ranks > 1:
        yield "model.compile needs distributed.processes = 1, as ranks do not compile"
