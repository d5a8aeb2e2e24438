"""Whether a run fits the memory of its GPUs and of its host: arithmetic on the model's sizes.

A layer keeps for its backward pass, per token, about 4 numbers for each of its inner dimensions
(gate, its activation, up, their product) and 12 for each hidden one, 16 in bf16, whose norms keep
fp32 too. That is 0.99 to 1.2 times what autograd saves in layers of Qwen2.5, Qwen3 and Llama. What
comes on top, CUDA's context, fragmentation and communication, has a tenth of a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mugrpo.config.engines import (
    ContinuousOptions,
    OwnEngineOptions,
    VLLMOptions,
    VLLMServerOptions,
    slots_for,
)
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.model.adapter import put_adapter
from mugrpo.model.hardware import device_of, host_memory
from mugrpo.model.loading import model_config, refuse_absurd_sizes
from mugrpo.optimize.forward import LOGPROB_CHUNK

GIB = 1 << 30
_USABLE = 0.9  # of a GPU's memory
_DEFAULTS = 0.75  # of a host's memory, which the default sizes fill at most
_PROCESS = GIB // 2  # of a process that has imported torch
_ON_THE_HOST = ("weights", "gradients", "optimizer")  # with cpu_offload


@dataclass(frozen=True)
class Sizes:
    """A model's sizes, as its config.json describes them."""

    parameters: int  # in the whole model, without an adapter
    trained: int
    ends: int  # parameters of embeddings and head, which FSDP gathers once
    layers: int
    hidden: int
    inner: int  # of the feed-forward part; of all experts that a token visits
    cached: int  # numbers of a token's keys and values in a layer
    vocab: int

    @classmethod
    def of(cls, config: RunConfig, form: Path | None = None) -> Sizes:
        """Return the sizes of the config's model, or of the one in the directory `form`.

        Raises UsageError if the config.json cannot be read.
        """
        text = _model_config(config, form)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(text, trust_remote_code=False)
            parameters = sum(p.numel() for p in model.parameters())
            if config.lora.rank:
                put_adapter(model, config.lora)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        both = (model.get_input_embeddings(), model.get_output_embeddings())
        ends = {end.weight for end in both if end is not None}
        heads = getattr(text, "num_attention_heads", None) or 1  # some models have no attention
        head = getattr(text, "head_dim", None) or text.hidden_size // heads
        keys = getattr(text, "num_key_value_heads", None) or heads
        experts = getattr(text, "num_experts_per_tok", None) or 1
        inner = getattr(text, "moe_intermediate_size", None) if experts > 1 else None
        inner = inner or getattr(text, "intermediate_size", None) or 4 * text.hidden_size
        return cls(
            parameters,
            trained,
            sum(weight.numel() for weight in ends),
            text.num_hidden_layers,
            text.hidden_size,
            experts * inner,
            2 * keys * head,
            text.vocab_size,
        )

    def loaded(self, half: bool, *, working: bool = False) -> float:
        """Return the bytes of a loaded model, and if `working` of its copy in bf16, with `half`.

        Under an adapter, `half` leaves the model's own weights in bf16 alone.
        """
        adapter = self.trained < self.parameters
        of_adapter = (6 if half and working else 4) * self.trained if adapter else 0
        if half and adapter:
            return 2 * self.parameters + of_adapter
        return (6 if half and working else 4) * self.parameters + of_adapter

    def kept(self, half: bool) -> int:
        """Return the bytes that a layer keeps of a token for the backward pass."""
        each = 2 if half else 4
        return each * (4 * self.inner + (16 if half else 12) * self.hidden)

    @property
    def block(self) -> int:
        """Return the parameters of a layer."""
        return (self.parameters - self.ends) // self.layers

    def gathered(self, half: bool) -> int:
        """Return the bytes that FSDP gathers for a forward pass: two layers and the ends."""
        return (2 if half else 4) * (2 * self.block + self.ends)

    def cache(self, half: bool) -> int:
        """Return the bytes of a token's keys and values in all layers."""
        return (2 if half else 4) * self.cached * self.layers


@dataclass(frozen=True)
class UpdateMemory:
    """An update's peak memory on one rank, in bytes."""

    sizes: Sizes
    rows: int  # responses of the micro-batch
    longest: int  # tokens of each, prompt included
    parts: dict[str, float]  # kind -> bytes at the peak

    def on_gpu(self, *, offloaded: bool) -> float:
        """Return the bytes on the GPU: if `offloaded`, without weights, gradients and moments."""
        kinds = [kind for kind in self.parts if not (offloaded and kind in _ON_THE_HOST)]
        return sum(self.parts[kind] for kind in kinds)


