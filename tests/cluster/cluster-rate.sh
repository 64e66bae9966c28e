#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# cluster: --rate 200mbit
# The link's limit holds, both ways. Slower than any machine, so that the
# measured rate is the limit's.
. "$source/tests/cluster/lib.sh"

# transfer FROM TO: megabits per second of 20 MB from one node to another
transfer()
{
	local server status
	on_node "$2" perl -MIO::Socket::INET -e '
		my $s = IO::Socket::INET->new(Listen => 1, LocalPort => 4000, ReuseAddr => 1) or die "listen: $!";
		my $c = $s->accept or die; my $n = 0; my $b;
		while (my $r = sysread $c, $b, 65536) { $n += $r }
		syswrite $c, "done";' &
	server=$!
	wait_until 10 on_node "$2" sh -c 'grep -q ":0FA0 00000000:0000 0A" /proc/net/tcp'
	on_node "$1" perl -MIO::Socket::INET -MTime::HiRes=time -e '
		my $c = IO::Socket::INET->new("$ARGV[0]:4000") or die "connect: $!";
		my $b = "x" x 65536; my $t = time;
		for (1 .. 320) { syswrite($c, $b) == 65536 or die "write: $!" }
		shutdown $c, 1; sysread $c, $b, 4;
		printf "%.0f\n", 320 * 65536 * 8 / (time - $t) / 1e6;' "$2"
	status=$?
	wait $server
	return $status
}

for direction in 'n0 n1' 'n1 n0'; do
	# shellcheck disable=SC2086 # two words
	rate=$(transfer $direction)
	echo "# $direction: ${rate:-none} Mbit/s"
	# The bucket lets a little through at once; a busy machine can be slower.
	if [ "$(stretched "${rate:-0}")" -gt 60 ] && [ "$rate" -le 220 ]; then ok "from ${direction/ / to } at most 200 Mbit/s pass"
	else not_ok "from ${direction/ / to } at most 200 Mbit/s pass" "measured ${rate:-nothing} Mbit/s"; fi
done
done_testing
