"""Qwen3-8B on eight chips of v6e, with the drafters that configs/train makes for it, and DSpark on a schedule.

    experiments/tpu/run.sh experiments.decode --config configs/decode/qwen3_8b_pod.py --mesh.model 8 \
        --target.name runs/models/qwen3-8b

The drafters are those in runs/train (docs/pod.md); leave out what was not trained. The first eighty problems of HumanEval
chose their checkpoints and are left out: 84 remain. DSpark's schedule weighs a batch's rows by the TPU compiler's own estimate
of wider passes on this machine (`python -m experiments.aot --only curves`), which reaches to 1024 rows: a batch of 128. Take
another curve for another machine.
"""

from experiments.config import DecodeConfig, TargetConfig
from experiments.launch import ROOT
from sdjax.decode.schedule import Prefix, Throughput
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts
from sdjax.trees.hardware import CostCurve
from sdjax.verify.token import TokenRejection

CURVE = ROOT / "experiments" / "tables" / "verify_cost" / "qwen3_8b-v6e-2x4.json"


def get_config() -> DecodeConfig:
    trained = lambda family: f"runs/train/{family}_qwen3_8b/drafter"
    families = "eagle3", "peagle", "dflash", "domino", "d2sd", "jetspec"
    scheduled = Prefix(Throughput(CostCurve.read(CURVE), levels=1))
    dspark = Method(weights=trained("dspark"), rule=TokenRejection())
    return DecodeConfig(
        name="qwen3_8b_pod",
        prompts=Prompts(skip=80),
        rule=Sampling(temperature=(0.0, 1.0)),
        target=TargetConfig(name="Qwen/Qwen3-8B", dtype="bfloat16"),
        decode=Decoding(max_new=512, batch=16),
        methods={
            "plain": Method(NoDraft()),
            **{family: Method(weights=trained(family)) for family in families},
            "dspark": dspark,
            "dspark, scheduled": Method(dspark.drafter, dspark.rule, dspark.weights, schedule=scheduled, pack=(32, 64, 96)),
        },
    )
