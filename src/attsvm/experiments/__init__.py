"""The paper's experiments: a spec, blocks of work, claims and figures each; `reproduce` runs and judges them."""

from attsvm.experiments.base import Block, Claim, Experiment, Results, Verdict, artefact, near, once, unstated
from attsvm.experiments.registry import EXPERIMENTS
from attsvm.experiments.runner import Reproduction, reproduce
from attsvm.store import Part, stack

__all__ = [
    "EXPERIMENTS",
    "Block",
    "Claim",
    "Experiment",
    "Part",
    "Reproduction",
    "Results",
    "Verdict",
    "artefact",
    "near",
    "once",
    "reproduce",
    "stack",
    "unstated",
]
