"""Lesson 07 and its checker: what is not yet, right and not right, and every hint."""

import itertools
import linecache
from types import SimpleNamespace

import nbformat
import pytest
import torch
import triton.language as tl
from wrong_answers import COUNTED, FOLDS, KERNELS, LAUNCHES, OWNER

from dsv4kernels import exercises, lessons, runtime
from dsv4kernels.compiler import codegen
from dsv4kernels.exercises import NOT_RIGHT, NOT_YET, RIGHT, conduct
from dsv4kernels.exercises.tasks import Case
from dsv4kernels.lessons import NOTEBOOKS

LESSON, SOLVED = (NOTEBOOKS / place / "07_exercises.ipynb" for place in (".", "solutions"))
ANSWERS = dict(zip(exercises.NAMES, ["mask-answer", "stale-answer", "count-answer", "fold-answer",
    "launch-answer", "tail-answer", "request-answer", "owner-answer", "combine-answer",
    "aligned-answer"], strict=True))  # fmt: skip
TARGET = "sm_120"
INPUT = "tl.store(token_to_req_indices + token, 0)"
IN_TWO_PARTS = """row = indices + token * indices_stride
        tl.store(row + column, first_row + column, mask=column < window_len)
        value, stored = -1, (column >= window_len) & (column < width)"""
MIX = {"query_lens": [4100, 1000, 300] + [1] * 32, "most_rows": 16, "slots": 2256, "gpu": "a GPU"}
FACTS = MIX | {"p": SimpleNamespace(most_rows=MIX["most_rows"])}  # that the lesson's cells hold
numbers = itertools.count()


def cells(path):
    return nbformat.read(path, as_version=4).cells


def run(source, namespace):
    """Run a cell so that Triton finds its source, as it does in a notebook."""
    name = f"<cell {next(numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)
    return namespace


def sheet_of(path):
    namespace = {"__name__": "lesson"}
    for cell in cells(path):
        if cell.cell_type == "code":
            run(cell.source, namespace)
    return namespace["sheet"]


SOLUTIONS = {cell.id: cell.source for cell in cells(SOLVED)}


def answer(name, old="", new=""):
    """The solution of an exercise with an edit."""
    source = SOLUTIONS[ANSWERS[name]]
    if old:
        assert old in source, f"{name}: the solution has no {old!r}"
        source = source.replace(old, new)
    namespace = run(source, {"__name__": "answer", "runtime": runtime, "tl": tl, **FACTS})
    return list(namespace.values())[-1]


def check(name, kernel):
    return exercises.check_kernel(exercises.KERNELS[name], kernel, TARGET)


def edited(name, old, new):
    return check(name, answer(name, old, new))


# The notebooks


def test_every_check_of_the_lesson_says_not_yet(capsys):
    sheet = sheet_of(LESSON)
    assert {name: verdict.status for name, verdict in sheet.found.items()} == dict.fromkeys(
        exercises.NAMES, NOT_YET
    )
    with pytest.raises(AssertionError, match="mask: not yet; stale index: not yet"):
        sheet.require_all()


def test_every_solution_is_right(capsys):
    sheet = sheet_of(SOLVED)  # its last cell asserts it too
    assert {name: verdict.status for name, verdict in sheet.found.items()} == dict.fromkeys(
        exercises.NAMES, RIGHT
    )
    assert not any(verdict.hint for verdict in sheet.found.values())
    assert "128 x 1" in sheet.found["aligned"].words
    assert "128 x" not in sheet.found["combine"].words


def test_solutions_are_no_lessons_but_can_be_run_like_them():
    assert LESSON.stem in lessons.read_all()
    assert list(lessons.read_all(SOLVED.parent)) == [SOLVED.stem]
    assert lessons.read_profile("quick", SOLVED.parent) == {}


def test_the_solved_lesson_is_the_lesson_but_for_the_answers():
    lesson, solved = cells(LESSON), cells(SOLVED)
    assert [cell.id for cell in lesson] == [cell.id for cell in solved]
    for given, done in zip(lesson, solved, strict=True):
        tags = given.metadata.get("tags", [])
        assert tags == done.metadata.get("tags", [])
        if "answer" in tags:
            assert given.id in ANSWERS.values() and given.source != done.source
        elif given.id == "title":  # links from another folder
            assert given.source.split("\n")[0] in done.source
        elif "parameters" in tags:
            assert given.source.replace("require_all = False", "require_all = True") == done.source
        else:  # and to the glossary
            assert given.source.replace("](../docs/", "](../../docs/") == done.source


