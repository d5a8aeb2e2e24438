"""Run TRL's own tests of GRPOTrainer with TRL's classes and with ours, and compare.

    python scripts/trl_tests.py TRL/tests/test_grpo_trainer.py build/trl_tests [pytest's options]

Nothing of TRL's tests is part of this repository. They name models and data sets of the hub. Here
stand-ins take their places, in a folder like the hub's cache: models of the same classes with
random weights, and sentences. The tests write token ids of Qwen's tokenizer, whose file the package
dashscope has. Tests of images and those marked slow are left out, and what a test needs beyond the
stand-ins fails in both runs.

Pytest loads this file as a plugin, too.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from importlib import metadata, resources
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from xml.etree import ElementTree

ORGANIZATION = "trl-internal-testing"
IMPORT = "from trl import GRPOConfig, GRPOTrainer"
OURS = "from mugrpo.extensions.trl import GRPOConfig, GRPOTrainer"
_SIZES = {
    **{"hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2},
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # -> chat template of TRL, options of the config
    "tiny-Cohere2ForCausalLM": ("cohere2", {"logit_scale": 1.0}),
    "tiny-Gemma2ForCausalLM": ("gemma", {"head_dim": 4}),
    "tiny-Glm4MoeForCausalLM": ("glm4moe", {**_EXPERTS, "n_routed_experts": 4, "head_dim": 2}),
    "tiny-GptOssForCausalLM": ("gptoss", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "tiny-LlamaForSequenceClassification-3.2": ("llama3", {"hidden_size": 16, "num_labels": 1}),
    "tiny-NemotronHForCausalLM-nano": (
        "nemotron_3_nano",
        {
            **{"hidden_size": 16, "layers_block_type": ["mamba", "attention", "moe"]},
            **{"mamba_num_heads": 8, "mamba_head_dim": 4, "n_groups": 1, "ssm_state_size": 16},
            **{"n_routed_experts": 4, **_EXPERTS, "moe_shared_expert_intermediate_size": 32},
            **{"num_hidden_layers": 3},
        },
    ),
    "tiny-Qwen2ForCausalLM-2.5": ("qwen2_5", {}),
    "tiny-Qwen2ForSequenceClassification-2.5": ("qwen2_5", {"hidden_size": 16, "num_labels": 1}),
    "tiny-Qwen3ForCausalLM": ("qwen3", {"head_dim": 8}),
    "tiny-Qwen3ForSequenceClassification": ("qwen3", {"hidden_size": 16, "num_labels": 1}),
    "tiny-Qwen3MoeForCausalLM": ("qwen3", {**_EXPERTS, "num_experts": 4, "head_dim": 8}),
}
_TOKENS = 151643  # of Qwen's vocabulary; then come the marks, "<tool_call>" as the 15th
_MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *map("<|other_{}|>".format, range(11))]
_TOOLS = ["<tool_call>", "</tool_call>"]
_FEW = 16384  # tokens of models for which no test writes ids of its own: three times as fast
_WHOLE = ("tiny-Qwen3MoeForCausalLM",)
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def tokenizer(template: str, tokens: int) -> Any:
    """Return Qwen's tokenizer, cut to some `tokens`, with a chat template of the installed TRL."""
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    place = "dashscope/resources/qwen.tiktoken"  # the package itself cannot be imported alone
    lines = Path(str(metadata.distribution("dashscope").locate_file(place))).read_bytes()
    split = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    with NamedTemporaryFile() as file:
        file.write(b"\n".join(lines.splitlines()[:tokens]))
        file.flush()
        marks = [*_MARKS, *_TOOLS]
        converted = TikTokenConverter(file.name, split, extra_special_tokens=marks).converted()
    chat = (resources.files("trl") / "chat_templates" / f"{template}.jinja").read_text()
    return PreTrainedTokenizerFast(
        tokenizer_object=converted,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=chat,
    )


