"""Captions taken apart into phrases: noun phrases, actions, spatial relations.

base       What every provider of phrases gives, and what it may be asked.
context    The class of each word, as a letter: by the word itself, then among its neighbours.
lexicon    The words that `rules` knows: the closed classes of English, irregular verbs, common adjectives
           and verbs.
patterns   From a tagged text to its phrases, and from its phrases to those that are worth a row.
providers  Providers by name: `rules`, `spacy:PIPELINE`, or a file that `grainline data phrases` wrote.
stored     Phrases that were made before, in a file of JSON Lines.
"""
