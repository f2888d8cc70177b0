"""Measure a model: encode a source, ask a suite, give metrics with intervals and chance.

compare         Two results against each other, and several seeds as one.
comparison      The structure of `grainline compare`: models, cells, paired differences, ranks; its JSON file.
comparison_results     The results of a comparison: one file each, measured where it is not there yet.
comparison_statistics  Its paired differences with Holm's correction, ranks, and verdicts.
costs           Time and memory of a model, and images that are encoded once for all suites.
encode          A data source, encoded: the input of every suite, and the files of `grainline encode`.
evaluate_model  `grainline.evaluate`, and a result as tables and as a page.
examples        Single outcomes for pages: images, heat and attention of texts in them.
paper_numbers   Numbers of papers for the protocols of suites.
result          The result of a suite and its JSON file; the validation result of a run.
run_comparison  `grainline.compare`: models on sets by suites.
score           All images against all texts in tiles, never the whole score matrix.
show            `grainline show`: segments, attention of texts, selected patches.
show_panels     Its figure of an image: segments, attention, heat of sentences, selected patches.
statistics      Ranks, what a random ranking reaches, and intervals.
suite           The frame of all suites.
suites/         One file for each suite: from encodings to outcomes, and from outcomes to metrics.
training_overlap  Images of sets that are images of the training data of models, too.
vectors         Embeddings of another program, measured as those of a model are.

The table of suites stands here, because a name is checked before torch is loaded.
"""

SUITES: dict[str, str] = {
    "retrieval": "grainline.evaluation.suites.retrieval:RetrievalSuite",
    "probes": "grainline.evaluation.suites.probes:ProbesSuite",
    "zeroshot": "grainline.evaluation.suites.zeroshot:ZeroshotSuite",
    "monotonicity": "grainline.evaluation.suites.monotonicity:MonotonicitySuite",
    "cola": "grainline.evaluation.suites.cola:ColaSuite",
    "stability": "grainline.evaluation.suites.stability:StabilitySuite",
    "fg-ovd": "grainline.evaluation.suites.fgovd:FgOvdSuite",
    "similarity": "grainline.evaluation.suites.similarity:SimilaritySuite",
    "own-caption": "grainline.evaluation.suites.similarity:OwnCaptionSuite",
    "referring": "grainline.evaluation.suites.referring:ReferringSuite",
    "comprehension": "grainline.evaluation.suites.comprehension:ComprehensionSuite",
    "inactivity": "grainline.evaluation.suites.inactivity:InactivitySuite",
    "phrases": "grainline.evaluation.suites.phrases:PhrasesSuite",
    "long-retrieval": "grainline.evaluation.suites.long_retrieval:LongRetrievalSuite",
}
"""Name -> `module:Class`, imported when the suite is used. A new suite is one line here."""
