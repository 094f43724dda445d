"""The detectors of PipeDream's Table 3: their sizes, and that the layers compute what the model does."""

from __future__ import annotations

import torch
import torchvision
from torchvision.ops import RoIAlign

from pipelag.models.cut import name_of
from pipelag.models.detection import ANCHORS, SSD300, MaskRCNN
from pipelag.models.linearise import linearise


def test_ssd_gives_the_paper_of_ssds_8732_boxes() -> None:
    torch.manual_seed(0)
    model = SSD300(classes=3).eval()
    images = torch.randn(1, 3, 300, 300)
    with torch.no_grad():
        places, scores = model(images)
        assert all(map(torch.equal, linearise(model)(images), (places, scores)))
    assert places.shape == (1, 4, 8732) and scores.shape == (1, 3, 8732)
    sizes = (38, 19, 10, 5, 3, 1)
    assert sum(n * size**2 for n, size in zip(ANCHORS, sizes, strict=True)) == 8732


def test_mask_rcnn_has_torchvisions_weights_and_a_layer_for_each_part() -> None:
    torch.manual_seed(0)
    model = MaskRCNN(classes=3, masks=4).eval()
    theirs = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=3)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in theirs.parameters())
    images = torch.randn(1, 3, 64, 96)
    regions = torch.tensor([[[0.0, 4, 4, 30, 40], [0, 8, 8, 60, 60], [0, 0, 0, 20, 20], [0, 0, 0, 60, 90]] * 2])
    layers = linearise(model, whole=(RoIAlign,))
    with torch.no_grad():
        outputs = model(images, regions)
        assert all(map(torch.equal, layers((images, regions)), outputs))
    assert [tuple(t.shape) for t in outputs[-3:]] == [(8, 3), (8, 12), (4, 3, 28, 28)]
    assert len(outputs) == 5 + 5 + 3  # scores and offsets of five levels
    names = [name_of(layer) for layer in layers]
    assert names.count("proposals.cls_logits") == 5 and "boxes.fc6" in names and "mask.conv5_mask" in names
