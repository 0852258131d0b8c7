#!/usr/bin/env bash
# A Slurm cluster of one node, on this machine, for tests: no systemd, no accounts, loopback only.
# Needs root and Debian's packages slurmctld, slurmd, slurm-client and munge.
#   slurm_node.sh start DIR PORT    uses the ports PORT and PORT+1; then SLURM_CONF=DIR/slurm.conf
#   slurm_node.sh stop DIR
set -euo pipefail

start() {
    local dir=$1 port=$2 host
    host=$(hostname)
    mkdir -p "$dir/state" "$dir/spool"
    cat >"$dir/slurm.conf" <<CONF
ClusterName=loopworth
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
MaxArraySize=4
KillWait=30
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=1000 State=UNKNOWN
PartitionName=tests Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    if ! pidof munged >/dev/null; then # it signs the messages between the parts
        install -d -o munge -g munge /run/munge
        su -s /bin/sh munge -c /usr/sbin/munged
        cp /run/munge/munged.pid "$dir/munged.pid"
    fi
    slurmctld -f "$dir/slurm.conf"
    slurmd -f "$dir/slurm.conf"
    for _ in $(seq 100); do
        if SLURM_CONF=$dir/slurm.conf sinfo --noheader --format=%T 2>/dev/null | grep -q idle; then
            return
        fi
        sleep 0.2
    done
    tail -n 20 "$dir"/*.log >&2
    return 1
}

stop() {
    local dir=$1 name pid
    for name in slurmd slurmctld munged; do
        pid=$(cat "$dir/$name.pid" 2>/dev/null) || continue
        kill "$pid" 2>/dev/null || continue
        while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    done
}

"$@"
