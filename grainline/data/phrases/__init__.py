"""Captions split into phrases: noun phrases, actions, spatial relations.

context    The class of each word, as a letter: by the word itself, then among its neighbours.
lexicon    The words that `rules` knows: the closed classes of English, irregular verbs, common adjectives
           and verbs.
patterns   From a tagged text to its phrases, the selection for training, and the interface of providers.
providers  Providers by name: `rules`, `spacy:PIPELINE`, or a file that `grainline data phrases` wrote.
"""
