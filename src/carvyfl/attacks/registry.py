"""The attacks by name."""

from __future__ import annotations

from carvyfl.attacks.attack import Malicious
from carvyfl.attacks.badnets import BadNets, ConstrainAndScale, DistributedTrigger
from carvyfl.attacks.forged_messages import ConstantMeans, ScaledMeans, SwappedMeans
from carvyfl.attacks.forged_sums import ConstantHead, IndefiniteSums, ReplacedHead, ScaledSums
from carvyfl.attacks.untargeted import ALittleIsEnough, LabelFlip, MinMax, Noise, SignFlip
from carvyfl.core.registry import Registry

ATTACKS: Registry[type[Malicious]] = Registry(
    "attack",
    "carvyfl.attacks",
    [
        *(BadNets, DistributedTrigger, ConstrainAndScale),
        *(LabelFlip, SignFlip, Noise, ALittleIsEnough, MinMax),
        *(ScaledSums, ReplacedHead, ConstantHead, IndefiniteSums),
        *(ScaledMeans, SwappedMeans, ConstantMeans),
    ],
)
"""Every attack on training."""
