"""The house itself: which way imports go, how long a module may be, what is documented."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dsv4kernels"
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def all_of(package):
    """The modules of a package in the package."""
    return {name for name in MODULES if name.startswith(f"{package}.")}


# The flow of the data, one way: a module imports from its own group and those before it.
FLOW = [
    {"parameters", "runtime"},
    {"checks", "presets"},
    {"reference", "own_mapping", "own_dcp", "own_combine"},
    {"slot_mapping", "combine", "deep_check"},
    {"__init__"},
    all_of("launches"),
    {"variants.__init__", "variants.steps", "variants.trials", "variants.differences"},
    all_of("compiler"),
    all_of("measure") | {"variants.candidates"},
    {"plots.__init__"},
    all_of("plots") - {"plots.__init__"},
    all_of("exercises"),
    {"widgets.__init__"},
    all_of("widgets") - {"widgets.__init__"},
    all_of("lessons"),
    {"__main__"},
]
RANK = {name: rank for rank, group in enumerate(FLOW) for name in group}


def imports(name):
    """The package's modules that a module imports, wherever in it."""
    package = ("dsv4kernels." + name).split(".")[:-1]
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[1 : len(package) - node.level + 1] + (node.module or "").split(".")
            base = [part for part in base if part]
            for alias in node.names:
                for target in (".".join([*base, alias.name]), ".".join(base)):
                    known = target if target in MODULES else f"{target}.__init__".lstrip(".")
                    if known in MODULES:
                        yield known
                        break


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_place_in_the_flow(name):
    assert name in RANK


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_one_way(name):
    late = {other for other in imports(name) if RANK[other] > RANK[name]}
    assert not late


@pytest.mark.parametrize("name", MODULES)
def test_the_package_imports_itself_by_relative_names(name):
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            named = [node.module]
        assert not [other for other in named if other.split(".")[0] == "dsv4kernels"]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_can_be_taken_in_at_one_sitting(name):
    assert len(MODULES[name].read_text().splitlines()) <= 350


@pytest.mark.parametrize("name", MODULES)
def test_what_is_public_is_documented(name):
    tree = ast.parse(MODULES[name].read_text())
    assert ast.get_docstring(tree)
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for node in tree.body:
        if isinstance(node, kinds) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


@pytest.mark.parametrize("name", MODULES)
def test_nothing_is_left_to_do_or_tied_to_a_machine(name):
    text = MODULES[name].read_text()
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)
    assert not re.search(r"(?<![\w.}])/(home|root|work|tmp|Users)/", text)
