"""Training: recipes, runs, the loop and its step.

average     Averages of the weights of finished runs: WiSE-FT, model soups.
cached      Superpixels and features that training reads instead of computing them.
checkpoint  Checkpoints: written atomically, sealed with sha256 sums, and read strictly.
demo        `grainline demo`: train a small model on drawn scenes, measure it, and write one page.
inputs      What a run starts from: folder, training data, tokenizer, weights of an earlier run.
log         OUT/log.jsonl, the progress bar, TensorBoard and Weights & Biases; callbacks.
loop        The training loop: steps, validation, checkpoints, log.
optim       AdamW: rules, `tune`, schedules, weight decay, layer-wise decay.
parallel    DistributedDataParallel or FSDP2, device and precision.
recipe      The fields of a recipe, and reading one.
report      Validation, and OUT/report.html: curves, corrupt samples, settings.
run         `grainline.train`: from a recipe to a run in its folder.
step        One training step, GradCache, the moving average, LoRA, activation checkpointing, compilation.
text_cache  What a frozen text encoder gives for the texts of a source, in front of the encoder in training.
"""
