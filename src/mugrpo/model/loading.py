"""Loading models, tokenizers and their configs, from directories and the hub."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file
from transformers.utils.peft_utils import find_adapter_config_file

from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model.dtensors import tensors_of
from mugrpo.model.pretrained import model_path, refuse_no_folder
from mugrpo.model.probe import context_of
from mugrpo.model.vocabulary import Vocabulary, vocabulary_of
from mugrpo.processes.messages import first_line

_REMEDY = (
    "name a whole directory in Hugging Face format (with tokenizer.json; copy it again if a file "
    "is cut short), or a hub id if there is a network (a gated one needs `hf auth login`)"
)

# What multimodal configs call the id of a token that stands for an image, a part of it, or sound.
_IMAGE_TOKEN = "(image|video|audio|vision|boi|boa).*_token_(id|index)"

transformers_logging.disable_progress_bar()


def load_tokenizer(options: ModelOptions) -> Any:
    """Return the tokenizer of `options`.

    Raises UsageError if it cannot be loaded or has no end-of-sequence token.
    """
    path = model_path(options)
    _refuse_no_model(path)
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

    Its folder may be that of an adapter. For some kinds of models, AutoTokenizer takes only the
    vocabulary of tokenizer.json and splits text by rules of its own. Where these are not those of
    the file, the file's tokenizer is returned: the model was trained with it. Its attribute
    `in_place_of` is AutoTokenizer's.
    """
    with _loading(f"the tokenizer of {path}"):
        tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        if tokenizer.get_vocab().keys() <= set(tokenizer.all_special_tokens):
            raise ValueError("it has special tokens alone")  # transformers makes one up for Qwen
        own_rules = type(tokenizer) is not PreTrainedTokenizerFast
        if not own_rules or not hasattr(tokenizer, "backend_tokenizer"):
            return tokenizer
        if cached_file(path, "tokenizer.json", _raise_exceptions_for_missing_entries=False) is None:
            return tokenizer
        of_file: Any = PreTrainedTokenizerFast.from_pretrained(path)
        if _splitting(of_file) == _splitting(tokenizer):
            return tokenizer
        of_file.in_place_of = tokenizer
        return of_file


def _splitting(tokenizer: Any) -> dict[str, Any]:
    """Return what decides which ids of its vocabulary a tokenizer gives a text."""
    state = json.loads(tokenizer.backend_tokenizer.to_str(), object_hook=_telling)
    return {part: state[part] for part in ("normalizer", "pre_tokenizer", "model")}


