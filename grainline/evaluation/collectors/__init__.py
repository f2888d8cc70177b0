"""What suites collect of each image and its texts while a source is encoded.

classes         Classes and the prompts that stand for them: names, templates, and the files of both.
collecting      What every walk over a source needs: inputs collected to rows, and samples that cannot be
                used.
probes          Right pairs against wrong ones: probes of one image or text, and items of two images and
                two captions.
subtexts        Captions changed on purpose: cut to their first sentences, or with a sentence of noise put
                in.
"""
