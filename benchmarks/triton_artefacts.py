"""Compiles the Triton kernel ahead of time, without a device, and reads registers, spills and instructions.

    python benchmarks/triton_artefacts.py [--targets sm_80 ...] [--dtypes bfloat16 ...] [--write]

For sm_80, sm_90, sm_100 and gfx942, in every dtype, with and without digest, sketch and table of offsets. Fails where
a variant does not compile or keeps variables in local memory. The roofline of a variant is the bandwidth of device
memory over the bytes of an element, beside what its instructions allow when none of them ever waits.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from trueup.adapters.torch.device import kernel
from trueup.numerics.dtypes import DTYPES

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
REAL = [name for name, entry in DTYPES.items() if entry.kind != "complex"]
RESULTS = Path(__file__).parent / "results" / "triton_artefacts.json"
_BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SIGNATURE = {
    "job_of": "*i64", "jobs": "*i64", "rows": "*i64", "partials": "*i64", "counters": "*i32", "powers": "*i64",
    "blocks": "*i16", "signs": "*i32", "float8": "*fp32",
}  # fmt: skip
CONSTANTS = ("CODE", "DIGEST", "SKETCH", "OFFSETS", "BLOCKS", "LANES")
H100_BYTES_A_SECOND, H100_LANES_A_SECOND = 3.35e12, 132 * 128 * 1.755e9
"""of an H100 SXM: device memory (data sheet), and lanes of instructions issued: 132 multiprocessors, four
schedulers of a warp each, at the boost clock"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One kernel for one target."""

    target: str
    dtype: str
    digest: bool
    sketch: bool
    offsets: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """What the compiler made of it; None where the target's tools do not say."""

    variant: Variant
    registers: int
    spilled_bytes: int
    shared_bytes: int
    loop_instructions: int | None
    """of the loop over elements, in one pass over 8192 of them by 256 threads"""
    instructions_an_element: float | None


def compiled(variant: Variant) -> triton.compiler.CompiledKernel:
    """The kernel for a target that need not be here."""
    values = (
        kernel.code_of(variant.dtype), variant.digest, variant.sketch, variant.offsets, kernel.BLOCKS, kernel.LANES,
    )  # fmt: skip
    signature = {**SIGNATURE, **dict.fromkeys(CONSTANTS, "constexpr")}
    names = list(signature)
    constants = {(names.index(name),): value for name, value in zip(CONSTANTS, values, strict=True)}
    aligned = {(at,): [["tt.divisibility", 16]] for at in range(len(SIGNATURE))}
    source = ASTSource(kernel.summarise, signature, constants, aligned)
    return triton.compile(source, target=TARGETS[variant.target], options={"num_warps": kernel.NUM_WARPS})


def artefact_of(variant: Variant) -> Artefact:
    """Registers, spills and instructions."""
    made = compiled(variant)
    return _of_amd(variant, made) if variant.target.startswith("gfx") else _of_nvidia(variant, made)


def _of_nvidia(variant: Variant, made: triton.compiler.CompiledKernel) -> Artefact:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = _run("cuobjdump", "--dump-resource-usage", file.name)
        code = _run("nvdisasm", "-c", file.name)
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
    loop = loop_of(code)
    return Artefact(
        variant=variant,
        registers=numbers["REG"],
        spilled_bytes=numbers["STACK"] + numbers["LOCAL"],
        shared_bytes=int(made.metadata.shared),
        loop_instructions=loop,
        instructions_an_element=None if loop is None else loop * 256 / (kernel.BLOCKS * kernel.LANES),
    )


def _of_amd(variant: Variant, made: triton.compiler.CompiledKernel) -> Artefact:
    text = made.asm["amdgcn"]

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", text)
        return int(found[1]) if found else 0

    return Artefact(
        variant=variant,
        registers=number("vgpr_count"),
        spilled_bytes=4 * (number("vgpr_spill_count") + number("sgpr_spill_count")) + number("private_segment_fixed_size"),
        shared_bytes=int(made.metadata.shared),
        loop_instructions=None,
        instructions_an_element=None,
    )


def loop_of(code: str) -> int | None:
    """Instructions of the innermost loop that reads most from device memory, of SASS with labels."""
    lines = [line for line in code.splitlines() if re.match(r"\s*(/\*[0-9a-f]+\*/\s+\S|\.L_\S+:)", line)]
    labels = {m[1]: at for at, line in enumerate(lines) if (m := re.match(r"\s*(\.L_\S+):", line))}
    best: tuple[int, int] | None = None
    for at, line in enumerate(lines):
        jump = re.search(r"BRA.*`\((\.L_\S+)\)", line)
        start = labels.get(jump[1]) if jump else None
        if start is None or start >= at:
            continue
        body = [one for one in lines[start : at + 1] if not one.strip().startswith(".L")]
        inner = sum(1 for one in body if (m := re.search(r"BRA.*`\((\.L_\S+)\)", one)) and start < labels.get(m[1], at) < at and lines.index(one) > labels.get(m[1], at))
        loads = sum("LDG" in one for one in body)
        if not inner and loads > (best[0] if best else 8):
            best = loads, len(body)
    return None if best is None else best[1]


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([str(_BIN / tool), *arguments], capture_output=True, text=True, check=True).stdout
