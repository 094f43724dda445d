"""All that a stage is, for every executor: its weights, what its passes read, its versions, its optimizer, a phase."""
