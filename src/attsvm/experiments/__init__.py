"""The paper's experiments: a spec, a run, claims and figures each; `reproduce` runs and judges them."""

from attsvm.experiments.base import Claim, Experiment, Results, Verdict
from attsvm.experiments.registry import EXPERIMENTS
from attsvm.experiments.runner import Reproduction, reproduce

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Reproduction", "Results", "Verdict", "reproduce"]
