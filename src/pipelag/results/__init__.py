"""Turn logs into tables, figures and verdicts. Each paper has a subpackage, which is imported when it is needed."""