# Wrong answers


@pytest.mark.parametrize(
    ("name", "old", "new", "hint"), KERNELS, ids=[f"{name}: {hint}" for name, *_, hint in KERNELS]
)
def test_a_typical_wrong_kernel_gets_its_hint(name, old, new, hint):
    verdict = check(name, answer(name, old, new))
    assert verdict.status == NOT_RIGHT
    assert hint in verdict.hint, verdict


def test_every_hint_of_a_kernel_has_its_wrong_answer():
    for name, task in exercises.KERNELS.items():
        told = [hint for exercise, *_, hint in KERNELS if exercise in (name, "combine")]
        for mistake in task.mistakes:
            assert mistake.given or any(hint in mistake.hint for hint in told), mistake.hint


def test_every_hint_of_an_exception_has_its_wrong_answer():
    told = [hint for *_, hint in KERNELS]
    for known in conduct.HINTS.values():
        assert any(hint in known for hint in told), known


def test_an_edit_without_effect_is_no_answer_yet():
    verdict = edited("stale index", "valid & (position >= 0)", "position >= 0 & valid")
    assert verdict.status == NOT_YET and "`&` binds before `>=`" in verdict.hint


@pytest.mark.parametrize(("columns", "hint"), [(4, True), (64, True), (128, False)])
def test_narrow_chunks_are_right_and_told_what_128_bits_need(columns, hint):
    source = SOLUTIONS["aligned-answer"]
    before, walk = source.split("    column = tl.arange(0, TILE)\n")
    walk = f"    column = first + tl.arange(0, {columns})\n{walk}"
    walk = "".join(f"    {line}\n" for line in walk.splitlines())
    walk = f"{before}    for first in range(0, width, {columns}):\n{walk}"
    verdict = edited("aligned", source, walk)
    assert verdict.status == RIGHT
    assert ("a chunk of 128 for each warp" in verdict.hint) == hint
    assert ("128 x 1" in verdict.words) != hint


@pytest.mark.parametrize(("argument", "kind", "hint"), FOLDS)
def test_a_wrong_prediction_gets_its_hint(argument, kind, hint, counts, monkeypatch):
    monkeypatch.setattr(exercises.predictions, "vanishing", lambda target: counts.copy())
    told = {name: dict(part) for name, part in answer("fold").items()}
    told[argument][kind] = not told[argument][kind]
    verdict = exercises.check_fold(told, TARGET)
    assert verdict.status == NOT_RIGHT and hint in verdict.hint
    assert f"with `{argument}` folded" in verdict.words and kind in verdict.words
    before, after = counts.loc[kind, ["nothing", argument]]
    moved = f"go from {before} to {after}" if before != after else f"stay at {after}"
    assert f"({kind}) {moved}; you said that they" in verdict.words
    assert verdict.table is None


@pytest.fixture(scope="module")
def counts():
    return exercises.predictions.vanishing(TARGET)


@pytest.mark.parametrize(("change", "hint"), LAUNCHES)
def test_a_wrong_number_gets_its_hint(change, hint):
    verdict = exercises.check_launch(answer("launch") | change, **MIX)
    assert verdict.status == NOT_RIGHT and hint in verdict.hint
    assert f"{next(iter(change))} = {next(iter(change.values()))}" in verdict.words


