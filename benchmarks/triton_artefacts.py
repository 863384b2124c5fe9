"""Compiles the Triton kernel ahead of time, without a device, and reads registers, spills and instructions.

    python benchmarks/triton_artefacts.py [--targets sm_80 ...] [--dtypes bfloat16 ...] [--write]

For sm_80, sm_90, sm_100 and gfx942, in every dtype, with and without digest, sketch and table of offsets,
floats of 16 and 32 bits as words too.
Fails where a variant does not compile, or has the loop that sums use local memory. Beside the bandwidth of
device memory stands what the instructions of a variant allow when none of them ever waits: the lower of the
two is its roofline.
"""

from __future__ import annotations

import argparse
import heapq
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
from trueup.adapters.torch.device.plan import APART, AS_WORDS, IN_ORDER, PER_WORD
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
    "jobs": "*i64", "pointer": "i64", "row": "i64", "rows": "*i64", "partials": "*i64", "counters": "*i32",
    "powers": "*i64", "blocks": "*i16", "signs": "*fp64", "float8": "*fp32",
}  # fmt: skip
CONSTANTS = ("CODE", "DIGEST", "SKETCH", "WALK", "TILE", "STEP", "PAIRS")
MOST_SAVED_BYTES = 64
"""in local memory: what a run keeps, outside the loop that sums"""
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
    walk: int
    """see ``plan``"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """What the compiler made of it; None where the target's tools do not say."""

    variant: Variant
    registers: int
    saved_bytes: int
    """in local memory"""
    loop_local: int | None
    """instructions of the loop that use it"""
    shared_bytes: int
    loop_instructions: int | None
    """of one pass over full blocks, or rows of them, of values that are not rare"""
    instructions_an_element: float | None


def _shape(variant: Variant) -> kernel.Shape:
    return kernel.shape_of(
        kernel.code_of(variant.dtype), digest=variant.digest, sketch=variant.sketch, walk=variant.walk
    )


def compiled(variant: Variant) -> triton.compiler.CompiledKernel:
    """The kernel for a target that need not be here."""
    shape = _shape(variant)
    values = (
        kernel.code_of(variant.dtype), variant.digest, variant.sketch, variant.walk, shape.tile, shape.step,
        shape.pairs and TARGETS[variant.target].backend == "cuda",
    )  # fmt: skip
    signature = {**SIGNATURE, **dict.fromkeys(CONSTANTS, "constexpr")}
    names = list(signature)
    constants = {(names.index(name),): value for name, value in zip(CONSTANTS, values, strict=True)}
    aligned = {
        (at,): [["tt.divisibility", 16]] for at, kind in enumerate(SIGNATURE.values()) if kind.startswith("*")
    }
    source = ASTSource(kernel.summarise, signature, constants, aligned)
    target, options = TARGETS[variant.target], {"num_warps": shape.num_warps}
    if shape.max_registers is not None and target.backend == "cuda":
        options["maxnreg"] = shape.max_registers
    return triton.compile(source, target=target, options=options)


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
    loop, shape = loop_of(code), _shape(variant)
    elements = 2 * 1024 / (32 * shape.num_warps)
    if variant.walk == AS_WORDS:
        elements = shape.step * PER_WORD[variant.dtype]
    local = sum("LDL" in line or "STL" in line for line in loop)
    return Artefact(
        variant=variant,
        registers=numbers["REG"],
        saved_bytes=numbers["STACK"] + numbers["LOCAL"],
        loop_local=local,
        shared_bytes=int(made.metadata.shared),
        loop_instructions=len(loop) or None,
        instructions_an_element=len(loop) / elements if loop else None,
    )


def _of_amd(variant: Variant, made: triton.compiler.CompiledKernel) -> Artefact:
    text = made.asm["amdgcn"]

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", text)
        return int(found[1]) if found else 0

    return Artefact(
        variant=variant,
        registers=number("vgpr_count"),
        saved_bytes=number("private_segment_fixed_size"),  # scalar registers spill into vector ones
        loop_local=None,
        shared_bytes=int(made.metadata.shared),
        loop_instructions=None,
        instructions_an_element=None,
    )


def loop_of(code: str) -> list[str]:
    """Instructions of one pass over two full blocks (of words: over a few rows of one): the shortest way
    round the loop with most sums of products, of SASS with labels."""
    blocks, follow = _basic_blocks(code)
    best: tuple[int, list[str]] = 0, []
    for latch, targets in follow.items():
        for header in (target for target in targets if target <= latch):
            way = _shortest(blocks, follow, header, latch)
            if way is None:
                continue
            body = [line for number in way for line in blocks[number]]
            sums = sum(bool(re.search("DFMA|DMUL|FFMA|FMUL", line)) for line in body)
            if sums > best[0] or (sums == best[0] and len(body) < len(best[1])):
                best = sums, body
    return best[1]


