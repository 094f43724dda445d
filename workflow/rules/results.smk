# Results: one job draws a table or figure from its logs and judges its claims; the reports and the site gather them.
rule table:
    input:
        logs=lambda wildcards: log_files(wildcards.paper, wildcards.result),
    output:
        multiext(f"{scale.figures}/{{paper}}/{{result}}", ".csv", ".tex", ".json"),
        md=report(
            f"{scale.figures}/{{paper}}/{{result}}.md",
            caption="../report/result.rst",
            category="{paper}",
            labels={"result": "{result}"},
        ),
    params:
        config=lambda wildcards: digest_of(wildcards.paper, wildcards.result),
        scale=scale.name,
        published=config["published"],
    log:
        f"results/{scale.name}/logs/{{paper}}_{{result}}.log",
    wildcard_constraints:
        paper=tables,
    priority: 1  # draw as soon as the logs exist: the scheduler looks at every waiting job again after each job
    conda:
        "../envs/pipelag.yaml"
    shell:
        "pipelag result {wildcards.paper:q} {wildcards.result:q} --scale {params.scale:q}"
        " --published={params.published:q} > {log:q} 2>&1 || {{ tail -n 20 {log:q} >&2; exit 1; }}"


rule figure:
    input:
        logs=lambda wildcards: log_files(wildcards.paper, wildcards.result),
    output:
        multiext(f"{scale.figures}/{{paper}}/{{result}}", ".pdf", ".png", ".csv", ".json"),
        svg=report(
            f"{scale.figures}/{{paper}}/{{result}}.svg",
            caption="../report/result.rst",
            category="{paper}",
            labels={"result": "{result}"},
        ),
    params:
        config=lambda wildcards: digest_of(wildcards.paper, wildcards.result),
        scale=scale.name,
        published=config["published"],
    log:
        f"results/{scale.name}/logs/{{paper}}_{{result}}.log",
    wildcard_constraints:
        paper=figures,
    priority: 1
    conda:
        "../envs/pipelag.yaml"
    shell:
        "pipelag result {wildcards.paper:q} {wildcards.result:q} --scale {params.scale:q}"
        " --published={params.published:q} > {log:q} 2>&1 || {{ tail -n 20 {log:q} >&2; exit 1; }}"


# The site and the typeset reports are made from the records at the same time; the site links to the reports' paths.
rule reports:
    input:
        drawings,
    output:
        reports,
    params:
        scale=scale.name,
        published=config["published"],
        papers=shown,
        heads=head_digest(),
    log:
        f"results/{scale.name}/logs/reports.log",
    conda:
        "../envs/pipelag.yaml"
    shell:
        "pipelag report --pdf {params.papers:q} --scale {params.scale:q} --published={params.published:q}"
        " > {log:q} 2>&1 || {{ tail -n 20 {log:q} >&2; exit 1; }}"


rule page:
    input:
        drawings,
    output:
        pages,
    params:
        scale=scale.name,
        published=config["published"],
        papers=shown,
        heads=head_digest(),
    log:
        f"results/{scale.name}/logs/report.log",
    conda:
        "../envs/pipelag.yaml"
    shell:
        "pipelag report {params.papers:q} --scale {params.scale:q} --published={params.published:q} --typeset-beside"
        " > {log:q} 2>&1 || {{ tail -n 20 {log:q} >&2; exit 1; }}"


rule:
    name:
        "report"
    localrule: True
    input:
        reports,


# A target per paper and one per result: `stale_weights`, `stale_weights_table_2`. They ask for the logs too, so that a
# deleted log is made again even if the figure drawn from it still exists.
for paper_name in config["papers"]:

    rule:
        name:
            paper_name
        localrule: True
        input:
            [file for p, r in asked if p == paper_name for file in products(p, r) + log_files(p, r)],


for paper_name, result_name in plan:

    rule:
        name:
            f"{paper_name}_{result_name}"
        localrule: True
        input:
            products(paper_name, result_name) + log_files(paper_name, result_name),
