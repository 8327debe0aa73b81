#!/usr/bin/env bash
# packages_life.sh PACKAGES STEPS MOUNTED: in a bare container of packages.sh, without a network and without systemd: a server's life
# by its packages, in the folders of PACKAGES: "before" ampctl was in a package of its own, "now", and "later", a higher version. What
# systemd would start is started here as the unit says. The job at the end of all of it goes to PACKAGES/exported.safetensors. MOUNTED
# is a file system inside the data of the instance "third".
# shellcheck disable=SC2015 # failed() does not return
set -euo pipefail
packages=$1 steps=$2 mounted=$3
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
# For each wait.
limit_s=120
units=/lib/systemd/system
model=digits

failed() {
	echo "failed: $*"
	tail -n 20 /tmp/ampd.log /tmp/worker-*.log 2>/dev/null
	exit 1
}

wait_for() { # command...
	local begun=$SECONDS
	until "$@"; do
		[ $((SECONDS - begun)) -lt "$limit_s" ] || failed "waited $limit_s s in vain for: $*"
		sleep 0.05
	done
}

installs() { # folder
	apt-get install -y -q --no-install-recommends "$packages/$1"/{ampd,ampd-tools,libampclient0}_*.deb >/tmp/apt.log 2>&1 ||
		{ cat /tmp/apt.log && failed "apt-get install of $1"; }
}

removes() { # remove or purge
	apt-get "$1" -y -q ampd ampd-tools libampclient0 >/tmp/apt.log 2>&1 || { cat /tmp/apt.log && failed "apt-get $1"; }
}

# Runs what a unit says, as its user: `server` is the process. systemd's quoting is not needed by ours.
starts() { # unit, instance
	local text directory
	text=$(sed "s/%i/${2-}/g" "$units/$1")
	value_of() { sed -n "s/^$1=//p" <<<"$text"; }
	directory=/var/lib/$(value_of StateDirectory)
	install -d -o "$(value_of User)" -g "$(value_of Group)" -m "$(value_of StateDirectoryMode)" "$directory"
	(
		umask "$(value_of UMask)"
		set -a
		export STATE_DIRECTORY=$directory
		eval "$(value_of Environment)"
		file=$(value_of EnvironmentFile)
		# shellcheck disable=SC1090 # lines NAME=VALUE
		[ -e "${file#-}" ] && . "${file#-}"
		exec setpriv --reuid "$(value_of User)" --regid "$(value_of Group)" --init-groups sh -c "exec $(value_of ExecStart)"
	) >>/tmp/ampd.log 2>&1 &
	server=$!
}

stops() {
	kill -TERM "$server"
	wait "$server" || failed "the server ended with $?"
}

column() { # of `ampctl models`
	ampctl -o csv models 2>/dev/null |
		awk -F , -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next } { print $at[name]; found = 1 } END { exit !found }'
}

applied() {
	column applied || echo 0
}

has_more_than() { # steps
	[ "$(applied)" -gt "$1" ]
}

goes_on() {
	wait_for has_more_than "$(($(applied) + 20))"
}

is_trained() {
	kill -0 "${workers[@]}" 2>/dev/null || failed "the job ended before its server was upgraded: it needs more steps than $steps"
}

serves_version() { # version
	[ "$(grep 'msg="listening"' /tmp/ampd.log | tail -n 1 | grep -o ' version=[^ ]*')" = " version=$1" ]
}

version_of() { # folder
	dpkg-deb -f "$packages/$1"/ampd_*.deb Version
}

# The file is the answer: exported once the checkpoint of the last step is there.
exports() { # file
	rm -f "$1"
	ampctl checkpoint export "$model" "$1" --step "$steps" >/dev/null 2>&1
}

# ---- installed, where the package before had ampctl in it ----

begun_ms=$(date +%s%3N)
apt-get install -y -q --no-install-recommends "$packages"/before/ampd_*.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log && failed before; }
[ "$(dpkg -S /usr/bin/ampctl)" = 'ampd: /usr/bin/ampctl' ] || failed "ampctl is of another package"
installs now
[ "$(dpkg -S /usr/bin/ampctl)" = 'ampd-tools: /usr/bin/ampctl' ] || failed "ampctl is not of ampd-tools"
echo 'worker-lease: 41s' >>/etc/ampd/ampd.conf
starts ampd.service
wait_for ampctl ready >/dev/null 2>&1
echo "figure: $(($(date +%s%3N) - begun_ms)) ms until two versions are installed and the server serves"
wait_for serves_version "$(version_of now)"
ampctl -o csv config worker-lease | grep -q '/etc/ampd/ampd.conf:' || failed "the server does not read /etc/ampd/ampd.conf"
[ "$(stat -c %U "/proc/$server")" = ampd ] || failed "the server is not the user ampd's"

