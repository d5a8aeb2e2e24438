"""Private options: hidden in every form but one, and equal by what they hide."""

from __future__ import annotations

import pytest

from mugrpo.config.load import build_config
from mugrpo.config.options import HIDDEN, PrivateTable, PrivateText, concealed
from mugrpo.disk.errors import UsageError
from tests.cases import table

RAW = {
    "preset": "grpo",
    "model": {"path": "m"},
    "task": {
        "name": "dataset",
        "data": "rows.jsonl",
        "rewards": [{"name": "code", "url": "http://u:pass-1@sandbox"}],
    },
    "environment": {"name": "games:asks", "kwargs": {"n": 3, "a": {"b": ["pass-2", True]}}},
    "engine": {
        "name": "vllm_server",
        "urls": ["http://host:1", "https://me:pass-3@host:2/v1?key=pass-4"],
    },
    "backend": {"name": "ray", "address": "ray://u:pass-6@head:1"},
}


def test_a_config_shows_no_private_value_and_keeps_all():
    config = build_config(RAW, "a file")
    dumped = config.model_dump(mode="json")
    for shown in (repr(config), str(config), config.model_dump_json(), str(config.model_dump())):
        assert "pass-" not in shown
    assert dumped["engine"]["urls"] == ["http://host:1", f"https://{HIDDEN}@host:2/v1?{HIDDEN}"]
    assert dumped["environment"]["kwargs"] == {"n": 3, "a": {"b": [HIDDEN, True]}}
    revealed = config.revealed()
    for group, options in RAW.items():
        if isinstance(options, dict):
            assert all(revealed[group][k] == options[k] for k in options if k != "rewards")
    assert revealed["environment"]["kwargs"] == RAW["environment"]["kwargs"]  # type: ignore[index]
    assert revealed["task"]["rewards"][0]["url"] == "http://u:pass-1@sandbox"
    assert build_config(revealed, "again") == config != build_config(dumped, "a copy")


@table("copy", [PrivateText(f"http://{HIDDEN}@h"), PrivateTable({"a": HIDDEN})])
def test_what_is_hidden_is_no_value(copy: PrivateText | PrivateTable):
    with pytest.raises(UsageError, match="name the option again"):
        _ = copy.value


@table(
    ("text", "shown"),
    [
        ("http://host:8000/v1", "http://host:8000/v1"),
        ("at https://me:p@ss/w@host/x failed", f"at https://{HIDDEN}@host/x failed"),
        ("https://token@host", f"https://{HIDDEN}@host"),
        ("/data/https:/me:p@host/x.jsonl", f"/data/https:/{HIDDEN}@host/x.jsonl"),
        ("'s3://k:s@bucket' and http://b?sig=1&x=2.", f"'s3://{HIDDEN}@bucket' and http://b?{HIDDEN}"),
        ("hf_abcdefghijklmnopqrstuvwxyz is it", f"{HIDDEN} is it"),
        ("What is x=1? Is y=2?", "What is x=1? Is y=2?"),
        ("mail me@host; a ratio 3:1@2", "mail me@host; a ratio 3:1@2"),
    ],
)  # fmt: skip
def test_urls_lose_their_users_and_queries(text: str, shown: str):
    assert concealed(text) == shown


@table("raw", [{"engine": {"name": "vllm_server", "urls": "http://u:pass@h"}}])
def test_an_error_names_no_password(raw: dict[str, object]):
    with pytest.raises(UsageError, match=r"engine\.urls") as failed:
        build_config(raw, "a file")
    assert "pass" not in str(failed.value)
