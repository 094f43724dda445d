"""How every claim is made true and false, a file per paper."""
