"""From a job to a supervised process: start, follow, stop, adopt, resume, recover, replay."""
