"""Small trainings, and the models they make."""
