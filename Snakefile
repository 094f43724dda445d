# pipelag: from configs to runs, logs, tables and figures.
#
#   snakemake --cores all                                    all results at the quick scale
#   snakemake --cores all stale_weights                      one paper
#   snakemake --cores all stale_weights_table_2              one result
#   snakemake --cores all --config scale=standard            another scale (config/scales)
from snakemake.utils import min_version

min_version("9.5")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


report: "workflow/report/workflow.rst"


localrules:
    all,


warm = WarmProcess()


onstart:
    warm.start(f"results/{scale.name}/logs/warm.log")


onsuccess:
    warm.stop()


onerror:
    warm.stop()


rule all:
    default_target: True
    input:
        f"{scale.figures}/index.html",
        reports,
        sorted({log for paper, result in plan if asked_for(paper, result) for log in log_files(paper, result)}),


include: "workflow/rules/data.smk"
include: "workflow/rules/runs.smk"
include: "workflow/rules/results.smk"
include: "workflow/rules/scale.smk"
