"""An estimate of a run's memory on each GPU, without a GPU and without the weights.

The model consists of fake tensors, which have shapes but no data. FSDP2 splits it among the run's
ranks. It computes an update's largest micro-batch, while torch's own trackers count the memory in
use. CUDA's context, fragmentation and communication buffers come on top: a tenth of the GPU is left
for them.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.hooks import RemovableHandle
from transformers import AutoConfig, AutoModelForCausalLM

from mugrpo.config.engines import OwnEngineOptions, VLLMOptions, VLLMServerOptions
from mugrpo.config.lora import LoRAOptions
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.model.adapter import put_adapter
from mugrpo.model.half import HalfCopy, halve_frozen
from mugrpo.model.logprobs import chunked_logprobs
from mugrpo.model.policy import checkpoint_activations
from mugrpo.model.pretrained import model_path
from mugrpo.model.quantized import BYTES, quantize_fakes
from mugrpo.model.sizes import refuse_absurd_sizes
from mugrpo.optimize.fsdp import cut_over

GIB = 1 << 30
_USABLE = 0.9  # of a GPU's memory

# The table's kind -> the trackers' names for it.
_KINDS = {
    "weights": ("SHARDED_PARAM", "PARAM", "BUFFER"),
    "gradients": ("SHARDED_GRAD", "GRAD"),
    "optimizer": ("OPT",),
    "gathered": ("UNSHARDED_PARAM", "UNSHARDED_GRAD", "ALL_GATHER", "REDUCE_SCATTER"),
    "activations": ("ACT", "TEMP", "INP"),
}
_ON_THE_HOST = ("weights", "gradients", "optimizer")  # with cpu_offload


@dataclass(frozen=True)
class UpdateMemory:
    """An update's peak memory on one rank, in bytes."""

    parameters: int  # number, in the whole model
    trained: int  # number that are trained
    quantized: int  # number of those that are in 4 bits
    rows: int  # responses of the micro-batch
    longest: int  # tokens of each, prompt included
    parts: dict[str, int]  # kind -> bytes at the peak

    def copy(self, each: int = 4) -> float:
        """Return the bytes of a copy of the model with `each` bytes for a weight in full."""
        return each * (self.parameters - self.quantized) + BYTES * self.quantized

    def loaded(self, half: bool, *, working: bool = False) -> float:
        """Return the bytes of a loaded model, and if `working` of its copy in bf16, with `half`.

        Under an adapter, `half` leaves the model's own weights in bf16 alone.
        """
        if half and self.trained < self.parameters and not self.quantized:
            return 2 * self.parameters + (6 if working else 4) * self.trained
        return self.copy(6 if half and working else 4)

    def on_gpu(self, *, offloaded: bool) -> int:
        """Return the bytes on the GPU: if `offloaded`, without weights, gradients and moments."""
        kinds = [kind for kind in self.parts if not (offloaded and kind in _ON_THE_HOST)]
        return sum(self.parts[kind] for kind in kinds)


