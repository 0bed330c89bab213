#!/usr/bin/env bash
# A Slurm of this one machine, reachable from this machine only, without systemd and accounting: start.sh FOLDER.
# Leaves FOLDER/slurm.conf (export SLURM_CONF) and FOLDER/pids for stop.sh. As root; packages as test_slurm.py names them.
set -euo pipefail
folder=$(realpath -m "${1:?name a folder}")
mkdir -p "$folder"/{controller,daemon,log}
chmod 755 "$folder" "$folder"/*
: > "$folder/pids"
host=$(hostname -s)
memory=$(slurmd -C | sed -n 's/.*RealMemory=\([0-9]*\).*/\1/p')
touch "$folder/gpu0" "$folder/gpu1"
echo "Name=gpu File=$folder/gpu[0-1]" > "$folder/gres.conf"
cat > "$folder/slurm.conf" <<EOF
ClusterName=bench
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/controller
SlurmdSpoolDir=$folder/daemon
SlurmctldPidFile=$folder/controller.pid
SlurmdPidFile=$folder/daemon.pid
SlurmctldLogFile=$folder/log/controller.log
SlurmdLogFile=$folder/log/daemon.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,bf_interval=1
MpiDefault=none
ReturnToService=2
KillWait=5
MinJobAge=300
MailProg=/bin/true
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$((memory * 9 / 10)) Gres=gpu:2 State=UNKNOWN
PartitionName=bench Nodes=$host Default=YES MaxTime=INFINITE State=UP
EOF
export SLURM_CONF=$folder/slurm.conf

# begin NAME COMMAND...: start a daemon in a session of its own and note its id.
begin() {
    setsid "${@:2}" > "$folder/log/$1.out" 2>&1 < /dev/null &
    echo $! >> "$folder/pids"
}
# await COMMAND...: until it succeeds, ten seconds at most.
await() {
    for _ in $(seq 100); do "$@" > /dev/null 2>&1 && return; sleep 0.1; done
    echo "not up after ten seconds: $*" >&2
    tail -n 5 "$folder"/log/* >&2
    exit 1
}
controller_up() { scontrol ping | grep -q UP; }
node_up() { [ "$(sinfo -h -o %T)" = idle ]; }

mkdir -p /run/munge
chown munge:munge /run/munge
chmod 755 /run/munge
begin munge setpriv --reuid=munge --regid=munge --clear-groups /usr/sbin/munged -F --num-threads=2
await munge -n
begin controller slurmctld -D -i
await controller_up
begin daemon slurmd -D -N "$host"
await node_up
