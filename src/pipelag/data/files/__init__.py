"""Files of data sets: manifests, mirrors, downloads, archives, and what is kept of them once decoded."""
