from mugrpo.config.run import PRESETS, RunConfig
from mugrpo.tools.catalog import catalog
from tests.cases import table

CHOICES = RunConfig.choices()
TEXT = "\n".join(catalog())
GROUPS = [group for group in CHOICES if group not in ("task", "engine", "backend")]


@table("group", GROUPS)
def test_every_part_is_listed_under_its_group(group):
    section = TEXT.partition(f"[{group}]\n")[2].partition("\n\n[")[0]
    for name in CHOICES[group]:
        assert f'name = "{name}"  ' in section


def test_every_objective_has_its_equation_or_says_how_it_is_made():
    for name in set(CHOICES["objective"]) - {"file"}:
        part = TEXT.partition(f'  name = "{name}"  ')[2].partition('\n  name = "')[0]
        assert "loss_t" in part, name
        assert ("needs proximal_logprobs: another forward pass" in part) == (
            name == "decoupled_ppo"
        )


def test_every_preset_is_listed_with_what_it_is():
    for name in PRESETS:
        (line,) = (line for line in TEXT.splitlines() if line.startswith(f"  {name} "))
        assert len(line) > 30
