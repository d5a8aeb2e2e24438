"""Problems of reasoning-gym, or of a stand-in of its shape where it is not installed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mugrpo.config.base import WorkerOptions
from mugrpo.config.load import build_config
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason, Response, Score, Status
from mugrpo.extensions.gym import ReasoningGymOptions
from mugrpo.extensions.gym.task import ReasoningGym
from mugrpo.tasks.embedded import held_out
from tests.cases import some, table
from tests.stages.test_for_nothing import tried

STAND_IN = Path(__file__).with_name("reasoning_gym_stand_in.py")


def task(**options: Any) -> ReasoningGym:
    raw = {"data": "sums", "train_problems": 20, "eval_problems": 3, **options}
    return ReasoningGym(ReasoningGymOptions(**raw), WorkerOptions(count=1))


@pytest.fixture(autouse=True)
def _stand_in(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Put the stand-in in the place of reasoning_gym, in workers too, where `gym` is not asked."""
    if "gym" in request.fixturenames:
        yield
        return
    shutil.copy(STAND_IN, tmp_path / "reasoning_gym.py")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reasoning_gym", raising=False)
    yield
    for name in ("reasoning_gym", "mugrpo.extensions.gym.scores"):
        sys.modules.pop(name, None)


@pytest.fixture
def gym() -> Any:
    return pytest.importorskip("reasoning_gym", reason="needs pip install 'mugrpo[reasoning-gym]'")


def scores(of: ReasoningGym, log: Path, *said: str) -> list[Score]:
    problem = of.train_problems()[0]
    try:
        of.prepare(log)
        return list(of.score(Response(problem, text, [], FinishReason.STOP) for text in said))
    finally:
        of.close()


def test_problems_are_distinct_split_by_a_hash_and_independent_of_the_order_of_a_set():
    first = task()
    train, held = first.train_problems(), first.eval_problems()
    assert train == task().train_problems()
    for problems, side, count in ((train, False, 20), (held, True, 3)):
        assert len({problem.prompt for problem in problems}) == len(problems) == count
        assert all(held_out(str(problem.prompt)) == side for problem in problems)
    terms = [int(term) for term in str(train[0].prompt).split("+")]
    assert int(train[0].reference) == sum(terms)
    assert train[0].columns["entry"]["metadata"]["terms"] == terms
    first, second = (generated_with_hashes("shuffled", seed) for seed in (1, 2))
    assert first == second and first.count("word") == 2 * 3 * (8 + 2)


PROMPTS = """
import json
from mugrpo.config.base import WorkerOptions
from mugrpo.extensions.gym import ReasoningGymOptions
from mugrpo.extensions.gym.task import ReasoningGym
options = ReasoningGymOptions(data="{data}", train_problems=8, eval_problems=2)
of = ReasoningGym(options, WorkerOptions(count=1))
print(json.dumps([[p.prompt, p.reference] for p in (*of.train_problems(), *of.eval_problems())]))
"""


