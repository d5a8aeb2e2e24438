"""The setup of vLLM processes. Does not import vllm."""

import os
import re
import subprocess
import sys
from pathlib import Path

from mugrpo.config.engines import BUILDS, VLLMOptions
from mugrpo.config.run import ModelOptions
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.engines.process import EngineHost, not_run
from mugrpo.model.hardware import precision_of
from mugrpo.model.loading import model_config, model_sizes
from mugrpo.model.pretrained import model_path
from mugrpo.model.vocabulary import Vocabulary
from mugrpo.processes.lifetime import fixed_segments, passed_on

OLDEST = (0, 26)  # its reload_weights takes a path; tools/vllm_env.py has the tested version
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # those that vLLM keeps room for
EXTENSION = Path(__file__).with_name("extension")  # on the PYTHONPATH of vLLM's processes


def new_enough(version: str) -> bool:
    """Return whether vLLM of this version is at least OLDEST."""
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2]) >= OLDEST


def require_vllm(python: str | None) -> None:
    """Raise UsageError if an interpreter (None for this one) cannot be run or has no vLLM."""
    interpreter = python or sys.executable
    asked = (
        "import sys; from importlib.metadata import distributions as all; "
        "print(*(one.version for one in all() if one.name in sys.argv[1:]))"
    )
    try:
        found = subprocess.run(
            [interpreter, "-c", asked, *BUILDS],
            env=passed_on(),
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise not_run(interpreter, error) from None
    if found.returncode or not found.stdout.strip():
        raise UsageError(
            f"{interpreter} has no vLLM; `mugrpo vllm-env` installs it, --engine.python names it"
        )
    if not new_enough(found.stdout):
        raise UsageError(
            f"vLLM of {interpreter} is {found.stdout.strip()}; it must be at least "
            f"{OLDEST[0]}.{OLDEST[1]}: `mugrpo vllm-env` makes another"
        )


def _lora_room(model: ModelOptions, rank: int) -> int:
    """Return the rank that vLLM keeps room for.

    peft doubles it for parameters of experts that hold two layers.
    """
    largest = rank
    if rank and any("expert" in name for name in model_config(model).get_text_config().to_dict()):
        largest = 2 * rank
    if largest > _LORA_RANKS[-1]:
        raise UsageError(
            f"adapters of this model's experts have rank {largest}, and vLLM takes up to "
            f"{_LORA_RANKS[-1]}; lower lora.rank to {_LORA_RANKS[-1] // 2}"
        )
    return next(room for room in _LORA_RANKS if room >= largest)


def vllm_host(
    vocabulary: Vocabulary, model: ModelOptions, lora: LoRAOptions, options: VLLMOptions, log: Path
) -> EngineHost:
    """Return the host of one vLLM process.

    If the run trains an adapter, the process keeps the base model. vLLM's engine core runs in that
    same process, so nothing is left to hang when it is killed. Raises UsageError if vLLM has no
    room for the adapter.
    """
    _, context, why = model_sizes(model)
    room = _lora_room(model, lora.rank)
    arguments = {
        "dtype": "float32" if precision_of(model) == "fp32" else "bfloat16",
        "tensor_parallel_size": options.tensor_parallel,
        "max_num_seqs": options.slots,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        **options.arguments,
    }
    if context and why:  # vLLM rotates all rows as long ones if one may be long
        arguments["max_model_len"] = min(context, options.max_model_len or context)
    setup = {
        "backend": "vllm",
        "arguments": arguments,
        "stop_ids": vocabulary.stop_ids,
        "sleeps": options.rest == "sleep",
        # What refreshes hand over instead of a model: adapters of this one.
        "adapters": {"base": model_path(model), "rank": room} if lora.rank else None,
    }
    paths = [str(EXTENSION), *filter(None, [os.environ.get("PYTHONPATH")])]
    return EngineHost(
        python=options.python,
        setup=setup,
        environment={
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": os.pathsep.join(paths),
            **fixed_segments(),
        },
        log=log,
        vocab_size=vocabulary.size,
        rest=options.rest,
        slots=options.slots,
        gpus=options.tensor_parallel,
    )
