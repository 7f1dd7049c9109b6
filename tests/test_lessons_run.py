"""Every lesson runs with other parameters than its own (with its own `make notebooks` runs it)."""

from pathlib import Path

import yaml

from dsv4kernels import lessons, runner

OTHER = yaml.safe_load((Path(__file__).parent / "lesson_parameters.yml").read_text())


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
