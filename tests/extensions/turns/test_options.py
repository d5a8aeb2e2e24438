"""Options of environments that do not work."""

from __future__ import annotations

import pytest

from mugrpo.config.load import load_config
from mugrpo.disk.errors import UsageError
from tests.cases import table


@table(
    ("words", "sentence"),
    [
        ('environment.tools=["calc:add"]', "environment.tools needs prompt.form = 'chat'"),
        ("environment.name=game", 'write "module:name" or "path/to/file.py:name"'),
        (
            'task.name=dataset task.data=x.jsonl task.rewards=["environment"]',
            "the reward 'environment' comes from an environment",
        ),
    ],
)
def test_options_of_an_environment_that_do_not_work_are_refused(words, sentence):
    with pytest.raises(UsageError, match=sentence):
        load_config(None, [f"--{word}" for word in words.split()])
