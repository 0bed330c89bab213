#!/usr/bin/env bash
# Ends what start.sh began, jobs first: stop.sh FOLDER. A daemon that goes before its jobs would leave them behind.
folder=${1:?name a folder}
export SLURM_CONF=$folder/slurm.conf
timeout 10 scancel --user="$(id -un)" || true
for _ in $(seq 80); do
    [ -z "$(timeout 5 squeue -h 2>/dev/null)" ] && break
    sleep 0.25
done
for process in $(tac "$folder/pids"); do
    kill "$process" 2>/dev/null || continue
    for _ in $(seq 50); do kill -0 "$process" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$process" 2>/dev/null || true
done
