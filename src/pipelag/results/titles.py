"""Networks and data sets as papers print them: "ResNet-20" for `resnet20`, "CIFAR-100" for `cifar100`."""

from __future__ import annotations

import re
from functools import cache

from pipelag.data.files import manifest

# Networks whose title differs from their registered name. ResNets are handled below; all others keep their names.
NETWORKS = {
    "lenet5": "LeNet-5",
    "alexnet": "AlexNet",
    "vgg16": "VGG-16",
    "snn": "SNN",
    "alexnet_imagenet": "AlexNet (torchvision's)",
    "vgg16_imagenet": "VGG-16 (torchvision's)",
    "googlenet": "GoogLeNet",
    "inception_v3": "Inception-V3",
    "inception_v4": "Inception v4",
    "ssd300": "SSD",
    "mask_rcnn": "Mask R-CNN",
    "transformer": "Transformer",
    "fairseq_transformer": "Transformer (fairseq's)",
    "bert": "BERT",
    "gnmt": "GNMT",
    "awd_lm": "AWD-LM",
    "s2vt": "S2VT",
    "residual_lstm": "Residual LSTM",
    "sentiment_transformer": "Sentiment Transformer",
}
# Data sets without an official release that can be fetched. Generated data sets keep their registered names.
DATA_SETS = {"imagenet": "ImageNet", "digits": "UCI handwritten digits"}


def network(name: str) -> str:
    """A registered network's title."""
    return NETWORKS.get(name) or re.sub(r"^resnet(?=\d+$)", "ResNet-", name)


@cache
def data_set(name: str) -> str:
    """A registered data set's title; for translations, without their languages."""
    title = manifest.official(name).title if name in manifest.names() else name
    return DATA_SETS.get(name) or re.sub(r" [A-Z][a-z]+-[A-Z][a-z]+$", "", title)
