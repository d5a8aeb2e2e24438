"""Where metrics go besides metrics.jsonl: TensorBoard and Weights & Biases, each optional.

A sink gets the numbers of every line of metrics.jsonl, named `kind/key`, at its update. Those in
`FIRST` are under `Main/`, which dashboards show before all others. It is a copy for viewing: a
resumed run continues in the same place, and a sink that fails is dropped.
"""

import hashlib
import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mugrpo.config.training import SinkOptions
from mugrpo.disk.errors import UsageError

# The numbers to look at first, by the kind of their line.
FIRST = {
    "evaluation": ("accuracy", "reward"),
    "refresh": ("behavior_reward", "mean_length", "zero_variance_share", "canary_gap"),
    "update": (
        *("batch_reward", "loss", "grad_norm", "lr", "entropy", "kl_behavior"),
        "ratio/negative/max",
    ),
}
_OFFLINE = "; with WANDB_MODE=offline in the environment it logs into the run's folder"


class TensorBoard:
    """Event files in `folder`. Events past `update` are purged: the run will write them again."""

    def __init__(self, folder: Path, update: int) -> None:
        module = importlib.import_module("torch.utils.tensorboard")
        self._writer = module.SummaryWriter(str(folder), purge_step=update + 1)
        self.close = self._writer.close

    def log(self, update: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, update)


class WandB:
    """A run in a project of Weights & Biases, which is the same one if the run is resumed."""

    def __init__(self, project: str, run_dir: Path, config: dict[str, Any]) -> None:
        self._wandb = importlib.import_module("wandb")
        identity = hashlib.sha256(str(run_dir.absolute()).encode()).hexdigest()[:8]
        name = f"{run_dir.name}-{identity}"
        self._wandb.init(
            project=project, name=name, id=name, dir=str(run_dir), resume="allow", config=config
        )
        self.close = self._wandb.finish

    def log(self, update: int, values: dict[str, float]) -> None:
        self._wandb.log({"update": update, **values})


class Sinks:
    """The sinks that `options` turn on, for a run that continues after `update`.

    Raises UsageError if a package is missing. A sink that fails in another way is dropped.
    """

    def __init__(
        self,
        options: SinkOptions,
        run_dir: Path,
        config: dict[str, Any],
        update: int,
        say: Callable[[str], None],
    ) -> None:
        self._say, self._sinks = say, dict[str, TensorBoard | WandB]()
        opens: dict[str, Callable[[], TensorBoard | WandB]] = {}
        if options.tensorboard:
            opens["tensorboard"] = partial(TensorBoard, run_dir / "tensorboard", update)
        if options.wandb:
            opens["wandb"] = partial(WandB, options.wandb, run_dir, config)
        for name, open_sink in opens.items():
            try:
                self._sinks[name] = open_sink()
            except ImportError:
                raise UsageError(
                    f"sinks.{name} needs one more package: pip install 'mugrpo[{name}]'"
                ) from None
            except Exception as error:
                self._drop(name, error)

    def log(self, kind: str, update: int, values: dict[str, Any]) -> None:
        """Pass the numbers in `values` to every sink. Other values are left out."""
        known = {name: value for name, value in values.items() if isinstance(value, int | float)}
        first = FIRST.get(kind, ())
        numbers = {
            f"{'Main' if name in first else kind}/{name}": float(value)
            for name, value in known.items()
        }
        for name, sink in list(self._sinks.items()):
            try:
                sink.log(update, numbers)
            except Exception as error:
                self._drop(name, error)

    def close(self) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                sink.close()
            except Exception as error:  # it must not hide how the run ended
                self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        self._sinks.pop(name, None)
        rest = _OFFLINE if name == "wandb" else ""
        self._say(f"{name} failed ({error}) and is dropped; metrics.jsonl has everything{rest}")
