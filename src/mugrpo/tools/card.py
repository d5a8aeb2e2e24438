"""The card of a published model: what the run is known to have done, and nothing else."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import altair as alt
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from mugrpo.config.mixture import MixtureOptions
from mugrpo.config.options import NamedOptions
from mugrpo.config.preset import described
from mugrpo.config.private import concealed
from mugrpo.config.run import NAMED_MODELS, RunConfig
from mugrpo.config.tasks import DatasetOptions
from mugrpo.config.toml import is_absolute, last_part, published
from mugrpo.model.pretrained import EMBEDDED, PACKAGED
from mugrpo.report.axes import Axis
from mugrpo.report.charts import Trace
from mugrpo.report.embed import png
from mugrpo.report.figures import accuracy_pictures, reward_steps, update_chart
from mugrpo.report.read import RunData, number
from mugrpo.tasks.rows import is_local
from mugrpo.tools.catalog import equation_of

_HUB = "https://huggingface.co"
_PAPERS = "https://arxiv.org/abs"
CURVE = "learning_curve.png"
_FOR_CODE = ("Return ", "Equals ")  # beginnings of paragraphs that only readers of code need
_VERSIONS = ("mugrpo", "git_revision", "torch", "transformers", "peft", "numpy")
_CONDITIONS = {"problems": "on {:,.0f} problems", "temperature": "at temperature {:g}"}
_ARXIV = re.compile(r"arXiv (\d{4}\.\d{5})")


@dataclass(frozen=True)
class Subject:
    """A model to be published, and what is known about it."""

    config: RunConfig
    run: RunData  # its metrics up to `update`
    update: int
    name: str  # OWNER/NAME of its repository
    adapter: bool  # the files are an adapter, not a whole model
    base: str | None  # hub id of the model before the first update, if it has one
    license: str | None = None
    rollouts: str | None = None  # OWNER/NAME of the published rollouts
    curve: bytes | None = None  # the picture, which lies beside the card


def hub_base(config: RunConfig) -> str | None:
    """Return the hub id of the model that a run began from, or None if it was none of the hub's."""
    path = config.model.path
    return None if path in NAMED_MODELS or is_absolute(path) else path


def learning_curve(run: RunData) -> bytes | None:
    """Return a PNG of the accuracy by update, or of the mean reward if nothing was evaluated.

    Return None if the run has neither.
    """
    picture, _ = accuracy_pictures([run])
    rewards = [Trace(*reward_steps(run), style="thick")]
    picture = picture or update_chart([run], Axis("mean reward"), rewards)
    if picture is None:
        return None
    return png(alt.layer(*picture.layers).properties(width=picture.width, height=picture.height))


def model_card(subject: Subject) -> str:
    """Return the card, with the metadata that the Hub reads."""
    config, base = subject.config, subject.base
    data = ModelCardData(
        base_model=base,
        datasets=[hub_data] if (hub_data := _hub_data(config)) else None,
        eval_results=_eval_results(subject),
        library_name="peft" if subject.adapter else "transformers",
        license=subject.license,
        model_name=subject.name.partition("/")[2],
        pipeline_tag="text-generation",
        tags=["mugrpo", "reinforcement-learning", config.preset],
    )
    if not data.eval_results:
        data.eval_results = data.model_name = None  # the Hub wants no index without results
    text = "\n\n".join(_sections(subject))
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{concealed(text)}\n"))


def _sections(subject: Subject) -> Iterator[str]:
    config, update, run = subject.config, subject.update, subject.run
    yield f"# {subject.name.partition('/')[2]}"
    began = _link(subject.base) if subject.base else _model(config.model.path)
    kind = "A LoRA adapter trained for" if subject.adapter else "Trained from"
    planned = config.schedule.total_updates
    yield (
        f"{kind} {began} by reinforcement learning with verifiable rewards, with mugrpo. These are "
        f"the weights after update {update:,} of {planned:,}."
    )
    yield f"## How to load it\n\n{_loading(subject)}"
    if accuracy := _accuracy(subject):
        yield f"## Accuracy\n\n{accuracy}"
    if subject.curve:
        yield f"![The learning curve]({CURVE})"
    yield f"## Method\n\n{_method(config)}"
    yield f"## Data\n\n{_data(config)}"
    if subject.rollouts:
        yield f"The rollouts are at [{subject.rollouts}]({_HUB}/datasets/{subject.rollouts})."
    yield f"## Batches\n\n{_table(_batches(config, run))}"
    yield f"## Config\n\nWhat differs from the preset:\n\n```toml\n{published(config)}```"
    known = {name: run.provenance.get(name) for name in _VERSIONS}
    versions = {name.replace("_", " "): f"{value}" for name, value in known.items() if value}
    yield f"## Versions\n\nAs stored in the run:\n\n{_table(versions)}"


