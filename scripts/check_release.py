"""Refuse a tag that does not fit the version and the changelog: `check_release.py v0.2.0`."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def fault(tag: str, version: str, changelog: str) -> str | None:
    """Return why a commit with this version and changelog cannot be released as `tag`, or None."""
    if tag != f"v{version}":
        return f"the tag {tag} is not v{version}, the version in pyproject.toml; fix one of them"
    sections = dict(re.findall(r"^## (\S+).*\n((?:(?!## ).*\n)*)", changelog, re.MULTILINE))
    if not sections.get(version, "").strip():
        return f"CHANGELOG.md has no entry for {version}; add a section `## {version}`"
    if sections.get("Unreleased", "").strip():
        return f"CHANGELOG.md has entries under Unreleased; move them to `## {version}`"
    return None


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    sys.exit(fault(sys.argv[1], project["version"], changelog))
