"""Whether a model's config.json has sizes that its weights can have, before the model is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.hub import cached_file

from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import sha256_of
from mugrpo.model.memory import out_of_memory
from mugrpo.processes.limited import LimitError, limited

_SECONDS, _MEGABYTES = 60, 2048  # a model without weights: a few seconds for thousands of layers
_PER_BYTE = 4  # parameters of weights with two bits each, the smallest in use
_LONGEST = 1 << 20  # bytes of a config that is read here; a real one has thousands
_WEIGHTS = ("*.safetensors", "*.bin")

_parameters: dict[str, int] = {}  # of each config that was built, by its hash


def refuse_absurd_sizes(path: str | Path, *, local_files_only: bool) -> None:
    """Raise UsageError if no model has the sizes in the config of `path`, a directory or hub id.

    The model is built without weights, in a process with limits on time and memory. Weight files
    in a directory must not be much too small for it. Raises OSError or ValueError if the config
    cannot be used.
    """
    file = cached_file(str(path), "config.json", local_files_only=local_files_only)
    if file is None:
        return  # loading says so
    key = sha256_of(Path(file))
    if key not in _parameters:
        _import_model(Path(file))
        try:
            built = limited(lambda: _built(str(path)), seconds=_SECONDS, megabytes=_MEGABYTES)
        except LimitError as error:
            raise UsageError(
                f"the model that {file} describes {error} before it has any weights; its sizes "
                "cannot be right: get it again, or name another model"
            ) from None
        if "error" in built:
            raise ValueError(built["error"])
        _parameters[key] = built["parameters"]
    files = [weights for form in _WEIGHTS for weights in Path(path).glob(form)]
    size = sum(weights.stat().st_size for weights in files)
    if files and _parameters[key] > _PER_BYTE * size:
        raise UsageError(
            f"{file} describes {_parameters[key]:,} parameters, but the weight files beside it "
            f"have only {size:,} bytes; get the model again, or name another one"
        )


def _import_model(config: Path) -> None:
    """Import the model's class before the fork; otherwise the fork and this process both would."""
    if config.stat().st_size < _LONGEST:
        kind = dict(json.loads(config.read_bytes())).get("model_type")
        name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(kind))
        if isinstance(name, str):
            getattr(transformers, name)


def _built(path: str) -> dict[str, Any]:
    """Return the number of parameters of the model at `path`, or why it cannot be built."""
    how: dict[str, Any] = {"trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, **how)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, **how)
        return {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    except Exception as error:
        if out_of_memory(error):
            raise MemoryError from None
        return {"error": str(error) or type(error).__name__}
