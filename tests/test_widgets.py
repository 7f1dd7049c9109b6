"""Explorers without a browser: what a change of a control draws, compiles, and says."""

import asyncio
import gc
import html
import re

import IPython.display
import ipywidgets
import matplotlib.figure
import numpy as np
import pytest
import torch
from matplotlib import _pylab_helpers

from dsv4kernels import combine, plots, presets, reference, slot_mapping, widgets
from dsv4kernels.compiler import codegen
from dsv4kernels.launches import occupancy
from dsv4kernels.measure import records, sources
from dsv4kernels.plots import token
from dsv4kernels.plots import workers as worker_figures
from dsv4kernels.widgets import Explorer, folding, latency, metadata, workers

EXPLORERS = {
    "folding": folding.explore,
    "workers": workers.explore,
    "metadata": metadata.explore,
    "latency": latency.explore,
}
# A change of each control that has to be seen, and a part of what the page then says.
CHANGES = [
    ("folding", "fold_block_size", False, "slots_stride, topk_stride, block_table_stride, width"),
    ("folding", "target", "sm_90", "slot mapping compiled twice, for sm_90"),
    ("folding", "width", 500, "128 x 1, 32 x 5, 8 x 1"),
    ("folding", "block_size", 48, "slot mapping compiled twice"),
    ("folding", "warps", 8, "slot mapping compiled twice"),
    ("workers", "requests", 4, "16 programs write 25 rows; without a row: 0"),
    ("workers", "first", 0, "12 programs write 8 rows; without a row: 4"),
    ("workers", "others", 1, "12 programs write 15 rows; without a row: 6"),
    ("workers", "workers", 8, "24 programs write 21 rows; without a row: 8"),
    ("workers", "target", "sm_100", "1 wave of"),
    ("workers", "sms", 8, "1 wave of 96 slots"),
    ("metadata", "preset", "C128A", "(130 of 8,320 columns have an entry) and its 2 slots"),
    ("metadata", "length", 2048, "A request of 2,048 tokens"),
    ("metadata", "position", 3, "(5 of 640 columns have an entry) and its 1 slots"),
    ("metadata", "position", 1024, "(0 of 640 columns have an entry) and its 0 slots"),
    ("latency", "kernel", "slot_mapping", "Latency of slot mapping"),
    ("latency", "protocol", "event", "event protocol, warm cache"),
    ("latency", "cache", "cold", "graph protocol, cold cache"),
    ("latency", "variants", ("own",), "on log axes, own;"),
    ("latency", "devices", tuple(latency.devices()), "published: RTX PRO 6000"),
    ("latency", "least", 4096, "4,096"),
    ("latency", "most", 512, "512"),
]


@pytest.fixture(scope="module")
def made():
    return {name: explore() for name, explore in EXPLORERS.items()}


@pytest.fixture
def explorers(made):
    """The four, as they are made."""
    choices = {name: explorer.choices for name, explorer in made.items()}
    yield made
    for name, values in choices.items():
        for control, value in values.items():
            made[name].controls[control].value = value


class Counted:
    """A drawing that counts how often it is drawn."""

    def __init__(self):
        self.drawn = []

    def __call__(self, **choices):
        self.drawn.append(choices)
        if choices.get("a") == 13:
            raise ValueError("a must not be <13>")
        if choices.get("a") == 14:
            raise KeyError("b")
        return f"<p>{choices}</p>"


def two(adjust=lambda _: None):
    draw = Counted()
    sliders = {name: ipywidgets.IntSlider(1, max=20, description=name) for name in "ab"}
    return draw, Explorer(draw, sliders, adjust)


# What explorers share


def test_a_change_is_drawn_once_and_no_change_not_at_all():
    draw, explorer = two()
    assert draw.drawn == [{"a": 1, "b": 1}] and explorer.page == "<p>{'a': 1, 'b': 1}</p>"
    explorer.controls["a"].value = 5
    assert draw.drawn[1:] == [{"a": 5, "b": 1}] and "5" in explorer.page
    explorer.controls["a"].value = 5
    explorer.redraw()
    assert len(draw.drawn) == 2


