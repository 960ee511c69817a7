"""Variables of Transformer Engine in a command's environment choose the attention, or the run does not start."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainplan.profiling.base.errors import InputError

import trainplan as tp
from tests.configurations.test_megatron_keys import BF16

GIB = 2**30
OFF = "NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0"
FLASH = "export NVTE_FLASH_ATTN=1 NVTE_FUSED_ATTN=0\n"


def peak_gib(folder: Path, script: str, *ignored: str, attention: str | None = None) -> float:
    """The predicted peak of a script on eight H100."""
    path = folder / "run.sh"
    path.write_text(script)
    run = tp.import_run(path, cluster="h100:8", search=False, ignored=ignored, attention=attention)
    return max(run.peak_bytes) / GIB


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (f"export {OFF}\n{BF16}", r"NVTE_FLASH_ATTN is '0', .*give attention.backend unfused"),
        (f"{OFF} {BF16}", "NVTE_FLASH_ATTN is '0', .*give attention.backend unfused"),
        (f"env {OFF} {BF16}", "NVTE_FLASH_ATTN is '0', .*give attention.backend unfused"),
        (f"export NVTE_FUSED_ATTN=0\n{BF16}", "NVTE_FUSED_ATTN is '0', .*give attention.backend flash"),
        (f"export NVTE_FLASH_ATTN=0\n{BF16}", "NVTE_FLASH_ATTN is '0', .*give attention.backend fused"),
        (f"{FLASH}{BF16} --attention-backend fused", "NVTE_FLASH_ATTN is '1', .*give attention.backend flash"),
        (f"export NVTE_FUSED_ATTN=$X\n{BF16}", "NVTE_FUSED_ATTN is '.X': .* has no value"),
        (f"export NVTE_OTHER_ATTN=1\n{BF16}", "NVTE_OTHER_ATTN is '1', and no key that is read"),
        ("export NVTE_FUSED_ATTN=0\npython run_recipe.py --recipe llama3_8b_pretrain_config", "NVTE_FUSED_ATTN is '0'"),
    ],
)
def test_variables_that_the_backend_does_not_go_with_are_refused(tmp_path: Path, script: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        peak_gib(tmp_path, script)


def test_variables_that_the_backend_goes_with_are_read(tmp_path: Path) -> None:
    plain, eager = peak_gib(tmp_path, BF16), peak_gib(tmp_path, f"{BF16} --attention-backend unfused")
    assert eager > plain + 50  # scores of 32 heads over 8192 positions
    assert peak_gib(tmp_path, f"export {OFF}\n{BF16} --attention-backend unfused") == eager
    assert peak_gib(tmp_path, f"{FLASH}{BF16} --attention-backend flash") == plain
    assert peak_gib(tmp_path, f"export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0\n{BF16}") == plain
    assert peak_gib(tmp_path, f"NVTE_FUSED_ATTN=0\n{BF16}") == plain, "a variable that is not exported is the script's own"


def test_earlier_cores_run_as_the_variables_say(tmp_path: Path) -> None:
    """Nothing in a script tells core 0.10 from later ones: the user says it, by the attention that runs."""
    script, names = f"export {OFF}\n{BF16}", ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")
    eager = peak_gib(tmp_path, f"{BF16} --attention-backend unfused")
    assert peak_gib(tmp_path, script, *names, attention="eager") == eager
    older = f"{BF16} --use-flash-attn --DDP-impl local"
    flash = peak_gib(tmp_path, older)
    assert peak_gib(tmp_path, f"export {OFF}\n{older}") > flash + 50
