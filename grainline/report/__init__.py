"""Heat maps on pixels, overlays, charts and the self-contained report.

case     Single outcomes: images with the sentences of a text and their heat, texts, tables, panels.
charts   Line charts, interval bars and groups of tokens as inline SVG, in light and dark.
heatmap  Overlays on images: signed heat in two colours, boxes, outlines, nested segments, selected patches.
page     Self-contained HTML pages, from the jinja2 templates in `templates/`; images are data URLs.
png      Rows of panels as a PNG with matplotlib (extra `figures`), for `grainline show`.
"""
