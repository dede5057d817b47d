"""Scripts that start Megatron-LM: their options are a plan and a model, which the advisor's rules judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from parastrat.check import Checked, check_file
from parastrat.check.known import Given
from parastrat.finding import Severity
from parastrat.hardware import Hardware
from parastrat.parse.megatron import megatron_options
from parastrat.profiles import load_hardware, load_stack
from parastrat.profiles.files import read_format
from parastrat.sources import load_source
from parastrat.sources.megatron import megatron_source
from parastrat.workload import Precision

GPT = """\
#!/bin/bash
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
export CUDA_DEVICE_MAX_CONNECTIONS=1
export OMP_NUM_THREADS=12
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --bf16
    --use-distributed-optimizer
    --recompute-activations
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 8
    --sequence-parallel
    --pipeline-model-parallel-size 8
)
DATA_ARGS=(
    --data-path $DATA_PATH
    --vocab-file $VOCAB_FILE
    --merge-file $MERGE_FILE
    --split 949,50,1
)
srun torchrun --nnodes 16 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 \\
    pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${PARALLEL_ARGS[@]} ${DATA_ARGS[@]}
"""
LLAMA = """\
--tensor-model-parallel-size 1 --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
--num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm
--disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights
--vocab-size 128256 --hidden-dropout 0 --attention-dropout 0
"""
MIXTRAL = f"""\
{LLAMA.replace("--vocab-size 128256", "--tokenizer-type Llama2Tokenizer --tokenizer-model $MODEL")}
--num-experts 8 --moe-router-topk 2
"""
DEEPSEEK = """\
--tensor-model-parallel-size 1 --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432
--num-attention-heads 128 --kv-channels 128 --swiglu --normalization RMSNorm --disable-bias-linear
--position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 129280
--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64
--v-head-dim 128 --qk-layernorm --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048
--moe-shared-expert-intermediate-size 2048 --moe-layer-freq ([0]*3+[1]*58)
"""


def _checked(folder: Path, text: str, hardware: Hardware | None = None) -> Checked:
    path = folder / "train.sbatch"
    path.write_text(text)
    return check_file(path, Given(hardware=hardware))


def _alarms(checked: Checked) -> dict[str, str]:
    found = (each for each in checked.findings if each.severity is not Severity.INFO)
    return {each.code: each.message for each in found}


def _options(words: str) -> dict[str, str]:
    (known,) = read_format("megatron")["tables"]
    split = words.split()
    stated = {word.removeprefix("--"): "" for word in split if word.startswith("--")}
    options = megatron_options({"options": stated, "words": split}, known["keys"])
    assert options is not None
    return dict(options)


@pytest.mark.parametrize(
    ("words", "preset"),
    [(LLAMA, "llama-3.1-8b"), (MIXTRAL, "mixtral-8x7b"), (DEEPSEEK, "deepseek-v3")],
    ids=["llama", "mixtral", "deepseek"],
)
def test_a_models_options_have_the_parameters_of_its_preset(words: str, preset: str) -> None:
    source, published = megatron_source("pretrain_gpt.py", _options(words), 1), load_source(preset)
    assert source is not None
    assert published is not None
    kernels = load_stack("megatron-core").kernels
    ours, theirs = (each.at(4096, Precision.BF16_MIXED, kernels).parameters for each in (source, published))
    assert ours == pytest.approx(theirs, rel=0.001)


def test_a_job_that_fits_has_no_alarms(tmp_path: Path) -> None:
    assert _alarms(_checked(tmp_path, GPT, load_hardware("dgx-a100:16"))) == {}
    assert _alarms(_checked(tmp_path, GPT)) == {}


def test_a_job_that_does_not_fit_is_told_at_its_launch(tmp_path: Path) -> None:
    text = GPT.replace("--pipeline-model-parallel-size 8", "--pipeline-model-parallel-size 1")
    checked = _checked(tmp_path, text, load_hardware("dgx-a100:16"))
    assert _alarms(checked).keys() == {"PS101"}
    (fit,) = [each for each in checked.findings if each.code == "PS101"]
    assert checked.lines[(fit.line or 0) - 1].startswith("srun torchrun")


def test_what_to_change_names_no_flags_of_ours(tmp_path: Path) -> None:
    text = GPT.replace("--use-distributed-optimizer", "--micro-batch-size 8")
    fixes = [each.fix for each in _checked(tmp_path, text, load_hardware("dgx-a100:16")).findings]
    assert "recompute more" in fixes
    assert not any("(--" in fix for fix in fixes)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("-parallel-size 8\n    --sequence", "-parallel-size 16\n    --sequence", "PS2"),
        ("num-attention-heads 96", "num-attention-heads 100", "PS201"),
        ("pipeline-model-parallel-size 8", "pipeline-model-parallel-size 7", "PS687"),
        ("--global-batch-size 1536", "--global-batch-size 1535", "PS687"),
        ("--global-batch-size 1536", "--global-batch-size 8", "PS701"),
        ("num-layers 96", "num-layers 92", "PS711"),
    ],
)
def test_the_rules_of_plans_judge_its_degrees(tmp_path: Path, old: str, new: str, code: str) -> None:
    assert GPT.count(old) == 1
    assert any(found.startswith(code) for found in _alarms(_checked(tmp_path, GPT.replace(old, new))))


def test_heads_are_judged_where_the_number_of_nodes_is_unknown(tmp_path: Path) -> None:
    text = GPT.replace("--nnodes 16", "--nnodes $NODES").replace("heads 96", "heads 100")
    assert "PS687" in _alarms(_checked(tmp_path, text))


@pytest.mark.parametrize("option", ["--global-batch-size 1536", "--micro-batch-size 1"])
def test_even_stages_are_named_where_the_batch_is_a_variable(tmp_path: Path, option: str) -> None:
    variable = f"{option.rstrip('0123456789')}$SOME"
    text = GPT.replace("num-layers 96", "num-layers 92").replace(option, variable)
    (found,) = [each for each in _checked(tmp_path, text).findings if each.code == "PS711"]
    assert found.fix == "use pp 4 or pp 2, whose stages are even, or write the layout out"


def test_the_fix_of_heads_names_degrees_where_groups_of_them_are_not_stated(tmp_path: Path) -> None:
    text = GPT.replace("heads 96", "heads 100").replace("--seq-length", "--mtp-num-layers 1 --seq-length")
    found = {each.code: each.fix for each in _checked(tmp_path, text).findings}
    assert (found.get("PS201") or "").startswith("use tp ")


@pytest.mark.parametrize(
    "more",
    ["$MORE", "--fp8-hybrid $MORE", "${MORE[@]}", "--use-precision-aware-optimizer", "--mtp-num-layers 1"],
)
def test_what_options_may_be_or_no_plan_has_is_not_judged(tmp_path: Path, more: str) -> None:
    text = GPT.replace("--pipeline-model-parallel-size 8", "--pipeline-model-parallel-size 1")
    text = text.replace("${DATA_ARGS[@]}\n", f"${{DATA_ARGS[@]}} {more}\n")
    checked = _checked(tmp_path, text, load_hardware("dgx-a100:16"))
    assert "PS101" not in _alarms(checked)
    assert "PS101" in checked.open


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--num-layers 96", "--num-layers x", "--num-layers must be a whole number, 1 or more, not x"),
        ("--seq-length 2048", "--seq-length", "--seq-length has no value"),
        (
            "--pipeline-model-parallel-size 8",
            "--pipeline-model-parallel-size -8",
            "--pipeline-model-parallel-size must be a whole number, 1 or more, not -8",
        ),
        ("--bf16", "--bf16 --lr fast", "--lr must be a number, not fast"),
        ("--bf16", "--bf16 --ffn-hidden-size 1.5", "--ffn-hidden-size must be a whole number, not 1.5"),
    ],
)
def test_values_that_it_cannot_read_are_told(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in GPT
    findings = _checked(tmp_path, GPT.replace(old, new)).findings
    (found,) = [each for each in findings if each.code == "PS602"]
    assert (found.message, found.severity) == (message, Severity.ERROR)


def test_values_that_it_reads_are_not_told(tmp_path: Path) -> None:
    text = GPT.replace("--bf16", "--bf16 --lr 1.5e-4 --min-lr $MIN --train-iters 500_000 --clip-grad inf")
    assert "PS602" not in [each.code for each in _checked(tmp_path, text).findings]