def test_a_control_that_follows_another_is_no_second_change():
    def adjust(controls):
        controls["b"].max = controls["a"].value

    draw, explorer = two(adjust)
    explorer.controls["a"].value = 10
    explorer.controls["b"].value = 9
    explorer.controls["a"].value = 4  # takes b with it
    assert draw.drawn[1:] == [{"a": 10, "b": 1}, {"a": 10, "b": 9}, {"a": 4, "b": 4}]


def test_changes_that_come_together_in_a_kernel_are_drawn_once(monkeypatch):
    monkeypatch.setattr(widgets, "PAUSE", 0.02)

    async def held_down():
        draw, explorer = two()
        for value in range(2, 12):
            explorer.controls["a"].value = value
            await asyncio.sleep(0)
        assert len(draw.drawn) == 1
        await asyncio.sleep(0.1)
        assert draw.drawn[1:] == [{"a": 11, "b": 1}]
        explorer.controls["a"].value = 3
        explorer.controls["a"].value = 11  # and back
        await asyncio.sleep(0.1)
        assert len(draw.drawn) == 2

    asyncio.run(held_down())


def test_what_cannot_be_drawn_is_said_in_a_sentence():
    _, explorer = two()
    explorer.controls["a"].value = 13
    assert explorer.error == "A must not be <13>."
    assert 'role="alert"' in explorer.page and "A must not be &lt;13&gt;." in explorer.page
    explorer.controls["a"].value = 14
    assert explorer.error == "KeyError: 'b'."
    explorer.controls["a"].value = 2
    assert explorer.error == "" and explorer.page == "<p>{'a': 2, 'b': 1}</p>"
    assert widgets.sentence(ValueError("two\n lines?")) == "Two lines?"
    assert widgets.sentence(ValueError()) == "ValueError."


def test_the_picture_is_shown_first_and_stays_when_the_controls_cannot(monkeypatch):
    shown = []
    monkeypatch.setattr(IPython.display, "display", shown.append)
    _, explorer = two()
    explorer.show()
    picture, controls = shown
    assert picture.data == explorer.page and controls is explorer
    bundle = explorer._repr_mimebundle_()
    assert bundle["text/plain"] == repr(explorer) == widgets.REMARK


# Each explorer


@pytest.mark.parametrize("name", EXPLORERS)
def test_controls_are_labelled_and_wait_until_they_are_let_go(explorers, name):
    explorer = explorers[name]
    assert explorer.error == "" and len(explorer.controls) >= 3
    for control in explorer.controls.values():
        assert re.search(r"[A-Za-z]", control.description)
        assert control.style.description_width == "initial"
        if isinstance(control, ipywidgets.IntSlider | ipywidgets.SelectionSlider):
            assert not control.continuous_update
    pictures = re.findall(r"<img [^>]*>", explorer.page)
    assert pictures and all(re.search(r'alt="[^"]{40,}"', picture) for picture in pictures)


@pytest.mark.parametrize(("name", "control", "value", "said"), CHANGES)
def test_a_control_changes_the_picture_and_back(explorers, monkeypatch, name, control, value, said):
    explorer = explorers[name]
    drawn, draw = [], explorer._draw
    monkeypatch.setattr(explorer, "_draw", lambda **c: drawn.append(c) or draw(**c))
    before, page = explorer.controls[control].value, explorer.page
    explorer.controls[control].value = value
    assert explorer.error == "" and len(drawn) == 1
    assert said.lower() in html.unescape(explorer.page).lower()
    assert sources_of(explorer.page) != sources_of(page)
    explorer.controls[control].value = before
    assert explorer.page == page and len(drawn) == 2


def sources_of(page):
    return re.findall(r'src="(data:image/png;base64,[^"]+)"', page)