def _basic_blocks(code: str) -> tuple[list[list[str]], dict[int, list[int]]]:
    blocks: list[list[str]] = [[]]
    labels: dict[str, int] = {}
    jumps: dict[int, str] = {}
    falls: set[int] = set()
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_\S+):", line):
            if blocks[-1]:
                falls.add(len(blocks) - 1)
                blocks.append([])
            labels[label[1]] = len(blocks) - 1
        elif re.match(r"\s*/\*[0-9a-f]+\*/\s+\S", line):
            blocks[-1].append(line)
            jump = re.search(r"\bBRA\b.*`\((\.L_\S+)\)", line)
            if jump or re.search(r"\b(EXIT|RET)\b", line):
                if jump:
                    jumps[len(blocks) - 1] = jump[1]
                if "@" in line or re.search(r"\bBRA\S*\s+!?U?P\d", line):
                    falls.add(len(blocks) - 1)
                blocks.append([])
    follow: dict[int, list[int]] = {number: [] for number in range(len(blocks))}
    for number in follow:
        if number in falls:
            follow[number].append(number + 1)
        if number in jumps:
            follow[number].append(labels[jumps[number]])
    return blocks, follow


def _shortest(
    blocks: list[list[str]], follow: dict[int, list[int]], header: int, latch: int
) -> list[int] | None:
    """Blocks from a loop's header to its latch, with the fewest instructions."""
    queue = [(len(blocks[header]), header, [header])]
    seen = set()
    while queue:
        length, at, way = heapq.heappop(queue)
        if at == latch:
            return way
        if at in seen:
            continue
        seen.add(at)
        for after in follow[at]:
            if header < after <= latch:
                heapq.heappush(queue, (length + len(blocks[after]), after, [*way, after]))
    return None


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([str(_BIN / tool), *arguments], capture_output=True, text=True, check=True).stdout


WANTED = (
    (True, True, AS_WORDS), (True, False, AS_WORDS), (False, False, AS_WORDS),
    (True, True, IN_ORDER), (True, True, APART), (True, False, IN_ORDER), (False, False, IN_ORDER),
)  # fmt: skip
"""digest, sketch and how elements lie"""


def row_of(artefact: Artefact) -> dict[str, object]:
    """As written to the results, with the roofline."""
    itemsize = DTYPES[artefact.variant.dtype].itemsize
    limit = artefact.instructions_an_element
    issued = None if limit is None else H100_LANES_A_SECOND / limit * itemsize
    return {
        **asdict(artefact.variant),
        "walk": ("in order", "apart", "as words")[artefact.variant.walk],
        "registers": artefact.registers,
        "saved_bytes": artefact.saved_bytes,
        "loop_local": artefact.loop_local,
        "shared_bytes": artefact.shared_bytes,
        "bytes_an_element": itemsize,
        "instructions_an_element": limit,
        "h100_bytes_a_second_by_issue": issued,
        "h100_share_of_bandwidth": None
        if issued is None
        else round(min(1.0, issued / H100_BYTES_A_SECOND), 3),
    }


def main() -> int:
    """Compile, print, and write; 1 where a variant sums in local memory or does not compile."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--dtypes", nargs="+", default=REAL, choices=REAL)
    parser.add_argument("--first", action="store_true", help="all three summaries of words alone")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/triton_artefacts.json")
    options = parser.parse_args()
    rows, bad = [], 0
    for target, dtype, (digest, sketch, walk) in product(
        options.targets, options.dtypes, WANTED[:1] if options.first else WANTED
    ):
        if walk == AS_WORDS and dtype not in PER_WORD:
            continue
        variant = Variant(target=target, dtype=dtype, digest=digest, sketch=sketch, walk=walk)
        artefact = artefact_of(variant)
        bad += bool(artefact.loop_local) or artefact.saved_bytes > MOST_SAVED_BYTES
        rows.append(row_of(artefact))
        print(json.dumps(rows[-1]), flush=True)
    if options.write:
        content = {
            "triton": triton.__version__,
            "num_bad": bad,
            "kernels": rows,
        }
        RESULTS.write_text(json.dumps(content, indent=1) + "\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
