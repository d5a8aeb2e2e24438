"""The plan that a run keeps, beside what the run has taken, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mugrpo.disk.run_dir import RunDir
from mugrpo.report.costs import PHASES, Span, spans
from mugrpo.report.markup import Markup, join, table, tag
from mugrpo.report.plan_file import RunPlan, read_plan
from mugrpo.report.read import RunData, lines_by_kind
from mugrpo.report.readable import MINUS, duration


@dataclass(frozen=True)
class Compared:
    """The seconds of a part that were planned for what the run has done, and those it took."""

    part: str
    planned: float
    taken: float

    @property
    def off(self) -> str:
        """Return by how much more or less the run took, in percent of the plan."""
        if not self.planned:
            return ""
        text = f"{100 * (self.taken / self.planned - 1):+.0f} %"
        return text.replace("-", MINUS)


def compared(plan: RunPlan, run: RunData) -> list[Compared]:
    """Return the parts of what a run has done since its plan begins, then all of its training.

    A part that was neither planned nor taken is left out. Logprobs of other policies are not
    measured, so they are not compared.
    """
    made = max((line["update"] for line in run.updates), default=0)
    refreshed = {line["update"] for line in run.refreshes}
    planned = dict.fromkeys(PHASES, 0.0)
    for stage in plan.stages:
        updates = stage.counts["update"]
        share = min(1.0, max(0.0, (made - stage.first) / updates)) if updates else 0.0
        for part in PHASES if stage.first >= plan.begins else ():
            once = part in ("refresh", "generate", "score")
            done = float(stage.first in refreshed) if once else share
            planned[part] += done * stage.seconds.get(part, 0.0)
    since = [span for span in spans(run) if _follows(span, plan.begins)]
    taken = {part: sum(s.seconds for s in since if s.phase == part) for part in PHASES}
    parts = [Compared(part, planned[part], taken[part]) for part in PHASES]
    training = [one for one in parts if one.part != "evaluate"]
    whole = sum(one.planned for one in training), sum(one.taken for one in training)
    return [*(one for one in parts if one.planned or one.taken), Compared("training", *whole)]


def _follows(span: Span, begins: int) -> bool:
    """Return whether a span is of a stage that begins after so many updates, or of a later one."""
    at_the_end = span.phase in ("optimize", "checkpoint", "evaluate")
    return span.update > begins if at_the_end and begins else span.update >= begins


def sentence(plan: RunPlan, found: Sequence[Compared]) -> str:
    """Return how far the plan was off, in a sentence."""
    whole = found[-1]
    where = f"after update {plan.begins}" if plan.begins else "when the run began"
    return (
        f"planned {where}, from {plan.source}: training would take {duration(whole.planned)} up to "
        f"here, and it took {duration(whole.taken)} ({whole.off})"
    )


def in_words(folder: RunDir) -> str:
    """Return a line that compares a run's plan with what it took, "" if nothing can be."""
    plan, lines = read_plan(folder), lines_by_kind(folder, [])
    run = RunData("", {}, {}, lines["refresh"], lines["update"], lines["evaluation"])
    if plan is None or not (found := compared(plan, run))[-1].taken:
        return ""
    return f"plan        {sentence(plan, found)}"


def words(run: RunData) -> Markup | None:
    """Return the comparison for the page, None if the run has no plan or has done nothing since."""
    if run.plan is None or not (found := compared(run.plan, run))[-1].taken:
        return None
    rows = [[one.part, duration(one.planned), duration(one.taken), one.off] for one in found]
    text = sentence(run.plan, found)
    return join(
        [
            tag("p", f"{text[0].upper()}{text[1:]}.", class_="remark"),
            table(["part", "planned", "took", ""], rows),
        ]
    )
