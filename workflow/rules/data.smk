# Data sets: from a mirror (PIPELAG_MIRROR) or else the network. The stamp says which release was found.
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
        "pipelag fetch {wildcards.name:q} --stamp {output:q} > {log:q} 2>&1 || {{ cat {log:q} >&2; exit 1; }}"
