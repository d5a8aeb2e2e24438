"""GRPOTrainer: TRL's constructor and `train`, over a run of this project.

output_dir/         the final model, or adapter
  run.toml          the run's config: `mugrpo train` takes it, too
  run/              the run
  data/             the data sets, and what of the model was only in memory
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import TrainOutput

from mugrpo import pipeline
from mugrpo.config.load import build_config
from mugrpo.config.toml import as_document
from mugrpo.disk.errors import Interrupted, UsageError
from mugrpo.disk.metrics import read_metrics
from mugrpo.disk.publishing import publish_file
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.loading import tokenizer_at
from mugrpo.model.pretrained import model_path
from mugrpo.processes.stopping import StopFlag, stop_on_signals
from mugrpo.run.opening import open_run
from mugrpo.trl import data
from mugrpo.trl.callbacks import Callbacks
from mugrpo.trl.config import GRPOConfig, changed, is_set, refuse, warn
from mugrpo.trl.environment import environment_options
from mugrpo.trl.options import differences, run_options, with_own
from mugrpo.trl.schedule import generation_of

_NOT_OF_A_MODEL = ("optimizer*", "trainer.json", "sha256.json", "stages.json")
_NO_ANSWERS = ("--task.answer_column", "none")  # which TOML cannot say
_NOT_HERE = {
    "reward_processing_classes": "call a reward model in a function of your own",
    "quantization_config": "GRPOConfig(options={'lora.quantization': 'nf4'}) has it in 4 bits",
    "rollout_func": "rollouts made elsewhere are read as shards (docs/api.md)",
}


class GRPOTrainer:
    """A trainer with the arguments of TRL's GRPOTrainer.

    `model` is a path, a hub id or a loaded model, `reward_funcs` one function or several, sync or
    async, and a data set is a `datasets.Dataset` or any iterable of dicts with a "prompt". An
    `environment_factory` with `get_reward` needs no functions. Raises UsageError if an argument has
    no meaning here.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        args: Any = None,
        train_dataset: Iterable[Any] | None = None,
        eval_dataset: Iterable[Any] | None = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Sequence[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Any = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
    ) -> None:
        given = locals()
        for name, reason in _NOT_HERE.items():
            if is_set(given[name]) and given[name] != []:
                raise UsageError(f"GRPOTrainer takes no {name}: {reason}")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError(
                "start the script with plain python, not with accelerate or torchrun; "
                'GRPOConfig(options={"distributed.processes": N}) has the run start N ranks'
            )
        if any(optimizers):
            raise UsageError("GRPOTrainer takes no optimizers: AdamW's options are in GRPOConfig")
        if train_dataset is None:
            raise UsageError("GRPOTrainer needs a train_dataset")
        self.args = args or GRPOConfig(f"{Path(str(model)).name}-GRPO")
        if not isinstance(self.args, GRPOConfig):
            raise UsageError(
                f"args is a {type(self.args).__name__}; import GRPOConfig from mugrpo.trl, too"
            )
        refuse(self.args)  # fields may have been set since
        warn(chain(changed(self.args, "no effect"), differences(self.args)))
        self.output_dir = Path(self.args.output_dir or "trainer_output").absolute()
        self.folder = RunDir(self.output_dir / "run")
        self.callbacks = Callbacks(callbacks or (), self.args)
        self._model, self._processing_class, self._peft = model, processing_class, peft_config
        self._environment, held, rewards = environment_options(
            environment_factory, tools, self.args
        )
        functions = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
        functions = [] if rewards and reward_funcs is None else functions
        self._rewards, self._held = data.reward_tables(
            functions, self.args.reward_weights, environment=rewards
        )
        self._held |= held
        self._train, self._eval = train_dataset, eval_dataset
        self._raw = self._options()
        self._is_trained, self._loaded = False, None

    @property
    def state(self) -> Any:
        """Return transformers' TrainerState: global_step, max_steps and log_history."""
        return self.callbacks.state

    @property
    def model(self) -> Any:
        """Return the trained model after train(), and before it the model that was given.

        It is loaded on first use, on the CPU, with peft_config as a PeftModel. Raises UsageError
        before train() if a path was given.
        """
        if self._is_trained:
            if self._loaded is None:
                config = build_config(self._raw, "GRPOTrainer")
                self._loaded = data.trained_model(self.output_dir, config)
            return self._loaded
        if isinstance(self._model, str | Path):
            raise UsageError(
                f"trainer.model is the trained model, after train(); before it, load {self._model} "
                "with AutoModelForCausalLM.from_pretrained"
            )
        return self._model

    @property
    def processing_class(self) -> Any:
        """Return the tokenizer: the one that was given, or else the model's, which is loaded."""
        if self._processing_class is None:
            path = model_path(build_config(self._raw, "GRPOTrainer").model)
            self._processing_class = tokenizer_at(path)
        return self._processing_class

    def train(self, resume_from_checkpoint: str | bool | None = None) -> TrainOutput:
        """Make the updates that are missing, and leave the model in output_dir.

        A run in output_dir is resumed, whatever `resume_from_checkpoint` says, but a path is
        refused. Raises RunStopped if the run was asked to stop or cannot go on, and UsageError.
        """
        if isinstance(resume_from_checkpoint, str):
            raise UsageError(
                f"resume_from_checkpoint = {resume_from_checkpoint!r}: the run in "
                f"{self.output_dir} goes on from its newest checkpoint; leave it out"
            )
        config = self.output_dir / "run.toml"
        with publish_file(config) as out:
            comment = f"Read with {' '.join(_NO_ANSWERS)}"
            out.write(as_document(self._raw, [comment]).encode())
        with (
            _signals() as stop,
            open_run(
                config,
                overrides=_NO_ANSWERS,
                run_dir=self.folder.root,
                trust=True,
                stop=stop,
                held=self._held,
            ) as run,
        ):
            if self._held:
                what = "code runs" if self._environment else "rewards run"
                run.progress.say(f"{what} in this process, without limits: {', '.join(self._held)}")
            self.callbacks.begin(run, stop)
            try:
                pipeline.train(run, self.callbacks.on_metrics)
            except Interrupted:
                if not self.callbacks.control.should_training_stop:
                    raise
        self.callbacks.end()
        self.save_model()
        self._is_trained, self._loaded = True, None
        lines = [line for line in read_metrics(self.folder.metrics) if line["kind"] == "update"]
        losses = [line["loss"] for line in lines if line["loss"] is not None]
        mean = sum(losses) / max(1, len(losses))
        return TrainOutput(self.folder.newest_update(), mean, {"train_loss": mean})

    def evaluate(self) -> dict[str, float]:
        """Return the accuracy and mean reward of the newest checkpoint on the eval_dataset.

        Raises UsageError if there is no run yet, or no eval_dataset.
        """
        if self._eval is None:
            raise UsageError("evaluate() needs an eval_dataset; give GRPOTrainer one")
        if not self.folder.config.exists():
            raise UsageError(f"evaluate() needs the run in {self.output_dir}; call train() first")
        with open_run(self.folder.root, trust=True, held=self._held) as run:
            found = pipeline.evaluate(run, self.folder.newest_update())
        return {f"eval_{name}": value for name, value in found.items()}

    def save_model(self, output_dir: str | None = None) -> None:
        """Copy the model of the newest checkpoint, or the adapter, to `output_dir`.

        Raises UsageError if there is no checkpoint yet.
        """
        checkpoint = self.folder.checkpoint(self.folder.newest_update())
        if not checkpoint.is_dir():
            raise UsageError(f"{self.folder.root} has no checkpoint to save; call train() first")
        target = Path(output_dir or self.output_dir)
        ignore = shutil.ignore_patterns(*_NOT_OF_A_MODEL)
        shutil.copytree(checkpoint, target, ignore=ignore, dirs_exist_ok=True)

    def push_to_hub(self, *_: Any, **__: Any) -> None:
        """Raise UsageError: nothing is uploaded."""
        raise UsageError(f"nothing is uploaded; `hf upload` takes {self.output_dir}")

    def end(self) -> None:
        """Do nothing: a run closes its sinks itself."""

    def _options(self) -> dict[str, Any]:
        """Write the data, and return the run's options. Raises UsageError if they do not fit."""
        args, folder = self.args, self.output_dir / "data"
        sized = hasattr(self._train, "__len__")
        limit = None if sized or args.max_steps <= 0 else args.max_steps * self._prompts()
        train = data.read(self._train, limit)
        held_out = [] if self._eval is None else data.read(self._eval, None)
        raw = run_options(args, len(train), evaluates=bool(held_out), gpu=torch.cuda.is_available())
        files = {"data": (folder / "train.jsonl", train)}
        if held_out:
            files["eval_data"] = (folder / "eval.jsonl", held_out)
        for file, rows in files.values():
            data.write(rows, file)
        model = data.model_options(self._model, self._processing_class, folder)
        template = model.pop("chat_template", None)
        raw["prompt"] = {"form": "plain"}
        if data.is_chat(chain(train, held_out)):
            raw["prompt"] = {"form": "chat", **({"chat_template": template} if template else {})}
        raw["model"] = {**model, **raw["model"]}
        if self._environment:
            raw["environment"] = self._environment
        if self._peft is not None:
            raw["lora"] = data.lora_options(self._peft, model["path"])
        size = generation_of(args).rollouts
        raw["task"] = {
            "name": "dataset",
            **{option: str(file) for option, (file, _) in files.items()},
            "answer_column": None,
            "id_column": data.ROW,
            "eval_share": 0.0,
            "rewards": self._rewards,
            # one process and one call for a generation, as in TRL, with the usual time for each
            "workers": {
                "count": 1,
                "batch_size": size,
                "timeout": 5.0 * size,
                "patience": 60.0 * size,
                "memory_mb": 0,
            },
        }
        raw = with_own(raw, args)
        build_config(raw, "GRPOTrainer")
        return raw

    def _prompts(self) -> int:
        one = generation_of(self.args)
        return one.prompts * one.generations_per_update


def _signals() -> AbstractContextManager[StopFlag]:
    """Return a flag that signals set, where Python lets them be handled."""
    main = threading.current_thread() is threading.main_thread()
    return stop_on_signals() if main else nullcontext(StopFlag())
