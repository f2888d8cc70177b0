"""What suites collect of each image and its texts while a source is encoded.

annotations     Captions with their annotated phrases, out of records; and the same with their words in
                another order.
baselines       Groups of tokens: tIoU against phrases, and the baselines that it is judged by.
choices         Which box of a picture the maps of an expression choose.
classes         Classes and the prompts that stand for them: names, templates, and the files of both.
collecting      What every walk over a source needs: inputs collected to rows, and samples that cannot be
                used.
expressions     How well the heat of expressions covers what they speak of.
gradient_maps   Maps by gradients: which image tokens raise a score, and which the last attention takes
                up.
grouped         What a model makes of captions with annotated phrases: groups of their tokens, clusters of
                their states.
long            Retrieval with long captions: under which protocol a set is read, and the card that says
                so.
overlaps        Masks and boxes over maps: Otsu's threshold, sums, scores and IoU.
probes          Right pairs against wrong ones: probes of one image or text, and items of two images and
                two captions.
regions         Regions of pictures: which of several texts speaks of what is in a box?
seen            Pictures as texts see them, for methods whose image vectors depend on a text.
subtexts        Captions changed on purpose: cut to their first sentences, or with a sentence of noise put
                in.
text_attention  Where the parts of texts look in a picture: at image tokens, or at an empty slot beside
                them.
trained         What a run was trained on, and how much of it is in the data that it is tested on.
"""
