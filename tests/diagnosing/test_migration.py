"""The example of a port from PyTorch to MindSpore: both of its faults are named, mended it agrees."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.diagnosing.diagnosed import facts_of
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.pipeline import diagnose
from trueup.types.codes import StagesCode, WeightsCode
from trueup.types.finding import Stage
from trueup.types.reason import reason
from trueup.wording import headline

pytestmark = [pytest.mark.mindspore, pytest.mark.slow, pytest.mark.xdist_group("migration")]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "migration"


def trueup(*words: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trueup", *map(str, words)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference's trace, batches and converted weights."""
    out = tmp_path_factory.mktemp("migration")
    program = (sys.executable, EXAMPLE / "pytorch_gpt.py")
    trueup("capture", "--preset", "diagnose", "-o", out / "reference", "--", *program, "--steps", "2")
    trueup("export", "--format", "batches", out / "reference", out / "batches", "-q")
    to = ("--from", "hf-llama", "--to", "mindformers-llama-fused", "--num-heads", "4", "--num-kv-heads", "2")
    trueup("convert-weights", out / "reference", out / "port.ckpt", *to)
    return out


@functools.cache
def ported(out: Path, *mends: str) -> Diagnosis:
    name = "-".join(["port", *mends])
    program = (sys.executable, EXAMPLE / "mindspore_gpt.py", "--weights", out / "port.ckpt")
    given = ("--data", out / "batches", "--steps", "2", "--mend", *mends)
    trueup("capture", "--preset", "diagnose", "-o", out / name, "--", *program, *given)
    return diagnose(out / name, out / "reference", output=out / f"{name}-diagnosis")


def test_both_faults_are_named_in_the_order_of_the_step(prepared: Path) -> None:
    found = ported(prepared)
    assert [f.stage for f in found.findings] == [Stage.FORWARD, Stage.OPTIMIZER]
    embedding, decay = found.findings
    assert embedding.module == "model.tok_embeddings"
    assert embedding.kinds[0].name == "dtype_or_rounding"
    assert "float16" in " ".join(map(facts_of, embedding.evidence))
    norms = [one for one in embedding.evidence if one.code is StagesCode.LOCAL_NORM]
    assert [one.number("among") for one in norms] == [17]
    assert decay.headline.code is StagesCode.DECAY_REFERENCE
    assert decay.headline.place("parameters") == "the 7 one-dimensional parameters"


def test_the_page_tells_what_is_found(prepared: Path) -> None:
    page = " ".join((ROOT / "docs" / "migration.md").read_text(encoding="utf-8").split())
    for finding in ported(prepared).findings:
        assert headline(finding.headline) in page


def test_mended_it_agrees_bit_for_bit_at_the_start_and_within_rounding_after(prepared: Path) -> None:
    found = ported(prepared, "embedding", "decay")
    assert found.exit_code == 0, found.headline
    assert reason(WeightsCode.ALL_EQUAL, num=17) in [stage.conclusion for stage in found.stages]
