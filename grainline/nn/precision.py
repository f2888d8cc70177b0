"""Which precisions a device computes in."""

import torch


def has_bf16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Named with underscores, but there from torch 2.6 on; the public list of capabilities came later.
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return device.type == "cpu" and native


def may_round(device: torch.device) -> bool:
    """Whether products of float32 may be rounded to 11 bits of the factors (TF32) on this device."""
    if device.type != "cuda":
        return False
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # set by torch's newer names, which the older ones refuse to read
        return True
