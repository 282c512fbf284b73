"""The attacks by name."""

from __future__ import annotations

from carvyfl.attacks.attack import Malicious
from carvyfl.attacks.badnets import BadNets, ConstrainAndScale, DistributedTrigger
from carvyfl.attacks.untargeted import ALittleIsEnough, LabelFlip, MinMax, Noise, SignFlip

ATTACKS: dict[str, type[Malicious]] = {
    attack.name: attack
    for attack in (
        BadNets,
        DistributedTrigger,
        ConstrainAndScale,
        LabelFlip,
        SignFlip,
        Noise,
        ALittleIsEnough,
        MinMax,
    )
}
"""Name → attack."""
