"""The site's settings: Sphinx with furo over these pages and the executed lessons.

`dsv4kernels.lessons.site` puts both into one folder and builds from there. Nothing is executed and
no page asks for anything outside: no fonts, no MathJax, no widgets' renderer.
"""

project = "dsv4kernels"
html_title = "dsv4kernels"
language = "en"

extensions = ["myst_nb"]
root_doc = "docs/index"
myst_heading_anchors = 3  # the anchors that code hosts give to headings
nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}
suppress_warnings = ["mystnb.unknown_mime_type"]  # what a lesson tells the ledger
nb_render_markdown_format = "myst"  # a table of links in an output is links

html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_use_index = False
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
# A search that shows excerpts fetches its pages, which browsers refuse for files.
html_show_search_summary = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "github-dark"
