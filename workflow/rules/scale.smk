# docs/scale.md from the logs of at_scale: its figures, and the tables that `pipelag digest` writes into it. The rule
# names no output, as Snakemake would remove it first; so it runs whenever it is called.
if "at_scale" in config["papers"]:

    rule scale:
        input:
            [f for p, r in plan if p == "at_scale" for f in products(p, r) + log_files(p, r)],
        params:
            figures=lambda wildcards, input: [file for file in input if file.endswith(".svg")],
            scale=scale.name,
            published=config["published"],
        log:
            f"results/{scale.name}/logs/scale.log",
        conda:
            "../envs/pipelag.yaml"
        shell:
            "(for file in {params.figures:q}; do cp \"$file\" docs/images/at_scale_${{file##*figure_}}; done"
            " && pipelag digest docs/scale.md --scale {params.scale:q} --published={params.published:q})"
            " > {log:q} 2>&1 || {{ tail -n 20 {log:q} >&2; exit 1; }}"
