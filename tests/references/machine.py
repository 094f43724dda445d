"""A toy network of P stages in plain NumPy, float64, with hand-written passes.

Stage i < P:  y = tanh(x W^T + b).   Stage P:  logits = x W^T + b.   Loss: mean over the samples of softmax cross-entropy.
A stage's weights are a pair (W, b).  Lists over stages here are plain Python lists: entry 0 is stage 1.
"""

import numpy as np


def stage_forward(weights, x, last):
    W, b = weights
    z = x @ W.T + b
    return z if last else np.tanh(z)


def forward(weights_per_stage, x):
    """Keeps, per stage, the input it was given and the output it made WITH THESE weights."""
    inputs, outputs = [], []
    for n, weights in enumerate(weights_per_stage):
        inputs.append(x)
        x = stage_forward(weights, x, last=(n == len(weights_per_stage) - 1))
        outputs.append(x)
    return {"inputs": inputs, "outputs": outputs}


def recompute(activations, weights_per_stage, first, last):
    """Runs stages first..last (counted 1..P) forward again with OTHER weights, from the kept input of stage `first`.
    Returns new activations; the stages outside first..last are as they were."""
    inputs, outputs = list(activations["inputs"]), list(activations["outputs"])
    x = activations["inputs"][first - 1]
    for i in range(first, last + 1):
        inputs[i - 1] = x
        x = stage_forward(weights_per_stage[i - 1], x, last=(i == len(weights_per_stage)))
        outputs[i - 1] = x
    return {"inputs": inputs, "outputs": outputs}


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def loss(activations, target):
    logits = activations["outputs"][-1]
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-np.mean([log_p[n, target[n]] for n in range(len(target))]))


def backward(activations, weights_per_stage, target):
    """Gradients per stage, [(dW, db), ...].  `weights_per_stage` are the BACKWARD's weights, possibly others than the
    forward's: the error is carried down through them, while d loss / d logits uses the kept logits, tanh' the kept output
    and dW the kept input."""
    P = len(weights_per_stage)
    logits = activations["outputs"][-1]
    one_hot = np.zeros_like(logits)
    for n in range(len(target)):
        one_hot[n, target[n]] = 1.0
    error = (softmax(logits) - one_hot) / len(target)  # d loss / d logits
    gradients = [None] * P
    for n in reversed(range(P)):
        if n < P - 1:
            y = activations["outputs"][n]
            error = error * (1.0 - y * y)  # tanh' from the KEPT output
        x = activations["inputs"][n]
        gradients[n] = (error.T @ x, error.sum(axis=0))  # dW from the KEPT input
        W, _ = weights_per_stage[n]
        error = error @ W  # through the BACKWARD's weights
    return gradients
