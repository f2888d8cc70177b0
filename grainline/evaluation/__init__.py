"""Measure a model: encode a source, ask a suite, give metrics with intervals and chance.

compare         Two results against each other, and several seeds as one.
encode          A data source, encoded: the input of every suite, and the files of `grainline encode`.
evaluate_model  `grainline.evaluate`, and a result as tables and as a page.
examples        Single outcomes for pages: images, and heat and attention of texts in them.
intervals       Bootstrap intervals over images, and Wilson's interval for plain accuracies.
ranks           Ranks from scores, recalls from ranks, and the folds of published protocols.
result          The result of a suite and its JSON file; the validation result of a run.
score           All images against all texts in tiles, never the whole score matrix; ranks among a shortlist.
show            `grainline show`: segments, attention of texts, selected patches.
suite           The frame of all suites, and their table.
suites/         One file for each suite: from encodings to outcomes, and from outcomes to metrics.
"""
