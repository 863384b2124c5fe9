"""Run in an environment with MindSpore: writes checkpoints, and reads those it is given.

python mindspore_program.py write FOLDER
python mindspore_program.py read FILE FORMAT OUT.json
"""

from __future__ import annotations

import json
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.train import serialization


def arrays() -> dict[str, Tensor]:
    values = np.arange(2000, dtype=np.float32).reshape(20, 100) / 7
    return {
        "fc.weight": Tensor(values, ms.float32),
        "half": Tensor(values[0], ms.float16),
        "brain": Tensor(values[1], ms.bfloat16),
        "double": Tensor(values[2].astype(np.float64), ms.float64),
        "scalar": Tensor(2.5, ms.float32),
        "flag": Tensor([True, False]),
        "count": Tensor([1, -2], ms.int64),
    }


def write(folder: str) -> None:
    entries = [{"name": name, "data": tensor} for name, tensor in arrays().items()]
    ms.save_checkpoint(entries, f"{folder}/plain.ckpt", append_dict={"epoch": 3, "note": "hello"})
    ms.save_checkpoint(entries, f"{folder}/crc.ckpt", crc_check=True)
    ms.save_checkpoint(entries, f"{folder}/plain.safetensors", format="safetensors")
    serialization.SLICE_SIZE = 1  # KiB, so that a small tensor is stored in slices
    ms.save_checkpoint(entries, f"{folder}/sliced.ckpt", crc_check=True)


def read(path: str, format: str, out: str) -> None:
    found = ms.load_checkpoint(path, format=format, crc_check=format == "ckpt")
    plain = {}
    for name, parameter in found.items():
        whole = parameter.value() if parameter.dtype != ms.bfloat16 else parameter.astype(ms.float32)
        plain[name] = [str(parameter.dtype), list(parameter.shape), whole.asnumpy().ravel().tolist()]
    with open(out, "w", encoding="utf-8") as file:
        json.dump(plain, file)


if __name__ == "__main__":
    write(sys.argv[2]) if sys.argv[1] == "write" else read(*sys.argv[2:])
