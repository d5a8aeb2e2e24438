"""A run without a precision or a date of its own keeps the one that it began with."""

import datetime
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import mugrpo
from mugrpo.config.load import build_config
from mugrpo.disk.errors import UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.model import hardware
from mugrpo.run import deciding
from mugrpo.run.progress import Progress
from tests.cases import table
from tests.runs import CONFIG, ROOT, write_config

FORM = str(ROOT / "configs" / "recipes" / "forms" / "qwen2.5-0.5b")


def opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch, device: str, *words: str
) -> tuple[str, int | None]:
    """Return precision and tokens of a micro-batch of the run in `folder`, on a CPU or a GPU.

    The GPU computes in bf16 and has 80 GiB.
    """
    monkeypatch.setattr(hardware, "device", lambda: device)
    monkeypatch.setattr(deciding, "device", lambda: device)
    monkeypatch.setattr(deciding, "gpu_memory", lambda: 80 << 30)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    with mugrpo.open_run(write_config(folder), run_dir=folder / "run", overrides=words) as run:
        return run.config.model.precision, run.config.optimizer.micro_batch_tokens


@table(
    ("first", "kept", "then"),
    [("cuda", ("bf16", 16_384), "cpu"), ("cpu", ("fp32", 4096), "cuda")],
)
def test_on_another_machine_it_stays(tmp_path, monkeypatch, capsys, first, kept, then):
    """A GPU on which a run computes in fp32 is slow, which is said."""
    assert opened(tmp_path, monkeypatch, first) == kept
    said = capsys.readouterr().out
    assert ("precision: bf16; " in said) == (first == "cuda")
    assert ("micro-batches: 16,384 tokens" in said) == (first == "cuda")
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (stored["model"]["precision"], stored["optimizer"]["micro_batch_tokens"]) == kept
    assert opened(tmp_path, monkeypatch, then) == kept
    said = capsys.readouterr().out
    assert ("precision: fp32; a new run" in said) == (then == "cuda")
    assert "precision: bf16" not in said and "micro-batches" not in said


def test_a_number_of_ones_own_stays(tmp_path, monkeypatch, capsys):
    words = ("--optimizer.micro_batch_tokens", "300", "--model.precision", "bf16")
    assert opened(tmp_path, monkeypatch, "cuda", *words) == ("bf16", 300)
    said = capsys.readouterr().out
    assert "micro-batches" not in said and "precision" not in said
    assert opened(tmp_path, monkeypatch, "cpu") == ("bf16", 300)


@pytest.mark.parametrize(
    ("form", "stages", "changed", "named"),
    [
        ("r1-distill-qwen-1.5b", 12, {}, True),  # 12 x 64 x 128 rollouts of 512 tokens: 50 million
        ("r1-distill-qwen-1.5b", 8, {}, False),  # 34 million
        ("qwen2.5-0.5b", 12, {}, False),
        ("r1-distill-qwen-1.5b", 12, {"engine": {"name": "vllm"}}, False),
    ],
)
def test_vllm_is_named_for_many_tokens_of_a_large_model(monkeypatch, form, stages, changed, named):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    path = str(ROOT / "configs" / "recipes" / "forms" / form)
    raw = {"model": {"path": path, "precision": "bf16"}, "preset": "grpo"} | changed
    schedule = {"stages": stages, "batches_per_stage": 64}
    config = build_config(raw | {"schedule": schedule}, "test")
    said = [*deciding._advice(config, begins=True)]
    assert len(said) == named and [*deciding._advice(config, begins=False)] == []
    for sentence in said:
        assert sentence.startswith("generation: up to 50 million tokens of 1.8 billion weights")
        assert "--engine.name vllm" in sentence and "`mugrpo vllm-env`" in sentence


@pytest.mark.parametrize(("build", "path", "refused"), [("13.0", FORM, True), (None, FORM, False)])
def test_a_gpu_that_torch_does_not_see_is_not_passed_over_in_silence(
    tmp_path, monkeypatch, capsys, build, path, refused
):
    """A CUDA build is refused, unless the model is one of the small embedded ones."""
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(deciding, "unusable_gpu", lambda: ("torch does not see it", "install one"))
    config = build_config({"model": {"path": path}}, "test")
    if refused:
        with pytest.raises(UsageError, match="torch does not see it; install one"):
            deciding.for_this_machine(RunDir(tmp_path), config, Progress())
    else:
        deciding.for_this_machine(RunDir(tmp_path), config, Progress())
    deciding.for_this_machine(RunDir(tmp_path), build_config({}, "test"), Progress())
    said = capsys.readouterr().out
    assert said.count("warning: torch does not see it; install one") == (1 if refused else 2)


class Clock(datetime.date):
    """A clock that a test sets."""

    now = datetime.date(2026, 3, 1)

    @classmethod
    def today(cls) -> datetime.date:
        return cls.now


def test_a_resumed_run_writes_the_date_on_which_it_began(tmp_path: Path, monkeypatch):
    """Also if the command names the config file again; an option wins over the clock."""
    (tmp_path / "dated.jinja").write_text("{{ strftime_now('%m%d') }}={{ messages[0].content }}")
    config = tmp_path / "tiny.toml"
    prompt = f'[prompt]\nform = "chat"\nchat_template = "{tmp_path}/dated.jinja"\n'
    config.write_text(f"{CONFIG}\n{prompt}")
    monkeypatch.setattr("mugrpo.rollouts.prompts.datetime", SimpleNamespace(date=Clock))

    def begins(target: Path, run_dir: Path, *options: str) -> str:
        named = None if target == run_dir else run_dir
        with mugrpo.open_run(target, run_dir=named, overrides=options, trust=True) as run:
            return run.prompts.text(run.problems[0])[:5]

    first, second = tmp_path / "first", tmp_path / "second"
    assert begins(config, first) == "0301="
    Clock.now = datetime.date(2026, 3, 2)
    assert begins(config, first) == begins(first, first) == "0301="
    assert begins(config, second) == "0302="
    assert begins(config, tmp_path / "third", "--prompt.date", "2025-12-24") == "1224="
