"""What methods would cost on thousands of GPUs; importing this package registers its tables and figures."""

from pipelag.results.at_scale import cost  # noqa: F401
