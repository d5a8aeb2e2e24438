"""The engines of a run, built from their options."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mugrpo.config.base import EngineOptions
from mugrpo.config.engines import ContinuousOptions, HFOptions, OwnEngineOptions, VLLMOptions
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.engines import continuous, hf, static
from mugrpo.engines.base import Engine
from mugrpo.engines.continuous import ContinuousEngine
from mugrpo.engines.hf import HFEngine
from mugrpo.engines.process import EngineHost, RemoteEngine, visible_gpus
from mugrpo.engines.vllm import require_vllm, vllm_host
from mugrpo.model.policy import Policy
from mugrpo.model.vocabulary import Vocabulary
from mugrpo.processes.messages import first_line
from mugrpo.processes.peer import Peer


def make_engine(
    policy: Policy,
    options: EngineOptions,
    say: Callable[[str], None] = lambda _: None,
    *,
    share: int = 1,
) -> Engine:
    """Return the engine that `options` describes, in this process, sampling from `policy`.

    `say` gets a sentence on how a GPU decodes. `share` engines have that GPU together. Raises
    UsageError if the engine cannot decode the model, and names one that can.
    """
    trials = {"continuous": continuous.forced, "hf": hf.forced}
    if fault := _decoding_fault(policy, trials[options.name]):
        if options.name == "continuous" and not _decoding_fault(policy, trials["hf"]):
            raise UsageError(
                f"continuous batching cannot decode this model ({fault}); use --engine.name hf"
            )
        raise UsageError(
            f"neither engine of mugrpo can decode this model ({options.name}: {fault}); use "
            "--engine.name vllm if vLLM has its architecture, else train another model"
        )
    if isinstance(options, ContinuousOptions):
        if not policy.on_gpu:
            return ContinuousEngine(policy, options)
        fault = static_fault(policy)
        slower = "decoding: the host starts each operation, which takes several times as long as"
        say(f"{slower} CUDA graphs: {fault}" if fault else "decoding: steps are in CUDA graphs")
        return ContinuousEngine(policy, options, static=not fault, share=share)
    assert isinstance(options, HFOptions), f"no engine for {type(options).__name__}"
    return HFEngine(policy, options)


# Yields the logits [U, V] after each of U prompts, then after each of the tokens [U, T].
Forced = Callable[[Policy, Sequence[np.ndarray], torch.Tensor], Iterator[torch.Tensor]]

# Largest norm of a difference in logits, relative to their norm. What bf16 rounds is a few percent.
_TOLERANCE = {"fp32": 1e-3, "bf16": 0.25}


def _own(policy: Policy, prompts: Sequence[np.ndarray], ids_UT: torch.Tensor) -> torch.Tensor:
    """Return the logits of the model's own pass over each row alone, [T + 1, U, V]."""
    steps = ids_UT.shape[1] + 1
    rows = [torch.cat([torch.from_numpy(p).to(i), i]) for p, i in zip(prompts, ids_UT, strict=True)]
    each = [policy.working()(input_ids=row[None], use_cache=False).logits[0] for row in rows]
    return torch.stack([logits[-steps:] for logits in each], 1)


@torch.inference_mode()
def _decoding_fault(policy: Policy, forced: Forced, right: Any = _own, share: float = 1) -> str:
    """Return why an engine cannot decode the policy's model, or "", tried on two tiny rows.

    They are of different lengths. By default, the model's own pass over each row alone says what is
    right; `share` is that of the tolerance. What shows in longer rows only is left to the canary.
    """
    ids = np.arange(12, dtype=np.int32) % min(7, policy.vocab_size - 1) + 1
    prompts, tokens = [ids[:3], ids[:6]], [ids[3:9], ids[6:]]
    rows = (policy, prompts, torch.from_numpy(np.stack(tokens)).long().to(policy.device))
    try:
        with policy.evaluating():
            ours, theirs = (torch.stack([*of(*rows)]).float() for of in (forced, right))
    except Exception as error:  # other kinds of models may fail in any way
        return first_line(error)
    gap = float((ours - theirs).norm() / theirs.norm())
    if gap <= share * _TOLERANCE[policy.precision] or math.isnan(gap):  # NaN is found as such
        return ""
    return f"its logits differ by {gap:.0%} from the {'model' if right is _own else 'engine'}'s own"


