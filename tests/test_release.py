"""A release: the versions of Python it is for, what its workflow does, and which tags it takes."""

from __future__ import annotations

import re
import runpy
import tomllib
from typing import Any

import pytest
import yaml

from tests.runs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
JOBS = WORKFLOW["jobs"]
fault = runpy.run_path(str(ROOT / "scripts" / "check_release.py"))["fault"]
CHANGELOG = "# Log\n\n## Unreleased\n\n## 0.2.0\n\n### Added\n\n- That.\n\n## 0.1.0\n\n- This.\n"


def lines_of(job: str) -> list[str]:
    return [step["run"] for step in JOBS[job]["steps"] if "run" in step]


def test_classifiers_workflow_and_metadata_name_the_same_versions_of_python():
    tested = JOBS["test"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    classified = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if c.startswith(prefix)]
    assert classified == tested == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={tested[0]}"
    (setup,) = (s["with"] for s in JOBS["test"]["steps"] if "setup-python" in s.get("uses", ""))
    assert setup["python-version"] == "${{ matrix.python }}"


def test_a_tag_builds_then_tests_then_publishes_the_same_files():
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as true
    assert {job: JOBS[job].get("needs") for job in JOBS} == {
        "check": None,
        "build": None,
        "test": "build",
        "publish": ["check", "test"],
    }
    assert lines_of("check") == ["make test PYTHON=python"]
    assert lines_of("build")[0] == 'python scripts/check_release.py "$GITHUB_REF_NAME"'
    assert lines_of("build")[-1] == "python -m build"
    (tested,) = lines_of("test")
    assert tested.startswith("make test-wheel ") and 'WHEEL="$(ls dist/*.whl)"' in tested
    for job in ("test", "publish"):
        (download,) = (s for s in JOBS[job]["steps"] if "download-artifact" in s.get("uses", ""))
        assert download["with"] == {"name": "dist", "path": "dist/"}


def test_only_the_last_job_may_publish_and_no_password_is_kept():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    may = {job: JOBS[job]["permissions"] for job in JOBS if "permissions" in JOBS[job]}
    assert may == {"publish": {"id-token": "write"}}
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert "secrets." not in text
    assert "run" not in {key for step in JOBS["publish"]["steps"] for key in step}


def test_every_action_is_pinned_to_a_commit_and_says_which_version_that_is():
    text = (ROOT / ".github/workflows/release.yml").read_text()
    uses = re.findall(r"uses: (.*)", text)
    assert len(uses) == 10
    for one in uses:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one), one


def test_the_changelog_has_a_section_for_the_version():
    assert f"\n## {PROJECT['version']}\n" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    ("tag", "version", "changelog", "expected"),
    [
        ("v0.2.0", "0.2.0", CHANGELOG, None),
        ("v0.1.0", "0.1.0", CHANGELOG.replace("0.2.0", "0.1.0", 1).rpartition("## ")[0], None),
        ("0.2.0", "0.2.0", CHANGELOG, "the tag 0.2.0 is not v0.2.0"),
        ("v0.2.1", "0.2.0", CHANGELOG, "the tag v0.2.1 is not v0.2.0"),
        ("v0.3.0", "0.3.0", CHANGELOG, "CHANGELOG.md has no entry for 0.3.0"),
        ("v0.2.0", "0.2.0", "## 0.2.0\n\n## 0.1.0\n\n- This.\n", "has no entry for 0.2.0"),
        (
            "v0.2.0",
            "0.2.0",
            CHANGELOG.replace("Unreleased\n", "Unreleased\n\n- More.\n"),
            "has entries under Unreleased; move them to `## 0.2.0`",
        ),
    ],
)
def test_a_tag_must_fit_the_version_and_the_changelog(
    tag: str, version: str, changelog: str, expected: str | None
):
    found = fault(tag, version, changelog)
    assert found is None if expected is None else expected in found
