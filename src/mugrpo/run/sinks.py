"""Where metrics go besides metrics.jsonl: TensorBoard, Trackio and Weights & Biases.

A sink gets the numbers of every line of metrics.jsonl, named `kind/key`, at its update. Those in
`FIRST` are under `Main/`, which dashboards show before all others, and a table of a few rollouts of
each stage. It is a copy for viewing: a resumed run continues in the same place, and a sink that
fails is dropped.
"""

import hashlib
import importlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mugrpo.config.training import SinkOptions
from mugrpo.disk.errors import UsageError

# The numbers to look at first, by the kind of their line.
FIRST = {
    "evaluation": ("accuracy", "reward"),
    "refresh": ("behavior_reward", "mean_length", "truncated_share", "zero_variance_share"),
    "update": ("loss", "grad_norm", "lr", "entropy", "kl_behavior", "ratio/negative/mean"),
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

    def show(self, update: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        cells = [columns, ["---"] * len(columns), *rows]
        lines = [" | ".join(re.sub(r"\s+|\|", " ", str(cell)) for cell in row) for row in cells]
        self._writer.add_text("rollouts", "\n".join(f"| {line} |" for line in lines), update)


class Project:
    """A run in a project of Weights & Biases or Trackio; it is the same one if it is resumed.

    `module` has the functions that both call alike.
    """

    def __init__(
        self, module: str, project: str, run_dir: Path, config: dict[str, Any], **more: Any
    ) -> None:
        self._module = importlib.import_module(module)
        identity = hashlib.sha256(str(run_dir.absolute()).encode()).hexdigest()[:8]
        name = f"{run_dir.name}-{identity}"
        more |= {"id": name, "dir": str(run_dir)} if module == "wandb" else {"embed": False}
        self._module.init(project=project, name=name, resume="allow", config=config, **more)
        self.close = self._module.finish

    def log(self, update: int, values: dict[str, float]) -> None:
        self._module.log({"update": update, **values})

    def show(self, update: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        table = self._module.Table(columns=list(columns), data=[list(row) for row in rows])
        self._module.log({"update": update, "rollouts": table})


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
        self._say, self._sinks = say, dict[str, TensorBoard | Project]()
        opens: dict[str, Callable[[], TensorBoard | Project]] = {}
        if options.tensorboard:
            opens["tensorboard"] = partial(TensorBoard, run_dir / "tensorboard", update)
        for name in ("trackio", "wandb"):
            if project := getattr(options, name):
                opens[name] = partial(Project, name, project, run_dir, config)
        for name, open_sink in opens.items():
            try:
                self._sinks[name] = open_sink()
            except ImportError:
                raise UsageError(
                    f"sinks.{name} needs one more package: pip install 'mugrpo[{name}]'"
                ) from None
            except Exception as error:
                self._drop(name, error)

    def __bool__(self) -> bool:
        return bool(self._sinks)

    def log(self, kind: str, update: int, values: dict[str, Any]) -> None:
        """Pass the numbers in `values` to every sink. Other values are left out."""
        known = {name: value for name, value in values.items() if isinstance(value, int | float)}
        first = FIRST.get(kind, ())
        numbers = {
            f"{'Main' if name in first else kind}/{name}": float(value)
            for name, value in known.items()
        }
        self._each(lambda sink: sink.log(update, numbers))

    def show(self, update: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Pass a table of rollouts to every sink."""
        self._each(lambda sink: sink.show(update, columns, rows))

    def close(self) -> None:
        self._each(lambda sink: sink.close())

    def _each(self, use: Callable[[TensorBoard | Project], None]) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                use(sink)
            except Exception as error:  # it must not hide how the run ended
                self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        self._sinks.pop(name, None)
        rest = _OFFLINE if name == "wandb" else ""
        self._say(f"{name} failed ({error}) and is dropped; metrics.jsonl has everything{rest}")
