"""Retrieval and foil suites: scores in chunks, ranks with ties counted, intervals, results as JSON.

collect      What a suite sends along while a source is encoded: it takes images, texts and regions as
             they come.
compare      Results against each other: a later one against an earlier one, several seeds as one.
encode       A data source, encoded: what every suite reads.
intervals    Intervals: percentile bootstrap over images, and Wilson's interval for plain accuracies.
options      What `grainline evaluate` is asked for: checked before a model is loaded, then encoded and
             measured.
outcome      From outcomes to a result: what all suites share.
ranks        Which rows are compared with which, ranks from scores, recalls from ranks.
result       The result of a suite: metrics with intervals and chance, and where they come from.
score        All images against all texts in tiles: ranks and best matches without ever holding the score
             matrix.
shortlist    Two stages: candidates by vector, and their order by the method's own score.
table        A result as tables in the terminal.
validated    At which rank a model finds right images: what its run measured on its validation data, in
             one sentence.
vectors      `grainline encode`: vectors of a source or of a file of texts.
collectors/  What suites collect of each image and its texts while a source is encoded.
pages/       What pages and figures about a measurement show: single outcomes from the best to the worst.
suites/      Suites: from encodings to outcomes, and from outcomes to metrics.
"""
