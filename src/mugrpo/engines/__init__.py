"""The engines of a run, built from their options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from mugrpo.config.engines import (
    ContinuousOptions,
    EngineOptions,
    HFOptions,
    OwnEngineOptions,
    VLLMOptions,
    VLLMServerOptions,
)
from mugrpo.config.run import RunConfig
from mugrpo.engines.base import Engine
from mugrpo.engines.continuous import ContinuousEngine, unfit
from mugrpo.engines.hf import HFEngine
from mugrpo.engines.process import Host, RemoteEngine, Started, exclusive_part, own_part
from mugrpo.engines.server import ServerEngine
from mugrpo.engines.vllm import require_vllm, vllm_host
from mugrpo.model.loading import Vocabulary
from mugrpo.model.policy import Policy
from mugrpo.processes.cluster import cluster_of


def make_engine(
    policy: Policy, options: EngineOptions, notify: Callable[[str], None] = lambda _: None
) -> Engine:
    """Return the engine that `options` describes, in this process, sampling from `policy`.

    If continuous batching cannot decode the model, return the plain engine instead and notify the
    user why.
    """
    if isinstance(options, ContinuousOptions):
        reason = unfit(policy)
        if reason is None:
            return ContinuousEngine(policy, options)
        notify(f"sampling in static batches, as this model cannot be decoded in slots: {reason}")
        return HFEngine(policy, HFOptions(slots=options.slots))
    assert isinstance(options, HFOptions), f"no engine for {type(options).__name__}"
    return HFEngine(policy, options)


def require_engines(config: RunConfig) -> None:
    """Raise UsageError if an engine process cannot be started, as far as this machine can tell."""
    if isinstance(config.engine, VLLMOptions) and not config.backend.clustered:
        require_vllm(config.engine)


def make_engines(
    config: RunConfig,
    *,
    vocabulary: Vocabulary,
    policy: Policy | None,
    log: Callable[[str], Path],
    notify: Callable[[str], None],
    check: Callable[[], None],
) -> list[Engine]:
    """Return the run's engines.

    That is one engine in this process, one for each engine process (here or on a cluster), or one
    for each server on the network.

    `vocabulary` is the model's. `policy` is needed only if `config.engine_in_process`. `log` maps a
    process's name to its log file. `check` raises if the run is to stop. Raises UsageError if there
    are too few GPUs, or if Ray is not installed, does not answer or has too few CPUs.
    """
    options = config.engine
    if isinstance(options, VLLMServerOptions):
        return [ServerEngine(url, vocabulary, options) for url in options.urls]
    if config.engine_in_process:
        assert policy is not None, "an engine in this process needs the policy"
        return [make_engine(policy, options, notify)]
    assert isinstance(options, OwnEngineOptions | VLLMOptions)
    engines: list[Engine] = []
    for number in range(len(reserved_gpus(config))):
        host = _host(vocabulary, config, log(f"engine-{number}").absolute())
        engines.append(RemoteEngine(host, _starts(host, number, config), notify, check))
    if cluster := cluster_of(config.backend):
        cluster.require_room(0, reserved_gpus(config))
    return engines


def reserved_gpus(config: RunConfig) -> list[int]:
    """Return the number of GPUs of each engine that has a process, if there are any."""
    options = config.engine
    if isinstance(options, VLLMServerOptions) or config.engine_in_process:
        return []
    assert isinstance(options, OwnEngineOptions | VLLMOptions)
    each = options.tensor_parallel if isinstance(options, VLLMOptions) else 1
    return [each] * (options.processes or 1)


def _host(vocabulary: Vocabulary, config: RunConfig, log: Path) -> Host:
    options = config.engine
    if isinstance(options, VLLMOptions):
        return vllm_host(vocabulary, config.model, config.lora, options, log)
    assert isinstance(options, OwnEngineOptions)
    threads = 1  # of the CPU that an actor reserves
    if cluster_of(config.backend) is None:
        threads = max(1, torch.get_num_threads() // options.processes)
    setup = {
        "backend": "own",
        "model": config.model.model_dump(mode="json"),
        "lora": config.lora.model_dump(mode="json"),
        "engine": options.model_dump(mode="json"),
        "threads": threads,
    }
    return Host(
        python=None,
        setup=setup,
        environment={"OMP_NUM_THREADS": str(threads)},
        log=log,
        vocab_size=vocabulary.size,
        rest="stay",
    )


def _starts(host: Host, number: int, config: RunConfig) -> Callable[[], Started]:
    """Return a function that starts engine process `number`, here or on the cluster."""
    options = config.engine
    if cluster := cluster_of(config.backend):
        cluster.connect()
        return partial(cluster.start_engine, host)
    update_gpus = config.distributed.processes if config.overlap else 0
    if isinstance(options, VLLMOptions):
        part = exclusive_part(number, options.processes, options.tensor_parallel, update_gpus)
    else:
        part = own_part(number, update_gpus)
    return replace(host, environment={**host.environment, **part}).start
