"""Every lesson runs with other parameters than its own (with its own `make notebooks` runs it)."""

from pathlib import Path

import yaml
from helpers import Loads

from dsv4kernels import lessons, widgets
from dsv4kernels.lessons import runner

OTHER = yaml.safe_load((Path(__file__).parent / "lesson_parameters.yml").read_text())
EXPLORED = {"01", "02", "03", "04"}  # lessons with an explorer


def test_every_lesson_has_other_parameters_to_be_tried_with():
    stored = lessons.read_all()
    assert list(OTHER) == sorted(stored)
    for name, values in OTHER.items():
        assert values.items() <= (stored[name].defaults | values).items()
        assert any(stored[name].defaults[k] != v for k, v in values.items())


def test_lessons_run_with_other_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "read_profile", lambda *_: OTHER)
    ledger = runner.run(build=tmp_path)
    failed = {k: v["error"] for k, v in ledger["lessons"].items() if v["status"] != "ran"}
    assert not failed
    assert all(lesson["parameters"] for lesson in ledger["lessons"].values())
    assert all((tmp_path / f"{name}.html").stat().st_size > 50_000 for name in OTHER)
    html = {name: (tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in OTHER}
    for name, lesson in lessons.read_all().items():
        assert Loads(html[name]).found == [], name
        explorers = sum("_explorer.explore(" in cell.source for cell in lesson.notebook.cells)
        assert html[name].count(widgets.REMARK) == explorers == (name[:2] in EXPLORED)
        if explorers:  # the picture, and then in place of the controls the remark
            section = html[name].split('id="Explore"')[1]
            assert "<img alt=" in section.split(widgets.REMARK)[0]
