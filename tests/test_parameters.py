"""Parameters read as people mean them, and every way to get them wrong named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4kernels.parameters import ParameterError, check, convert, like

TARGETS = ("sm_90", "sm_120")


@pytest.mark.parametrize(
    ("spec", "value", "meant"),
    [
        (bool, "true", True),
        (bool, " True ", True),
        (bool, "yes", True),
        (bool, "off", False),
        (bool, 0, False),
        (bool, True, True),
        (int, "1e3", 1000),
        (int, "1_024", 1024),
        (int, " 8 ", 8),
        (int, "-3", -3),
        (int, 4096.0, 4096),
        (float, "0.1", 0.1),
        (float, "1e-3", 0.001),
        (float, 2, 2.0),
        (str, "true", "true"),
        (str, 434, "434"),
        (range(1, 9), "8", 8),
        (TARGETS, "sm_120", "sm_120"),
        ({"flash": 1, "pro": 2}, "pro", "pro"),
        ((64, 256), "256", 256),
        ([range(1, 9)], "[1,8]", [1, 8]),
        ([range(1, 9)], "1, 8", [1, 8]),
        ([range(1, 9)], "(1, 8,)", [1, 8]),
        ([range(1, 9)], 5, [5]),
        ([int], (1, 2), [1, 2]),
        ([int], "1e3", [1000]),
        ([TARGETS], "['sm_90', \"sm_120\"]", ["sm_90", "sm_120"]),
        ([float], "0.5,1", [0.5, 1.0]),
        (None, {"any": "thing"}, {"any": "thing"}),
    ],
)
def test_read_as_meant(spec, value, meant):
    result = convert(value, spec)
    assert result == meant
    assert type(result) is type(meant)


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (bool, "maybe", "true or false"),
        (bool, 2, "true or false"),
        (bool, 1.0, "true or false"),
        (bool, None, "true or false"),
        (int, "1.5", "whole number"),
        (int, 1.5, "whole number"),
        (int, True, "whole number"),
        (int, "ten", "whole number"),
        (int, "", "whole number"),
        (int, "inf", "whole number"),
        (int, "1e999999999", "whole number"),
        (int, None, "whole number"),
        (int, [1], "whole number"),
        (float, float("nan"), "finite"),
        (float, "inf", "finite"),
        (float, "1e999", "finite"),
        (float, "x", "a number"),
        (float, False, "a number"),
        (str, None, "text"),
        (str, True, "text"),
        (str, ["x"], "text"),
        (range(1, 65537), 0, "from 1 to 65536"),
        (range(1, 65537), "65537", "from 1 to 65536"),
        (range(64, 257, 64), 65, "from 64 to 256 in steps of 64"),
        (TARGETS, "sm_80", "one of sm_90, sm_120"),
        ((64, 256), "128", "one of 64, 256"),
        ([int], [], "at least one"),
        ([int], "[]", "at least one"),
        ([int], "1,,2", "whole number"),
        ([int], [1, None], "whole number"),
        ([range(1, 9)], "1,9", "from 1 to 8"),
    ],
)
def test_refused(spec, value, message):
    with pytest.raises(ParameterError, match=message):
        convert(value, spec)


@settings(deadline=None)
@given(st.integers(-(2**62), 2**62))
def test_whole_numbers_survive_being_text(number):
    assert convert(str(number), int) == convert(f"{number:_}", int) == number


@settings(deadline=None)
@given(st.lists(st.integers(), min_size=1))
def test_lists_survive_being_text(numbers):
    assert convert(str(numbers), [int]) == numbers


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, max_value=1e307, min_value=-1e307))
def test_floats_survive_being_text(number):
    assert convert(repr(number), float) == convert(number, float) == number


def test_a_form_that_is_none_is_the_authors_fault():
    for spec in ([], [int, int], "sm_120", 3):
        with pytest.raises(TypeError, match="no such form"):
            convert(1, spec)


@pytest.mark.parametrize(
    ("default", "spec"),
    [
        (True, bool),
        (1, int),
        (0.5, float),
        ("x", str),
        ([1, 2], [int]),
        (["a"], [str]),
        ([1, 0.5], [float]),
        ([], None),
        (None, None),
        ({}, None),
    ],
)
def test_spec_of_a_default(default, spec):
    assert like(default) == spec


def test_check_returns_converted_values():
    namespace = {"tokens": "1e3,8", "exact": "yes", "_private": 1, "check": check, "pytest": pytest}
    result = check(namespace, tokens=[range(1, 65537)], exact=bool)
    assert vars(result) == {"tokens": [1000, 8], "exact": True}


def test_check_names_every_fault_at_once():
    namespace = {"tokns": [8], "exact": "maybe", "topk": -1}
    with pytest.raises(ParameterError) as caught:
        check(namespace, tokens=[int], exact=bool, topk=range(9), label=str)
    lines = str(caught.value).splitlines()
    assert lines == [
        "tokens is missing: the cell tagged `parameters` sets it",
        "exact = 'maybe': must be true or false",
        "topk = -1: must be from 0 to 8",
        "label is missing: the cell tagged `parameters` sets it",
        "tokns is not a parameter of this lesson; did you mean tokens?",
    ]


def test_a_name_close_to_none_gets_the_whole_list():
    with pytest.raises(ParameterError, match=r"zzz is not .*; known: tokens, exact"):
        check({"tokens": 1, "exact": True, "zzz": 1}, tokens=int, exact=bool)


def test_setup_run_again_in_jupyterlab_ignores_variables_of_later_sections():
    cells = ["", "tokens = 8", "p = check(globals(), tokens=int)", "width = 5", "tokens = 9"]
    namespace = {"In": [*cells, "p = check(...)"], "tokens": 9, "width": 5, "Out": {}}
    assert check(namespace, tokens=int).tokens == 9
    injected = ["", "tokens = 8", "# Parameters\ntokns = 9", "p = check(...)"]
    with pytest.raises(ParameterError, match="tokns"):
        check({"In": injected, "tokens": 8, "tokns": 9}, tokens=int)
