"""The options of a mixture, and what refuses a bad one."""

from typing import Any

import pytest

from mugrpo.config.load import build_config, load_config
from mugrpo.config.tasks import MixtureOptions, datasets_in
from mugrpo.run.trust import named_by
from tests.cases import refusal

CHAIN = {"source": "a", "name": "chain", "terms": 3}
DATA = {"source": "b", "data": "none.jsonl"}


def mixture(*sources: dict[str, Any], **options: Any) -> MixtureOptions:
    raw = {"task": {"name": "mixture", "sources": list(sources), **options}}
    task = build_config(raw, "test").task
    assert isinstance(task, MixtureOptions)
    return task


def test_a_source_is_a_table_of_a_task_with_a_name_and_a_weight(toml):
    file = toml(
        """
        [task]
        name = "mixture"
        sources = [
            { source = "short", name = "chain", weight = [3, 1] },
            { source = "mine", data = "none.jsonl" },
            { source = "other", data = "none.jsonl", rewards = ["numeric"] },
        ]
        """
    )
    task = load_config(file).task
    assert isinstance(task, MixtureOptions)
    assert [(s.source, s.name, s.weight) for s in task.sources] == [
        ("short", "chain", (3, 1)),
        ("mine", "dataset", (1,)),
        ("other", "dataset", (1,)),
    ]
    assert [[r.name for r in data.rewards] for data in datasets_in(task)] == [["math"], ["numeric"]]
    config = load_config(file)
    assert build_config(config.model_dump(mode="json"), "stored") == config


@pytest.mark.parametrize(
    ("sources", "sentence"),
    [
        ([], "task.sources = (): it should not be empty"),
        ([CHAIN, {**DATA, "source": "a"}], "two of task.sources are called 'a'; rename one"),
        ([{**CHAIN, "weight": -1}], "a weight cannot be negative; 0 leaves a source out"),
        (
            [{**CHAIN, "weight": [1, 0]}, {**DATA, "weight": [1, 0, 2]}],
            "all weights of task.sources are 0 in stage 1, so it could draw no problem",
        ),
        ([{**CHAIN, "source": "a/b"}], "task.sources.0.source = 'a/b'"),
        ([{**CHAIN, "name": "chains"}], "no such name 'chains': choose among chain, letters"),
        ([{**CHAIN, "data": "x"}], "there is no option task.sources.0.data"),
        ([{"name": "chain"}], "task.sources.0.source must be given"),
    ],
)
def test_a_bad_mixture_is_refused_in_one_sentence(sources, sentence):
    found = refusal(mixture, *sources)
    assert sentence in found and (not sources or "tuple should have" not in found)


def test_code_that_a_source_names_is_known(tmp_path):
    judge = tmp_path / "judge.py"
    judge.write_text("# a judge\n")
    raw = {**DATA, "rewards": [f"{judge}:f"]}
    config = build_config({"task": {"name": "mixture", "sources": [CHAIN, raw]}}, "test")
    assert named_by(config) == [("task.rewards", f"{judge}:f", (judge,))]
