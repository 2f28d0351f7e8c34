"""What this release was tested with is said exactly, for every package that it can be installed with."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from labassist import content

PROJECT = tomllib.loads((content.root() / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"core": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}


def pins() -> dict[str, str]:
    """Return the version that each package is pinned to."""
    found = {}
    for line in (content.root() / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, equal, version = line.partition("==")
            assert equal and version and canonicalize_name(name) not in found, line
            found[canonicalize_name(name)] = version
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_package_of_an_extra_is_pinned_within_its_bounds(extra: str) -> None:
    known = pins()
    for text in EXTRAS[extra]:
        requirement = Requirement(text)
        version = known.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} has no line in constraints.txt"
        assert requirement.specifier.contains(version), f"{text} leaves out the pinned {version}"
