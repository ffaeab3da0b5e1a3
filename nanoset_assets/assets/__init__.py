"""The assets, checks and jobs that the stages of a project have in Dagster."""