def _loading(subject: Subject) -> str:
    load, name = "AutoModelForCausalLM.from_pretrained", subject.name
    lines = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    if subject.adapter and not subject.base:
        lines[:1] = ["from peft import PeftModel", lines[0]]
        lines += [f'base = {load}("PATH/OF/THE/BASE/MODEL")']
        lines += [f'model = PeftModel.from_pretrained(base, "{name}")']
    else:
        lines += [f'model = {load}("{name}")' + "  # needs peft" * subject.adapter]
    lines += [f'tokenizer = AutoTokenizer.from_pretrained("{name}")']
    prompt, task = subject.config.prompt, subject.config.task
    text = "```python\n" + "\n".join(lines) + "\n```\n\n"
    if prompt.form == "plain":
        text += "Prompts were plain text, without a chat template."
    elif prompt.chat_template:
        text += "Prompts were written by a chat template that is not part of this repository."
    else:
        text += "Prompts were written by the tokenizer's chat template."
    own = isinstance(task, DatasetOptions) and (task.system_prompt or task.prompt_template)
    if own not in (False, "{prompt}"):
        text += " The config below has the texts around each problem."
    return text


def _accuracy(subject: Subject) -> str | None:
    """Return a table of the accuracies before and after, or None if neither was measured."""
    rows, run, update = [], subject.run, subject.update
    for words, at in (("before the first update", 0), (f"after update {update:,}", update)):
        line = next((line for line in run.evaluations if line["update"] == at), {})
        share, low, high = (number(line, f"accuracy{end}") for end in ("", "_low", "_high"))
        if share is not None:
            around = f"{low:.3f} to {high:.3f}" if low is not None and high is not None else ""
            sizes = [number(line, key) for key in ("problems", "samples")]
            of = " x ".join(f"{size:,.0f}" for size in sizes if size is not None)
            warm = "" if (t := number(line, "temperature")) is None else f"{t:g}"
            rows.append(f"| {words} | {share:.3f} | {around} | {of} | {warm} |")
    columns = ("", "accuracy", "95 % interval", "held-out problems x responses", "temperature")
    head = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    text = "\n".join([*head, *rows])
    return (text + _measured_on(subject)) if rows else None


def _measured_on(subject: Subject) -> str:
    """Return what must be known of the weights that a run with lora.quantization evaluates."""
    if subject.config.lora.quantization == "none":
        return ""
    if subject.adapter:
        return "\n\nThe base model was in 4 bits when these were measured."
    return (
        "\n\nThese were measured with the base model in 4 bits. The adapter is merged here into "
        "the base model in full precision, whose accuracy was not measured."
    )


def _eval_results(subject: Subject) -> list[EvalResult]:
    """Return the accuracy of the published weights on a split of a data set of the Hub."""
    config, task = subject.config, subject.config.task
    after = [line for line in subject.run.evaluations if line["update"] == subject.update]
    share = number(after[0], "accuracy") if after else None
    if share is None or not isinstance(task, DatasetOptions):
        return []
    if config.lora.quantization != "none" and not subject.adapter:
        return []  # it was measured on other weights
    data = task.eval_data or task.data
    if _is_local(data) or not (task.eval_data or task.eval_split):
        return []
    known = [(number(after[0], key), words) for key, words in _CONDITIONS.items()]
    conditions = [words.format(value) for value, words in known if value is not None]
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=data,
            dataset_name=data,
            dataset_config=task.subset,
            dataset_split=task.eval_split or task.split or "train",
            dataset_revision=task.revision,
            metric_type="accuracy",
            metric_name=", ".join(["accuracy", *conditions]),
            metric_value=round(share, 4),
        )
    ]


