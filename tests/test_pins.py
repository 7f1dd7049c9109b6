"""What is installed: every version pinned once, and a hash for each file that CI takes."""

import re
import tomllib

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dsv4kernels.lessons import ROOT

PYTHONS = ("3.11", "3.12", "3.13")


def requirements(file):
    """By name, each requirement of a file that pip reads; hashes cut off."""
    lines = (ROOT / file).read_text().replace("\\\n", " ").splitlines()
    texts = [line.split(" --hash=")[0].strip() for line in lines if line and line[0] != "#"]
    found = {canonicalize_name(each.name): each for each in map(Requirement, texts)}
    assert len(found) == len(texts)
    return found


def applies(marker: Marker | None):
    """The Pythons on which a requirement counts."""
    versions = [{"python_version": p, "python_full_version": f"{p}.0"} for p in PYTHONS]
    return [v for v in versions if marker is None or marker.evaluate(v)]


def test_each_version_is_pinned_exactly():
    for each in requirements("constraints.txt").values():
        [pin] = each.specifier
        assert pin.operator == "==" and not pin.version.endswith("*"), each


def test_the_hashed_list_holds_the_same_versions():
    pinned, hashed = requirements("constraints.txt"), requirements("requirements-ci.txt")
    # PyTorch's own index has the CPU build that CI takes; PyPI has another file of that version.
    assert pinned.keys() - hashed.keys() == {"torch"} and hashed.keys() <= pinned.keys()
    for name, each in hashed.items():
        assert each.specifier == pinned[name].specifier, "make lock"
        assert applies(each.marker) == applies(pinned[name].marker), "make lock"


def test_every_file_has_a_hash_and_none_an_address():
    text = (ROOT / "requirements-ci.txt").read_text()
    for block in re.split(r"\n(?=\S)", text):
        if not block.startswith("#"):
            assert re.fullmatch(r"\S+==[^\\]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n?", block), (
                block
            )
    assert "://" not in text and "-index" not in text and "find-links" not in text


def test_what_the_package_asks_for_is_pinned_within_its_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in project["project"]["optional-dependencies"].values():
        asked += extra
    pinned = requirements("constraints.txt")
    for each in map(Requirement, asked):
        [pin] = pinned[canonicalize_name(each.name)].specifier
        assert each.specifier.contains(pin.version), each
