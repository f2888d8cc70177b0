"""How a model is trained: the fields of `train` in a recipe."""

from pydantic import Field, model_validator

from grainline.config import Config
from grainline.errors import UserError
from grainline.training.log import LogConfig
from grainline.training.lora import LoraConfig
from grainline.training.optim import OptimizerConfig
from grainline.training.parallel import Precision
from grainline.training.schedule import rate


class TrainConfig(Config):
    """How long, how large and how exact; what learns at which rate stands in `optimizer`."""

    steps: int = Field(gt=0)
    batch: int = Field(gt=0)  # pictures a step, over all processes and accumulated parts
    optimizer: OptimizerConfig = OptimizerConfig()
    clip: float | None = Field(1.0, gt=0)  # largest norm of the gradient; None leaves it alone
    precision: Precision = "auto"
    accumulate: int = Field(1, gt=0)  # parts of a batch that are compared only among themselves
    chunk: int | None = Field(None, gt=0)  # rows whose activations stay at a time (GradCache); None: all
    lora: LoraConfig | None = None  # small matrices learn beside the encoders' weights; None: they do
    recompute: bool = False  # recompute the activations of every layer in the backward pass
    compile: bool = False  # torch.compile every layer
    shard: bool = False  # FSDP2: each process keeps its part of weights, gradients and optimizer state
    log_every: int = Field(10, gt=0)
    save_every: int = Field(200, gt=0)
    validate_every: int = Field(0, ge=0)  # 0 never measures
    keep: int = Field(2, gt=0)  # newest checkpoints that stay
    seed: int = Field(0, ge=0, lt=2**31)
    reshuffle: bool = True  # a new order of the pictures for each epoch; false repeats that of the first
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _divides(self) -> "TrainConfig":
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} is not a multiple of accumulate {self.accumulate}")
        if self.shard and self.compile:
            raise ValueError("shard and compile do not go together; leave one of them false")
        schedules = [self.optimizer.schedule, *(rule.schedule for rule in self.optimizer.rules)]
        for schedule in schedules:
            if schedule is not None:
                rate(schedule, 0, self.steps)  # complains about a warm-up longer than the run
        return self

    def _most(self, processes: int) -> int:
        """The largest number of processes, up to this one, that a part of a batch falls into equally."""
        part = self.batch // self.accumulate
        return next(number for number in range(processes, 0, -1) if part % number == 0)

    def require_batch(self, pictures: int, processes: int, contrastive: bool) -> None:
        """Raise UserError where a batch does not fall into equal parts, or the data do not fill one.

        contrastive  the loss compares images with the texts of others, so each part needs two at least
        """
        parts = self.accumulate * processes
        if self.batch % parts:
            raise UserError(
                f"train.batch {self.batch} is not a multiple of processes x train.accumulate = {parts}; "
                f"the most processes that share it equally are {self._most(processes)}"
            )
        if self.batch > pictures:
            raise UserError(
                f"train.batch {self.batch} is more than the {pictures} pictures of the data; lower it"
            )
        if contrastive and self.batch == self.accumulate:
            raise UserError(
                f"train.batch {self.batch} with train.accumulate {self.accumulate} leaves a contrastive loss "
                f"one image and nothing to compare it with: give a batch of {2 * self.accumulate} at least"
            )
