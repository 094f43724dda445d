"""From logs to tables, figures and verdicts: one subpackage per paper, loaded when asked for."""