def memory_table(
    config: RunConfig, *, form: Path | None, prompt_tokens: int, gpu_gib: float
) -> tuple[list[str], str | None]:
    """Return lines on the GPU memory of each phase, and a sentence if a phase does not fit.

    `form` is a directory with the model's config.json, for a model that is not on this machine.
    Raises UsageError if the model's config.json cannot be read.
    """
    peak = update_memory(config, form=form, prompt_tokens=prompt_tokens)
    ranks, offloaded = config.distributed.ranks, config.distributed.cpu_offload
    where = "on the host" if offloaded else "on the GPU"
    beside = _beside_update(config, peak)
    update = peak.on_gpu(offloaded=offloaded) + sum(beside.values())
    generate, text = _generation(config, peak, gpu_gib)
    host = _on_host(config, peak)
    part = peak.trained / 1e6
    trained = "" if peak.trained == peak.parameters else f", an adapter of {part:.1f} million"
    bits = f" ({peak.quantized / 1e9:.2f} in 4 bits)" if peak.quantized else ""
    lines = [
        f"model       {peak.parameters / 1e9:.2f} billion parameters{bits}{trained}",
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
    limit = _USABLE * gpu_gib
    if update / GIB > limit:
        return lines, (
            f"an update takes {update / GIB:.1f} GiB, but only {limit:.1f} of a GPU's "
            f"{gpu_gib:g} GiB can be used: lower --optimizer.micro_batch_tokens, turn on "
            "--model.gradient_checkpointing or --distributed.cpu_offload, or use "
            "--model.precision bf16 or more --distributed.processes"
        )
    if generate > limit:
        return lines, (
            f"generation takes {generate:.1f} GiB of the first GPU, but only {limit:.1f} of its "
            f"{gpu_gib:g} GiB can be used: lower --engine.gpu_memory_utilization or the engine's "
            "slots"
        )
    return lines, None


def update_memory(config: RunConfig, *, form: Path | None, prompt_tokens: int) -> UpdateMemory:
    """Return the peak memory of an update's largest micro-batch.

    It is filled to `micro_batch_tokens` with long responses that share no prompt, and gradients of
    an earlier micro-batch exist already. Raises UsageError if the model's config.json cannot be
    read.
    """
    longest = prompt_tokens + config.rollouts.max_new_tokens
    rows = max(1, config.optimizer.micro_batch_tokens // longest)
    longest = max(longest, config.optimizer.micro_batch_tokens // rows)
    half = config.model.precision != "fp32"  # a GPU's "auto" is bf16
    model_config = _model_config(config, form)
    shards = config.distributed.ranks // config.distributed.replicas
    with _ranks(shards) as mesh, FakeTensorMode():
        model = _model(model_config, config.lora)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        parameters = sum(p.numel() for p in model.parameters()) - (
            trained if config.lora.rank else 0
        )
        if config.model.gradient_checkpointing:
            checkpoint_activations(model)
        model.train(config.model.gradient_checkpointing)
        quantized = quantize_fakes(model, half) if config.lora.quantized else 0
        if half and config.lora.rank and not config.lora.quantized:
            halve_frozen(model)
        alone = half and mesh is None  # with ranks, FSDP rounds block by block
        working = HalfCopy(model).working if alone else model
        full_rows = _FullRows(working, config, prompt_tokens)
        if mesh is not None:
            cut_over(mesh, full_rows, model, config.distributed, half=half)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for parameter in model.parameters():
            if parameter.requires_grad:  # from an earlier micro-batch
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        ids_BL = torch.zeros(rows, longest, dtype=torch.int64)
        tracker: Any = MemTracker() if mesh is None else FSDPMemTracker(full_rows, optimizer)
        if mesh is None:
            tracker.track_external(model, full_rows, optimizer)
            hooks, none = tracker._param_to_grad_hook_handles, RemovableHandle(OrderedDict())
            for parameter in full_rows.parameters():
                if not parameter.requires_grad:  # torch would hook its gradient, and cannot
                    hooks[parameter] = none, none
        with tracker:
            full_rows(ids_BL).sum().backward()
            optimizer.step()
        (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    sizes = {getattr(kind, "name", str(kind)).rpartition(".")[2]: n for kind, n in snapshot.items()}
    parts = {kind: sum(sizes.get(n, 0) for n in names) for kind, names in _KINDS.items()}
    return UpdateMemory(parameters, trained, quantized, rows, longest, parts)


def _model(form: Any, lora: LoRAOptions) -> Any:
    """Return a model of fake tensors, with an adapter if `lora` asks for one."""
    if not lora.rank:
        return AutoModelForCausalLM.from_config(form, dtype=torch.float32)
    with unset_fake_temporarily(), torch.device("meta"):  # peft cannot move fake tensors
        model = AutoModelForCausalLM.from_config(form, dtype=torch.float32)
        put_adapter(model, lora)
    fakes: dict[torch.Tensor, torch.Tensor] = {}  # tied weights stay tied
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            fake = nn.Parameter(torch.empty(weight.shape), weight.requires_grad)
            setattr(module, name, fakes.setdefault(weight, fake))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))
    return model


class _FullRows(nn.Module):
    """A stand-in for `response_logprobs`, with responses of equal length and known shapes."""

    def __init__(self, model: nn.Module, config: RunConfig, prompt_tokens: int) -> None:
        super().__init__()
        self.model: Any = model
        self._half = config.model.precision != "fp32"
        self._prompt = prompt_tokens
        self._chunk = config.optimizer.logprob_chunk_tokens

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        hidden_BLH = self.model.base_model(input_ids=ids_BL, use_cache=False).last_hidden_state
        hidden_NH = hidden_BLH[:, self._prompt - 1 : -1].flatten(0, 1)
        head = self.model.get_output_embeddings()
        return chunked_logprobs(
            hidden_NH.bfloat16() if self._half else hidden_NH,
            head.weight,
            head.bias,
            ids_BL[:, self._prompt :].flatten(),
            temperature=1.0,
            chunk=self._chunk,
        )[0]


@contextlib.contextmanager
def _ranks(count: int) -> Iterator[Any]:
    """Yield a mesh of `count` ranks, of which only this one is real, or None if `count` is 1."""
    if count == 1:
        yield None
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield init_device_mesh("cpu", (count,))
    finally:
        dist.destroy_process_group()


def _model_config(config: RunConfig, form: Path | None) -> Any:
    path = str(form) if form else model_path(config.model)
    try:
        refuse_absurd_sizes(path, local_files_only=False)
        return AutoConfig.from_pretrained(path, trust_remote_code=False).get_text_config()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the config.json of {path} cannot be read ({str(error).splitlines()[0]}); name a "
            "directory that has it: --form DIR"
        ) from None


def _beside_update(config: RunConfig, peak: UpdateMemory) -> dict[str, float]:
    """Return name -> bytes of other models on the GPU, if the run itself makes its updates."""
    sizes, working = {}, peak.loaded(config.model.precision != "fp32", working=True)
    if config.distributed.ranks == 1 and config.backend.name == "local":
        engine = config.engine
        if isinstance(engine, OwnEngineOptions) and engine.processes and not config.overlap:
            sizes["engine"] = working
        if config.needs:
            sizes["reference"] = working
    return sizes


def _on_host(config: RunConfig, peak: UpdateMemory) -> dict[str, float]:
    """Return name -> bytes in the host's memory."""
    options, sizes = config.distributed, {"model": peak.copy()}  # the first rank reads it
    if options.cpu_offload:
        sizes["offloaded"] = options.processes * sum(peak.parts[kind] for kind in _ON_THE_HOST)
    elif config.trainer_sleeps:
        model = peak.loaded(config.model.precision != "fp32")
        sizes["asleep"] = (model + 8 * peak.trained) * options.replicas
    engine = config.engine
    if config.lora.rank and isinstance(engine, VLLMOptions) and engine.rest == "sleep":
        weight = 4 if config.model.precision == "fp32" else 2  # bytes
        sizes["vLLM's base"] = weight * peak.parameters * engine.processes
    if config.checkpoint.beside_training:
        sizes["checkpoint"] = 12 * peak.trained
    return sizes


def _generation(config: RunConfig, peak: UpdateMemory, gpu_gib: float) -> tuple[float, str]:
    """Return the GiB of the first GPU that generation takes, and a list of what takes them.

    The model that checks the engine's logprobs is counted. With precision bf16, one process has its
    weights in both precisions.
    """
    ranks = config.distributed.ranks
    shards = ranks // config.distributed.replicas
    local, half = config.backend.name == "local", config.model.precision != "fp32"
    if ranks > 1 and local:
        own = (peak.loaded(half) / shards + peak.parts["gathered"]) / GIB
        text = f"a rank's share of the model, {own:.1f}"
    else:
        own = peak.loaded(half, working=True) / GIB
        text = f"the run's copy of the model, {own:.1f}"
    if local and not config.trainer_sleeps:
        moments = 8 * peak.trained / shards / GIB
        own, text = own + moments, f"{text}, AdamW's moments, {moments:.1f}"
    engine = config.engine
    if config.engine_in_process and ranks == 1:  # the engine uses the trainer's model
        return own, f"{text}; the KV cache comes on top"
    if config.overlap or config.backend.name == "ray" or isinstance(engine, VLLMServerOptions):
        return own, f"{text}; the engine is elsewhere"
    if isinstance(engine, VLLMOptions):
        share = engine.gpu_memory_utilization * gpu_gib
        return own + share, f"{text}, and vLLM's share, {share:.1f}"
    copy = peak.loaded(half, working=True) / GIB
    return own + copy, f"{text}, and the engine's copy, {copy:.1f}; the KV cache comes on top"
