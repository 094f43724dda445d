import subprocess

# What is different when the jobs are not this machine's: with profiles/slurm, each is a job of the cluster.
PLACEHOLDERS = {"slurm_account": "your_account", "slurm_partition": "your_partition"}
ASK = {
    "slurm_account": "`sacctmgr show associations user=$USER` lists yours, and without the line SLURM takes your default",
    "slurm_partition": "`sinfo -s` lists them, and without the line SLURM takes the default one",
}


def begin():
    """Start the warm process. On a cluster look at the profile instead, as there each job starts by itself.

    A job that ran on the machine where snakemake was typed would otherwise find the warm process there. It would then
    compute outside of its own limits, on cores and GPUs that it has not been given, and end with snakemake.
    """
    if workflow.local_exec:
        warm.start(f"results/{scale.name}/logs/warm.log")
    else:
        check_profile(dict(workflow.resource_settings.default_resources or {}))
        check_queue()


def check_profile(resources):
    """Refuse the words that profiles/slurm/config.yaml has in place of an account and a partition."""
    for name, placeholder in PLACEHOLDERS.items():
        if getattr(resources.get(name), "raw", None) == placeholder:
            refuse(f"{name} is still '{placeholder}' in profiles/slurm/config.yaml; put yours there ({ASK[name]})")


def check_queue():
    """Refuse to start while jobs of an earlier call, which was killed, go on: they would meet theirs in one folder."""
    squeue = shutil.which("squeue")
    if squeue is None:
        return
    words = [squeue, "--noheader", "--user", getpass.getuser(), "--format=%i|%j|%Z"]
    queued = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    lines = [line.split("|", 2) for line in queued.splitlines() if line.count("|") >= 2]
    left = [job for job, name, folder in lines if name.startswith("pipelag_") and Path(folder) == Path.cwd()]
    if left:
        refuse(
            f"jobs of an earlier call are still in SLURM's queue; wait until they have ended, or end them (they will go "
            f"on from their checkpoints): scancel {' '.join(left)}"
        )