def test_the_numbers_of_the_solution_follow_the_mix(monkeypatch):
    mix = {"query_lens": [700, 3], "most_rows": 9, "slots": 50}
    monkeypatch.setitem(FACTS, "query_lens", mix["query_lens"])
    monkeypatch.setitem(FACTS, "slots", mix["slots"])
    monkeypatch.setitem(FACTS, "p", SimpleNamespace(most_rows=mix["most_rows"]))
    assert exercises.check_launch(answer("launch"), **mix, gpu="a GPU").status == RIGHT


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("mask", "column < width", "(column >= 0) & (column - width < 0)"),
        ("stale index", "+ token).to(tl.int64)", "+ token, mask=valid, other=0).to(tl.int64)"),
        ("stale index", "tl.where(has_key, slot, -1)", "tl.where(position >= 0, slot, -1)"),
        ("count", COUNTED, "tl.sum(tl.where(position >= 0, 1, 0)) * valid"),
        ("tail", "tl.store(", f"{IN_TWO_PARTS}\n        tl.store("),
        ("owner", OWNER, "position // interleave - position // interleave // ranks * ranks"),
    ],
)
def test_there_are_other_ways_to_be_right(name, old, new):
    verdict = edited(name, old, new)
    assert (verdict.status, verdict.hint) == (RIGHT, ""), verdict


# Answers that are no answer, and kernels that stop


def test_an_exception_is_a_sentence_with_its_line_and_the_next_kernel_runs():
    verdict = edited("mask", "column < width", "column < widht")
    assert verdict.status == NOT_RIGHT
    assert verdict.words == (
        "the kernel stopped at `in_row = column < widht`: NameError: name 'widht' is not defined"
    )
    assert check("mask", answer("mask")).status == RIGHT


def test_an_exception_on_a_later_batch_names_it():
    verdict = edited("combine", "if topk > 0:\n        topk_len", "if True:\n        topk_len")
    assert verdict.words == (
        "the kernel stopped at `topk_len = tl.minimum(seen // compress_ratio, topk)`: it divides "
        "by 0, in the batch with a layer with topk = 0"
    )


def test_accesses_far_outside_are_survived_and_told():
    verdict = edited("mask", "tl.load(topk_indices + ", "tl.load(topk_indices - (1 << 40) + ")
    assert verdict.status == NOT_RIGHT
    assert "Program 0 loads outside every tensor (15 such" in verdict.words
    verdict = edited("mask", "slots + token", "slots - (1 << 40) + token")
    assert "nothing was written, expected" in verdict.words
    assert "Program 0 stores outside every tensor (15 such" in verdict.words
    assert "mask it" in verdict.hint


def test_right_values_do_not_excuse_an_access_outside():
    verdict = edited("mask", "column < width", "column <= width")
    assert verdict.words.startswith(
        "the values are right, how they are reached is not, with three requests, rows of 5 "
        "columns. Program 0 loads outside every tensor"
    )
    assert verdict.picture is None


def test_an_argument_that_is_not_given():
    verdict = edited("mask", "    width,", "    width,\n    tokens,")
    assert "an argument tokens, which is not given; given are slots, lens" in verdict.words


def test_arguments_may_be_left_out():
    source = SOLUTIONS["count-answer"].replace("topk_stride, width", "width, topk_stride")
    kernel = run(source, {"__name__": "answer", "runtime": runtime, "tl": tl})["count_row"]
    assert check("count", kernel).status == RIGHT


@pytest.mark.parametrize(
    ("old", "new", "status", "words"),
    [
        ("column < width", "...", NOT_YET, "`...` stands for your answer in `in_row = ...`"),
        ("column < width", "(column < width)[...,]", NOT_RIGHT, "the kernel stopped"),
        ("column = ", "raise NotImplementedError\n    column = ", NOT_YET, "not implemented"),
        ("tl.store(", "tl.atomic_add(", NOT_RIGHT, "atomic operations are not watched"),
        ("column = ", f"{INPUT}\n    column = ", NOT_RIGHT, "stores to `token_to_req_indices`"),
        ("column < width", '{"in": column < width}["in"]', NOT_RIGHT, "cannot compile it"),
    ],
)
def test_what_is_no_answer(old, new, status, words):
    verdict = edited("mask", old, new)
    assert verdict.status == status and words in verdict.words, verdict


@pytest.mark.parametrize("kernel", [None, len, codegen])
def test_what_is_no_kernel(kernel):
    assert "under `@runtime.kernel`" in check("mask", kernel).words


