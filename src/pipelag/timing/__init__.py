"""Layer profiles, balanced cuts, and the times and memory of schedules."""
