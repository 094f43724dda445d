"""The parts with weights of SSD300 and Mask R-CNN as MLPerf v0.5 trains them, for PipeDream's Table 3.

Parts without weights or a fixed size are left out: making anchors and choosing among them (matching, suppression,
sampling), the losses, and the decoding of boxes. Mask R-CNN takes the regions that it would choose as an input.
"""

from __future__ import annotations

import torch
from torch import nn

from pipelag.models.linearise import linearise

ANCHORS = (4, 6, 6, 6, 4, 4)  # per position, on maps of side 38, 19, 10, 5, 3 and 1: 8732 in all
WIDTHS = (256, 512, 512, 256, 256, 256)


class SSD300(nn.Module):
    """The single-shot detector on a ResNet-34 whose third group has no stride, for images of 300 x 300 pixels."""

    def __init__(self, classes: int = 81) -> None:
        super().__init__()
        from torchvision.models import resnet34  # here, because the import takes seconds

        resnet = resnet34(weights=None)
        for convolution in (resnet.layer3[0].conv1, resnet.layer3[0].downsample[0]):
            convolution.stride = (1, 1)
        stem = (resnet.conv1, resnet.bn1, resnet.relu, resnet.maxpool)
        self.backbone = nn.Sequential(*stem, resnet.layer1, resnet.layer2, resnet.layer3)
        self.further = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(into, middle, 1),
                nn.ReLU(inplace=True),
                nn.Conv2d(middle, out, 3, stride, int(stride == 2)),
                nn.ReLU(inplace=True),
            )
            for into, middle, out, stride in zip(
                WIDTHS[:-1], (256, 256, 128, 128, 128), WIDTHS[1:], (2, 2, 2, 1, 1), strict=True
            )
        )
        self.places = nn.ModuleList(nn.Conv2d(w, 4 * n, 3, padding=1) for w, n in zip(WIDTHS, ANCHORS, strict=True))
        self.scores = nn.ModuleList(
            nn.Conv2d(w, classes * n, 3, padding=1) for w, n in zip(WIDTHS, ANCHORS, strict=True)
        )
        self.classes = classes

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, 3, 300, 300) -> (N, 4, 8732) offsets and (N, classes, 8732) scores."""
        x = self.backbone(images)
        places, scores = [], []
        for number, (place, score) in enumerate(zip(self.places, self.scores, strict=True)):
            x = x if number == 0 else self.further[number - 1](x)
            places.append(place(x).unflatten(1, (4, -1)).flatten(2))
            scores.append(score(x).unflatten(1, (self.classes, -1)).flatten(2))
        return torch.cat(places, 2), torch.cat(scores, 2)


class MaskRCNN(nn.Module):
    """torchvision's Mask R-CNN (ResNet-50, feature pyramid) on given regions, a quarter of them per pyramid level.

    masks: the number of an image's regions for which masks are predicted (those with an object, a quarter of 512).
    """

    def __init__(self, classes: int = 81, masks: int = 128) -> None:
        super().__init__()
        from torchvision.models.detection import maskrcnn_resnet50_fpn
        from torchvision.ops import RoIAlign

        model = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=classes)
        self.backbone, self.proposals, self.masks = model.backbone, model.rpn.head, masks
        heads = model.roi_heads
        self.boxes, self.box, self.outlines = heads.box_head, heads.box_predictor, heads.mask_head
        self.mask = heads.mask_predictor
        self.for_boxes = nn.ModuleList(RoIAlign(7, 1 / 2**level, 2) for level in range(2, 6))
        self.for_masks = nn.ModuleList(RoIAlign(14, 1 / 2**level, 2) for level in range(2, 6))

    def forward(self, images: torch.Tensor, regions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute all outputs from images (N, 3, H, W) and regions (N, R, 5): their image and corners in pixels.

        Returns:
            The proposals' scores and offsets for each level of the pyramid; the regions' scores (N R, classes) and
            offsets (N R, 4 classes); masks (N min(R, masks), classes, 28, 28).
        """
        levels = list(self.backbone(images).values())
        scores, offsets = self.proposals(levels)
        parts = [align(x, regions[:, i::4].flatten(0, 1)) for i, (align, x) in enumerate(zip(self.for_boxes, levels))]  # noqa: B905
        features = self.boxes(torch.cat(parts))
        score, offset = self.box.cls_score(features), self.box.bbox_pred(features)
        held = regions[:, : self.masks]
        parts = [align(x, held[:, i::4].flatten(0, 1)) for i, (align, x) in enumerate(zip(self.for_masks, levels))]  # noqa: B905
        return (*scores, *offsets, score, offset, self.mask(self.outlines(torch.cat(parts))))


def ssd300(classes: int = 81) -> nn.Sequential:
    """SSD300 (object detection) as a row of layers."""
    return linearise(SSD300(classes))


def mask_rcnn(classes: int = 81, masks: int = 128) -> nn.Sequential:
    """Mask R-CNN (object detection, masks) as a row of layers; its input is the tuple (images, regions)."""
    from torchvision.ops import RoIAlign

    return linearise(MaskRCNN(classes, masks), whole=(RoIAlign,))