def test_no_figure_is_left_behind(explorers):
    def alive():
        gc.collect()
        return sum(type(thing) is matplotlib.figure.Figure for thing in gc.get_objects())

    position = explorers["metadata"].controls["position"]
    position.value, before = 301, alive()
    for value in range(302, 306):
        position.value = value
    assert alive() <= before and not _pylab_helpers.Gcf.figs


# Folding


def test_going_back_compiles_nothing(explorers, monkeypatch):
    compiled, compile_all = [], codegen.compile_all

    def counting(launches, target):
        compiled.extend(launches)
        return compile_all(launches, target)

    monkeypatch.setattr(codegen, "compile_all", counting)
    folding.compiled.cache_clear()
    controls = explorers["folding"].controls
    controls["block_size"].value = 128
    assert len(compiled) == 2  # nothing folded, all folded
    controls["fold_width"].value = False
    assert len(compiled) == 3
    controls["fold_width"].value = True
    controls["against"].value = folding.BEFORE
    controls["against"].value = folding.NOTHING
    assert len(compiled) == 3
    controls["block_size"].value = 64
    assert len(compiled) == 5


def test_the_kernels_side_by_side_are_those_that_were_chosen(explorers):
    batch = presets.mapping(presets.FLASH_C4A, 3, device="cpu")
    counts = {}
    for variant in slot_mapping.PUBLISHED:
        _, launch = slot_mapping.plan(*batch.slot_mapping_args(), variant=variant)
        counts[variant] = codegen.report(codegen.compile(launch, "sm_120"))["instructions"]
    explorer = explorers["folding"]
    assert f"{counts['runtime']} instructions, left: nothing folded" in explorer.page
    assert f"{counts['constexpr']} instructions, right: all five" in explorer.page
    # Every line marked in the listing is counted, and lines alike are cut down.
    listing = explorer.page.split("font-family:monospace")[1]
    marks = {sign: listing.count(f">{sign}</td>") for sign in "\N{MINUS SIGN}+~"}
    said = re.search(r"alike; . marks (\d+) .*?, \+ (\d+) .*?, ~ (\d+)", explorer.page)
    assert list(marks.values()) == [int(number) for number in said.groups()]
    assert marks["\N{MINUS SIGN}"] > marks["+"] > 0


def test_warps_are_given_to_the_compiler():
    few, many = (folding.compiled((), "sm_120", 512, 64, warps) for warps in (1, 8))
    assert ".reqntid 32" in few.ptx and ".reqntid 256" in many.ptx


def test_the_choice_before_stands_on_the_left():
    explorer = folding.explore(folded=())
    controls = explorer.controls
    controls["against"].value = folding.BEFORE
    assert "SASS: " in explorer.page and "marks 0 that only" in explorer.page  # nothing before yet
    controls["fold_width"].value = True
    assert "left: nothing folded; right: width." in explorer.page
    controls["block_size"].value = 128
    assert "left: width; block size 64; right: width; block size 128." in explorer.page


# Workers


def test_the_nearest_recorded_shape_is_named_and_its_own_time_given():
    known = records.select(records.load_measured(), suite="workers", device="NVIDIA H200")
    row = records.select(known, requests=64, tokens=8192, variant="workers=32").iloc[0]
    said = workers.recorded([128] * 64, 32)
    assert f"{row['median_us']:.1f} µs for 8,192 tokens of 64 requests, 32 workers" in said
    assert said.endswith("; this size.") and "NVIDIA H200" in said
    uneven = workers.recorded([65] + [129] * 63, 32)
    assert uneven.endswith("this size, but with its tokens spread evenly.")
    far = workers.recorded([3, 2], 3)
    assert "not this size but the nearest" in far and "doublings away" in far
    near = workers.recorded([8200], 256)
    assert "8,192 tokens of one request, 256 workers" in near and "not this size" in near


