# Data sets: mirrors first (PIPELAG_MIRROR), then the network; the stamp says which release was found.
rule fetch:
    output:
        "results/data/{name}.txt",
    log:
        "results/data/{name}.log",
    wildcard_constraints:
        name="|".join(manifest.names()),
    conda:
        "../envs/pipelag.yaml"
    shell:
        "pipelag fetch {wildcards.name} --stamp {output} > {log} 2>&1 || {{ cat {log} >&2; exit 1; }}"
