#!/bin/sh
# The first process of a User-Mode Linux guest on the host's own files, which it cannot change (tests/netem/guest.py).
# $OUT is a directory of the host: what is in its file `command` is done, what that says goes to `said`, and how it ended
# to `status`.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/run HOME=/run
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/out /run/modules/lib
mount -t hostfs -o "$OUT" none /run/out
# The kernel loads what is asked for, by this program, from where Debian keeps this kernel's modules.
ln -s /usr/lib/uml/modules /run/modules/lib/modules
printf '#!/bin/sh\nexec modprobe -d /run/modules "$@"\n' >/run/modprobe
chmod +x /run/modprobe
echo /run/modprobe >/proc/sys/kernel/modprobe
ip link set lo up
sh /run/out/command >/run/out/said 2>&1
echo $? >/run/out/status
echo o >/proc/sysrq-trigger
sleep 10
