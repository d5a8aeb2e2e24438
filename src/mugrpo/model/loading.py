"""Loading models, tokenizers and their configs, from directories and the hub."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging
from transformers.utils.peft_utils import find_adapter_config_file

from mugrpo.config.lora import LoRAOptions
from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import SUMS, regular
from mugrpo.model.adapter import put_adapter
from mugrpo.model.dtensors import tensors_of
from mugrpo.model.hub import hub_answers
from mugrpo.model.pretrained import model_path, refuse_no_folder
from mugrpo.model.printing import visibly
from mugrpo.model.sizes import refuse_absurd_sizes
from mugrpo.model.vocabulary import Vocabulary, vocabulary_of
from mugrpo.processes.messages import printable

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
