"""What a config says that its paper reports, against the papers' numbers, written down here a second time.

A digit that slips in a config is drawn beside ours and judged by: nothing else in the project would contradict it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from pipelag.experiments import load_paper
from pipelag.results.pipeoptim.accuracy import ADAMW_GAINS, SGDM_GAINS
from pipelag.results.pipeoptim.targets import TARGETS

pytestmark = pytest.mark.usefixtures("in_project")
NUMBERS = re.compile(r"\d[\d.,+ -]*(?: \(likely\))?")  # a text that is nothing else
# By paper and result: a line per row, its name before the sign; a line without a name has the columns of what follows.
PRINTED = {
    "stale_weights": """
        [figure_2]
        active_accelerators_at_any_time = 1
        [figure_4]
        cycles = 7
        staleness_of_FS1_weights_cycles = 2
        [table_1]
        = layers s4 s6 s8 s10
        LeNet-5 = 5 1 1,2 1,2,3 1,2,3,4
        AlexNet = 8 1 1,2 1,2,3 .
        VGG-16 = 16 2 2,4 2,4,7 2,4,7,10
        ResNet-20 = 20 7 7,13 7,13,19 .
        [figure_5a]
        x_ticks = 5000,10000,15000,20000,25000,30000
        [figure_5b]
        x_ticks = 50000,100000,150000,200000,250000
        [figure_5c]
        x_ticks = 50000,100000,150000,200000,250000
        [figure_7]
        x_ticks = 20000,40000,60000,80000,100000
        [table_2]
        = non_pipelined s4 s6 s8 s10
        LeNet-5 = 99.00 98.64 98.62 98.61 98.47
        AlexNet = 82.51 78.47 78.32 78.47 .
        VGG-16 = 91.36 90.53 88.96 83.73 79.85
        ResNet-20 = 91.50 90.05 88.00 83.01 .
        [table_3]
        = stages accuracy
        non-pipelined = . 91.50
        1 = 8 90.28
        2 = 10 88.37
        3 = 12 88.73
        4 = 14 87.94
        5 = 16 87.30
        6 = 18 86.23
        7 = 20 79.09
        [table_4]
        = accuracy
        Baseline 30k = 91.50
        Pipelined 30k = 88.29
        20k+10k hybrid = 90.71
        20k+20k hybrid = 91.72
        [table_5]
        = ppv acc_non_pipelined acc_pipelined acc_hybrid time_non_pipelined time_pipelined time_hybrid
        ResNet-20 = 7 91.65 91.21 91.37 2421 1974 2205
        ResNet-56 = 19 92.63 92.89 92.75 6745 4090 5429
        ResNet-110 = 37 93.59 92.88 93.55 13150 7570 10452
        ResNet-224 = 75 92.77 91.39 93.33 27231 14998 21245
        ResNet-362 = 121 93.46 90.53 93.98 44814 24640 34814
        = speedup_pipelined speedup_hybrid
        ResNet-20 = 1.23 1.10
        ResNet-56 = 1.65 1.24
        ResNet-110 = 1.73 1.26
        ResNet-224 = 1.81 1.28
        ResNet-362 = 1.82 1.29
        [table_6]
        = ppv activations_mb_per_sample weight_mb increase_mb_per_sample increase_percent
        ResNet-20 = 7 3.84 1.03 2.58 67
        ResNet-56 = 19 10.87 3.25 6.32 58
        ResNet-110 = 37 21.43 6.59 12.35 57
        ResNet-224 = 75 43.70 13.64 25.07 57
        ResNet-362 = 121 70.67 22.17 40.50 57
        [table_7]
        = bks2_lr baseline_lr printed_as
        ResNet-20 = 0.1 0.1 071
        ResNet-56 = 0.01 0.1 0701
        ResNet-110 = 0.001 0.1 0.001
        ResNet-224 0:001 = 0.001 0.1 .
        ResNet-362 = 0.001 0.1 0.001
        [text_headline_accuracy_drop]
        = LeNet-5 AlexNet VGG-16 ResNet-20
        = 0.4 4 0.83 1.45
        [text_headline_speedup]
        = speedup_abstract speedup_conclusion utilisation_per_gpu_percent
        = 1.8 1.82 90
        [text_hybrid_average_gain]
        average_gain_points = 0.19
        [text_hybrid_speedup_bound]
        limit_half_half_2gpu = 1.33
        [text_memory_vs_pipedream]
        = batch saving_percent
        CIFAR-10 = 128 49
        ImageNet = 32 29
        [text_vs_gpipe_speedup]
        = ours_resnet110_2gpu gpipe_resnet101_2tpu
        = 1.7 1.3
        [text_early_layers_runtime]
        share_percent_more_than = 50
    """,
    "pipedream": """
        [figure_1]
        max_overhead_percent_32_gpus = 90
        [figure_2]
        = workers backward_over_forward
        = 4 2
        [figure_3]
        m = 4
        [figure_4]
        NOAM = 4
        stage1_minibatch5 / forward_after_update_of = 1
        stage1_minibatch5 / backward_without_stashing_after_updates_of = 2,3,4
        minibatch_5_versions = 1,2,3,4
        [figure_7]
        = m_1 m_2
        = 4 2
        [figure_8]
        derived_NOAM = 2
        [table_1]
        = config epoch tta target
        VGG-16 4x4 (A) = 15-1 5.28 5.28 68
        VGG-16 2x8 (B) = 15-1 2.98 2.46 68
        ResNet-50 4x4 (A) = 16 1 1 75.9
        ResNet-50 2x8 (B) = 16 1 1 75.9
        AlexNet 4x4 (A) = 15-1 4.92 . .
        AlexNet 2x8 (B) = 15-1 2.04 . .
        GNMT-16 1x4 (A) straight = . 1.46 2.2 21.8
        GNMT-16 4x4 (A) straight = . 2.34 2.92 21.8
        GNMT-16 2x8 (B) straight = . 3.14 3.14 21.8
        GNMT-8 1x4 (A) straight = . 1.5 1.5 21.8
        GNMT-8 3x4 (A) straight = . 2.95 2.95 21.8
        GNMT-8 2x8 (B) = 16 1 1 21.8
        AWD-LM 1x4 (A) straight = . 4.25 4.25 98
        S2VT 4x1 (C) = 2-1-1 3.01 3.01 0.294
        [table_2]
        = inter_gbps
        A Azure NC24 v3 4x V100 PCIe = 10
        B AWS p3.16xlarge 8x V100 NVLink = 25
        C private 1x Titan X none = 40
        [table_3]
        = v100s ratio
        GNMT-8 = 256 1.94
        SSD = 64 3.29
        Mask R-CNN = 64 2.32
        [figure_10]
        = target_percent tta_speedup_A tta_speedup_B
        = 68 5.28 2.46
        [figure_11]
        = VGG-16 GNMT-16
        = 68 21.8
        [figure_13]
        = target_percent fastest failing pipedream_speedup_over_fastest
        = 68 1024 4096,8192 2.4
        [figure_14a]
        = pipelining_alone_min_x VGG-16 AlexNet
        = 2 14.9 6.5
        [figure_14b]
        max_gain_percent = 80
        [figure_18a]
        = best_depths NOAM
        = 4,7 4
        [figure_18b]
        gpu_memory_gb = 16
        [text_headline_tta]
        = image_classification translation language_modeling video_captioning
        = 5.3 3.1 4.3 3
        [text_headline_other]
        = over_model_parallelism over_hybrid over_gpipe
        = 2.6,15 1.9 1.7
        [text_gpipe_comparison]
        = Cluster-A Cluster-B
        NOAM = 55 71
        most that fit = 35 42
        [text_communication_reduction]
        = AWD-LM S2VT
        = 88 85
        [text_asp]
        = ratio accuracy_percent
        = 7.4 48
        [text_optimizer_time]
        seconds_max = 8
        [text_flexflow]
        speedup = 1.9
        [text_weight_size_lm]
        = parameters_gb lstm_layers
        = 0.41 6
    """,
    "pipemare": """
        [figure_3]
        target_bleu_for_amortised_utilisation = 33.9
        [figure_4]
        stages = 107,1712
        [figure_5a]
        = lambda alpha diverging_tau
        = 1 0.2 10
        [figure_5b]
        = iterations dimensions
        = 1000000 12
        [figure_6a]
        Delta = 0,3,5
        [figure_6b]
        = D Delta
        = 0.1 5
        [table_2]
        = quality util memory megabytes
        CIFAR10 PipeDream = 94.8 100 2.70 .
        CIFAR10 GPipe = 95.0 7 1 270
        CIFAR10 PipeMare = 95.0 100 1.33 .
        ImageNet PipeDream = 74.7 100 1.61 .
        ImageNet GPipe = 76.0 13 1 293
        ImageNet PipeMare = 75.5 100 1.33 .
        ImageNet PipeMareW = 75.9 33 1.33 .
        IWSLT14 PipeDream = 0.0 100 2.06 .
        IWSLT14 GPipe = 34.5 17 1 650
        IWSLT14 PipeMare = 34.1 100 1.25 .
        IWSLT14 PipeMareW = 34.5 42 1.25 .
        WMT17 PipeDream = 0.0 100 2.39 .
        WMT17 GPipe = 27.5 56 1 1010
        WMT17 PipeMare = 27.0 100 1.25 .
        WMT17 PipeMareW = 27.8 96 1.25 .
        [table_3]
        = quality util memory
        CIFAR10 T1 = 95.0 100 1
        CIFAR10 T2 = 94.5 100 1.33
        CIFAR10 T1+T2 = 95.0 100 1.33
        IWSLT14 T1 = 34.1 100 1
        IWSLT14 T2 = 0.0 100 1.25
        IWSLT14 T1+T2 = 34.1 100 1.25
        IWSLT14 T1+T2+W = 34.5 42 1.25
        [figure_8]
        stages = 214,186
        [table_4]
        = without with
        GPipe N = 1 0.5
        PipeMare P = 2 1.5
        [table_5]
        = stages with
        CIFAR10 = 107 0.097
        ImageNet = 107 0.097
        IWSLT14 = 93 0.104
        WMT17 = 91 0.105
        [table_6]
        = lr drop_epochs drop_factor momentum epochs weight_decay batch microbatch
        CIFAR10 images sgd = 0.01 80 0.1 0.9 200 0.0005 64 8
        ImageNet ImageNet sgd = 0.1 30 0.1 0.9 100 0.0001 256 16
        [table_7]
        = lr label_smoothing dropout weight_decay warmup betas epochs words microbatch_tokens microbatches
        IWSLT14 translation adamw = 0.0005 0.1 0.3 0.0001 8000 0.9,0.98 60 3600 245 19
        WMT17 WMT17 adamw = 0.0007 0.1 0.1 0 8000 0.9,0.98 80 29000 1792 25
        [table_8]
        = grid optimum
        CIFAR10 annealing epochs (T1) K images = 10,20,40,80,160 20
        CIFAR10 decay D (T1+T2) D images = 0.1,0.5,0.9 0.5
        CIFAR10 annealing epochs again (T1+T2) K with T2 images = 10,20,40 20
        IWSLT14 annealing epochs (T1) K translation = 15,30,60 30
        IWSLT14 decay D (T1+T2) D translation = 0.01,0.1,0.2 0.1
        IWSLT14 annealing epochs again (T1+T2) unknown K with T2 translation = 15,20,30 .
        IWSLT14 warm-up epochs (T1+T2+W) W translation = 3,5,10 10
        IWSLT14 annealing epochs again (T1+T2+W) K after W translation = 1,10,20 10
        [table_9]
        = warmup_epochs D annealing_epochs
        ImageNet ImageNet = 30 0.5 10
        WMT17 WMT17 = 4 0.1 4
        [figure_10]
        = tau_fwd tau_bkwd Delta_range
        = 40 10 -100,100
        [figure_11]
        pipedream_wmt_bleu = 0.0
        [figure_12]
        = stages D
        = 150 0.5
        [figure_14]
        D = 0.5
        [figure_15]
        warmup_grid = 3,5,10
        [figure_16]
        = Delta Phi tau_fwd tau_bkwd tau_recomp lambda D
        = 10 -5 10 1 4 1 0.1
        [figure_17]
        checkpoints = 2,4,17
        [figure_18]
        = checkpoints T1_2_checkpoints
        = 2,12,31 10.0
        [figure_19]
        = CIFAR10 IWSLT14
        hogwild = 94.51 3.6
        hogwild_T1 = 94.80 33.8
        [text_headline]
        = memory utilisation
        = 2.7 14.3
        [text_quality_bound]
        max_top1_difference = 0.1
        [text_decay]
        D = 0.135
        [text_t2_memory]
        SGD with momentum = 33
        Adam = 25
        [text_recompute_compute_share]
        share_percent = 25
    """,
    "pipeoptim": """
        [figure_1b]
        microbatches_of_minibatch_5 = 17,18,19,20
        [figure_1d]
        = forward_weights_minibatch_5 GPU0_weights_at_backward_without_stashing
        = 2,3,4,5 5
        [figure_2]
        = predicted backward_weights
        = 2+3,3+2,4+1,5+0 5
        [table_2]
        = versions
        PipeDream = 4,3,2,1
        PipeDream-2BW = 2,2,2,2
        SpecTrain = 2,2,2,2
        XPipe = 2,2,2,2
        PipeOptim = 2,2,2,1
        [text_two_versions]
        versions = 2,2,2,1
        [table_3]
        = group
        SGDM Tiny-ImageNet = 1
        AdamW CIFAR-100 = 2
        AdamW IMDb = 2
        Adam IMDb = 3
        Adam WMT16 En-De = 3
        [table_4]
        = GPipe PipeDream PipeDream-2BW SpecTrain XPipe PipeOptim
        SGDM AlexNet = 51.93 43.99 45.00 50.14 39.24 49.23
        SGDM ResNet-101 = 67.64 67.72 67.47 67.81 67.22 67.84
        SGDM Inception-V3 = 56.56 56.88 56.98 57.13 56.32 57.37
        AdamW Residual LSTM = 85.65 84.82 85.13 . 86.20 86.38
        AdamW VGG-16 = 67.05 66.61 66.66 . 67.22 67.91
        AdamW GoogLeNet = 73.91 74.58 74.64 . 75.09 74.73
        Adam Residual LSTM = 85.64 85.52 85.48 . 86.57 85.52
        Adam GNMT-8 = 21.22 21.04 21.03 . 21.06 21.29
        Adam GNMT-16 = 21.32 21.44 21.42 . 21.55 21.65
        [table_5]
        = GPipe PipeDream PipeDream-2BW SpecTrain XPipe PipeOptim
        AlexNet = 1250 1240 1260 1260 1250 1260
        ResNet-101 = 86 86 86 90 86 86
        Inception-V3 = 84 84 84 84 84 84
        VGG-16 = 2105 2120 2120 . 2800 2800
        GoogLeNet = 230 290 300 . 310 295
        Residual LSTM = 3500 3820 3820 . 3820 3820
        GNMT-8 = 130 136 140 . 142 142
        GNMT-16 = 124 116 120 . 120 120
        [figure_5b]
        = PipeOptim GPipe PipeDream PipeDream-2BW XPipe
        = 21.29 21.22 21.04 21.03 21.06
        [figure_5c]
        = PipeOptim over_PipeDream over_PipeDream-2BW
        = 21.65 0.21 0.23
        [figure_7a]
        gain = 1.3
        [figure_9a]
        target = 66.0
        [figure_9c]
        target = 66.0
        [figure_10a]
        target = 55.5
        [figure_10c]
        target = 55.5
        [table_6]
        = top1 top5 epoch_s total_h
        ResNet-101 GPipe = 66.12 86.17 1554.07 26.00
        ResNet-101 PipeDream = 66.62 86.39 918.15 13.47
        ResNet-101 PipeDream-2BW = 66.58 86.27 911.35 15.14
        ResNet-101 SpecTrain = 66.19 86.33 914.78 16.77
        ResNet-101 XPipe = 66.53 86.07 920.21 16.34
        ResNet-101 PipeOptim = 66.69 86.57 915.48 12.91
        Inception-V3 GPipe = 56.89 79.86 1106.46 13.12
        Inception-V3 PipeDream = 55.74 78.91 656.29 8.57
        Inception-V3 PipeDream-2BW = 55.55 78.56 664.21 11.25
        Inception-V3 SpecTrain = 55.57 78.63 671.02 8.57
        Inception-V3 XPipe = 56.21 79.37 679.84 8.25
        Inception-V3 PipeOptim = 55.91 79.48 667.16 7.76
        [text_headline_speedup]
        = GPipe PipeDream PipeDream-2BW SpecTrain XPipe
        = 2.01 1.04 1.17 1.30 1.27
        [text_throughput]
        = over_GPipe_AdamW_percent below_PipeDream_percent below_2BW_percent
        = 51.27,91.7 4.0,16.5 2.6,14.1
        [text_weight_prediction_gain]
        = average VGG-16
        = 0.67 1.3
        [text_overall_accuracy]
        = PipeDream PipeDream-2BW SpecTrain
        = 0.12,0.17 0.27,0.36 0.42,0.50
    """,
    "spectrain": """
        [algorithm_1]
        lines = 31
        [figure_3]
        = ratio_avg_x ratio_max_x
        = 13.4 528
        [figure_4]
        = avg_percent max_percent
        = 26.7 76.6
        [figure_5]
        moving_average = 20
        [figure_7]
        backward_over_forward_max = 3.3
        [figure_8a]
        weights = 5
        [figure_8b]
        weights = 5,6,7,8,9
        [figure_8c]
        weights = 5
        [figure_8d]
        = weights s_first_forward
        = 9 4
        [figure_9]
        = s3_mean_ratio_percent spikes_over_average_x
        = 1.5 1000
        [figure_10]
        = over_data_percent over_pipedream_percent
        CNN_4gpu = 21.3 51.7
        FCN_RNN_4gpu = 481.7 84.9
        FCN_RNN_4gpu / data_parallel_vs_single_percent = 38.5
        = over_data_avg_x over_data_max_x over_pipedream_avg_x over_pipedream_max_x
        all_4gpu = 2.64 15.77 1.68 2.18
        [figure_11]
        p2p_related_percent / Data P. = 26.7
        p2p_related_percent / PipeDream = 1.9
        p2p_related_percent / DualPipe = 2.2
        p2p_related_percent / Data P. FCN/RNN = 49.8
        imbalance_idle_percent / PipeDream = 38.6
        imbalance_idle_percent / DualPipe = 11.5
        data_compute_longer_percent = 61.1
        [figure_12]
        moving_average = 20
        [table_1]
        VGG16 / Data P. = 0.213271,0.794613,73.4776
        VGG16 / Vanilla DualPipe = 0.214966,0.803681,73.2372
        VGG16 / PipeDream = 0.227065,0.793818,73.6378
        VGG16 / SpecTrain = 0.206186,0.781834,74.0385
        ResNet-152 / Data P. = 0.338845,0.892366,71.2139
        ResNet-152 / Vanilla DualPipe = 0.244673,1.00191,68.2592
        ResNet-152 / PipeDream = 0.605778,0.946143,68.0389
        ResNet-152 / SpecTrain = 0.217628,0.940498,70.2624
        Inception v4 / Data P. = 0.804475,0.913155,69.1607
        Inception v4 / Vanilla DualPipe = 0.943719,1.02761,64.5232
        Inception v4 / PipeDream = 0.959192,1.01174,65.5148
        Inception v4 / SpecTrain = 0.708864,0.88991,70.2324
        SNN / Data P. = 0.431832,1.45124,50.9115
        SNN / Vanilla DualPipe = 0.942432,1.40681,50.8814
        SNN / PipeDream = 0.741524,1.45856,50.5108
        SNN / SpecTrain = 0.843435,1.34524,53.1550
        Transformer / Data P. = 0.649287,0.660871,60.3265
        Transformer / Vanilla DualPipe = 0.666826,0.673948,58.8742
        Transformer / PipeDream = 0.663015,0.670772,59.1647
        Transformer / SpecTrain = 0.654373,0.666289,60.3666
        Residual LSTM / Data P. = 0.347742,0.658583,66.0557
        Residual LSTM / Vanilla DualPipe = 0.521462,0.65453,63.0008
        Residual LSTM / PipeDream = 0.472673,0.662415,63.8421
        Residual LSTM / SpecTrain = 0.477616,0.657211,63.8321
        [figure_13]
        = vs_data_percent vs_pipedream_percent
        CNN = 76.9 49.1
        FCN_RNN = 14.9 36.1
        all = 33.8 42.1
        = speedup_vs_data speedup_vs_pipedream
        all = 2.96 2.38
        [text_headline_throughput]
        = data_avg data_max pipedream_avg pipedream_max
        = 2.64 15.77 1.68 2.18
        [text_headline_accuracy]
        = PipeDream_drop Vanilla_drop
        = 1.7 2.1
        [text_headline_time]
        = vs_data_percent vs_pipedream_percent
        = 33.8 42.1
        [text_prediction_rmse]
        ratio_percent = 1.5
    """,
}
# What claims and captions say besides: differences of the printed numbers, numbers of the text and of its rounding.
ALSO = {
    # drops by table 2; table 3's rise and last step; bounds and sums of sections 6.2 to 6.7
    "stale_weights": "0.53 0.5 2.4 3.5 8.5 0.36 7.14 0.8 0.2 0.3 0.18 0.176 0.51 0.71 57.1 60 91",
    "pipedream": "0.42",  # the largest slowdown that 1.7x is read from
    # ratios of table 2's percents; what the text calls about 0.3 points and noticeable; (8 + 106) / 8
    "pipemare": "2.5 1.7 0.3 0.4 14.25",
    # differences of tables IV and VI and their means (section V-B); ratios of table VI's hours and of its epochs
    "pipeoptim": "0.07 0.25 0.26 7.9 6.9 12.7 2.7 1.95 5.24 1.66 4.23 0.8 0.86 1 1.56 1.25 1.69 1.1 1.45 1.06 0.235 "
    "51 92 0 4 1.7",
    "spectrain": "0.95 2.22",  # differences of table 1
}


def number(text: str) -> str:
    """A number, or several, as all are written here: 45.0 as 45; what is none, such as 15-1, as it is."""
    parts = []
    for part in text.removesuffix(" (likely)").replace(", ", ",").split(","):
        try:
            parts.append(f"{float(part):.10g}")
        except ValueError:
            parts.append(part)
    return ",".join(parts)


def transcribed(paper: str) -> dict[str, dict[str, str]]:
    """The printed numbers by result, by row and column."""
    results: dict[str, dict[str, str]] = {}
    numbers: dict[str, str] = {}
    columns: list[str] = []
    for line in map(str.strip, PRINTED[paper].strip().splitlines()):
        if line.startswith("["):
            numbers, columns = results.setdefault(line.strip("[]"), {}), []
            continue
        name, _, text = line.rpartition("= ")
        name, values = name.strip(), text.split()
        if not name and not values[0][0].isdigit():
            columns = values
        elif columns and " / " not in name:
            pairs = zip(columns, values, strict=True)
            numbers |= {" / ".join(filter(None, (name, column))): number(v) for column, v in pairs if v != "."}
        else:
            numbers[name] = number(text)
    return results


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """The numbers in what a config reports, by what they stand under; a row of a table by its words."""
    scalars = isinstance(value, list) and not any(isinstance(each, dict | list) for each in value)
    text = ", ".join(map(str, value)) if scalars else str(value)
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, str(key)))
    elif isinstance(value, list) and not scalars:
        for at, row in enumerate(value):
            words = [word for word in row.values() if isinstance(word, str) and not NUMBERS.fullmatch(word)]
            yield from leaves(row, (*path, " ".join(words) or str(at)))
    elif value is not None and (NUMBERS.fullmatch(text.lstrip("-")) or isinstance(value, int | float)):
        yield " / ".join(path), number(text)


@pytest.mark.parametrize("paper", PRINTED)
def test_what_a_config_reports_is_printed_in_its_paper(paper: str) -> None:
    reported = {name: dict(leaves(result.reported)) for name, result in load_paper(paper).results.items()}
    assert {name: numbers for name, numbers in reported.items() if numbers} == transcribed(paper)


@pytest.mark.parametrize("paper", PRINTED)
def test_claims_name_the_papers_numbers(paper: str) -> None:
    """Those with a point, and percents; of claims that are the paper's and not ours."""
    known = {part for each in transcribed(paper).values() for text in each.values() for part in text.split(",")}
    known |= set(ALSO[paper].split())
    unknown = []
    for name, result in load_paper(paper).results.items():
        for claim in result.claims:
            text = re.sub(r"sections? [\d.]+", "", claim.text)
            found = re.findall(r"\d+\.\d+|\d+(?= ?%)", text)
            unknown += [(name, claim.id, each) for each in found if not claim.ours and number(each) not in known]
    assert not unknown


def test_what_the_text_says_of_pipeoptims_gains_follows_from_table_4() -> None:
    """Section V-B's means and maxima, which the code has, are those of the printed rows."""
    rows = load_paper("pipeoptim").results["table_4"].reported
    for optimizer, printed in (("SGDM", SGDM_GAINS), ("AdamW", ADAMW_GAINS)):
        for other, (mean, most) in printed.items():
            gains = [row["PipeOptim"] - row[other] for row in rows if row["optimizer"] == optimizer]
            assert sum(gains) / len(gains) == pytest.approx(mean, abs=0.0051), other
            assert max(gains) == pytest.approx(most, abs=1e-6), other
    results = load_paper("pipeoptim").results
    figures = {"ResNet-101": "figure_9a", "Inception-V3": "figure_10a"}
    assert {model: results[figure].reported["target"] for model, figure in figures.items()} == TARGETS
