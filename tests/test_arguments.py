"""The help of the command line: which options it shows, and with which defaults."""

import re
import shlex

import pytest

from mugrpo.arguments import FIRST, options_text, parser, parsers_of, resuming
from mugrpo.cli import main
from mugrpo.config.describe import describe
from mugrpo.config.load import load_config
from mugrpo.config.run import RunConfig
from tests.cases import table

TAKE_OPTIONS = [
    *("train", "check", "generate", "score", "optimize"),
    *("evaluate", "bakeoff", "alignment", "export", "import"),
]


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command line with --help prints; no line is too long for a terminal."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100 and "Undefined" not in text
    return text


def options_in(text: str) -> list[str]:
    """Return the options of a run that a help shows, in its order."""
    return re.findall(r"^  --([a-z_.]+)  (?=\S)", text, re.MULTILINE)


@table("command", ["train", "demo"])
@table("flag", ["-h", "--help"])
def test_help_shows_the_options_to_know_first_and_says_how_to_see_all(capsys, command, flag):
    text = help_of(capsys, command, flag)
    assert text.startswith(f"usage: mugrpo {command} ")
    assert [name for name in options_in(text) if name in FIRST] == list(FIRST)
    assert len(options_in(text)) == len(FIRST)
    assert "\n`--help TABLE` shows a table of options, `--help all` every one: model, " in text
    assert "(default 16)\n      Batches of rollouts generated per" in text  # the preset's


@table("command", sorted({*TAKE_OPTIONS} - {"train", "demo"}))
def test_help_of_other_commands_leads_to_the_options(capsys, command):
    text = help_of(capsys, command, "--help")
    assert options_in(text) == [] and "`mugrpo train --help`" in text


@table("command", TAKE_OPTIONS)
def test_help_all_lists_every_option_with_its_default(capsys, command):
    text = help_of(capsys, command, "--help", "all")
    assert text.startswith(f"usage: mugrpo {command} ") and "`--help all`" not in text
    names = [option.name for option in describe() if "[]" not in option.name]
    assert sorted(options_in(text)) == sorted(names)
    assert "  --optimizer.lr  float > 0  (default 0.0001)\n      Peak learning rate. Its" in text
    assert "  --veto.threshold  float >= 0  (default 0.01)\n      for veto.name negative" in text
    assert "  --objective.taper  response|prefix|smallest|mean|token  (default prefix)" in text
    sets = "tapered-grpo, which sets reduction, advantage.name, objective.name, objective.taper,"
    assert sets in " ".join(text.split())


@table(
    "command",
    [
        "mugrpo merge runs/a merged --base b",
        "mugrpo report runs/a runs/b --out both.html",
        "mugrpo study run a.toml --work w --keep",
        "mugrpo score runs/a --stage 0 --again",
        "mugrpo alignment runs/a --run-dir b --groups 4 --optimizer.lr 1",
        "mugrpo import a.toml b.jsonl c --format trl --columns reward=a,answer=b --optimizer.lr 1",
    ],
)
def test_the_command_that_resumes_has_every_argument_of_the_one_that_stopped(command: str):
    options, overrides = parser().parse_known_args(command.split()[1:])
    assert resuming(options, overrides, "") == f"resume with: {command}"


def test_a_value_that_stopped_the_run_is_not_in_the_command_that_resumes():
    words = ["train", "runs/a", "--optimizer.lr", "5", "--optimizer.lr=5", "--seed", "1"]
    options, overrides = parser().parse_known_args(words)
    text = resuming(options, overrides, "a lower --optimizer.lr (with --force) may help")
    kept = "runs/a --force --optimizer.lr VALUE --optimizer.lr=VALUE --seed 1"
    assert text == f"resume with: mugrpo train {kept}"


def owners_in(text: str) -> dict[str, set[str]]:
    """Map each option to the choices that have it by --help, such as "engine.name vllm"."""
    found: dict[str, set[str]] = {}
    for entry in re.split(r"\n(?=  \S|\n)", text):
        name, _, rest = entry.strip("\n- ").partition("  ")
        owners = re.search(
            r"\A[^\n]*(?:\n      [^\n]*\))?\n      for (\S+\.name) ([\w,\s-]+?)\n", rest
        )
        if owners:
            names = {f"{owners[1]} {choice}" for choice in re.split(r",\s+", owners[2])}
            found.setdefault(name, set()).update(names)
    return found


def test_help_of_a_table_has_its_options_alone(capsys: pytest.CaptureFixture[str]):
    text = help_of(capsys, "train", "mine.toml", "--help", "veto")
    assert options_in(text) == ["veto.name", "veto.threshold", "veto.scope"]
    assert options_in(options_text("task"))[0] == "task.name"
    assert main(["train", "--help", "vetos"]) == 2
    assert "did you mean veto? the tables are model, lora, task, " in capsys.readouterr().err


def test_help_lists_every_command_once_and_bare_mugrpo_names_three_that_exist(capsys):
    commands = parsers_of(parser())
    listed = help_of(capsys, "--help").partition("\nbegin")[2]
    assert sorted(re.findall(r"^  (\S+) +\S", listed, re.M)) == sorted(commands)
    assert main([]) == 0
    begun = re.findall(r"^  mugrpo (\S+)", capsys.readouterr().out, re.M)
    assert len(begun) == 3 and {*begun} <= {*commands}


def test_the_example_of_each_command_is_one_that_it_takes():
    for name, command in parsers_of(parser()).items():
        _, _, example = (command.description or "").partition("\n\n  mugrpo ")
        words = shlex.split(example.partition(" > ")[0])
        assert words[0] == name
        _, overrides = parser().parse_known_args(words)
        load_config(overrides=overrides)


def test_help_says_which_choices_have_an_option():
    found = owners_in(options_text("all"))
    for group, members in RunConfig.choices().items():
        for choice, options in members.items():
            for leaf in set(options.model_fields) - {"name"}:
                assert f"{group}.name {choice}" in found[f"{group}.{leaf}"], (group, choice, leaf)
    assert found["engine.processes"] == {f"engine.name {n}" for n in ("continuous", "hf", "vllm")}
    assert found["correction.level"] == {"correction.name truncated", "correction.name masked"}
    assert found["task.config"] == {"task.name reasoning-gym"}
    assert "seed" not in found and "optimizer.lr" not in found
