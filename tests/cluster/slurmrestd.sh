#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# A job that comes by slurmrestd: no sbatch has parsed a --ddp for it, so its script
# says srun --ddp.
. "$source/tests/cluster/lib.sh"

command -v slurmrestd >/dev/null || skip_all "slurmrestd is missing"

# Sends the script FOLDER/script by FOLDER/socket, as the newest interface has it.
cat >"$work/submit.py" <<'END'
import http.client, json, re, socket, sys, time

folder = sys.argv[1]

class Connection(http.client.HTTPConnection):
    def connect(self):
        for attempt in range(600):  # until slurmrestd listens
            try:
                self.sock = socket.socket(socket.AF_UNIX)
                return self.sock.connect(folder + "/socket")
            except OSError:
                time.sleep(0.1)
        raise TimeoutError("slurmrestd does not listen")

def ask(method, path, body=None):
    connection = Connection("localhost")
    connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read().decode()
    if reply.status != 200:
        sys.exit("%s %s: %d %s" % (method, path, reply.status, text))
    return json.loads(text)

found = [re.fullmatch(r"/slurm/v0\.0\.(\d+)/job/submit/?", path) for path in ask("GET", "/openapi/v3")["paths"]]
version = max(int(match.group(1)) for match in found if match)
environment = {"PATH": "/usr/bin:/bin"}
job = {"name": "rest", "nodes": "2", "tasks_per_node": 2, "tasks": 4, "current_working_directory": folder,
       "standard_output": folder + "/out",
       "environment": environment if version < 39 else ["%s=%s" % pair for pair in environment.items()]}
with open(folder + "/script") as script:
    answer = ask("POST", "/slurm/v0.0.%d/job/submit" % version, {"job": job, "script": script.read()})
print("job", answer["job_id"], "by version", version)
END
cat >"$work/script" <<'END'
#!/bin/bash
#SBATCH --ddp
srun sh -c 'echo "plain ${RANK-unset}"'
srun --ddp sh -c 'echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK, $MASTER_ADDR, step $DDP_STEP_ID"'
srun --ddp sh -c 'if [ $RANK = 2 ]; then exit 5; fi; sleep 30 && echo done'
echo "code $?"
END

# Those of its interfaces that need no slurmdbd, of which there is none.
interfaces=$(as_user slurmrestd -s list 2>&1 | grep -oE 'openapi/[a-z0-9.]+' | grep -v db | sort -u | paste -sd ,)
chmod 1777 "$work"
limit=100 as_user slurmrestd -a rest_auth/local -s "$interfaces" "unix:$work/socket" >"$work/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null' EXIT
limit=100 capture as_user /usr/bin/python3 "$work/submit.py" "$work"
[ "$status" = 0 ] || output+=$'\n'$(cat "$work/log")
status_is 0 "slurmrestd takes a job"
[ "$status" = 0 ] || { done_testing; exit; }
wait_until 60 grep -q '^code' "$work/out"
output=$(cat "$work/out")
prints_times 4 '^plain unset$' "its #SBATCH --ddp is not read"
for rank in 0 1 2 3; do
	prints "^rank $rank of 4, local $((rank % 2)), n0, step 1$" "srun --ddp in its script gives rank $rank of 4"
done
prints_times 1 'ddp: rank 2 of 4 on n1 exited with code 5' "a failure is said once"
prints_not '^done$' "and ends the step"
prints '^code 5$' "with its code"
done_testing
