"""
Decide rows in this process: features, model, decision.

The steps of a Triton ensemble, the fused step, replays, policy simulations and shadows
run the stages of this package.
"""