def _method(config: RunConfig) -> str:
    """Return the preset's sentence and the objective's equation, with links to their papers."""
    text = f"`{config.preset}`: {described(config.preset)}\n\n"
    name = config.objective.name
    if config.objective_file:
        text += f"The objective is a function of `{config.objective_file.name}`, which is not here."
    else:
        text += f"The objective, `{name}`: {inspect.getdoc(type(config.objective))}"
        paragraphs = (equation_of("objective", name) or "").split("\n\n")
        text += "".join(f"\n\n{p}" for p in paragraphs if not p.startswith(_FOR_CODE))
    return _ARXIV.sub(rf"[arXiv \1]({_PAPERS}/\1)", text)


def _data(config: RunConfig) -> str:
    if isinstance(config.task, MixtureOptions):
        return "\n".join(f"- `{one.source}`: {_problems(one)}" for one in config.task.sources)
    return _problems(config.task)


def _problems(task: NamedOptions) -> str:
    """Return what a task's problems are, and how they are judged."""
    if not isinstance(task, DatasetOptions):
        return f"The task `{task.name}`: {inspect.getdoc(type(task))}"
    parts = {"split": task.split, "subset": task.subset, "revision": task.revision}
    chosen = "".join(f", {name} `{value}`" for name, value in parts.items() if value)
    text = f"{_source(task.data)}{chosen}."
    if task.eval_data or task.eval_split or task.eval_share:
        text += f" Held out: {_held_out(task)}."
    rewards = ", ".join(f"`{reward.label}` (weight {reward.weight:g})" for reward in task.rewards)
    return f"{text} Rewards: {rewards}." if rewards else text


def _held_out(task: DatasetOptions) -> str:
    """Return where the problems of evaluations are from."""
    if task.eval_data or task.eval_split:
        split = f", split `{task.eval_split}`" if task.eval_split else ""
        held = f"{_source(task.eval_data or task.data)}{split}"
    else:
        held = f"{task.eval_share:.3g} of it, by a hash of the prompt"
    return f"{held}; at most {task.eval_problems:,} problems" if task.eval_problems else held


def _batches(config: RunConfig, run: RunData) -> dict[str, str]:
    schedule = config.schedule
    rollouts = [n for line in run.refreshes if (n := number(line, "rollouts")) is not None]
    batches = [f"{schedule.batches(stage):,}" for stage in range(min(schedule.stages, 8))]
    more = ", ..." if schedule.stages > len(batches) else ""
    problems, responses = schedule.problems_per_update, schedule.group_size
    total = schedule.rollouts_per_update
    rows = {
        "a batch": f"{problems:,} problems x {responses:,} responses = {total:,} rollouts",
        "batches of the stages": f"{', '.join(batches)}{more}",
        "updates on each batch": f"{schedule.passes_per_batch:,}",
        "stages planned": f"{schedule.stages:,}",
        "updates planned": f"{schedule.total_updates:,}",
    }
    if run.refreshes:
        rows["refreshes made"] = f"{run.refreshed:,}"
    if rollouts:
        rows["rollouts generated"] = f"{sum(rollouts):,.0f}"
    return rows


def _hub_data(config: RunConfig) -> str | None:
    task = config.task
    return task.data if isinstance(task, DatasetOptions) and not _is_local(task.data) else None


def _source(data: str) -> str:
    return _named(data) if _is_local(data) else _link(data, "datasets/")


def _is_local(data: str) -> bool:
    return is_absolute(data) or is_local(data)


def _model(path: str) -> str:
    """Return how a card names a model that is not on the Hub."""
    if path in PACKAGED:
        return f"{PACKAGED[path].folder} of the Python package `{PACKAGED[path].package}`"
    return f"`{path}`, a model within mugrpo," if path in EMBEDDED else _named(path)


def _named(path: str) -> str:
    """Return how a card names a file or folder: without its place."""
    return f"`{last_part(path) if is_absolute(path) else Path(path).name}`"


def _link(name: str, kind: str = "") -> str:
    return f"[{name}]({_HUB}/{kind}{name})"


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {n} | {v} |" for n, v in rows.items())])
