"""The lessons as they are stored: which there are, what they can be given, what they announce.

`announce` is for the lessons themselves; the rest is read by the runner before it starts one.
Imports nothing heavy.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..parameters import LessonError, ParameterError, closest, convert, like

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS, DOCS = ROOT / "notebooks", ROOT / "docs"
ANNOUNCED = "application/vnd.dsv4kernels.lesson+json"


def announce(
    live: str = "",
    compiled_for: str | Iterable[str] = (),
    recorded: str = "",
    published: str = "",
) -> None:
    """Say in one line what a lesson shows on this machine; the ledger repeats it.

    Args:
        live: where kernels run, as in "in Triton's interpreter on this CPU".
        compiled_for: the targets whose machine code is shown, as in "sm_120".
        recorded: the file or the machine that recorded measurements come from.
        published: whose published figures are shown.

    Raises:
        ValueError: nothing is announced.
    """
    targets = [compiled_for] if isinstance(compiled_for, str) else list(compiled_for)
    said = {
        "live": f"live {live}" if live else "",
        "compiled": f"compiled for {', '.join(targets)}" if any(targets) else "",
        "recorded": f"recorded: {recorded}" if recorded else "",
        "published": f"published figures: {published}" if published else "",
    }
    said = {mode: words for mode, words in said.items() if words}
    if not said:
        raise ValueError("announce what is live, compiled, recorded or published")
    line = " · ".join(said.values())
    line = line[0].upper() + line[1:]
    from IPython import get_ipython
    from IPython.display import display

    if get_ipython() is None:
        print(line)
    else:
        display({ANNOUNCED: {"mode": list(said), "line": line}, "text/plain": line}, raw=True)


@dataclass(frozen=True)
class Lesson:
    """A notebook as it is stored: `parameters` are the source and `defaults` the values."""

    name: str
    notebook: Any
    title: str
    summary: str
    parameters: str
    defaults: dict[str, Any]


def read(path: Path) -> Lesson:
    """Read a lesson.

    Raises:
        LessonError: no notebook, not exactly one cell tagged `parameters`, or a parameters cell
            with something other than literal assignments.
    """
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)  # what reading has only logged
    except Exception as error:  # nbformat raises a different one for each way to be broken
        reason = str(error).strip().partition("\n")[0]
        raise LessonError(f"{path.name} is not a notebook: {reason}") from None
    tagged = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise LessonError(f"{path.name} has {len(tagged)} cells tagged `parameters`, needs one")
    heading = next((c.source for c in notebook.cells if c.cell_type == "markdown"), "")
    title, _, text = heading.strip().partition("\n")
    paragraph = re.sub(r"\s+", " ", text.strip().split("\n\n")[0])
    return Lesson(
        name=path.stem,
        notebook=notebook,
        title=title.lstrip("# ") or path.stem,
        summary=re.sub(r"\[([^]]*)\]\([^)]*\)|[*`]", r"\1", paragraph),
        parameters=tagged[0].source,
        defaults=_defaults(tagged[0].source, path.name),
    )


def _defaults(source: str, where: str) -> dict[str, Any]:
    # papermill.inspect_notebook goes by lines and passes over one whose comment holds a `=`.
    defaults = {}
    try:
        for node in ast.parse(source).body:
            if not isinstance(node, ast.Assign):
                raise ValueError(f"line {node.lineno}")
            [target] = node.targets
            defaults[target.id] = ast.literal_eval(node.value)
    except (SyntaxError, ValueError, AttributeError) as error:
        raise LessonError(
            f"{where}: the parameters cell may hold `name = literal` only ({error})"
        ) from None
    return defaults


def read_all(notebooks: Path | str = NOTEBOOKS) -> dict[str, Lesson]:
    """The lessons of a folder by name, in order.

    Raises:
        LessonError: there is none, or some cannot be read (all of these are named).
    """
    lessons, faults = {}, []
    for path in sorted(Path(notebooks).glob("*.ipynb")):
        try:
            lessons[path.stem] = read(path)
        except LessonError as error:
            faults.append(str(error))
    if faults or not lessons:
        raise LessonError("\n".join(faults) or f"no lessons in {notebooks}")
    return lessons


def select(lessons: Mapping[str, Lesson], names: Iterable[str] | None) -> list[str]:
    """Names of lessons, chosen by whole names or their beginnings; all of them for None.

    Raises:
        LessonError: one of `names` fits no lesson.
    """
    chosen = set()
    for wanted in lessons if names is None else names:
        found = {wanted} & lessons.keys() or {n for n in lessons if n.startswith(wanted)}
        if not found:
            raise LessonError(f"no lesson {wanted!r}{closest(wanted, lessons)}")
        chosen |= found
    return [name for name in lessons if name in chosen]


def choose(
    lessons: Mapping[str, Lesson],
    selected: Iterable[str],
    profile: Mapping[str, Mapping[str, Any]],
    overrides: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Parameters to run each selected lesson with: the profile's, then the overrides.

    Raises:
        ParameterError: an unknown lesson or parameter, or a value unlike the default; all are told.
    """
    faults = [f"profile: no lesson {n!r}{closest(n, lessons)}" for n in profile if n not in lessons]
    declared = sorted({name for lesson in selected for name in lessons[lesson].defaults})
    for name in overrides:
        if name not in declared:
            faults.append(f"{name}: no lesson to run has this parameter{closest(name, declared)}")
    chosen: dict[str, dict[str, Any]] = {}
    for lesson in lessons.values():
        values = dict(profile.get(lesson.name) or {})
        if lesson.name in selected:
            values |= {n: v for n, v in overrides.items() if n in lesson.defaults}
            chosen[lesson.name] = values
        for name, value in values.items():
            if name not in lesson.defaults:
                faults.append(f"{lesson.name}: no parameter {name}{closest(name, lesson.defaults)}")
                continue
            try:
                values[name] = convert(value, like(lesson.defaults[name]))
            except ParameterError as error:
                faults.append(f"{lesson.name}: {name} = {value!r}: {error}")
    if faults:
        raise ParameterError("\n".join(faults))
    return chosen


def read_profile(name: str, notebooks: Path | str = NOTEBOOKS) -> dict[str, dict[str, Any]]:
    """`profiles/<name>.yml` beside the lessons: for each lesson, parameters and their values.

    Raises:
        LessonError: there is no such file, or it is not a map of maps.
    """
    import yaml

    files = {path.stem: path for path in Path(notebooks, "profiles").glob("*.yml")}
    if name not in files:
        raise LessonError(f"no profile {name!r}{closest(name, sorted(files))}")
    try:
        profile = yaml.safe_load(files[name].read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise LessonError(f"profile {name}: {error}") from None
    if not isinstance(profile, dict) or not all(
        isinstance(values, dict | None) for values in profile.values()
    ):
        raise LessonError(f"profile {name} must be a map of lessons to maps of parameters")
    return profile
