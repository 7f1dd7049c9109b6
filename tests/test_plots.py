"""Figures of lessons 03 and 04, and what they refuse: nothing to draw, and mixed sources."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from dsv4kernels import presets, runtime
from dsv4kernels.launches import occupancy
from dsv4kernels.measure import bench, limits, records, sources, suites
from dsv4kernels.measure.records import DataError
from dsv4kernels.plots import STYLES, beyond, latency, workers

CARD = "RTX PRO 6000 Blackwell Server Edition"


def measured(suite="tokens", kernel="combine", tokens=(64, 1024, 16_384), **changes):
    """Rows as they are measured, with made-up times: 2 µs and 1 to 4 ns a token."""
    names = {"combine": suites.COMBINE, "slot_mapping": suites.SLOT_MAPPING}[kernel]
    if suite == "workers":
        names = [f"workers={2**n}" for n in range(11)]
    rows = [
        dict.fromkeys(records.COLUMNS, 1)
        | {"suite": suite, "kernel": kernel, "variant": name, "mix": "one request"}
        | {"preset": "Flash C4A", "tokens": count, "protocol": "graph", "cache": "warm"}
        | {"median_us": us, "p20_us": us * 0.9, "p80_us": us * 1.1, "device": "NVIDIA H200"}
        | {"launch_floor_us": 1.0, "traffic_floor_us": 1.5, "skipped": "", "noise": 0.01}
        | changes
        for place, name in enumerate(names)
        for count in tokens
        for us in [2 + count * (4 - place % 4) / 1e3]
    ]
    return pd.DataFrame(rows, columns=list(records.COLUMNS))


def swept(**changes):
    table = measured("workers", tokens=(1024,), **changes)
    return table.assign(workers=table["variant"].str.removeprefix("workers=").astype(int))


def words(figure):
    """All text of a figure."""
    return " ".join(text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text")))


def one_line(text):
    return " ".join(text.split())


# Lesson 03


def test_ownership_draws_a_cell_for_each_row():
    figure = workers.ownership(occupancy.assignment([13, 0, 3], 4), [13, 0, 3], 4, "a trace")
    [axes] = figure.axes
    cells = [p for p in axes.patches if p.get_width() == 1 and p.get_hatch() is None]
    assert sorted(p.get_x() for p in cells) == list(range(16))
    assert {(p.get_x(), p.get_y()) for p in cells} >= {(0, 0), (5, 1), (12, 0), (13, 0), (15, 2)}
    [idle] = [p for p in axes.patches if p.get_hatch()]
    assert (idle.get_x(), idle.get_y(), idle.get_width()) == (13, 3, 3)
    assert axes.get_xlabel() == "row of the output (token)" and axes.get_ylabel() == "worker"
    assert "12 programs write 16 rows, up to 4 each; 5 write none" in words(figure)
    assert "a trace" in words(figure)
    numbers = [text.get_text() for text in axes.texts]
    assert numbers[:13] == [str(1 + row // 4) for row in range(13)]
    shuffled = occupancy.assignment([13, 0, 3], 4).sample(frac=1, random_state=0)
    [again] = workers.ownership(shuffled, [13, 0, 3], 4, "a trace").axes
    assert [text.get_text() for text in again.texts] == numbers
    with pytest.raises(DataError, match="nothing was written"):
        workers.ownership(occupancy.assignment([0], 4), [0], 4, "a trace")


def test_waves_stack_up_to_the_slots():
    figure = workers.waves({"one": [512], "many": [2] * 64}, (4, 16), 100, "some GPU")
    assert len(figure.axes) == 4
    for axes in figure.axes:
        tops = {}
        for bar in axes.patches:
            place = round(bar.get_x(), 3)
            tops[place] = max(tops.get(place, 0), bar.get_y() + bar.get_height())
        assert set(tops.values()) == {100}
    assert [axes.get_ylabel() for axes in figure.axes] == ["slots", "", "slots", ""]
    said = one_line(words(figure))
    assert "many, 16 workers: 11 waves, 88% of programs without a row" in said
    assert "computed for some GPU: 100 programs at once; nothing was run" in said


def test_sweep_marks_both_counts_and_names_sources():
    counted = occupancy.sweep({"one": [512], "many": [2] * 64}, 100, range(1, 65))
    figure = workers.sweep({"counted for some GPU": counted}, "steps", "steps", "A title")
    [axes] = figure.axes
    marks = {
        line.get_xdata()[0]: line.get_color() for line in axes.lines if len(line.get_xdata()) == 2
    }
    assert {128, 256} <= marks.keys() and marks[256] == STYLES["optimised"]["color"]
    curve = next(line for line in axes.lines if line.get_label() == "one")
    assert curve.get_xdata().tolist() == list(range(1, 65))
    assert curve.get_ydata()[0] == 513

    panels = {"recorded, NVIDIA H200": swept(), "live, NVIDIA H100": swept(device="NVIDIA H100")}
    figure = workers.sweep(panels, "median_us", "µs a call", workers.finding(panels))
    assert [axes.get_title("left") for axes in figure.axes] == list(panels)
    assert figure.axes[0].get_ylabel() == "µs a call"
    assert figure.axes[0].get_xlabel() == "workers a request"
    assert "graph protocol, warm" in words(figure)
    assert "The least time is at 8 to 8 workers" in words(figure)


def test_gain_shows_every_cell():
    table = pd.DataFrame(
        {"requests": [1, 1, 64], "tokens": [128, 256, 256], "ratio": [1, 0.5, 1.9]}
    )
    figure = workers.gain({"steps, some GPU": table}, "A title")
    [axes] = figure.axes
    assert sorted(text.get_text() for text in axes.texts) == ["0.50", "1.00", "1.90"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tokens of the batch", "requests")


# Lesson 04


def test_curves_draw_medians_bands_and_floors():
    panels = {"recorded, NVIDIA H200": measured()}
    figure = latency.curves(panels, latency.finding(panels), "where from")
    [axes] = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert lines.keys() >= {"workers=128", "workers=256", "own", "floor: an empty kernel"}
    assert lines["workers=256"].get_color() == STYLES["optimised"]["color"]
    assert lines["workers=128"].get_marker() != lines["workers=256"].get_marker()
    assert lines["workers=128"].get_ydata().tolist() == pytest.approx([2.256, 6.096, 67.536])
    assert len(axes.collections) == 3  # a band for each variant
    assert lines["floor: a copy of the bytes"].get_ydata().tolist() == [1.5] * 3
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tokens", "µs a call")
    figure.canvas.draw()
    assert [t.get_text() for t in axes.get_xticklabels()] == ["64", "1,024", "16,384"]
    said = words(figure)
    assert "graph protocol, warm" in said and "where from" in said
    told = "recorded, NVIDIA H200: at 16,384 tokens own takes 0.68 of workers=256's time and 23.18"
    assert told in one_line(said)


def test_published_figures_are_dots_with_their_own_label():
    rows = limits.long(records.load_published("combine"))
    panels = {f"published, {CARD}": records.select(rows, device=CARD)}
    panels["recorded, NVIDIA H200"] = measured(tokens=(1024, 16_384))
    figure = latency.curves(panels, latency.finding(panels), "where from", fits=True)
    titles = [one_line(axes.get_title("left")) for axes in figure.axes]
    assert titles == list(panels)
    assert {line.get_linestyle() for line in figure.axes[0].lines[::2]} == {"None"}
    assert not figure.axes[0].collections and figure.axes[1].collections
    # What was measured is told alone: no ratio of another device, protocol or layer beside it.
    assert "own takes 0.68 of workers=256's time" in one_line(words(figure))
    assert "0.84" not in words(figure)
    told = latency.finding({"published": panels[f"published, {CARD}"]})
    assert told == "published: at 16,384 tokens workers=256 takes 0.84 of workers=128's time"


def test_bandwidth_and_prediction_say_what_they_are():
    rows = records.select(limits.long(records.load_published("combine")), device=CARD)
    reached = limits.reached(rows, presets.FLASH_C4A)
    figure = latency.bandwidth(reached, 1597, CARD, "Flash C4A", "a pull request")
    [axes] = figure.axes
    assert axes.get_ylabel() == "GB/s" and "datasheet bandwidth, 1,597 GB/s" in words(figure)
    assert "Published times, Flash C4A assumed: 88% of the datasheet" in one_line(words(figure))
    assert f"latencies of {CARD}, published by a pull request" in words(figure)
    assert len([line for line in axes.lines if len(line.get_xdata()) == 4]) == 4

    rule = pd.Series([9.0, 77.0], [1024, 16_384])
    figure = latency.prediction(rows, rule, rule * 0.7, (0.01, 0.09), CARD)
    said = words(figure)
    assert "Predicted, not measured: one pass takes 0.70 of two passes' time" in said
    assert "rule, one pass: a prediction" in said
    assert f"{CARD}: dots published by local-inference-lab/vllm pull request 434" in said
    [axes] = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tokens", "µs a call")
    own = [line for line in axes.lines if to_rgb(line.get_color()) == to_rgb("#009E73")]
    assert [line.get_marker() for line in own] == ["None"]  # no dot where nothing was measured


# What they refuse


DRAWN = {
    "curves": (lambda panels: latency.curves(panels, "", ""), measured),
    "sweep": (lambda panels: workers.sweep(panels, "median_us", "µs", ""), swept),
    "gain": (
        lambda panels: workers.gain(panels, ""),
        lambda **c: measured(tokens=(64,), **c).assign(ratio=1.0).drop_duplicates("tokens"),
    ),
}


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize(
    "other", [{"device": "NVIDIA H100"}, {"protocol": "event"}, {"cache": "cold"}], ids=str
)
def test_a_curve_never_mixes_sources(draw, other):
    function, rows = DRAWN[draw]
    mixed = pd.concat([rows(), rows(**other)], ignore_index=True)
    with pytest.raises(DataError, match="one curve must not mix"):
        function({"recorded, NVIDIA H200 NVIDIA H100": mixed})


@pytest.mark.parametrize("draw", DRAWN)
def test_nothing_to_draw_is_an_error(draw):
    function, rows = DRAWN[draw]
    with pytest.raises(DataError, match="no panels"):
        function({})
    with pytest.raises(DataError, match="no rows"):
        function({"recorded, NVIDIA H200": rows()[:0]})


def test_curves_want_one_figure_a_point_and_the_device_in_the_label():
    with pytest.raises(DataError, match="does not name the device, NVIDIA H200"):
        latency.curves({"recorded": measured()}, "", "")
    label = "recorded, NVIDIA H200"
    for other in ({"mix": "4 requests"}, {"preset": "C128A"}, {"kernel": "slot_mapping"}):
        with pytest.raises(DataError, match=f"must not mix {next(iter(other))}s"):
            latency.curves({label: pd.concat([measured(), measured(**other)])}, "", "")
    with pytest.raises(DataError, match="more than one figure"):
        latency.curves({label: pd.concat([measured(), measured()])}, "", "")
    with pytest.raises(DataError, match="more than one figure"):
        workers.sweep({label: pd.concat([swept(), swept()])}, "median_us", "µs", "")
    with pytest.raises(DataError, match="no panels"):
        latency.finding({})
    with pytest.raises(DataError, match="no rows"):
        latency.bandwidth(measured()[:0], 1597, CARD, "", "")


# Where the lessons' figures come from


def test_recorded_figures_are_labelled_and_the_later_stands(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "DATA", tmp_path)
    assert sources.recorded("tokens") == {}
    file = records.device_folder("NVIDIA H200") / "tokens.csv"
    skipped = measured(tokens=(1 << 20,), skipped="out of GPU memory").assign(median_us="")
    for table in (measured(), measured().assign(median_us=9.0), skipped):
        records.append(table.to_dict("records"), file)
    found = sources.recorded("tokens", kernel="combine", protocol="graph", cache="warm")
    [(label, table)] = found.items()
    assert label == "recorded, NVIDIA H200" and len(table) == 9
    assert (table["median_us"] == 9.0).all()
    assert sources.recorded("tokens", protocol="event") == sources.recorded("wide") == {}


def test_a_call_that_several_suites_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "DATA", tmp_path)
    assert sources.repeated("combine", 64) == {}
    file = records.device_folder("NVIDIA H200") / "tokens.csv"
    other = measured("published").assign(median_us=9.0)
    alone = measured("rule").assign(variant="tile=1x1024/1", tokens=64)[:1]
    for table in (measured(), other, alone):
        records.append(table.to_dict("records"), file)
    [(label, table)] = sources.repeated("combine", 64).items()
    assert label == "recorded, NVIDIA H200" and set(table) == set(suites.COMBINE)
    assert (table.loc["published"] == 9.0).all() and (table.loc["tokens"] < 3).all()


def test_live_figures_need_a_gpu(monkeypatch):
    monkeypatch.setattr(runtime, "has_gpu", lambda: False)
    assert sources.live(suites.SUITES["workers"]()) == {}
    monkeypatch.setattr(runtime, "has_gpu", lambda: True)
    monkeypatch.setattr(runtime, "describe", lambda: {"device": "NVIDIA H100"})
    rows = measured(device="NVIDIA H100").to_dict("records")
    monkeypatch.setattr(bench, "live", lambda cases: [*rows, {"skipped": "out of GPU memory"}])
    [(label, table)] = sources.live([]).items()
    assert label == "live, NVIDIA H100" and len(table) == 9
    latency.curves({label: table}, "", "")


def test_ratios_are_of_the_same_shape():
    table = measured()
    ratio = sources.ratios(table, "workers=256", "workers=128")
    assert ratio["tokens"].tolist() == [64, 1024, 16_384]
    assert ratio["ratio"].tolist() == pytest.approx([2.192 / 2.256, 5.072 / 6.096, 51.152 / 67.536])
    with pytest.raises(DataError, match="one curve must not mix devices"):
        sources.ratios(pd.concat([table, measured(device="other")]), "own", "workers=128")
    with pytest.raises(DataError, match="no row with variant = 'workers=7'"):
        sources.ratios(table, "workers=7", "workers=128")


def test_a_line_and_the_bandwidth_behind_it():
    fit = limits.line([0, 10, 20], [3.0, 8.0, 13.0])
    assert fit == pytest.approx((3.0, 0.5, 0.0)) and fit.at(40) == pytest.approx(23)
    with pytest.raises(ValueError, match="two token counts at least"):
        limits.line([5, 5], [1.0, 2.0])

    # One fresh request of 8 tokens, ratio 4, window 128: 0 0 0 1 1 1 1 2 top-k entries, 1 to 8 of
    # the window, an output of 640 columns and a length for each token, 4 lengths to read.
    of = limits.counted("combine", "workers=256", presets.FLASH_C4A, [8]).loc[8]
    assert of["required"] == 4 * (6 + 4 + 8 * 641) and of["filled"] == 4 * 8 * 640
    assert of["moved"] == 4 * (6 + 4 + 8 * 640 + 6 + 36 + 8)
    own = limits.counted("combine", "own", presets.FLASH_C4A, [8]).loc[8]
    assert own["moved"] == own["required"] == of["required"] and own["filled"] == 0

    # 10 µs, and the moved bytes at 1,000 GB/s: the slopes give back the bandwidth.
    tokens = np.array([4096, 8192, 16_384])
    of = limits.counted("combine", "workers=256", presets.FLASH_C4A, tokens)
    table = pd.DataFrame({"kernel": "combine", "variant": "workers=256", "tokens": tokens})
    table["median_us"] = 10 + of["moved"].to_numpy() / 1e6
    found = limits.slopes(table, presets.FLASH_C4A, 2000).loc["combine", "workers=256"]
    assert found["moved_gb_s"] == pytest.approx(1000) and found["moved_fraction"] == pytest.approx(
        0.5
    )
    assert found["required_fraction"] < found["moved_fraction"]
    rule = limits.rule(table, presets.FLASH_C4A, 1000, floor_us=10)
    assert rule["error"].abs().max() < 1e-9
    predicted = limits.rule(table.drop(columns="median_us"), presets.FLASH_C4A, 1000, floor_us=10)
    assert predicted["rule_us"].tolist() == pytest.approx(table["median_us"].tolist())
    assert limits.rule(measured(), presets.FLASH_C4A, 4800)["rule_us"].min() > 1.0


def test_published_fits_and_the_rule_on_published_rows():
    rows = limits.long(records.load_published())
    fits = limits.lines(rows)
    assert fits["points"].sum() == len(rows) == 20 and (fits["worst"] < 0.06).all()
    assert fits.loc[(CARD, "combine", "workers=256"), "ns_per_token"] == pytest.approx(
        4.65, abs=0.01
    )
    optimised = records.select(rows, device=CARD, variant="workers=256")
    floor = limits.published_floor(records.select(rows, device=CARD))
    assert floor == 6.66
    errors = limits.rule(optimised, presets.FLASH_C4A, 1597, floor)["error"]
    assert errors.between(0, 0.1).all()
    with pytest.raises(DataError, match="mix devices"):
        limits.published_floor(rows)
    told = limits.predicted([4096, 1024, 1024], presets.FLASH_C4A, 1597, floor, (0.0, 0.1))
    assert list(told.index) == [1024, 4096]
    assert (told["two passes"] > told["one pass"]).all() and (told["one pass"] > floor).all()
    assert told["from"].tolist() == told["one pass"].tolist()
    assert told["to"].tolist() == pytest.approx((told["one pass"] * 1.1).tolist())


STEPS = pd.DataFrame(
    {
        "device": "a card",
        "protocol": "graph",
        "cache": "warm",
        "mix": "one request",
        "variant": variant,
        "tokens": tokens,
        "over_traffic": over,
    }
    for tokens in (8, 16)
    for variant, over in (("workers=128", 4.0), ("own", 1.0), ("mine.py:f", 0.9))
)


def test_steps_are_in_their_order_and_relative_to_a_copy():
    figure = beyond.steps({"recorded, a card": STEPS}, "title", "origin")
    (axes,) = figure.axes
    names = [tick.get_text() for tick in axes.get_xticklabels()]
    assert names == ["workers=\n128", "own", "mine.py:f"]
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [[4.0, 1.0, 0.9]] * 2
    twice = pd.concat([STEPS, STEPS])
    for panels in ({}, {"x": twice}, {"x": STEPS.assign(cache=["warm", "cold"] * 3)}):
        with pytest.raises(DataError):
            beyond.steps(panels, "title", "origin")


def test_the_rules_choice_is_framed_batch_by_batch():
    index = pd.MultiIndex.from_tuples([("one request", 1), ("one request", 8192)])
    cells = pd.DataFrame({"row=512/8": [1.0, 1.4], "two rows=512/4": [1.1, 1.0]}, index=index)
    figure = beyond.shapes({"Flash C4A": cells}, "slot_mapping", "title", "origin")
    (axes,) = figure.axes
    frames = [patch.get_xy() for patch in axes.patches]
    assert frames == [(0, 0), (1, 1)]
    assert [text.get_text() for text in axes.texts] == ["1.00", "1.10", "1.40", "1.00"]
    with pytest.raises(DataError):
        beyond.shapes({}, "slot_mapping", "title", "origin")


def test_a_candidate_has_a_curve_of_its_own_kind():
    assert latency.role("own") == "own"
    assert latency.role("mine.py:f") == "candidate"


def test_ratios_to_one_variant_and_a_sweep_without_its_comparator():
    common = {"device": "a", "protocol": "graph", "cache": "warm", "mix": "m", "requests": 1}
    rows = [
        common | {"preset": preset, "tokens": tokens, "variant": variant, "median_us": us}
        for preset, tokens in (("Flash C4A", 2), ("Flash C4A", 1), ("Pro C4A", 1))
        for variant, us in (("runtime", 8.0), ("row=512/8", 2.0), ("own", 4.0))
    ]
    ratios = sources.relative(pd.DataFrame(rows))
    assert list(ratios) == ["runtime", "row=512/8", "own"]
    assert ratios.to_numpy().tolist() == [[2.0, 0.5, 1.0]] * 3
    assert [tokens for *_, tokens in ratios.index] == [2, 1, 1]
    swept = sources.swept(pd.DataFrame(rows))
    assert list(swept) == ["Flash C4A", "Pro C4A"]
    assert list(swept["Flash C4A"]) == ["row=512/8"]
    assert list(swept["Flash C4A"].index) == [("m", 2), ("m", 1)]
    with pytest.raises(DataError, match="mix caches"):
        sources.relative(pd.DataFrame([*rows, rows[0] | {"cache": "cold"}]))


def test_how_far_the_steps_lead_and_which_cells_are_framed():
    panels = {"recorded, a card": STEPS.assign(over_traffic=[4.0, 1.0, 0.9, 2.0, 0.8, 0.9])}
    assert beyond.span(panels) == "from 2.0–4.0 times a copy's time to 0.8–1.0"
    index = pd.MultiIndex.from_tuples([("one request", 1), ("one request", 8192)])
    cells = pd.DataFrame({"row=512/8": [1.01, 1.4], "row=512/4": [1.1, 1.2]}, index=index)
    found = beyond.framed({"Flash C4A": cells}, "slot_mapping")
    assert found.to_dict() == {("Flash C4A", "one request", 1, "row=512/8"): 1.01}


def test_what_each_step_leaves_and_which_gains_most():
    names = ["mine.py:f", "workers=128", "workers=256", "one pass", "by rows", "by columns", "own"]
    rows = pd.DataFrame({"variant": names, "median_us": [1.0, 8.0, 4.0, 3.0, 1.5, 1.2, 1.2]})
    rows = rows.assign(mix="m", tokens=8, device="a", protocol="graph", cache="warm")
    times, left = sources.stepwise(rows)
    assert list(times) == [*names[1:], "mine.py:f"]
    [told] = left.to_dict("records")
    assert told.pop("gains most") == "by rows" and "workers=128" not in told
    assert told == pytest.approx(dict(zip(names[2:], [0.5, 0.75, 0.5, 0.8, 1.0], strict=True)))
    with pytest.raises(DataError, match="mix caches"):
        sources.stepwise(pd.concat([rows, rows.assign(cache="cold")]))