def make_models(hub: Path) -> None:
    """Write the models that are not in `hub` yet, in the form of the hub's cache."""
    import torch
    import transformers

    for name, (template, options) in _MODELS.items():
        home = hub / f"models--{ORGANIZATION}--{name}"
        if (home / "refs" / "main").exists():
            continue
        kind = getattr(transformers, name.split("-")[1])
        tokens = _TOKENS if name in _WHOLE else _FEW
        marks = {"vocab_size": tokens + 293, "eos_token_id": tokens + 2, "pad_token_id": tokens}
        torch.manual_seed(0)
        model = kind(kind.config_class(**{**_SIZES, **marks, **options})).to(torch.bfloat16)
        model.save_pretrained(home / "snapshots" / "made")
        tokenizer(template, tokens).save_pretrained(home / "snapshots" / "made")
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text("made")


def pytest_configure() -> None:
    """Have `load_dataset` make the data sets, which it would ask the hub for.

    Tests of another version of TRL may ask for packages that this one no longer looks for.
    """
    import datasets
    from trl import import_utils
    from trl.trainer.base_config import _BaseConfig

    def missing(name: str) -> Any:
        if not name.startswith("is_"):
            raise AttributeError(name)
        return lambda *_: False

    import_utils.__getattr__ = missing
    finish = _BaseConfig.__post_init__

    def in_fp32(config: Any) -> None:
        config.bf16 = bool(config.bf16)  # None is on: 63 ms a product over the vocabulary on a CPU
        finish(config)

    _BaseConfig.__post_init__ = in_fp32

    prompts = [f"{word} is" for word in _WORDS]
    chats = [[{"role": "user", "content": f"What is {prompt}?"}] for prompt in prompts]
    known = {"standard_prompt_only": prompts, "conversational_prompt_only": chats}

    def load(path: str, name: str, split: str | None = None, streaming: bool = False) -> Any:
        assert path == f"{ORGANIZATION}/zen", f"there is no stand-in for {path}"
        rows = datasets.Dataset.from_dict({"prompt": known[name]})
        both = rows.train_test_split(test_size=2, shuffle=False)
        if streaming:
            both = {part: both[part].to_iterable_dataset() for part in both}
        return both if split is None else both[split]

    datasets.load_dataset = load


def outcomes(tests: Path, work: Path, line: str, options: list[str]) -> dict[str, str]:
    """Return what became of each test in `tests`, run with the import `line`."""
    package = work / "tests"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(tests.parent, package, ignore=shutil.ignore_patterns("test_*", "__pycache__"))
    source = tests.read_text()
    assert source.count(f"\n{IMPORT}\n") == 1, f"{tests} has another import than {IMPORT!r}"
    (package / tests.name).write_text(source.replace(f"\n{IMPORT}\n", f"\n{line}\n"))
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={work}", "-q"]
    command += ["-p", "trl_tests", "-p", "no:cacheprovider", "-m", "not slow", "-k", "not VLM"]
    command += ["--tb=short", "--junitxml=junit.xml", *options, f"tests/{tests.name}"]
    places = [str(Path(__file__).parent), str(work / "packages"), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, places)), "HF_HOME": str(work / "hub")}
    own |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    subprocess.run(command, cwd=work, env={**os.environ, **own}, check=False)
    found = {}
    for case in ElementTree.parse(work / "junit.xml").iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[f"{case.get('classname')}.{case.get('name')}"] = min(kinds, default="passed")
    return found


def main() -> int:
    """Return 1 if a test passes with TRL's classes and not with ours."""
    tests, work = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    sys.path.insert(0, str(work / "packages"))
    make_models(work / "hub" / "hub")
    theirs, ours = (outcomes(tests, work, line, sys.argv[3:]) for line in (IMPORT, OURS))
    for label, found in (("TRL's", theirs), ("ours", ours)):
        counts = ", ".join(f"{count} {what}" for what, count in Counter(found.values()).items())
        print(f"{label:6} TRL {metadata.version('trl')}: {counts}")
    differ = {name for name in theirs | ours if theirs.get(name) != ours.get(name)}
    for name in sorted(differ):
        print(f"{name}: {theirs.get(name)} with TRL's, {ours.get(name)} with ours")
    return int(any(theirs.get(name) == "passed" for name in differ))


if __name__ == "__main__":
    sys.exit(main())
