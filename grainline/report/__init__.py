"""Heat maps on pixels, overlays, charts and the self-contained report.

case     An image with the sentences of a text beside it: each of them shows its heat when it is pointed
         at, and so does each of the phrases that are listed below their sentence.
charts   Line charts and interval bars as inline SVG, in light and dark, without a plotting library.
heatmap  Overlays on images: signed heat in two colours, boxes, outlines, nested segments.
page     Self-contained HTML pages, from the jinja2 templates in `templates/`; images are data URLs.
panels   Rows of panels for `grainline show`: segments, attention of texts, selected patches.
png      Figures as PNG with matplotlib (extra `figures`), which is imported when a figure is drawn.
table    Parts of a page about results: curves, tables with intervals, example retrievals, comparisons.
tokens   Groups of tokens as inline SVG: captions with the assignment of each token to groups.
"""
