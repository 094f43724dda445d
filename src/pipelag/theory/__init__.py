"""PipeMare's theory: the quadratic model under delay, and the memory and utilisation formulas."""
