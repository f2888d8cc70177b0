"""Files of published benchmarks and data sets as sources.

contests        Right and wrong pairs: FOIL-COCO, SugarCrepe, VALSE, SVO-Probes and COLA.
long_captions   Retrieval with long captions, and HiMo-Docci.
phrase_regions  Phrases and their regions: Flickr30k Entities and FG-OVD.
refcoco         RefCOCO, RefCOCO+ and RefCOCOg: referring expressions with masks; box proposals of a detector.
"""