def generated_with_hashes(data: str, seed: int) -> str:
    """Return the problems of `data` that a process with this hash seed has."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, "-c", PROMPTS.format(data=data)]
    return subprocess.check_output(command, env=environment, text=True)


@table(
    ("data", "fault"),
    [
        ("drifting", "drifting of reasoning-gym generates other problems in each process"),
        ("failing", r"failing of reasoning-gym fails on its problem 3 \(RuntimeError: no such sum"),
        ("running", r"running run a response as Python \(_value calls eval\)"),
        ("smus", "no data set 'smus'; did you mean sums"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_refused(data, fault):
    with pytest.raises(UsageError, match=fault):
        task(data=data).train_problems()


def gym_config(data: str, **options: Any) -> dict[str, Any]:
    few = {"train_problems": 8, "eval_problems": 1}
    return {"task": {"name": "reasoning-gym", "data": data, **few, **options}}


def test_check_pays_answers_in_the_form_that_is_judged_and_says_if_there_are_none():
    """Of `sums`, a number that is not the sum gets 0.25, and what is no number has no verdict."""
    said = tried(gym_config("sums"))
    assert said[0] == "paid        1 on average for the right answer to 8 problems"
    assert said[1:3] == [  # a response without tags has a verdict, 0
        "paid        0 on average for an empty answer to 8 problems",
        "paid        0 on average for the question itself to 8 problems",
    ]
    assert [line.split()[:3] for line in said[3:]] == 2 * [["warning:", "paid", "0.25"]]
    said = tried(gym_config("open"))
    assert "nothing is known of the right answer: the data name none" in said[0]
    assert [line.split()[1] for line in said[1:]] == ["0.01", "0.01", "0.01"]


@table("answer", ["tags", "all"])
def test_a_data_set_that_pays_for_any_text_is_refused(answer):
    with pytest.raises(UsageError, match="pay as much for the question itself as for the right"):
        tried(gym_config("loose", answer=answer))


@pytest.mark.parametrize("data", some(1, ["countdown", "n_queens", "puzzle24", "number_sorting"]))
def test_data_sets_of_the_real_package_that_run_responses_are_refused(gym, data):
    with pytest.raises(UsageError, match=f"the scores of {data} run a response as Python"):
        task(data=data).train_problems()


def test_of_the_real_package_what_pays_for_nothing_is_refused_and_what_names_none_told(gym):
    """game_of_life_halting compares bool(answer)."""
    assert "the data name none" in tried(gym_config("rubiks_cube"))[0]
    with pytest.raises(UsageError, match="pay as much for the question itself"):
        tried(gym_config("game_of_life_halting"))


def test_prompts_get_template_and_system_message():
    asked = task(system_prompt="Be brief.", prompt_template="Add: {prompt}")
    plain = task().train_problems()[0]
    system, user = asked.train_problems()[0].prompt
    assert system == {"role": "system", "content": "Be brief."}
    assert user == {"role": "user", "content": f"Add: {plain.prompt}"}


def test_a_worker_scores_with_the_data_sets_own_config(tmp_path):
    """0 without an answer, 0.25 + bonus for another number, 1 for the sum, an error for a word."""
    of = task(config={"bonus": 0.5})
    reference = of.train_problems()[0].reference
    said = ("-1</answer>", f" {reference} </answer>", "x</answer>")
    found = scores(of, tmp_path / "log", "no tags", *(f"<answer>{text}" for text in said))
    assert [(score.status, score.reward) for score in found] == [
        (Status.WRONG, 0),
        (Status.WRONG, 0.75),
        (Status.RIGHT, 1),
        (Status.ERROR, None),
    ]
    assert "invalid literal for int()" in found[3].parts["reason"]


def test_what_of_a_response_is_the_answer():
    from mugrpo.extensions.gym.scores import extracted

    text = "<answer>1</answer> no:\n<answer>\n2</answer>\nso 2 \n"
    parts = ("tags", "last_line", "last_word", "all")
    forms = {part: extracted(text, part) for part in parts}
    assert forms == {"tags": "2", "last_line": "so 2", "last_word": "2", "all": text.strip()}
    assert extracted([{"role": "assistant", "content": "4"}], "last_line") == "4"
    words = [extracted(said, "last_word") for said in ("1 + 2 = 3.", "3", "so\n3 \n", "it is .")]
    assert words == ["3", "3", "3", None]
    assert [extracted(" \n", part) for part in parts] == [None] * 4


@table("name", ["seed", "size"])
def test_seed_and_size_are_not_for_the_config(name):
    raw = {"name": "reasoning-gym", "data": "sums", "config": {name: 1}}
    with pytest.raises(UsageError, match=f"{name} is not for the config"):
        build_config({"task": raw}, "test")


# Each draws from a set of texts, in its own process, so in an order of its own.
@pytest.mark.parametrize("data", some(1, ["ransom_note", "isomorphic_strings", "word_ladder"]))
def test_the_real_packages_problems_do_not_depend_on_the_order_of_a_set(gym, data):
    assert generated_with_hashes(data, 1) == generated_with_hashes(data, 2)


def test_the_real_package_scores_its_own_references_as_right(gym, tmp_path):
    """chain_sum gives len(reference) / len(answer) if the answer only contains the reference."""
    easy = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}
    of = task(data="chain_sum", config=easy)
    reference = of.train_problems()[0].reference
    expected = gym.get_score_answer_fn("chain_sum")(f"is {reference}", {"answer": reference})
    said = (f"<answer>{reference}</answer>", f"<answer>is {reference}</answer>", reference)
    found = scores(of, tmp_path / "log", *said)
    assert [score.reward for score in found] == [1, expected, 0]
