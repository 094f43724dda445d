"""Theory: PipeMare's quadratic model and cost formulas, prediction rules studied alone, and methods at scale."""