def test_nearest_counts_doublings_and_knows_the_published_kernel_only():
    table = records.select(records.load_measured(), suite=["workers", "grid"])
    row, off = sources.nearest(table, requests=5, tokens=2048, workers=4)
    assert (row["requests"], row["tokens"], row["workers"]) == (4, 8192, 4)
    assert off == pytest.approx(np.log2(5 / 4) + 2)
    assert sources.nearest(table, 4, 8192, 64)[1] == 0
    with pytest.raises(records.DataError, match="no call of the published"):
        sources.nearest(table[table["variant"] == "own"], 4, 2048, 4)


def test_nothing_recorded_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "DATA", tmp_path)
    assert workers.recorded([4], 4).startswith("No recorded time: nothing measured is recorded")


def test_no_row_at_all_is_said(explorers):
    controls = explorers["workers"].controls
    controls["first"].value = 0
    controls["others"].value = 0
    assert explorers["workers"].error.startswith("No request has a row")


def test_large_launches_are_drawn_by_program_and_many_waves_are_counted():
    page = workers.picture([64] * 32, 128, "sm_120", 188)
    assert "how many each program writes" in page and page.count("<img") == 2
    page = workers.picture([64] * 256, 256, "sm_120", 1)
    waves = occupancy.shape([64] * 256, 256, occupancy.slots(12.0, 1, workers.registers("sm_120")))
    assert f"{waves['waves']:,} waves are too many to draw" in page and page.count("<img") == 1
    figure = worker_figures.programs([3, 0, 5], 4)
    [image] = figure.axes[0].images
    assert image.get_array().filled(0).tolist() == occupancy.rows([3, 0, 5], 4).T.tolist()
    title = "12 programs write 8 rows, up to 2 each; 5 write none"
    assert figure.axes[0].get_title("left") == title


# Metadata


@pytest.mark.parametrize("preset", presets.PRESETS.values(), ids=lambda preset: preset.name)
def test_one_token_alone_has_the_row_it_has_among_all_tokens_of_its_request(preset):
    length = 300
    whole = presets.batch(preset, [length], gather_lens=[length], padding=1, device="cpu")
    for position in (3, 128, 300):
        batch, row = metadata.one_token(preset, length, position)
        whole.topk_indices[position] = batch.topk_indices[row]
        assert (whole.M, whole.N) == (batch.M, batch.N)
        wanted, lens = reference.combine_topk_swa_indices(*whole.combine_args())
        got, got_lens = combine.combine_topk_swa_indices(*batch.combine_args())
        assert torch.equal(got[row], wanted[position]) and got_lens[row] == lens[position]
        kept = metadata.one_token(preset, length, 5)[0].block_table
        assert torch.equal(batch.block_table, kept)  # the request's, wherever the token stands
        keys = preset.keys(position + 1) if position < length else 0
        assert (batch.topk_indices[0] < max(preset.keys(length), 1)).all()
        slots = slot_mapping.compute_global_topk_indices_and_lens(*batch.slot_mapping_args())
        assert slots[1][row] == min(keys, preset.topk)
    with pytest.raises(ValueError, match="position must be 0 to 300, got 301"):
        metadata.one_token(preset, length, 301)


