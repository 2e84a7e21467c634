"""How Sphinx builds these pages. Any warning, a dead link among them, fails `make docs`."""

project = "pgqueue"
copyright = "The pgqueue developers"

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown"}
nitpicky = True

html_theme = "furo"
html_title = "pgqueue"
html_show_sphinx = False

# The same files are read on the forge, which knows fences and no directives: a diagram is a plain fence.
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3
