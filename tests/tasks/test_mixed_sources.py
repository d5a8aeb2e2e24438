"""Problems of several sources as one task."""

from typing import Any

import pytest

from mugrpo.config.load import build_config
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason, Response, Status
from mugrpo.tasks import make_task
from mugrpo.tasks.base import Task
from tests.tasks.builders import row

SHORT = {"source": "short", "name": "chain", "terms": 3, "train_problems": 5, "eval_problems": 2}


def mixture(*sources: dict[str, Any], **options: Any) -> Task:
    raw = {"task": {"name": "mixture", "sources": list(sources), **options}}
    return make_task(build_config(raw, "test").task)


@pytest.fixture
def data(jsonl) -> str:
    return str(jsonl(row("3+2-1=", "4"), row("b", "2")))


def test_problems_come_in_the_order_of_sources_whose_names_begin_their_ids(data):
    mine = {"source": "mine", "data": data, "rewards": "exact", "eval_share": 0.0}
    problems = mixture(SHORT, mine).train_problems()
    assert [problem.source for problem in problems] == ["short"] * 5 + ["mine"] * 2
    alone = build_config({"task": {k: v for k, v in SHORT.items() if k != "source"}}, "test")
    found = [p.id for p in problems[:5]]
    assert found == [f"short/{p.id}" for p in make_task(alone.task).train_problems()]
    given = [(p.id[:5], p.prompt, p.reference) for p in problems[5:]]
    assert given == [("mine/", "3+2-1=", "4"), ("mine/", "b", "2")]


def test_each_answer_goes_to_the_rewards_of_its_source(data, tmp_path):
    """exact wants the text alone; numeric takes the last number; each weighs differently."""
    one = {"source": "one", "data": data, "rewards": "exact", "eval_share": 0.0}
    weighed = [{"name": "numeric", "weight": 3.0}]
    two = {"source": "two", "data": data, "rewards": weighed, "eval_share": 0.0}
    task = mixture(one, two)
    try:
        task.prepare(tmp_path / "rewards.log")
        first, second = (
            [p for p in task.train_problems() if p.source == s] for s in ("one", "two")
        )
        asked = [second[0], first[0], first[1], second[1]]
        said = ["is 4", "is 4", "2", "3"]
        answers = (Response(p, t, [], FinishReason.STOP) for p, t in zip(asked, said, strict=True))
        scores = list(task.score(answers))
    finally:
        task.close()
    found = [(score.status, score.reward) for score in scores]
    assert found == [(Status.RIGHT, 3), (Status.WRONG, 0), (Status.RIGHT, 1), (Status.WRONG, 0)]


def test_what_one_source_holds_out_no_other_may_train_on(data):
    trained = {"source": "one", "data": data, "rewards": "exact", "eval_share": 0.0}
    chat = {"system_prompt": "s"}  # other prompts, so no leak
    held = {"source": "two", "data": data, "rewards": "exact", "eval_share": 0.5}
    assert mixture(held).eval_problems()
    assert mixture(held, {**trained, **chat}).train_problems()
    with pytest.raises(UsageError, match="problems of the source 'one' are held out in the source"):
        mixture(trained, held).train_problems()
