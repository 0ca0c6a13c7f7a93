"""Training on real data: what skipping contributions does to it."""

import pytest
import torch

from scenarios.ranks import Place, Ranks
from scenarios.workloads import digits

W = 3


def test_shares_are_disjoint_and_held_out_images_are_nobodys():
    pixels, classes = digits.images()
    assert pixels.shape == (1797, 1, 8, 8)
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert classes.unique().tolist() == list(range(10))
    seen = []
    for rank in range(W):
        batches = digits.batches(rank, W)
        epoch = torch.cat([next(batches)[0] for _ in range(1437 // W // digits.BATCH)])  # 14 batches of 479 images
        seen.append({image.numpy().tobytes() for image in epoch})
        assert len(seen[-1]) == len(epoch) == 448
    held_out = {image.numpy().tobytes() for image in pixels[-digits.HELD_OUT:]}
    assert not seen[0] & seen[1] | seen[1] & seen[2] | seen[2] & seen[0]
    assert not held_out & set.union(*seen)


def test_a_world_too_large_for_the_data_is_refused():
    with pytest.raises(ValueError, match="too few for 64 ranks"):
        digits.batches(0, 64)


@pytest.mark.slow
def test_every_arm_learns(tmp_path):
    # Of ten classes a model that has learnt nothing tells one in ten; what is exchanged does some good in every arm.
    arms = {"gloo": {}, "shard": {}, "fresh_only": {}, "every_k": {"k": 4}}
    with Ranks([Place(rank=rank, world_size=W, host="here", store=str(tmp_path / "store"), arms=tuple(arms),
                      timeout=60.0) for rank in range(W)]) as ranks:
        ended = {arm: ranks.tell("train", arm=arm, steps=150, bucket_view=True, workload="digits", **parameters)
                 for arm, parameters in arms.items()}
    accuracy = {arm: [rank["held_out_accuracy"] for rank in results] for arm, results in ended.items()}
    # Gloo and shard add three terms in other orders: models that differ by rounding tell a few of 360 images apart.
    assert len(set(accuracy["gloo"])) == len(set(accuracy["shard"])) == 1
    assert accuracy["shard"][0] == pytest.approx(accuracy["gloo"][0], abs=5 / 360)
    assert accuracy["gloo"][0] > 0.9
    assert min(accuracy["fresh_only"] + accuracy["every_k"]) > 0.8
