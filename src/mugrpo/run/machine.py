"""Whether a run fits a machine that is only described, such as a cluster's from its login node."""

from collections.abc import Iterator
from typing import NamedTuple

from mugrpo.config.engines import VLLMOptions
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.engines import reserved_gpus
from mugrpo.run.memory import GIB, held, parameters


class Machine(NamedTuple):
    """Nodes of equal GPUs, each with `memory` GiB."""

    gpus: int
    memory: float
    nodes: int

    def __str__(self) -> str:
        nodes, gpus = "nodes" if self.nodes > 1 else "node", "GPUs" if self.gpus > 1 else "GPU"
        return f"{self.nodes} {nodes} of {self.gpus} {gpus} with {self.memory:g} GiB"


def _of_engine(config: RunConfig, weights: int, memory: float) -> tuple[float, float, float]:
    """Return the GiB that an engine's weights take on a GPU and may take, and what it keeps.

    It keeps that on a rank's GPU while the rank computes.
    """
    engine = config.engine
    if engine.runs_already:
        return 0.0, 0.0, 0.0
    if isinstance(engine, VLLMOptions):
        model = (
            (4 if config.model.precision == "fp32" else 2) * weights / engine.tensor_parallel / GIB
        )
        kept = room = engine.gpu_memory_utilization * memory
        stays = engine.rest == "stay"
    else:
        model, room = held(config, weights, config.model.precision)[0] / GIB, memory
        kept, stays = model, not config.engine_in_process
    return model, room, kept if stays and config.shares_gpus else 0.0


def fitting(config: RunConfig, machine: Machine) -> Iterator[str]:
    """Yield a line on each thing that has room on `machine`, where a precision of "auto" is bf16.

    Raises UsageError with the remedy if one has not. Activations and caches are not counted.
    """
    gpus, _, nodes = machine
    if nodes > 1 and not config.backend.clustered:
        raise UsageError(f"a run has {nodes} nodes only on a cluster: use --backend.name ray")
    weights, _ = parameters(config.model)
    _, needed = held(config, weights, config.model.precision)
    model, room, kept = _of_engine(config, weights, machine.memory)
    updates, left = needed / GIB, machine.memory - kept
    reserved, overlap = reserved_gpus(config), config.overlap
    size = max(reserved, default=1)

    def fault(ranks: int) -> str:
        used = -(-ranks // gpus)  # nodes
        if used > nodes or ranks % used:
            return f"{ranks} ranks do not get a GPU each on {machine}, as many on each node in use"
        free = gpus - (ranks // used if overlap else 0)
        if (most := used * (free // size) + (nodes - used) * (gpus // size)) < len(reserved):
            beside = f" beside {ranks} ranks" if overlap else ""
            return f"{most} engines of {size} GPUs have room{beside}, not {len(reserved)}"
        if updates / ranks > left:
            return (
                f"weights, gradients and moments take {updates / ranks:.1f} GiB of each rank's "
                f"GPU, where {left:.1f} are free{' beside an engine that stays' if kept else ''}"
            )
        return ""

    if model > room:
        raise UsageError(
            f"an engine's weights take {model:.1f} GiB of each of its GPUs, where it has {room:.1f}"
            ": use a smaller model, or vLLM with a larger --engine.tensor_parallel"
        )
    ranks = config.distributed.processes
    if found := fault(ranks):
        whole = (*range(1, gpus), *range(gpus, nodes * gpus + 1, gpus))  # nodes
        others = [n for n in whole if not fault(n)]
        use = "more GPUs, fewer or smaller engines, a smaller model, or an adapter (--lora.rank 16)"
        if others:
            use = f"--distributed.processes {min(others, key=lambda n: abs(n - ranks))}"
        raise UsageError(f"{found}: use {use}")
    engines = f"{len(reserved)} x {size} GPUs" if reserved else "none with a GPU of its own"
    yield f"ranks       {ranks} on {-(-ranks // gpus)} of {machine}"
    yield f"engines     {engines}, {'beside' if overlap else 'in turn with'} the ranks"
    yield f"updates     {updates / ranks:.1f} of {left:.1f} GiB a GPU: weights, gradients, moments"
    yield f"generation  {model:.1f} of {room:.1f} GiB a GPU: weights; caches have the rest"
