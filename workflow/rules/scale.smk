# docs/scale.md from the logs of at_scale: the tables that the digest writes into it, and its figures. It has no output that
# would be taken away first, so it looks whenever it is called.
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