def test_the_figure_of_a_token_shows_its_row_and_its_slots():
    preset = presets.FLASH_C4A.replace(topk=8, row_width=8, window_size=8, block_size=4)
    batch, row = metadata.one_token(preset, 64, 40)
    slots, _ = slot_mapping.compute_global_topk_indices_and_lens(*batch.slot_mapping_args())
    indices, _ = combine.combine_topk_swa_indices(*batch.combine_args())
    figure = token.step(batch, row, indices, slots, 40, 64)
    top, middle, bottom = figure.axes
    assert top.get_title("left") == "Position 40: 8 top-k entries, 8 of the window, 112 times -1"
    spans = [(patch.get_x(), patch.get_width()) for patch in middle.patches]
    assert spans == [(0, 8), (8, 8), (16, 112)]
    window = top.patches[-1]
    assert (window.get_x(), window.get_width()) == (33, 8)
    corners = {tuple(path.vertices[0]) for path in bottom.collections[-1].get_paths()}
    assert corners == {(slot // 4, slot % 4) for slot in slots[0].tolist()}
    colours = {patch.get_facecolor()[:3] for patch in middle.patches}
    assert len(colours) == 3
    padding = token.step(batch, 1, indices, slots, 64, 64)
    assert padding.axes[0].get_title("left").startswith("A padding row: 128 times -1")
    assert padding.axes[1].patches[0].get_hatch() and not padding.axes[0].patches
    assert not padding.axes[2].collections[-1].get_paths()


def test_a_shorter_request_takes_the_token_with_it(explorers):
    explorer = explorers["metadata"]
    explorer.controls["length"].value = 16
    assert explorer.controls["position"].value == explorer.controls["position"].max == 16
    assert "The row after the last token: length 0" in explorer.page


def test_the_words_give_the_arithmetic_of_the_row(explorers):
    page = html.unescape(explorers["metadata"].page)
    assert "Top-k: min(301 // 4, 512) = 75. Window: min(301, 128) = 128 entries" in page
    first, block, size, at, slot = map(
        int, re.search(r"key (\d+), .*?slot (\d+) × (\d+) \+ (\d+) = (\d+)", page).groups()
    )
    assert (first % size, block * size + at) == (at, slot)
    assert "no compressed keys" in metadata.picture(presets.SWA_ONLY, 64, 3).lower()


# Latency


def test_numbers_drawn_are_those_recorded(explorers):
    known = records.select(records.load_measured("NVIDIA H200"), suite="tokens", kernel="combine")
    known = records.select(known, protocol="graph", cache="warm")
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", explorers["latency"].page)
    assert sorted(cells) == sorted(f"{us:,.2f}" for us in known["median_us"])


@pytest.mark.parametrize("protocol", ["graph", "event", "host"])
def test_a_device_has_one_figure_for_each_variant_and_token_count(protocol):
    known = latency.rows("NVIDIA H200", "combine", "Flash C4A", protocol, "warm")
    assert known["suite"].nunique() == 1 and not known.duplicated(["variant", "tokens"]).any()
    assert known["tokens"].nunique() == {"graph": 17, "event": 4, "host": 4}[protocol]


def test_what_is_not_recorded_is_said_and_not_replaced(explorers):
    explorer = explorers["latency"]
    explorer.controls["layer"].value = "C128A"
    assert "No row with preset = 'C128A'" in explorer.error and "<img" not in explorer.page
    explorer.controls["layer"].value = "Flash C4A"
    explorer.controls["variants"].value = ()
    assert explorer.error == "Choose a variant and a device at least."
    explorer.controls["variants"].value = tuple(latency.ROLES)
    explorer.controls["most"].value = 4
    explorer.controls["least"].value = 64
    assert explorer.error == "No figures of NVIDIA H200 from 64 to 4 tokens."
    explorer.controls["least"].value, explorer.controls["most"].value = 1, 65_536
    assert explorer.error == ""


def test_published_figures_stand_in_a_panel_of_their_own(monkeypatch):
    drawn, page = [], plots.page
    monkeypatch.setattr(
        plots, "page", lambda figure, **k: drawn.append(figure) or page(figure, **k)
    )
    latency.picture(devices=latency.devices())
    [figure] = drawn
    titles = [axes.get_title("left").replace("\n", " ") for axes in figure.axes]
    assert titles == [
        "recorded: NVIDIA H200",
        "published: RTX PRO 6000 Blackwell Server Edition",
    ]
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log"]
    labels = [[line.get_label() for line in axes.lines] for axes in figure.axes]
    assert "floor: an empty kernel" in labels[0] and "own" not in labels[1]
