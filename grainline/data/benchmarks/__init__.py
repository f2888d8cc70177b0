"""Files of published benchmarks and data sets as sources, one file each.

cola           Items of two pictures and two captions, as the multi-object part of COLA has them.
contests       What the benchmarks of pairs share: a right pair of picture and text against a wrong one.
entities       Flickr30k Entities: captions of Flickr30k with the noun phrases in them, by their official
               files.
fgovd          Regions with one right and several wrong descriptions, as the benchmark FG-OVD has them.
foilcoco       FOIL-COCO: captions of COCO and the same with one noun replaced.
hexagons       Boards of coloured tiles with the instructions that people wrote to draw them: the data set
               Hexagons.
himo           HiMo-Docci: pictures of DOCCI with captions cut into cumulative subtexts (HiMo-CLIP, arXiv
               2511.06653).
long_captions  Benchmarks of retrieval with long captions, each read from the files that its authors give
               out.
pickled        Pickled data without code: lists, dicts, numbers and texts, and nothing that a pickle could
               call.
proposals      Boxes that a detector proposes, from a JSON file, as ReCLIP's release has them (arXiv
               2204.05991).
refcoco        Referring expressions with masks, as RefCOCO, RefCOCO+ and RefCOCOg have them.
sugarcrepe     SugarCrepe: captions of COCO and foils that read as well as they do.
svo            SVO-Probes: a sentence, a picture that shows it, and one in which subject, verb or object
               is another.
valse          VALSE: captions and foils of six linguistic phenomena.
"""
