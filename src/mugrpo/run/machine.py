"""Whether a run fits a machine that is only described, such as a cluster's from its login node."""

from collections.abc import Iterator
from typing import NamedTuple

from mugrpo.config.engines import VLLMOptions
from mugrpo.config.run import RunConfig
from mugrpo.config.training import MICRO_BATCH_TOKENS
from mugrpo.disk.errors import UsageError
from mugrpo.engines import reserved_gpus
from mugrpo.run.memory import (
    GIB,
    activations,
    engine_weights,
    fitting_tokens,
    held,
    left_for_updates,
    parameters,
    require_engine,
    require_gpu,
)


class Machine(NamedTuple):
    """Nodes of equal GPUs, each with `memory` GiB."""

    gpus: int
    memory: float
    nodes: int

    def __str__(self) -> str:
        nodes, gpus = "nodes" if self.nodes > 1 else "node", "GPUs" if self.gpus > 1 else "GPU"
        return f"{self.nodes} {nodes} of {self.gpus} {gpus} with {self.memory:g} GiB"

    def lacks_place(self, config: RunConfig, ranks: int) -> str:
        """Return why so many ranks with a GPU each, or the engines of `config`, have no place.

        Return "" if they have. Without a cluster, engines are where the run is: on the first node.
        """
        used, engines = -(-ranks // self.gpus), reserved_gpus(config)
        if used > self.nodes or ranks % used:
            return f"{ranks} ranks do not get a GPU each on {self}, as many on each node in use"
        size, nodes = max(engines, default=1), self.nodes if config.backend.clustered else 1
        free = (self.gpus - config.overlap * ranks // used) // size
        most = min(used, nodes) * free + max(0, nodes - used) * (self.gpus // size)
        if most >= len(engines):
            return ""
        beside = f" beside {ranks} ranks" * config.overlap
        where = "" if nodes == self.nodes else " on the node of the run"
        return f"{most} engines of {size} GPUs have room{where}{beside}, not {len(engines)}"


def fitting(config: RunConfig, machine: Machine, prompt: int = 0) -> Iterator[str]:
    """Yield a line on each thing that has room on `machine`. Prompts have up to `prompt` tokens.

    Raises UsageError with the remedy if one has not, see `require_room`.
    """
    gpus, memory, nodes = machine
    updates = held(config, parameters(config.model)[0])[1] / GIB
    engine, reserved, room = config.engine, reserved_gpus(config), memory
    left, model = left_for_updates(config, memory * GIB) / GIB, engine_weights(config) / GIB
    if isinstance(engine, VLLMOptions):
        room = engine.gpu_memory_utilization * memory
    if reserved:
        require_engine(config, memory * GIB, prompt)

    def fault(ranks: int) -> str:
        if updates / ranks <= left:
            return machine.lacks_place(config, ranks)
        beside = " beside an engine that stays" * (left < memory)
        return (
            f"weights, gradients and moments take {updates / ranks:.1f} GiB of each rank's GPU, "
            f"where {left:.1f} are free{beside}"
        )

    if found := fault(ranks := config.distributed.processes):
        use = "more GPUs, fewer or smaller engines, a smaller model, or an adapter (--lora.rank 16)"
        whole = (*range(1, gpus), *range(gpus, nodes * gpus + 1, gpus))  # nodes
        if others := [n for n in whole if not fault(n)]:
            use = f"--distributed.processes {min(others, key=lambda n: abs(n - ranks))}"
        raise UsageError(f"{found}: use {use}")
    yield from require_gpu(config, memory * GIB, prompt)
    tokens = config.optimizer.micro_batch_tokens
    if not tokens:  # on a cluster the run begins without its GPUs in sight
        clustered = config.backend.clustered
        tokens = MICRO_BATCH_TOKENS if clustered else fitting_tokens(config, memory * GIB, ranks)
    of = f"{len(reserved)} x {max(reserved)} GPUs" if reserved else "none with a GPU of its own"
    launched = "" if ranks <= gpus or config.backend.clustered else ", by torchrun or srun"
    yield f"ranks       {ranks} on {-(-ranks // gpus)} of {machine}{launched}"
    yield f"engines     {of}, {'beside' if config.overlap else 'in turn with'} the ranks"
    yield (
        f"updates     {updates / ranks:.1f} of {left:.1f} GiB a GPU: weights, gradients, moments; "
        f"{activations(config, tokens) / GIB:.1f} for micro-batches of {tokens:,} tokens"
    )
    yield f"generation  {model:.1f} of {room:.1f} GiB a GPU: weights; caches have the rest"
