"""Loading models, tokenizers and their configs, from directories and the hub."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
import transformers
from huggingface_hub import is_offline_mode
from huggingface_hub.constants import ENDPOINT
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file
from transformers.utils.peft_utils import find_adapter_config_file

from mugrpo.config.run import ModelOptions
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import SUMS, regular, sha256_of
from mugrpo.model.adapter import put_adapter
from mugrpo.model.files import tensors_of
from mugrpo.model.hardware import out_of_memory
from mugrpo.model.pretrained import model_path, refuse_no_folder
from mugrpo.processes.limited import LimitError, limited
from mugrpo.processes.messages import printable, visible

_WAY_OUT = (
    "name a directory in Hugging Face format, or a hub id if there is a network (a gated one "
    "needs `hf auth login`)"
)

transformers_logging.disable_progress_bar()


def load_tokenizer(options: ModelOptions) -> Any:
    """Return the tokenizer of `options`.

    Raises UsageError if it cannot be loaded or has no end-of-sequence token.
    """
    path = model_path(options)
    _refuse_absent(path)
    tokenizer = tokenizer_at(path)
    if options.eos_token:
        if options.eos_token not in tokenizer.get_vocab():
            raise UsageError(
                f"model.eos_token = {options.eos_token!r} is not a token of {options.path}"
            )
        tokenizer.eos_token = options.eos_token
    if tokenizer.eos_token_id is None:
        raise UsageError(
            f"the tokenizer of {options.path} has no end-of-sequence token, so every "
            "response would be truncated; name one with --model.eos_token"
        )
    return tokenizer


def tokenizer_at(path: str) -> Any:
    """Return the tokenizer in a folder, or of a hub id. Raises UsageError if it cannot be loaded.

    Its folder may be that of an adapter.
    """
    with _loading(f"the tokenizer of {path}"):
        return AutoTokenizer.from_pretrained(path, **_how(path))


def model_sizes(options: ModelOptions) -> tuple[int, int | None]:
    """Return (vocabulary size, longest context in tokens or None), from the config alone.

    Raises UsageError if the config cannot be read.
    """
    config = model_config(options)
    with _loading(f"the model {options.path}"):
        text = config.get_text_config()
        return text.vocab_size, getattr(text, "max_position_embeddings", None)


def trained_parameters(options: ModelOptions, lora: LoRAOptions) -> int:
    """Return the number of parameters that are trained, tied ones once, from the config alone.

    Raises UsageError if the config cannot be read, or as `put_adapter` does.
    """
    config = model_config(options)
    with _loading(f"the model {options.path}"), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    if lora.rank:
        with torch.device("meta"):
            put_adapter(model, lora)
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def load_vocabulary(options: ModelOptions, tokenizer: Any) -> Vocabulary:
    """Return the same vocabulary as `Policy.vocabulary`, from the model's configs alone.

    Raises UsageError if they cannot be read, or if the tokenizer belongs to another model.
    """
    config = model_config(options)
    path = model_path(options)
    where = {"local_files_only": _how(path)["local_files_only"]}
    with _loading(f"the generation config of {path}"):
        try:
            generation_config = GenerationConfig.from_pretrained(path, **where)
        except OSError:  # the model has none
            generation_config = GenerationConfig.from_model_config(config)
        size = config.get_text_config().vocab_size
        return vocabulary_of(size, tokenizer, generation_config, options)


def model_config(options: ModelOptions) -> Any:
    """Return transformers' config of the model. Raises UsageError if it cannot be read."""
    path = model_path(options)
    _refuse_absent(path)
    with _loading(f"the model {path}"):
        refuse_absurd_sizes(path, local_files_only=_how(path)["local_files_only"])
        return AutoConfig.from_pretrained(path, **_how(path))


def load_model(path: str | Path) -> Any:
    """Return the model in fp32.

    Raises UsageError if it cannot be loaded or lacks weights, if they are quantized already, or if
    its config has absurd sizes.
    """
    text = str(path)
    _refuse_absent(text)
    model: Any
    info: dict[str, Any]
    with _loading(f"the model {text}"):
        refuse_absurd_sizes(path, local_files_only=_how(path)["local_files_only"])
        model, info = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]
            path, dtype=torch.float32, output_loading_info=True, **_how(path)
        )
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None:
        raise UsageError(
            f"the weights of {text} are quantized already; name the model that they were made from"
        )
    if absent := sorted(info["missing_keys"]):
        raise UsageError(f"the weights of {text} lack {absent[0]}; its files are incomplete")
    return model


def empty_model(path: str, names: set[str]) -> Any:
    """Return a model with tensors of these names, in fp32.

    Its weights are allocated but not written to.
    """
    with _loading(f"the model {path}"), torch.device("meta"):
        config = AutoConfig.from_pretrained(path, **_how(path))
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    model.to_empty(device="cpu")  # unties weights
    if tensors_of(model).keys() != names:  # files may hold untied weights that the config ties
        model.tie_weights()
    return model


def _how(path: str | Path) -> dict[str, Any]:
    """Return how transformers loads `path`: without code of the model's own, and without the hub
    if that cannot be reached."""
    from_hub = not Path(path).is_dir()
    return {"trust_remote_code": False, "local_files_only": from_hub and not hub_answers()}


