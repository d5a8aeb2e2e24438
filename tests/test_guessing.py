"""The example of docs/environments.md: its files, and that its game is as the page says."""

from __future__ import annotations

import json
import runpy
from itertools import product

from mugrpo.config.load import load_config
from tests.blocks import blocks
from tests.runs import ROOT

FILES = ROOT / "examples" / "guessing"
TEXTS = {block.file: block.text for block in blocks("docs/environments.md") if block.file}
REPLY = runpy.run_path(str(FILES / "game.py"))["reply"]


def played(secret: str, guesses: str) -> tuple[float, str]:
    """Return the reward of guesses that take no notice of the replies, and the replies."""
    messages: list[dict[str, str]] = []
    said = ""
    for guess in guesses:
        messages.append({"role": "assistant", "content": guess})
        told = REPLY(messages, secret)
        if not isinstance(told, str):
            return told, said
        said += told
    return 0.0, said


def test_the_page_has_the_files_word_for_word():
    for name in ("game.py", "guessing.toml"):
        assert TEXTS[name] == (FILES / name).read_text()
    lines = (FILES / "games.jsonl").read_text().splitlines()
    assert lines[:2] == TEXTS["games.jsonl"].splitlines()[:2]
    games = [json.loads(line) for line in lines]
    assert len({(game["prompt"], game["answer"]) for game in games}) == len(games) == 448


def test_the_replies_by_hand():
    assert played("7", "5x97") == (1.0, "+==-=")
    assert played("0", "9")[1] == "-="


def test_three_guesses_find_three_secrets_of_seven_without_the_replies_and_all_with_them():
    """The page's bound, over all 7^3 ways to guess; and a search by halves."""
    secrets = "1234567"
    best = max(
        sum(played(secret, "".join(three))[0] for secret in secrets)
        for three in product(secrets, repeat=3)
    )
    assert best == 3.0
    for secret in secrets:
        low, high, guesses = 1, 7, ""
        for _ in range(3):
            guesses += str((low + high) // 2)
            reward, said = played(secret, guesses)
            if reward:
                break
            low, high = (
                ((low + high) // 2 + 1, high) if said[-2] == "+" else (low, (low + high) // 2 - 1)
            )
        assert reward == 1.0
    assert load_config(FILES / "guessing.toml").environment.max_turns == 3
