"""The published weights of SFCN: a torch file of `arch` and `state_dict` (github.com/fuy34/superpixel_fcn).

conv0a, conv0b, ..., conv4b   down: 0 the convolution, 1 its normalisation
deconv3, conv3_1, ..., 0      up: the transposed convolution, and the one that mixes
pred_mask0                    head; pred_mask1 to 3 are heads of training that nothing reads
"""

import re
from pathlib import Path

from torch import Tensor

from grainline.encoders.pretrained.archive import read_tensors
from grainline.encoders.sfcn import SFCN, WIDTHS
from grainline.errors import UserError

UNUSED = re.compile(r"pred_mask[1-3]\.(weight|bias)")
TOP = len(WIDTHS) - 2  # the number of the first step up
_NAMES = (  # published, ours
    (re.compile(r"conv(\d)([ab])\.([01])\.(\w+)"), "down"),
    (re.compile(r"conv(\d)(_1)\.([01])\.(\w+)"), "mix"),
    (re.compile(r"deconv(\d)()\.(0)\.(\w+)"), "grow"),
)


def read_sfcn(path: Path) -> SFCN:
    """The network of a published file, normalisations and all. UserError where it holds anything else."""
    tensors = {name: x for name, x in read_tensors(path).tensors.items() if not UNUSED.fullmatch(name)}
    network = SFCN(norm="conv0a.1.weight" in tensors)
    ours = {}
    expected = network.state_dict()
    for name, tensor in tensors.items():
        mine = own_name(name)
        if mine not in expected:
            raise UserError(
                f"{path}: {name} is no part of SFCN; give the file of a SpixelNet as it is published"
            )
        if tensor.shape != expected[mine].shape:
            raise UserError(
                f"{path}: {name} is {_shape(tensor)}, and SFCN has {_shape(expected[mine])} there"
            )
        ours[mine] = tensor
    lost = sorted(name for name in expected if name not in ours)
    if lost:
        raise UserError(
            f"{path}: {len(lost)} of the {len(expected)} tensors of SFCN are missing, such as {lost[0]}"
        )
    network.load_state_dict(ours)
    return network.eval()


def own_name(name: str) -> str:
    """The name in our state dict of a published one; itself where it is none of them.

    >>> own_name("conv3a.0.weight"), own_name("conv3_1.1.bias"), own_name("deconv0.0.bias")
    ('down.3.0.conv.weight', 'up.0.mix.norm.bias', 'up.3.grow.bias')
    """
    for pattern, kind in _NAMES:
        match = pattern.fullmatch(name)
        if match:
            number, letter, place, tensor = match.groups()
            part = "norm" if place == "1" else "conv"
            if kind == "down":
                return f"down.{number}.{'ab'.index(letter)}.{part}.{tensor}"
            return f"up.{TOP - int(number)}.{f'mix.{part}' if kind == 'mix' else 'grow'}.{tensor}"
    return name.replace("pred_mask0.", "head.") if name.startswith("pred_mask0.") else f"published {name}"


def _shape(x: Tensor) -> str:
    return " x ".join(map(str, x.shape)) or "a number"
