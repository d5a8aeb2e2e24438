"""The cut into micro-batches, and whether prompts are shared, by counted tokens."""

from __future__ import annotations

import random

import pytest

from mugrpo.optimize.cut import Layout, Row, cut, layout, split_by_prompt, split_by_tokens


def rows_of(*groups: tuple[int, list[int]]) -> list[Row]:
    """Rows of groups, (prompt length, response lengths) each, every group with its own prompt."""
    return [Row(b"%d" % g, p, r) for g, (p, lengths) in enumerate(groups) for r in lengths]


# --- Whether prompts are shared ------------------------------------------------------------------


def test_the_cheaper_layout_by_hand():
    # Alone: 4 rows x (100 + 10). Shared: the prompt once and 9 tokens of each response; 4 copies
    # of the prompt's keys and values count for an eighth, and the second pass for 32 tokens.
    rows = rows_of((100, [10, 4, 10, 10]))
    shared = layout(rows, share=True)
    assert shared == Layout(shared=True, computed=100 + 30, padded=100 + 4 * 9, copied=400)
    assert shared.cost == 136 + 32 + 400 / 8
    plain = layout(rows, share=False)
    assert plain == Layout(shared=False, computed=434, padded=440, copied=0)
    assert plain.cost == 440


def test_padding_counts_on_both_sides():
    # Shared, two prompts are padded to 60 and all responses to 21, of which 20 are computed.
    rows = rows_of((60, [3, 3, 3]), (40, [21, 3, 3]))
    assert layout(rows, share=True) == Layout(True, 100 + 6 + 24, 2 * 60 + 6 * 20, 6 * 60)
    assert layout(rows, share=False) == Layout(False, 180 + 120 + 36, 6 * 63, 0)


def test_rows_with_nothing_to_share_are_computed_alone():
    assert not layout(rows_of((100, [10])), share=True).shared
    assert not layout(rows_of((100, [10]), (100, [10])), share=True).shared
    assert not layout(rows_of((2, [50, 50])), share=True).shared  # 2 + 98 + 32 > 104
    assert layout(rows_of((100, [10, 10])), share=True).shared  # 100 + 18 + 32 + 25 < 220


def test_responses_of_one_token_need_nothing_but_the_prompt():
    assert layout(rows_of((40, [1, 1, 1])), share=True).padded == 40


# --- The cut by length ---------------------------------------------------------------------------


def test_split_by_hand():
    # Longest first. Budget 12: 2 x 5 fits, 3 x 5 does not; 4 x 3 fits, 5 x 3 does not.
    assert split_by_tokens([3, 5, 2, 5, 3, 2, 1], 12) == [[1, 3], [0, 4, 2, 5], [6]]


def test_a_row_over_the_budget_stands_alone():
    assert split_by_tokens([4, 50, 4, 40], 8) == [[1], [3], [0, 2]]


def test_equal_lengths_keep_their_order():
    assert split_by_tokens([2, 2, 2, 2, 2], 4) == [[0, 1], [2, 3], [4]]


def test_nothing_gives_no_micro_batch():
    assert split_by_tokens([], 8) == []
    assert cut([], 8, share=True) == cut([], 8, share=False) == []


# --- The cut by prompt ---------------------------------------------------------------------------


def test_split_by_prompt_by_hand():
    # Group 1 has the longest response, then 2, then 0. Two groups cost 2 x 40 + 4 x 10 + 32 and an
    # eighth of 4 x 40: 172; the third would make it 120 + 60 + 32 + 30 = 242.
    rows = rows_of((40, [2, 3]), (40, [5, 11]), (40, [9, 8]))
    assert split_by_prompt(rows, 172) == [[3, 2, 4, 5], [1, 0]]
    assert split_by_prompt(rows, 242) == [[3, 2, 4, 5, 1, 0]]
    assert split_by_prompt(rows, 241) == [[3, 2, 4, 5], [1, 0]]


def test_a_group_is_not_cut_where_it_fits_a_micro_batch_of_its_own():
    # One group costs 40 + 20 + 32 + 10 = 102, two 172: at 130 the second begins anew.
    rows = rows_of((40, [11, 11]), (40, [11, 11]))
    assert split_by_prompt(rows, 130) == [[0, 1], [2, 3]]


def test_a_group_over_the_budget_is_cut_and_its_rest_goes_with_the_next():
    # Three rows cost 40 + 30 + 32 + 15 = 117. What is left of group 0 is one row, cheaper alone;
    # with the first of group 1: 2 x 51 alone.
    rows = rows_of((40, [11] * 4), (40, [11]))
    assert split_by_prompt(rows, 117) == [[0, 1, 2], [3, 4]]


def test_the_same_prompt_is_shared_by_the_groups_that_have_it():
    again = Row(b"0", 100, 5)
    assert split_by_prompt([again, Row(b"1", 100, 5), again], 1000) == [[0, 2, 1]]
    assert layout([again, again], share=True).computed == 100 + 2 * 4


# --- The cut -------------------------------------------------------------------------------------


def test_the_cheaper_cut_is_taken():
    # Short prompts, ragged responses: sorted by length there is less padding than prompts weigh.
    ragged = rows_of((2, [60, 5]), (2, [60, 5]), (2, [60, 5]))
    assert cut(ragged, 186, share=True) == [[0, 2, 4], [1, 3, 5]]
    long_prompts = rows_of((200, [60, 5]), (200, [60, 5]))
    assert cut(long_prompts, 450, share=True) == [[0, 1], [2, 3]]
    assert cut(long_prompts, 520, share=False) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("share", [True, False])
def test_budget_holds_and_every_row_comes_exactly_once(share):
    generator = random.Random(0)
    together = shared = 0
    for _ in range(200):
        groups = [
            (generator.randint(1, 60), [generator.randint(1, 40) for _ in range(4)])
            for _ in range(generator.randint(1, 10))
        ]
        rows, budget = rows_of(*groups), generator.randint(1, 1000)
        parts = cut(rows, budget, share=share)
        assert sorted(row for part in parts for row in part) == list(range(len(rows)))
        for part in parts:
            way = layout([rows[i] for i in part], share=share)
            assert len(part) == 1 or way.cost <= budget
            assert way.computed <= way.padded
            together += len(part) > 1
            shared += way.shared
        assert sum(layout([rows[i] for i in part], share=share).cost for part in parts) <= sum(
            layout([rows[i] for i in part], share=False).cost
            for part in cut(rows, budget, share=False)
        )
    assert together > 0 and (shared > 0) == share
