"""The planner on many days, start-up times and model errors. Entered by the command."""
