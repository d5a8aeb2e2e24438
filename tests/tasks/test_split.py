"""The split of a data set's problems into training and held-out ones."""

import hashlib
import math
import random
from typing import Any

import datasets

from tests.cases import table
from tests.tasks.builders import Row, chat, refusal, row, sides


def shares(prompts: list[str]) -> dict[str, float]:
    """Return where each prompt lies between 0 and 1, by the sha256 of its JSON text."""
    digests = {p: hashlib.sha256(f'"{p}"'.encode()).hexdigest() for p in prompts}
    return {p: int(digest[:16], 16) / 2**64 for p, digest in digests.items()}


def test_the_split_by_hand(jsonl):
    # printf '"1+1="' | sha256sum, and so on; a digest is below half where its first digit is
    # below 8, below a quarter where it is below 4, below a sixteenth where it is 0. At least the
    # lowest hash is held out.
    prompts, first = ["1+1=", "1+2=", "1+3=", "2+3="], ["2", "b", "0", "5"]
    data = jsonl(*map(row, prompts))
    for share, digits in ((0.5, "01234567"), (0.25, "0123"), (0.0625, "0"), (1e-9, "0")):
        train, held_out = ([p.prompt for p in side] for side in sides(data, eval_share=share))
        assert train == [p for p, d in zip(prompts, first, strict=True) if d not in digits]
        assert sorted(held_out) == [p for p, d in zip(prompts, first, strict=True) if d in digits]


def test_the_share_is_within_three_standard_deviations_and_the_lowest_hashes_are_kept(jsonl):
    prompts = [f"{a}+{b}=" for a in range(50) for b in range(40)]
    data = jsonl(*map(row, prompts))
    place = shares(prompts)
    train, held_out = sides(data, eval_share=0.1, eval_problems=1000)
    # of 2000: 200 expected, standard deviation sqrt(2000 x 0.1 x 0.9) = 13.4
    assert abs(len(held_out) - 200) <= 3 * math.sqrt(2000 * 0.1 * 0.9)
    found = [p.prompt for p in held_out]
    assert found == sorted((p for p in prompts if place[p] < 0.1), key=place.get)
    assert [p.prompt for p in train] == [p for p in prompts if place[p] >= 0.1]
    assert sides(data, eval_share=0.1, eval_problems=7)[1] == held_out[:7]


def test_the_split_depends_on_the_prompt_and_not_on_order_ids_answers_or_file(jsonl):
    rows = [row(f"{n}=", str(n), id=n) for n in range(200)]
    expected = [p.prompt for p in sides(jsonl(*rows), eval_share=0.2)[1]]
    random.Random(1).shuffle(rows)
    renamed = [{**r, "id": f"x{i}", "answer": "9"} for i, r in enumerate(rows)]
    for data, options in (
        (jsonl(*rows, name="b.jsonl"), {}),
        (jsonl(*renamed, name="c.jsonl"), {"id_column": "id"}),
        (jsonl(*rows, row("new="), name="d.jsonl"), {}),
    ):
        held_out = [p.prompt for p in sides(data, eval_share=0.2, **options)[1]]
        assert [p for p in held_out if p != "new="] == expected
    data = jsonl(*(row(f"{n % 50}=", str(n)) for n in range(200)))
    train, held_out = sides(data, eval_share=0.5)
    assert len(train) + len(held_out) == 200 and len(held_out) > 0
    assert not {p.prompt for p in train} & {p.prompt for p in held_out}
    assert len({p.prompt for p in held_out}) * 4 == len(held_out)


@table("recipe", [{"prompt_template": "{prompt}?"}, {"system_prompt": "Think."}])
@table("id_column", ["id", None])
@table("form", [str, chat])
def test_another_recipe_of_prompting_holds_out_the_same_problems(jsonl, recipe, id_column, form):
    """Otherwise recipes would be compared on different problems, each trained on the other's."""
    data = jsonl(*(row(form(f"{n}="), str(n), id=n) for n in range(100)))
    plain, other = (
        [[p.id for p in side] for side in sides(data, id_column=id_column, **options)]
        for options in ({"eval_share": 0.3}, {"eval_share": 0.3, **recipe})
    )
    assert plain == other and len(plain[1]) > 0


def test_held_out_problems_from_another_file_leave_every_problem_to_train_on(jsonl):
    data = jsonl(*(row(f"{n}=") for n in range(40)))
    eval_data = jsonl(*(row(f"{n}+1=") for n in range(10)), name="e.jsonl")
    train, held_out = sides(data, eval_data=eval_data, eval_share=0.5)
    assert [p.prompt for p in train] == [f"{n}=" for n in range(40)]
    assert {p.prompt for p in held_out} == {f"{n}+1=" for n in range(10)}


def test_the_same_prompt_in_both_files_is_refused_though_id_and_answer_differ(jsonl):
    data = jsonl(row("1=", "1", id="a"), row("2=", "2", id="b"), row("3=", "3", id="c"))
    eval_data = jsonl(row("3=", "x", id="y"), row("2=", "x", id="z"), name="e.jsonl")
    assert refusal(data, eval_data=eval_data, id_column="id") == (
        "2 problems are in both the held-out and the training problems (the first: 'b'); "
        "choose another task.eval_data or task.eval_split"
    )


def test_a_split_of_the_hub_may_hold_the_problems_out(monkeypatch):
    asked: list[Any] = []

    def load_dataset(data: str, subset: str, *, split: str, revision: str) -> list[Row]:
        asked.append((data, subset, split, revision))
        return [row(f"{data} {split} {n}") for n in range(3)]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    options = {"subset": "main", "revision": "abc"}
    train, held_out = sides("a/b", split="train[:9]", eval_split="test", **options)
    assert asked == [("a/b", "main", "train[:9]", "abc"), ("a/b", "main", "test", "abc")]
    assert {p.prompt for p in held_out} == {"a/b test 0", "a/b test 1", "a/b test 2"}
    assert [p.prompt for p in train] == [f"a/b train[:9] {n}" for n in range(3)]
    sides("a/b", eval_data="c/d", **options)
    assert asked[3] == ("c/d", "main", "train", "abc")


def test_a_local_file_has_no_split(jsonl):
    """Options of the hub are ignored for a local file only if the other source is on the hub."""
    data = jsonl(row("1="), row("2="))
    for option in ("split", "eval_split", "subset", "revision"):
        text = refusal(data, **{option: "test"})
        assert text.startswith(f"{data} is a local file, which has no split")
        assert f"leave out task.{option} = 'test', and" in text
