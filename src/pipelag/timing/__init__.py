"""Layer profiles and balanced cuts."""
