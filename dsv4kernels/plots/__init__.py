"""Figures: functions that take a table or a batch and return a matplotlib Figure.

One module a lesson. This one holds what they share: the style, one colour and marker for each
variant in every lesson, and `show`, which puts a figure into a page with alternative text.
"""

import base64
import html
import io

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

# Okabe and Ito's colours: told apart by colour-blind readers, and in grey by their lightness. The
# marker is the second cue.
STYLES = {
    "comparator": {"color": "#0072B2", "marker": "o", "linestyle": "--"},
    "optimised": {"color": "#D55E00", "marker": "s", "linestyle": "-"},
    "own": {"color": "#009E73", "marker": "D", "linestyle": "-"},
    "candidate": {"color": "#CC79A7", "marker": "^", "linestyle": "-."},  # anyone's own
    "floor": {"color": "#777777", "marker": "", "linestyle": ":"},
}
# The parts of a row of indices, and of a picture of one.
TOPK, WINDOW, EMPTY, PADDING = "#0072B2", "#E69F00", "#EEEEEE", "#BBBBBB"

STYLE = {
    "figure.dpi": 110,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def styled(function):
    """Draw in the house style; for the functions that return a Figure."""
    return matplotlib.rc_context(STYLE)(function)


def new(rows=1, columns=1, size=(7, 3.6), **options):
    """A Figure and its axes; independent of pyplot, so none is left open."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def plain_numbers(axis):
    """Ticks of a log axis as plain numbers, 1,024 and not 10^3.01."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter("")


def headline(figure, text):
    """What the figure shows, above all its panels."""
    figure.suptitle(text, fontsize=11, fontweight="bold", x=0.01, ha="left")


def source(figure, text):
    """Where the figure's data are from, in small print at its foot."""
    figure.supxlabel(text, fontsize=7.5, color="#555555", x=0.01, ha="left")


def show(figure, *, alt, caption=""):
    """Put a figure into the page; arguments as for `page`."""
    from IPython.display import HTML, display

    display(HTML(page(figure, alt=alt, caption=caption)))


def page(figure, *, alt, caption=""):
    """A figure as HTML, with the alternative text that plain figure output loses.

    Args:
        figure: a matplotlib Figure.
        alt: what a reader who cannot see it needs to know.
        caption: a sentence on what to see, shown below.
    """
    picture = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(picture, format="png", dpi=150)
    data = base64.b64encode(picture.getvalue()).decode()
    width = round(figure.get_figwidth() * 100)
    # Its place is kept while it is decoded, so that the text below does not jump.
    ratio = f"{width}/{round(figure.get_figheight() * 100)}"
    return (
        f'<figure style="margin:0.5em 0"><img alt="{html.escape(alt, quote=True)}" '
        f'style="width:{width}px;max-width:100%;aspect-ratio:{ratio};background:white" '
        f'src="data:image/png;base64,{data}"/>'
        f'<figcaption style="max-width:{width}px;font-size:90%">{html.escape(caption)}'
        "</figcaption></figure>"
    )