def static_fault(policy: Policy) -> str:
    """Return why steps of static shapes cannot decode the policy's model, or ""."""
    return _decoding_fault(policy, static.forced, continuous.forced, 0.4)


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

    That is one engine in this process, one for each engine process (here or on a cluster), or what
    the factory of engines that run already returns.

    `vocabulary` is the model's. `policy` is needed only if `config.engine_in_process`. `log` maps a
    process's name to its log file. `check` raises if the run is to stop. Raises UsageError if there
    are too few GPUs, or if Ray is not installed, does not answer or has too few CPUs.
    """
    options = config.engine
    if options.runs_already:
        return list(options.made(vocabulary))
    if config.engine_in_process:
        assert policy is not None, "an engine in this process needs the policy"
        return [make_engine(policy, options, notify)]
    assert isinstance(options, OwnEngineOptions | VLLMOptions)
    hosts = [
        _host(vocabulary, config, log(f"engine-{number}").absolute())
        for number in range(len(reserved_gpus(config)))
    ]
    if cluster := config.backend.cluster():
        cluster.require_room(ranks=0, engines=reserved_gpus(config))
        starts: list[Callable[[], Peer]] = [partial(cluster.start_engine, host) for host in hosts]
    else:
        starts = [
            replace(host, environment=host.environment | _own_gpus(config, number)).start
            for number, host in enumerate(hosts)
        ]
    return [
        RemoteEngine(host, start, notify, check) for host, start in zip(hosts, starts, strict=True)
    ]


def require_processes(config: RunConfig) -> None:
    """Raise UsageError if engines or ranks could not start: without vLLM, Ray, or room on it."""
    if cluster := config.backend.cluster():
        engines = reserved_gpus(config)
        cluster.require_room(ranks=0, engines=engines)
        ranks = config.distributed.processes
        cluster.require_room(ranks=ranks, engines=engines if config.overlap else [])
    elif isinstance(config.engine, VLLMOptions):
        require_vllm(config.engine.python)
    elif reserved_gpus(config):
        _own_gpus(config, 0)


def engines_on_a_gpu(config: RunConfig) -> int:
    """Return how many processes of mugrpo's own engine one GPU of this machine has, at least 1."""
    engines = len(reserved_gpus(config))
    if config.backend.clustered or isinstance(config.engine, VLLMOptions):
        return 1
    gpus = len(visible_gpus()) - config.distributed.processes * config.overlap
    return max(1, -(-engines // gpus)) if gpus > 0 else 1


def reserved_gpus(config: RunConfig) -> list[int]:
    """Return, for each engine process, how many GPUs it needs; [] if no engine has a process."""
    options = config.engine
    if options.runs_already or config.engine_in_process:
        return []
    assert isinstance(options, OwnEngineOptions | VLLMOptions)
    each = options.tensor_parallel if isinstance(options, VLLMOptions) else 1
    return [each] * (options.processes or 1)


def _host(vocabulary: Vocabulary, config: RunConfig, log: Path) -> EngineHost:
    options = config.engine
    if isinstance(options, VLLMOptions):
        return vllm_host(vocabulary, config.model, config.lora, options, log)
    assert isinstance(options, OwnEngineOptions)
    threads = 1  # of the CPU that an actor reserves
    if not config.backend.clustered:
        threads = max(1, torch.get_num_threads() // options.processes)
    setup = {
        "backend": "own",
        "model": config.model.model_dump(mode="json"),
        "lora": config.lora.model_dump(mode="json"),
        "engine": options.model_dump(mode="json"),
        "threads": threads,
        "share": engines_on_a_gpu(config),
    }
    return EngineHost(
        python=None,
        setup=setup,
        environment={"OMP_NUM_THREADS": str(threads)},
        log=log,
        vocab_size=vocabulary.size,
        rest="sleep",
    )


def _own_gpus(config: RunConfig, number: int) -> dict[str, str]:
    """Return the environment that gives engine process `number` its GPUs, empty without any.

    With overlap the first GPUs are the ranks'. Processes of mugrpo's own engine may share another.
    Raises UsageError if there are too few for all processes of vLLM, or none for its own engine.
    """
    if not (gpus := visible_gpus()):
        return {}
    options, reserved = config.engine, config.distributed.processes if config.overlap else 0
    if not isinstance(options, VLLMOptions):
        if reserved >= len(gpus):
            raise UsageError(
                f"with overlap, updates fill {reserved} GPUs and the engines need others, but "
                f"there are {len(gpus)}; name more in CUDA_VISIBLE_DEVICES, or set --overlap false"
            )
        return {"CUDA_VISIBLE_DEVICES": gpus[reserved + number % (len(gpus) - reserved)]}
    size = options.tensor_parallel
    if reserved + options.processes * size > len(gpus):
        raise UsageError(
            f"the engines need {options.processes} x {size} GPUs, and updates beside them "
            f"{reserved}, but there are {len(gpus)}; lower --engine.processes or "
            "--engine.tensor_parallel"
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[reserved + number * size :][:size])}
