# pipelag: from configs to runs, logs, tables and figures.
#
#   snakemake --cores all                                    all results at the quick scale
#   snakemake --cores all stale_weights                      one paper
#   snakemake --cores all stale_weights_table_2              one result
#   snakemake --cores all --config scale=standard            another scale (config/scales)
from snakemake.utils import min_version

min_version("9.14")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/cluster.smk"


report: "workflow/report/workflow.rst"


localrules:
    all,


warm = WarmProcess()


onstart:
    begin()


onsuccess:
    warm.stop()


onerror:
    warm.stop()


rule all:
    default_target: True
    input:
        pages,
        reports,
        drawings,  # by name, as a deleted one is not missed where all that is made from it is there
        sorted({log for paper, result in asked for log in log_files(paper, result)}),


include: "workflow/rules/data.smk"
include: "workflow/rules/runs.smk"
include: "workflow/rules/results.smk"
include: "workflow/rules/scale.smk"