def _telling(state: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a tokenizer without the options that change offsets alone, and no id."""
    return {key: one or None for key, one in state.items() if key != "trim_offsets"}


def model_sizes(options: ModelOptions) -> tuple[int, int | None, str]:
    """Return (vocabulary size, *`probe.context_of`), from the config alone.

    Raises UsageError if the config cannot be read.
    """
    config = model_config(options)
    return config.get_text_config().vocab_size, *context_of(config)


def load_vocabulary(options: ModelOptions, tokenizer: Any) -> Vocabulary:
    """Return the same vocabulary as `Policy.vocabulary`, from the model's configs alone.

    Raises UsageError if they cannot be read, or if the tokenizer belongs to another model.
    """
    config, path = model_config(options), model_path(options)
    with _loading(f"the generation config of {path}"):
        try:
            generation_config = GenerationConfig.from_pretrained(path)
        except OSError:  # the model has none
            generation_config = GenerationConfig.from_model_config(config)
    size = config.get_text_config().vocab_size
    return vocabulary_of(size, tokenizer, generation_config, options)


def model_config(options: ModelOptions) -> Any:
    """Return transformers' config of the model. Raises UsageError if it cannot be read."""
    return _config_at(model_path(options))


def sketched(options: ModelOptions) -> Any:
    """Return the language model of `options` without its weights, on the meta device.

    Raises UsageError if transformers cannot build it.
    """
    config = model_config(options).get_text_config()
    with _loading(f"the model {options.path}"), torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def image_tokens(options: ModelOptions, tokenizer: Any) -> list[str]:
    """Return the tokens that stand for images or sound in texts that the model gets."""
    values = model_config(options).to_dict()
    names = (name for name in values if re.fullmatch(_IMAGE_TOKEN, name))
    ids = [values[name] for name in names if isinstance(values[name], int)]
    return [token for token in tokenizer.convert_ids_to_tokens(ids) if token]


def processor_files(path: str) -> list[Path]:
    """Return the files by which other programs prepare images and sound for a model, if any."""
    folder = Path(path)
    if not folder.is_dir():  # of a hub id, they are beside its config
        config = cached_file(path, "config.json", _raise_exceptions_for_missing_entries=False)
        folder = Path(config or path).parent
    return sorted(folder.glob("*processor*_config.json"))


def _config_at(path: str) -> Any:
    """Return the config of the model at `path`, without an attention that it names.

    Raises UsageError if it names code of its own, or if transformers has no causal language model
    of its kind.
    """
    _refuse_no_model(path)
    with _loading(f"the model {path}"):
        config: Any = AutoConfig.from_pretrained(path, trust_remote_code=False)
        parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    for kind in ("attn_implementation", "experts_implementation"):
        for name in (getattr(part, f"_{kind}", None) for part in parts):
            if isinstance(name, str) and "/" in name:  # transformers would fetch and run it
                raise UsageError(
                    f"the model {path} names a kernel of the hub, {first_line(name)}, which is "
                    f"code of its own; remove {kind} from its config.json"
                )
    config._attn_implementation = None  # transformers' default, of all parts: others need packages
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        reads = "reads images or sound, and " if len(config.sub_configs) > 1 else ""
        raise UsageError(
            f"the model {path} cannot be trained: it {reads}is of the type {config.model_type}, "
            "which transformers has no causal language model of; name a model of text"
        )
    if (layers := getattr(config.get_text_config(), "num_hidden_layers", 1)) < 1:
        raise UsageError(f"the model {path} has {layers} layers; fix its config.json")
    return config


def load_model(path: str | Path) -> Any:
    """Return the model in fp32.

    Raises UsageError if it cannot be loaded or lacks weights, or if they are quantized already.
    """
    text = str(path)
    config = _config_at(text)
    model: Any
    info: dict[str, Any]
    with _loading(f"the model {text}"):
        model, info = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]
            path,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
        )
    if getattr(model, "hf_quantizer", None) is not None:
        raise UsageError(
            f"the weights of {text} are quantized already; name the model that they were made from"
        )
    if absent := sorted(info["missing_keys"]):  # transformers only warns, and draws them at random
        raise UsageError(f"the weights of {text} lack {absent[0]}; its files are incomplete")
    return model


def empty_model(path: str, names: set[str]) -> Any:
    """Return a model with tensors of these names, in fp32.

    Its weights are allocated but not written to.
    """
    config = _config_at(path)
    with _loading(f"the model {path}"), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    model.to_empty(device="cpu")  # unties weights
    if tensors_of(model).keys() != names:  # files may hold untied weights that the config ties
        model.tie_weights()
    return model


@contextmanager
def _loading(description: str) -> Iterator[None]:
    """Within the block, turn a loading error into a UsageError that names `description`."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # a bad file may raise any
        if "trust_remote_code" in str(error):
            reason = (
                "needs code of its own, which mugrpo never runs; name a model that transformers "
                "has the code of"
            )
        else:
            said = f"there is no {error}" if isinstance(error, KeyError) else first_line(error)
            reason = f"cannot be loaded ({said}); {_REMEDY}"
        raise UsageError(f"{description} {reason}") from None


def _refuse_no_model(path: str) -> None:
    """Raise UsageError as `refuse_no_folder`, or if `path` holds an adapter.

    With peft, transformers would load the model that the adapter names instead.
    """
    refuse_no_folder(path)
    with _loading(f"the model {path}"):
        adapter = find_adapter_config_file(path)
    if adapter is not None:
        raise UsageError(
            f"{path} holds an adapter, not a model; make one with `mugrpo merge {path} DIRECTORY` "
            "if a run has made it, else with peft's merge_and_unload"
        )