def update_memory(config: RunConfig, sizes: Sizes, prompt_tokens: int) -> UpdateMemory:
    """Return the peak memory of an update's largest micro-batch.

    It is filled to `micro_batch_tokens` with long responses that share no prompt, and gradients of
    an earlier micro-batch exist already.
    """
    longest = prompt_tokens + config.rollouts.max_new_tokens
    rows = max(1, config.optimizer.micro_batch_tokens // longest)
    longest = max(longest, config.optimizer.micro_batch_tokens // rows)
    half = _half(config)
    shards = config.distributed.processes
    tokens, layer = rows * longest, sizes.kept(half)
    kept = tokens * sizes.layers * layer
    if config.model.gradient_checkpointing:  # a layer's input, and what one layer keeps
        kept = tokens * (sizes.layers * sizes.hidden * (2 if half else 4) + layer)
    # Logits, their softmax and their gradient, all in fp32.
    logits = 12 * sizes.vocab * min(LOGPROB_CHUNK, tokens)
    gathered = sizes.gathered(half) if shards > 1 else 0
    if shards > 1:  # gradients, and their sum in fp32; those of the ends come when no layer is kept
        each = 6 if half else 8
        gathered += max(each * sizes.block, each * sizes.ends - kept)
    parts = {
        "weights": sizes.loaded(half, working=shards == 1) / shards,
        "gradients": 4 * sizes.trained / shards,
        "optimizer": 8 * sizes.trained / shards,
        "gathered": float(gathered),
        "activations": float(kept + logits),
    }
    return UpdateMemory(sizes, rows, longest, parts)


@dataclass(frozen=True)
class Host:
    """What a run on a CPU takes of the host's memory at its peak, in bytes."""

    states: float  # weights, gradients and moments
    activations: float  # of a micro-batch on every rank
    cache: float  # keys and values of the engines, their logits, and weights in another layout
    others: float  # engines' models, a checkpoint that is being written, processes

    @property
    def peak(self) -> float:
        """Return the sum, in which engines and updates take turns."""
        return self.states + self.others + max(self.activations, self.cache)


def on_this_cpu(config: RunConfig, sizes: Sizes) -> Host:
    """Return what the run takes of the memory of a machine without a GPU."""
    update, half = update_memory(config, sizes, 0), _half(config)
    engine, ranks = config.engine, config.distributed.processes
    states = ranks * update.on_gpu(offloaded=False)
    activations = ranks * (update.parts["activations"] + update.parts["gathered"])
    others, cache = float(_PROCESS * ranks), 0.0
    if isinstance(engine, OwnEngineOptions):
        of_token = config.rollouts.max_new_tokens * sizes.cache(half)
        reordered = (2 if half else 4) * sizes.parameters  # weights, for the matrix kernels
        cache = max(1, engine.processes) * (
            engine.slots * (of_token + 16 * sizes.vocab) + reordered
        )
        others += engine.processes * (sizes.loaded(half, working=True) + _PROCESS)
        if engine.processes:  # its process keeps the cache
            others, cache = others + cache, 0.0
    others += 12 * sizes.trained  # the copy that a checkpoint is written from
    return Host(states - activations, activations, cache, others)


def left_open(config: RunConfig) -> list[tuple[str, str]]:
    """Return the sizes that the config leaves to the machine: (group, option)."""
    open_ones, engine = [], config.engine
    if "micro_batch_tokens" not in config.optimizer.model_fields_set:
        open_ones.append(("optimizer", "micro_batch_tokens"))
    longest = config.rollouts.max_new_tokens
    if isinstance(engine, ContinuousOptions) and engine.slots == slots_for(longest):
        open_ones.append(("engine", "slots"))
    return open_ones


def changed(config: RunConfig, group: str, option: str, value: Any) -> RunConfig:
    """Return `config` with another value of an option."""
    part = getattr(config, group).model_copy(update={option: value})
    return config.model_copy(update={group: part})


def with_room(config: RunConfig) -> tuple[RunConfig, str]:
    """Return `config` with sizes that fit this CPU's memory, and a sentence on those lowered.

    Those are the tokens of a micro-batch and the slots of an engine, unless the config names them.
    They are halved while the run would fill more than three quarters.
    """
    sizes_open = left_open(config)
    if device_of(config.model) != "cpu" or not sizes_open:
        return config, ""
    sizes, room, told = Sizes.of(config), _DEFAULTS * host_memory(), {}
    for group, option in sizes_open:
        while True:
            host, now = on_this_cpu(config, sizes), getattr(getattr(config, group), option)
            turn = host.activations if group == "optimizer" else host.cache
            if now <= 16 or host.states + host.others + turn <= room:
                break
            told[f"{group}.{option}"] = now // 2
            config = changed(config, group, option, now // 2)
    lowered = ", ".join(f"{name} = {value}" for name, value in told.items())
    return config, lowered and f"{lowered}, as this machine has {host_memory() / GIB:.1f} GiB"


def require_room(config: RunConfig) -> None:
    """Raise UsageError if the run cannot fit the memory of this machine, whatever is halved."""
    if config.backend.clustered:
        return  # its machines are others
    sizes = Sizes.of(config)
    if device_of(config.model) == "cpu":
        host, total = on_this_cpu(config, sizes), host_memory()
        if host.peak > total:
            raise UsageError(
                f"the run takes {host.peak / GIB:.1f} GiB of memory (weights, gradients "
                f"and moments {host.states / GIB:.1f}, a micro-batch {host.activations / GIB:.1f}, "
                f"the engine's cache {host.cache / GIB:.1f}), but this machine has "
                f"{total / GIB:.1f}: lower --optimizer.micro_batch_tokens (now "
                f"{config.optimizer.micro_batch_tokens}), {config.engine.way_out_of_memory}, use a "
                "smaller model, or train an adapter (--lora.rank 16)"
            )
        return
    gpu = torch.cuda.get_device_properties(0).total_memory / GIB
    shortest = config.optimizer.model_copy(update={"micro_batch_tokens": 1})  # halving leads there
    least = config.model_copy(update={"optimizer": shortest})
    fault = _fault(least, update_memory(least, sizes, 0), gpu, gpu)
    if fault:
        raise UsageError(fault)
    needed = max(_on_host(config, update_memory(config, sizes, 0)).values())
    if needed > host_memory():
        raise UsageError(
            f"the run takes {needed / GIB:.1f} GiB of the host's memory, but there are "
            f"{host_memory() / GIB:.1f}: use a smaller model, or train an adapter (--lora.rank 16)"
        )


def memory_table(
    config: RunConfig, *, form: Path | None, prompt_tokens: int, gpu_gib: float
) -> tuple[list[str], str | None]:
    """Return lines on the GPU memory of each phase, and a sentence if a phase does not fit.

    `form` is a directory with the model's config.json, for a model that is not on this machine.
    Raises UsageError if the model's config.json cannot be read.
    """
    sizes = Sizes.of(config, form)
    peak = update_memory(config, sizes, prompt_tokens)
    ranks, offloaded = config.distributed.processes, config.distributed.cpu_offload
    where = "on the host" if offloaded else "on the GPU"
    beside = _beside_update(config, sizes)
    update = peak.on_gpu(offloaded=offloaded) + sum(beside.values())
    generate, text = _generation(config, peak, gpu_gib)
    host = _on_host(config, peak)
    part = sizes.trained / 1e6
    trained = "" if sizes.trained == sizes.parameters else f", an adapter of {part:.1f} million"
    lines = [
        f"model       {sizes.parameters / 1e9:.2f} billion parameters{trained}",
        f"optimize    {update / GIB:.1f} GiB of each of {ranks} GPUs, at the peak of a micro-batch "
        f"of {peak.rows} x {peak.longest} tokens",
        *(
            f"  {kind:<12}{size / GIB:6.1f} GiB" + (f"  {where}" if kind in _ON_THE_HOST else "")
            for kind, size in peak.parts.items()
        ),
        *(f"  {kind:<12}{size / GIB:6.1f} GiB  beside the update" for kind, size in beside.items()),
        f"generate    {generate:.1f} GiB of the first GPU: {text}",
        f"host        {sum(host.values()) / GIB:.1f} GiB",
        *(f"  {kind:<12}{size / GIB:6.1f} GiB" for kind, size in host.items()),
    ]
    return lines, _fault(config, peak, gpu_gib, _USABLE * gpu_gib)


def _fault(config: RunConfig, peak: UpdateMemory, gpu_gib: float, limit: float) -> str | None:
    """Return a sentence if a phase takes more than `limit` GiB of a GPU's `gpu_gib`."""
    update = peak.on_gpu(offloaded=config.distributed.cpu_offload)
    update += sum(_beside_update(config, peak.sizes).values())
    generate, _ = _generation(config, peak, gpu_gib)
    if update / GIB > limit:
        return (
            f"an update takes {update / GIB:.1f} GiB, but only {limit:.1f} of a GPU's "
            f"{gpu_gib:g} GiB can be used: lower --optimizer.micro_batch_tokens, turn on "
            "--model.gradient_checkpointing or --distributed.cpu_offload, or use "
            "--model.precision bf16 or more --distributed.processes"
        )
    if generate > limit:
        return (
            f"generation takes {generate:.1f} GiB of the first GPU, but only {limit:.1f} of its "
            f"{gpu_gib:g} GiB can be used: lower --engine.gpu_memory_utilization or the engine's "
            "slots"
        )
    return None


def _model_config(config: RunConfig, form: Path | None) -> Any:
    if form is None:
        return model_config(config.model).get_text_config()
    try:
        refuse_absurd_sizes(form, local_files_only=True)
        return AutoConfig.from_pretrained(form, trust_remote_code=False).get_text_config()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the config.json of {form} cannot be read ({str(error).splitlines()[0]}); name a "
            "directory that has it: --form DIR"
        ) from None


def _beside_update(config: RunConfig, model: Sizes) -> dict[str, float]:
    """Return name -> bytes of other models on the GPU, if the run itself makes its updates."""
    sizes, working = {}, model.loaded(_half(config), working=True)
    if config.distributed.processes == 1 and not config.backend.clustered:
        engine = config.engine
        if isinstance(engine, OwnEngineOptions) and engine.processes and not config.overlap:
            sizes["engine"] = working
        if config.needs:
            sizes["reference"] = working
    return sizes


def _on_host(config: RunConfig, peak: UpdateMemory) -> dict[str, float]:
    """Return name -> bytes in the host's memory."""
    options, model = config.distributed, peak.sizes
    sizes = {"model": 4.0 * model.parameters}  # the first rank reads it
    if options.cpu_offload:
        sizes["offloaded"] = options.processes * sum(peak.parts[kind] for kind in _ON_THE_HOST)
    elif config.trainer_sleeps:
        sizes["asleep"] = model.loaded(_half(config)) + 8 * model.trained
    engine = config.engine
    if config.lora.rank and isinstance(engine, VLLMOptions) and engine.rest == "sleep":
        weight = 2 if _half(config) else 4  # bytes
        sizes["vLLM's base"] = weight * model.parameters * engine.processes
    sizes["checkpoint"] = 12 * model.trained
    return sizes


def _generation(config: RunConfig, peak: UpdateMemory, gpu_gib: float) -> tuple[float, str]:
    """Return the GiB of the first GPU that generation takes, and a list of what takes them.

    The model that checks the engine's logprobs is counted. With precision bf16, one process has its
    weights in both precisions.
    """
    ranks = config.distributed.processes
    shards = ranks
    model, local, half = peak.sizes, not config.backend.clustered, _half(config)
    if ranks > 1 and local:
        own = (model.loaded(half) / shards + model.gathered(half)) / GIB
        text = f"a rank's share of the model, {own:.1f}"
    else:
        own = model.loaded(half, working=True) / GIB
        text = f"the run's copy of the model, {own:.1f}"
    if local and not config.trainer_sleeps:
        moments = 8 * model.trained / shards / GIB
        own, text = own + moments, f"{text}, AdamW's moments, {moments:.1f}"
    engine = config.engine
    if config.engine_in_process and ranks == 1:  # the engine uses the trainer's model
        return own, f"{text}; the KV cache comes on top"
    if config.overlap or config.backend.clustered or isinstance(engine, VLLMServerOptions):
        return own, f"{text}; the engine is elsewhere"
    if isinstance(engine, VLLMOptions):
        share = engine.gpu_memory_utilization * gpu_gib
        return own + share, f"{text}, and vLLM's share, {share:.1f}"
    copy = model.loaded(half, working=True) / GIB
    return own + copy, f"{text}, and the engine's copy, {copy:.1f}; the KV cache comes on top"


def _half(config: RunConfig) -> bool:
    return config.model.precision != "fp32"  # a GPU's "auto" is bf16