@contextlib.contextmanager
def _loading(description: str) -> Iterator[None]:
    """Within the block, turn a loading error into a UsageError that names `description`.

    What libraries print there is shown without characters that a terminal obeys.
    """
    try:
        with visibly():
            yield
    except UsageError:
        raise
    except Exception as error:  # a bad file may raise any
        if "trust_remote_code" in str(error):
            raise UsageError(
                f"{description} needs code of its own, which mugrpo never runs; name a model that "
                "transformers has the code of"
            ) from None
        if "Unrecognized configuration class" in str(error):
            raise UsageError(
                f"{description} is none that reads text alone and continues it: it reads images or "
                "sound too, or has an encoder; name a text model, or save this one's text part "
                "alone and name that"
            ) from None
        raise UsageError(
            f"{description} cannot be loaded ({first_line(error)}); {_WAY_OUT}"
        ) from None


def other_architecture(path: str | Path, reason: str) -> UsageError:
    return UsageError(f"{path} holds a model of another architecture ({reason})")


def shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _refuse_absent(path: str) -> None:
    """Raise UsageError as `refuse_no_folder`, or if `path` holds an adapter.

    With peft, transformers would load the model that the adapter names instead.
    """
    refuse_no_folder(path)
    _refuse_paths_out(Path(path))
    with _loading(f"the model {path}"):
        adapter = find_adapter_config_file(path, local_files_only=_how(path)["local_files_only"])
    if adapter is not None:
        sealed = (Path(path) / SUMS).is_file()
        merge = f"`mugrpo merge {path} DIRECTORY`" if sealed else "peft's merge_and_unload"
        raise UsageError(f"{path} holds an adapter, not a model; make one with {merge}")


def _refuse_paths_out(folder: Path) -> None:
    """Raise UsageError if a file of a model's directory names others that are not in it.

    transformers joins the names to the directory, and would follow them anywhere.
    """
    for file in [*folder.glob("*.index.json"), *folder.glob("tokenizer_config.json")]:
        with _loading(f"the model {folder}"):
            listed = dict(json.loads(regular(file).read_bytes()))
            weights = dict(listed.get("weight_map") or {}).values()
            names = [str(name) for name in (*weights, *(listed.get("fast_tokenizer_files") or ()))]
        if out := [name for name in names if name != os.path.basename(name)]:
            raise UsageError(f"{file} names {out[0]!r:.80}, which is no file in that directory")


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message, which may quote others' files.

    An error without a message is called by its name.
    """
    return printable((str(error).strip() or type(error).__name__).split("\n")[0], 1000)


# The facts about a model's tokens that an engine needs, even if it never loads the model.


@dataclass(frozen=True)
class Vocabulary:
    """The number of a model's token ids, and the ids that end a response."""

    size: int
    stop_ids: list[int]  # ascending


def vocabulary_of(
    size: int, tokenizer: Any, generation_config: Any, options: ModelOptions
) -> Vocabulary:
    """Return the vocabulary of a model with `size` embeddings.

    A response ends at the end-of-sequence token of the tokenizer, or at one of those in the
    generation config. Raises UsageError if one of these tokens is outside the embeddings.
    """
    eos_ids = getattr(generation_config, "eos_token_id", None)
    ids = eos_ids if isinstance(eos_ids, list) else [] if eos_ids is None else [eos_ids]
    stop_ids = sorted({tokenizer.eos_token_id, *ids})
    if max(stop_ids) >= size:
        raise UsageError(
            f"the end-of-sequence id {max(stop_ids)} is outside the model's "
            f"{size} embeddings: the tokenizer of {options.path} belongs to another model"
        )
    return Vocabulary(size, stop_ids)


# Whether a model's config.json has sizes that its weights can have, before the model is built.


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


# What libraries print of others' files, without the characters that a terminal obeys.


_COLORS = re.compile(r"\x1b\[[0-9;]*m")  # a library's own, or another's: dropped


class _Visible:
    """A stream that passes text on without the characters that a terminal obeys."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(visible(_COLORS.sub("", text).expandtabs()))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def visibly() -> Iterator[None]:
    """Escape what Python code prints, warns of or logs within the block.

    Names of tensors, tokens and keys are quoted by libraries in reports and warnings as they are.
    A log handler keeps the stream that it was made with, so that stream is replaced too.
    """
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    loggers = [logging.root, *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    handlers = {
        handler: handler.stream
        for logger in loggers
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler)
        and vars(handler).get("stream") is not None  # else it looks for one, or opens a file
    }
    try:
        for name, stream in streams.items():
            setattr(sys, name, _Visible(stream))
        for handler, stream in handlers.items():
            handler.stream = _Visible(stream)
        yield
    finally:
        for handler, stream in handlers.items():
            handler.stream = stream
        for name, stream in streams.items():
            setattr(sys, name, stream)


# Whether the Hugging Face hub can be reached.


@cache
def hub_answers() -> bool:
    """Return whether the hub can be reached. Libraries would try for half a minute."""
    if is_offline_mode():
        return False
    if getproxies().keys() - {"no"}:
        return True  # they may know the way
    hub = urlsplit(ENDPOINT)
    try:
        port = hub.port or (443 if hub.scheme == "https" else 80)
        socket.create_connection((hub.hostname, port), timeout=3).close()
    except OSError:
        return False
    return True