# ---- upgraded with a running job ----

workers=()
for rank in 0 1; do
	RANK=$rank WORLD_SIZE=2 "$packages/digits" --data "$packages/digits.csv" --steps "$steps" --durability step >"/tmp/worker-$rank.log" 2>&1 &
	workers+=($!)
done
wait_for has_more_than 50
installs later
is_trained
kill -0 "$server" || failed "the upgrade has ended the server that ran"
serves_version "$(version_of now)" || failed "the upgrade has started another server"
goes_on
grep -q '^worker-lease: 41s$' /etc/ampd/ampd.conf || failed "the upgrade has lost what was set"

is_trained
before=$(applied) begun_ms=$(date +%s%3N)
stops
starts ampd.service
wait_for has_more_than "$before"
echo "figure: $(($(date +%s%3N) - begun_ms)) ms from the end of the old server at step $before to the next step of the new one"
wait_for serves_version "$(version_of later)"
goes_on
is_trained
kill -KILL "$server"
wait "$server" 2>/dev/null || true
starts ampd.service
wait_for has_more_than "$(($(applied) + 20))"
is_trained
for worker in "${workers[@]}"; do
	wait "$worker" || failed "a worker ended with $?"
done
! grep -h 'goes on at step' /tmp/worker-*.log || failed "steps were done again"
ampctl -o csv history "$model" --all | awk -F , '
	NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
	$at["verdict"] != "" { if ($at["step"] != ++last) { print "step " $at["step"] " comes after " last - 1; exit 1 } }
	END { if (last != '"$steps"') { print "the history ends with step " last; exit 1 } }' || failed "the history has a gap"
grep '^digits:' /tmp/worker-0.log
wait_for exports /tmp/exported.safetensors
cp /tmp/exported.safetensors "$packages/exported.safetensors"
echo "figure: $steps steps, an upgrade, a restart and a kill -9 of the server; no step is missing or done twice"

# ---- an instance beside it ----

single=$server
printf 'listen: 127.0.0.1:7430\nmetrics-listen: none\n' >/etc/ampd/second.conf
starts ampd@.service second
wait_for ampctl -e 127.0.0.1:7430 ready >/dev/null 2>&1
[ -e /var/lib/ampd-second/ampd.db ] || failed "the instance has its data elsewhere"
stops
server=$single

# ---- removed, and installed again ----

stops
removes remove
[ ! -e /usr/bin/ampd ] || failed "the program is still there"
[ -e /etc/ampd/ampd.conf ] && [ -e /etc/default/ampd ] || failed "the configuration went with a mere removal"
installs later
starts ampd.service
wait_for ampctl ready >/dev/null 2>&1
wait_for exports /tmp/again.safetensors
cmp /tmp/exported.safetensors /tmp/again.safetensors || failed "the model has other bytes"
stops

# ---- purged: data go where somebody says so, and there alone ----

wanted=/etc/systemd/system/multi-user.target.wants
install -d "$wanted"
ln -s "$units/ampd@.service" "$wanted/ampd@second.service" # as systemctl enable does
removes purge
[ ! -L "$wanted/ampd@second.service" ] || failed "a link to an instance's unit is left"
[ ! -e /etc/ampd/ampd.conf ] && [ ! -e /etc/default/ampd ] || failed "the configuration is left"
[ -e /var/lib/ampd/ampd.db ] || failed "the data have gone unasked"
[ -e /etc/ampd/second.conf ] || failed "a file of the operator's is gone"
install -d /var/lib/ampd-other
installs later
removes remove
[ -e /var/lib/ampd/ampd.db ] || failed "a removal has taken the data"
installs later
touch /etc/ampd/third.conf /var/lib/ampd-third/ampd.db "$mounted/kept"
echo 'ampd ampd/purge-data boolean true' | debconf-set-selections
removes purge
[ ! -e /var/lib/ampd ] && [ ! -e /var/lib/ampd-second ] && [ ! -e /var/lib/ampd-third/ampd.db ] || failed "the data are left"
[ -e "$mounted/kept" ] || failed "what is mounted inside the data has gone, too"
[ -e /var/lib/ampd-other ] || failed "what is of no instance has gone, too"
