"""LoRA by peft: a trained adapter on linear layers of a model whose own weights stay as they are.

    W x  becomes  W x + alpha / rank B (A x),   A [rank, in], B [out, rank], and B = 0 at first

The adapter is part of the model in memory, so engines, logprobs and ranks need not know of it. On
disk it is a folder in peft's format, which other programs load on top of the same model.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

from mugrpo.config.lora import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model.dtensors import local, rows_of

CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_LINEAR = (nn.Linear, Conv1D)
_PREFIX = "base_model.model."  # of names in peft's files


class Adapter:
    """The adapter of a model: the only parameters of it that are trained."""

    def __init__(self, model: Any, options: LoRAOptions, base: str, seed: int) -> None:
        """Put a new adapter into `model`, which was loaded from `base`. Draw its A with `seed`.

        Raises UsageError as `put_adapter` does.
        """
        self._model, self._base, self._seed = model, base, seed
        self._config = put_adapter(model, options)
        self._config.base_model_name_or_path = base
        self.begin()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the adapter's tensors by their names in peft's files."""
        trained = ((n, p) for n, p in self._model.named_parameters() if p.requires_grad)
        return {_PREFIX + n.replace(".default.weight", ".weight"): p.detach() for n, p in trained}

    def begin(self) -> None:
        """Set the initial values: B = 0, so that the policy is the model. A is drawn as by peft."""
        generator = torch.Generator().manual_seed(self._seed)
        drawn = {}
        for name, tensor in self.tensors().items():
            drawn[name] = torch.zeros(tensor.shape)
            if ".lora_A." in name:
                bound = tensor.shape[1] ** -0.5
                drawn[name].uniform_(-bound, bound, generator=generator)
        self._set(drawn)

    def load(self, path: str | Path) -> None:
        """Take the values in the folder `path`, or the initial ones if `path` is the base model.

        Raises UsageError if the folder has no adapter of this form.
        """
        if str(path) == self._base:
            return self.begin()
        file = Path(path) / _WEIGHTS
        if not file.is_file():
            raise UsageError(f"{path} holds no adapter, but the run trains one (lora.rank)")
        values = load_file(file)
        tensors = self.tensors()
        if {n: t.shape for n, t in values.items()} != {n: t.shape for n, t in tensors.items()}:
            raise UsageError(f"{path} holds an adapter of another rank or of other layers")
        self._set(values)

    def write(self, tensors: dict[str, torch.Tensor], folder: Path) -> None:
        """Write the adapter to `folder` in peft's format; `tensors` are those of `tensors`."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
        self._config.save_pretrained(folder)

    def merge(self) -> None:
        """Add the adapter to the model's weights and leave a plain model. This adapter ends."""
        for name, layer in list(self._model.named_modules()):
            if hasattr(layer, "lora_A"):
                layer.merge()
                self._model.set_submodule(name, layer.get_base_layer())

    def _set(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in self.tensors().items():
            local(tensor).copy_(values[name][rows_of(tensor)])


def imported_peft() -> Any:
    """Return the package peft. Raises UsageError if it cannot be imported."""
    try:
        import peft
    except ImportError as error:
        raise UsageError(f"lora.rank needs peft ({error}): pip install 'mugrpo[lora]'") from None
    return peft


def put_adapter(model: Any, options: LoRAOptions) -> Any:
    """Put an adapter with arbitrary values into `model`, freeze the rest, and return peft's config.

    Raises UsageError if peft is missing, or if `options.targets` does not name linear layers.
    """
    peft = imported_peft()
    targets, head = options.targets, model.get_output_embeddings()
    for target in targets if isinstance(targets, tuple) else ():
        layers = [m for n, m in model.named_modules() if f".{n}".endswith(f".{target}")]
        if not layers or not all(isinstance(m, _LINEAR) and m is not head for m in layers):
            raise UsageError(
                f"lora.targets: {target!r} names no linear layers, or the model's output head; "
                'name others, such as "q_proj", or use "all-linear"'
            )
    config = peft.LoraConfig(
        task_type=peft.TaskType.CAUSAL_LM,
        r=options.rank,
        lora_alpha=options.alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        lora_dropout=options.dropout,
    )
    with warnings.catch_warnings():  # of layers whose weights are transposed, as in GPT-2
        warnings.simplefilter("ignore", UserWarning)
        peft.inject_adapter_in_model(config, model, low_cpu_mem_usage=True)  # values on no device
    for name, parameter in list(model.named_parameters()):
        if parameter.requires_grad:
            module = model.get_submodule(name.rpartition(".")[0])
            module.weight = nn.Parameter(torch.empty(parameter.shape, device=model.device))
    config.target_modules = sorted(config.target_modules or ())  # a set has no order
    return config
