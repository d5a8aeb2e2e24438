"""Engines by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
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
from mugrpo.config.run import ModelOptions
from mugrpo.engines.base import Engine
from mugrpo.engines.continuous import ContinuousEngine, unfit
from mugrpo.engines.hf import HFEngine
from mugrpo.engines.remote import Host, RemoteEngine
from mugrpo.engines.server import ServerEngine
from mugrpo.engines.vllm import vllm_hosts
from mugrpo.policy import Policy


def make_engine(
    policy: Policy, options: EngineOptions, notify: Callable[[str], None] = lambda _: None
) -> Engine:
    """The engine that `options` describes, in this process, sampling from `policy`.

    A model that continuous batching cannot decode gets the plain engine, and one line says why.
    """
    if isinstance(options, ContinuousOptions):
        reason = unfit(policy)
        if reason is None:
            return ContinuousEngine(policy, options)
        notify(f"this model is sampled in static batches: in slots {reason}")
        return HFEngine(policy, HFOptions(batch_size=options.slots))
    assert isinstance(options, HFOptions), f"no engine for {type(options).__name__}"
    return HFEngine(policy, options)


def make_engines(
    policy: Policy,
    model: ModelOptions,
    options: EngineOptions,
    *,
    log: Callable[[str], Path],
    notify: Callable[[str], None],
    check: Callable[[], None],
) -> list[Engine]:
    """The engine in this process, or as many as `options` wants in processes of their own or over
    the network.

    `log` names the file of what a process prints; `check` raises where the run is to stop.
    """
    if isinstance(options, VLLMServerOptions):
        return [ServerEngine(url, policy, options, log("hand_over")) for url in options.urls]
    if isinstance(options, VLLMOptions):
        hosts = vllm_hosts(policy, model, options, log)
    else:
        assert isinstance(options, OwnEngineOptions)
        if not options.processes:
            return [make_engine(policy, options, notify)]
        hosts = _own_hosts(policy, model, options, log)
    return [RemoteEngine(host, options, notify, check) for host in hosts]


def _own_hosts(
    policy: Policy, model: ModelOptions, options: OwnEngineOptions, log: Callable[[str], Path]
) -> Iterator[Host]:
    threads = options.threads or max(1, torch.get_num_threads() // options.processes)
    setup = {
        "backend": "own",
        "model": model.model_dump(mode="json"),
        "engine": options.model_dump(mode="json"),
        "threads": threads,
    }
    for number in range(options.processes):
        yield Host(
            python=sys.executable,
            setup=setup,
            environment={"OMP_NUM_THREADS": str(threads)},
            log=log(f"engine-{number}"),
            vocab_size=policy.vocab_size,
            reloads=True,
            exact=True,
        )
