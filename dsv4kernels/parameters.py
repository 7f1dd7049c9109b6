"""A lesson's parameters: text read as people mean it, types and names checked, all faults told.

`check` stands in a lesson's setup cell; the runner uses the same conversions before it starts a
lesson. Imports nothing heavy.
"""

import ast
import difflib
from collections.abc import Collection, Iterable
from decimal import Decimal, InvalidOperation
from types import NoneType, SimpleNamespace
from typing import Any

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
# What a parameters cell can hold, and the names that IPython itself puts beside them.
_PLAIN = (bool, int, float, str, list, tuple, dict, NoneType)
_IPYTHON = {"In", "Out", "exit", "quit", "get_ipython", "open"}


class LessonError(Exception):
    """A lesson, or a run of lessons, that cannot go on; the message says why."""


class ParameterError(LessonError):
    """Parameters that are misspelt, missing, mistyped or impossible; the message names each."""


def check(namespace: dict[str, Any], /, **specs: Any) -> SimpleNamespace:
    """Check a notebook's parameters against what the lesson can use.

    Args:
        namespace: the notebook's `globals()`.
        **specs: for each parameter what it may be: `bool`, `int`, `float` or `str`; a `range` for
            a whole number inside it; a tuple, or a dict's keys, to choose from; `[spec]` for a
            list of at least one (a lone value will do).

    Returns:
        The values, converted, as attributes.

    Raises:
        ParameterError: a parameter is missing or its value does not fit, or the parameters cell,
            or values injected after it, set a name that the lesson does not have.
    """
    values, faults = {}, []
    for name, spec in specs.items():
        if name not in namespace:
            faults.append(f"{name} is missing: the cell tagged `parameters` sets it")
            continue
        try:
            values[name] = convert(namespace[name], spec)
        except ParameterError as error:
            faults.append(f"{name} = {namespace[name]!r}: {error}")
    for name in sorted(_set_like_parameters(namespace, specs) - specs.keys()):
        faults.append(f"{name} is not a parameter of this lesson{closest(name, specs)}")
    if faults:
        raise ParameterError("\n".join(faults))
    return SimpleNamespace(**values)


def convert(value: Any, spec: Any) -> Any:
    """One value as its spec wants it (the forms of `check`; None takes any value).

    Raises:
        ParameterError: the value does not fit; the message says what would.
        TypeError: no such form of spec.
    """
    if spec is None:
        return value
    if spec is bool:
        return _truth(value)
    if spec is int:
        return _whole(value)
    if spec is float:
        return float(_number(value))
    if spec is str:
        return _text(value)
    if isinstance(spec, range):
        number = _whole(value)
        if number not in spec:
            steps = f" in steps of {spec.step}" if spec.step != 1 else ""
            raise ParameterError(f"must be from {spec[0]} to {spec[-1]}{steps}")
        return number
    if isinstance(spec, list) and len(spec) == 1:
        return [convert(item, spec[0]) for item in _items(value)]
    if isinstance(spec, Collection) and not isinstance(spec, list | str):
        return _choice(value, spec)
    raise TypeError(f"no such form of parameter: {spec!r}")


def like(default: Any) -> Any:
    """The spec of values of a default's own type, all the runner can know of a parameter."""
    if isinstance(default, list | tuple):
        kinds = {type(item) for item in default}
        if kinds == {int, float}:
            return [float]
        return [kinds.pop()] if len(kinds) == 1 and kinds <= {bool, int, float, str} else None
    return type(default) if isinstance(default, bool | int | float | str) else None


def closest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known: {', '.join(known)}" if known else ""


def _truth(value: Any) -> bool:
    word = str(value).strip().lower()
    if isinstance(value, bool | int | str) and word in _TRUE | _FALSE:
        return word in _TRUE
    raise ParameterError("must be true or false")


def _number(value: Any) -> Decimal:
    # Decimal reads "1e3" and "1_024" exactly; a double's range keeps "1e999999999" out of int().
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = Decimal(value.strip() if isinstance(value, str) else value)
        except InvalidOperation:
            raise ParameterError("must be a number") from None
        if number.is_finite() and number.adjusted() < 308:
            return number
        raise ParameterError("must be a finite number")
    raise ParameterError("must be a number")


def _whole(value: Any) -> int:
    try:
        number = _number(value)
    except ParameterError:
        raise ParameterError("must be a whole number") from None
    if number != number.to_integral_value():
        raise ParameterError("must be a whole number")
    return int(number)


def _text(value: Any) -> str:
    # papermill's -p has already made a number of a text such as 434.
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise ParameterError("must be text")


def _choice(value: Any, choices: Collection) -> Any:
    for choice in choices:
        try:
            if convert(value, type(choice)) == choice:
                return choice
        except ParameterError:
            continue
    raise ParameterError(f"must be one of {', '.join(map(str, choices))}")


def _items(value: Any) -> list:
    if isinstance(value, str):
        text = value.strip()
        if text[:1] + text[-1:] in ("[]", "()"):
            text = text[1:-1]
        value = [item.strip().strip("\"'") for item in text.rstrip(", ").split(",")]
        value = [] if value == [""] else value
    elif not isinstance(value, list | tuple | range):
        value = [value]
    if not value:
        raise ParameterError("must be a list of at least one")
    return list(value)


def _set_like_parameters(namespace: dict[str, Any], known: Collection[str]) -> set[str]:
    """Names that the parameters cell, or the cell injected after it, may have set."""
    plain = {
        name
        for name, value in namespace.items()
        if isinstance(value, _PLAIN) and not name.startswith("_") and name not in _IPYTHON
    }
    cells = namespace.get("In")
    if not isinstance(cells, list):
        return plain
    # Setup run once more in JupyterLab: the variables of later sections stand among the globals.
    # Only cells since the last one that set a parameter count; the last of all is this very cell.
    names: set[str] = set()
    for source in reversed(cells[:-1]):
        assigned = _assigned(source)
        names |= assigned
        if not assigned.isdisjoint(known):
            break
    return plain & names


def _assigned(source: str) -> set[str]:
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return set()
    return {
        node.id
        for statement in statements
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
