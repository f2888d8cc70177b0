"""Heat maps on pixels, overlays, charts and the self-contained report.

case     A picture with the sentences of a text beside it: each of them shows its heat when it is pointed
         at, and so does each of the phrases that are listed below their sentence.
charts   Line charts and interval bars as inline SVG, in light and dark, without a plotting library.
heatmap  Images with something laid over them: signed heat in two colours, frames, nested segments.
page     Self-contained HTML pages, from the jinja2 templates in `templates/`; images are data URLs.
panels   Pictures with their segments and with where texts look, in rows of panels: as PNG and for a page.
png      Figures as PNG with matplotlib (extra `figures`), which is loaded when it is needed.
table    What stands on a page about measurements: curves, tables with intervals, example retrievals,
         comparisons.
tokens   What stands on a page about groups of tokens: captions with the share of each group in each
         token.
"""
