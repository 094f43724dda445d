"""What `pipelag.train` is made of: a user's data and optimizer, what is measured and told meanwhile, real workers."""