def test_predictions_that_are_none():
    gaps = {"block_size": {"loops": ...}, "width": {"loops": True}}
    assert exercises.check_fold(gaps, TARGET).words == "still `...`: loops (block_size)"
    assert exercises.check_launch({"workers": ..., "waves": 1}, **MIX).status == NOT_YET
    for told in (3, {"width": True}, {"workers": "many"}, {}):
        assert exercises.check_launch(told, **MIX).status == NOT_RIGHT
    for told in (3, {"width": True}):
        assert "True or False" in exercises.check_fold(told, TARGET).words
    no = answer("fold") | {"width": answer("fold")["width"] | {"loops": "no"}}
    told = exercises.check_fold(no, TARGET).words
    assert told == "every answer is True or False, and not 'no': loops (width)"
    del no["width"]["loops"]
    assert exercises.check_fold(no, TARGET).words == "no answer for loops (width)"
    workers = {"workers": 257}
    assert exercises.check_launch(workers, **MIX).words == "no answer for programs, idle, waves"


def test_an_exercise_that_there_is_not():
    with pytest.raises(ValueError, match="no exercise 'maks'; did you mean mask"):
        exercises.Sheet(TARGET).check("maks", None)


# Words and pictures


def test_the_first_difference_in_words():
    got = torch.tensor([[1, 2], [7, exercises.UNWRITTEN]])
    assert exercises.first_difference(got, got) is None
    words = exercises.first_difference(got, torch.tensor([[1, 2], [7, 4]]), ["a", "b"])
    assert words == "b, column 1: nothing was written, expected 4 (1 of 2 rows are wrong)"
    assert (
        exercises.first_difference(got, torch.tensor([[exercises.ANY, 2], [7, 2**31 - 1]])) is None
    )
    words = exercises.first_difference(torch.tensor([5, 6]), torch.tensor([5, 3]))
    assert words == "row 1: got 6, expected 3 (1 of 2 elements are wrong)"


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_the_picture_shows_the_first_wrong_row():
    verdict = edited("tail", "stored = column < width", "stored = column < window_len")
    top, bottom = verdict.picture().axes
    assert top.get_title(loc="left") == "indices, row 0 of request 0: ? in column 1, not -1"
    assert texts(top) == ["0"] + ["-1"] * 23
    assert texts(bottom) == ["0"] + ["?"] * 23
    assert verdict.words.startswith("`indices`, row 0 of request 0, column 1: nothing was written")


def test_the_picture_of_a_long_row_is_about_the_wrong_column():
    kernel = answer("combine", "< width)", "< width - 1)")
    verdict = check("combine", kernel)
    bottom = verdict.picture().axes[1]
    assert texts(bottom)[-2:] == ["-1", "?"]
    assert bottom.get_xticklabels()[-1].get_text() == "127"
    assert len(texts(bottom)) == 24


def test_a_verdict_is_shown_in_a_page_and_as_text(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data))
    verdict = edited("tail", "column < window_len, first", "column <= window_len, first")
    verdict._ipython_display_()
    words, picture = shown
    assert words["text/html"].startswith('<div role="status"')
    assert "<b>Not right:</b> <code>indices</code>, row 0" in words["text/html"]
    assert words["text/plain"].splitlines()[1].startswith("Hint: The window is one column")
    assert 'alt="`indices`, row 0 of request 0' in picture.data


def test_what_is_right_here_can_be_wrong_on_a_gpu(monkeypatch):
    kernels, launch = [answer("mask"), answer("mask", "column < width", "column < 3")], Case.launch
    monkeypatch.setattr(runtime, "has_gpu", lambda: True)
    for gpu_kernel, status in zip(kernels, (RIGHT, NOT_RIGHT), strict=True):

        def pretended(case, kernel, device="cpu", gpu_kernel=gpu_kernel):
            return launch(case, gpu_kernel if device == "cuda" else kernel, "cpu")

        monkeypatch.setattr(Case, "launch", pretended)
        verdict = check("mask", kernels[0])
        assert verdict.status == status
        words = "run on this GPU too" if status == RIGHT else "on the GPU not: `slots`, row 0"
        assert words in verdict.words


@pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
@pytest.mark.parametrize("name", exercises.KERNELS)
def test_a_solution_runs_on_the_gpu_too(name):
    verdict = check(name, answer(name))
    assert verdict.status == RIGHT and "on this GPU too" in verdict.words
