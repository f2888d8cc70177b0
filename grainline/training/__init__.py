"""Training: one step, the loop around it, and what it writes.

checkpoint  Checkpoints that survive a kill at any moment, and that say so when they are damaged.
config      How a model is trained: the fields of `train` in a recipe.
depth       Where every parameter stands in the depth of its encoder: the levels of layer-wise decay.
log         What a run says: OUT/log.jsonl always, a progress bar, and TensorBoard and wandb where they
            are asked for.
loop        The training loop: batches in; steps, checkpoints and a log out.
lora        LoRA: small matrices that learn in place of large ones (Hu et al., arXiv 2106.09685), by the
            library peft.
optim       Which parameters learn, how fast, and with how much decay.
parallel    How training spreads over processes: replicated (DistributedDataParallel) or sharded (FSDP2).
recipe      A recipe: everything that decides a training run, in one YAML file with checked names.
report      OUT/report.html: what a run did, from its log, its settings and its last validation.
run         From a recipe to a run in its folder: data, tokenizer, method, training, resuming.
schedule    How the learning rate moves over a run: warm-up, then cosine, step decay or constant.
step        One training step, and the same step for batches whose activations do not fit in memory.
validation  Retrieval on the validation sources of a recipe, while a model is trained.
warm_start  Beginning with the weights of an earlier run, of this method or of another one with the same
            encoders.
"""
