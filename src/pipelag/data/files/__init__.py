"""The files of data sets: manifests, mirrors, downloads, archives, and caches of decoded data."""
