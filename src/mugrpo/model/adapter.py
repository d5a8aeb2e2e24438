"""LoRA by peft: a trained adapter on linear layers of a model whose own weights stay as they are.

    W x  becomes  W x + alpha / rank B (A x),   A [rank, in], B [out, rank], and B = 0 at first

The adapter is part of the model in memory, so engines, logprobs and ranks need not know of it. On
disk it is a folder in peft's format, which other programs load on top of the same model.
"""

import json
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from mugrpo.config.training import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model.dtensors import local, own_rows
from mugrpo.model.files import readable_as
from mugrpo.model.quantized import quantize
from mugrpo.processes.messages import first_line

CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of names in peft's files
# what shapes of A and B do not show
_ARITHMETIC = ("lora_alpha", "alpha_pattern", "use_rslora", "use_dora")


class Adapter:
    """The adapter of a model: the only parameters of it that are trained."""

    def __init__(self, model: Any, options: LoRAOptions, base: str, seed: int) -> None:
        """Put a new adapter into `model`, which was loaded from `base`; draw its A with `seed`.

        Raises UsageError as `put_adapter` does.
        """
        self._model, self._base, self._seed = model, base, seed
        self._config = put_adapter(model, options)
        self._config.base_model_name_or_path = base
        for name, parameter in list(model.named_parameters()):
            if parameter.requires_grad:
                module = model.get_submodule(name.rpartition(".")[0])
                module.weight = nn.Parameter(torch.empty(parameter.shape, device=model.device))
        self._set(self._initial())

    @property
    def parameters(self) -> list[str]:
        """The names of what it trains other than linear layers: of routers and experts."""
        return list(self._config.target_parameters or ())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the adapter's tensors by their names in peft's files."""
        trained = ((n, p) for n, p in self._model.named_parameters() if p.requires_grad)
        return {_PREFIX + n.replace(".default.weight", ".weight"): p.detach() for n, p in trained}

    def load(self, path: str | Path) -> None:
        """Take the values in the folder `path`, or the initial ones if `path` is the base model.

        Raises UsageError if the folder has no adapter of this form.
        """
        self._set(self._initial() if str(path) == self._base else self._saved(Path(path)))

    def write(self, tensors: dict[str, torch.Tensor], folder: Path) -> None:
        """Write the adapter to `folder` in peft's format; `tensors` are those of `tensors`."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
        self._config.save_pretrained(folder)
        readable_as(folder / CONFIG)

    def _initial(self) -> dict[str, torch.Tensor]:
        """Return the first values: B is 0, so the policy is the model; A is drawn as peft does."""
        generator = torch.Generator().manual_seed(self._seed)
        initial = {}
        for name, tensor in self.tensors().items():
            initial[name] = torch.zeros(tensor.shape)
            if ".lora_A." in name:
                bound = tensor.shape[1] ** -0.5
                initial[name].uniform_(-bound, bound, generator=generator)
        return initial

    def _saved(self, folder: Path) -> dict[str, torch.Tensor]:
        saved, ours = read_config(folder), self._config.to_dict()
        try:
            values: dict[str, torch.Tensor] = load_file(folder / _WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise UsageError(f"{folder / _WEIGHTS} cannot be read ({error})") from None
        if other := [name for name in _ARITHMETIC if saved.get(name) != ours[name]]:
            raise UsageError(f"{folder} holds an adapter with another {other[0]} in {CONFIG}")
        shapes = {name: tensor.shape for name, tensor in self.tensors().items()}
        if {name: tensor.shape for name, tensor in values.items()} != shapes:
            raise UsageError(f"{folder} holds an adapter of another rank or of other layers")
        return values

    def _set(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in self.tensors().items():
            local(tensor).copy_(values[name][own_rows(tensor)])


def imported_peft(options: LoRAOptions | None = None) -> Any:
    """Return the package peft. Raises UsageError if it, or what `options` need, is missing."""
    sys.modules["kernels"] = None  # type: ignore[assignment] # with it, bitsandbytes runs
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # code of the hub, and says if not
    try:
        import peft

        if options and options.quantize:
            import bitsandbytes  # noqa: F401
    except ImportError as error:
        extra = "qlora" if options and options.quantize else "lora"
        raise UsageError(f"lora needs a package ({error}): pip install 'mugrpo[{extra}]'") from None
    return peft


def read_config(folder: Path) -> dict[str, Any]:
    """Return the adapter's config in `folder`. Raises UsageError if it cannot be read."""
    try:
        return dict(json.loads((folder / CONFIG).read_text()))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / CONFIG} is not the config of an adapter ({error})") from None


def merged(model: Any, folder: Path, lora: LoRAOptions | None = None) -> Any:
    """Return `model` with the adapter in `folder` added to its weights, rounded as `lora` says.

    Raises UsageError if peft, or what `lora` needs, is missing, or peft cannot load the adapter.
    """
    peft = imported_peft(lora)
    with _without_warnings():
        try:
            with_adapter = peft.PeftModel.from_pretrained(model, folder)
            quantize(with_adapter, lora, "cpu", back=True)
            return with_adapter.merge_and_unload()
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise UsageError(f"peft cannot load the adapter in {folder} ({reason})") from None


def put_adapter(model: Any, options: LoRAOptions) -> Any:
    """Put an adapter without values into `model`, freeze the rest, and return peft's config.

    Every linear layer but the output head gets one: logprobs are computed from the head's own
    weights, so an adapter there would not count. Of a mixture of experts, so do the router and the
    experts, in one parameter each; peft doubles the rank and alpha of those that hold two layers.
    Raises UsageError if peft is missing or refuses the model.
    """
    peft = imported_peft(options)
    config = peft.LoraConfig(
        task_type=peft.TaskType.CAUSAL_LM,
        r=options.rank,
        lora_alpha=options.alpha,
        target_modules="all-linear",
        lora_dropout=0.0,  # the policy that is trained must be the one that was sampled from
    )
    with _without_warnings(), torch.device("meta"):
        try:
            peft.inject_adapter_in_model(config, model)
        except ValueError as error:  # its advice is on options that there are not here
            reason = first_line(error).partition(". ")[0]
            raise UsageError(
                f"peft has no adapter for this model ({reason}); train all of it (lora.rank = 0)"
            ) from None
    for targets in ("target_modules", "target_parameters"):  # a set has no order
        setattr(config, targets, sorted(getattr(config, targets) or ()) or None)
    return config


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence what peft says of transposed weights and of experts' parameters."""
    with warnings.catch_warnings():
        for kind in (UserWarning, RuntimeWarning):
            warnings.simplefilter("ignore", kind)
        yield
