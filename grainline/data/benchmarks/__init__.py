"""Files of published benchmarks and data sets as sources.

cola           COLA, multi-object part: items of two images and two captions.
contests       Benchmarks of right and wrong pairs: FOIL-COCO, SugarCrepe, VALSE and SVO-Probes.
entities       Flickr30k Entities: captions of Flickr30k with the noun phrases in them, by their official
               files.
fgovd          FG-OVD: regions with one right and several wrong descriptions.
long_captions  Benchmarks of retrieval with long captions, and HiMo-Docci.
pickled        Pickles of plain data, read without running code.
refcoco        RefCOCO, RefCOCO+ and RefCOCOg: referring expressions with masks; box proposals of a detector.
"""
