"""Load a project as a code location of Dagster, also while its settings have a mistake."""
