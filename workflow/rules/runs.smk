# Runs: one job each, of any kind. The folder partial/ is not an output, so a killed run continues from its checkpoint.
# The device is a resource and not a param: a finished run is not repeated when a later call names another device; its
# log says where it ran.
if not trains_nothing:

    rule run:
        input:
            ancient(data_of),
        output:
            metrics=f"{runs_folder}/{{id}}/metrics.jsonl",
            summary=f"{runs_folder}/{{id}}/summary.json",
        params:
            spec=lambda wildcards: runs[wildcards.id].canonical(),
            folder=lambda wildcards, output: Path(output.summary).parent,
        log:
            f"results/{scale.name}/logs/{{id}}.log",
        threads: threads_of
        resources:
            gpu=gpus_of,
            gpu_share=gpu_share_of,
            device=config["device"],
        conda:
            "../envs/pipelag.yaml"
        shell:
            "pipelag run --spec {params.spec:q} --out {params.folder:q} --device {resources.device:q}"
            " --threads {threads} > {log:q} 2>&1 || {{ tail -n 20 {log:q} >&2; exit 1; }}"
