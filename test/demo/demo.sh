#!/usr/bin/env bash
# The main job, end to end, on a real KubeVirt control plane with simulated nodes: `make demo`.
# Ends with status 0 only if every machine kept its address. KEEP=1 leaves the cluster running.
set -uo pipefail
cd "$(dirname "$0")/../.."

bold=; plain=
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m'; plain=$'\e[0m'; fi
say()  { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
fail() { printf '\ndemo failed: %s\n' "$*" >&2; exit 1; }
now()  { date +%s%N; }
times=()
timed() { times+=("$(printf '%6d ms  %s' $(( ($(now) - $2) / 1000000 )) "$1")"); }
# shown is a command line that can be pasted.
shown() {
  local word line=
  for word; do
    case $word in *[!A-Za-z0-9_./:=,@+-]*) word="'$word'" ;; esac
    line+=" $word"
  done
  printf '%s' "${line# }"
}

say "Building what is missing (the control plane takes minutes the first time, then comes from a cache)"
start=$(now)
bins=$(go -C test/cluster run ./cmd/build) || fail "the control plane can't be built"
make --no-print-directory build >/dev/null || fail "the plugin can't be built"
export PATH="$PWD/bin:$bins:$PATH"
timed "build" "$start"

dir=.cluster/demo
down() { vmip-cluster down --dir "$dir" >/dev/null; }
finish() {
  status=$?
  if [ "${KEEP:-}" = 1 ] && [ -e "$dir/kubeconfig" ]; then
    printf '\nThe cluster goes on. Try it by hand:\n\n  export KUBECONFIG=%s PATH=%s:%s:$PATH\n  kubectl vmip list -A\n  virtctl migrate web -n tenant-a\n\nand stop it with:\n\n  vmip-cluster down --dir %s\n' \
      "$PWD/$dir/kubeconfig" "$PWD/bin" "$bins" "$PWD/$dir"
  else
    down || status=1
  fi
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

say "Starting the cluster: etcd, API server, KubeVirt's controllers and webhooks, three simulated nodes"
start=$(now)
vmip-cluster up --name demo --dir "$dir" --cni "${CLUSTER_CNI:-kube-ovn}" --nodes "${CLUSTER_NODES:-3}" || fail "the cluster does not start"
export KUBECONFIG="$PWD/$dir/kubeconfig"
timed "cluster up" "$start"

# run shows a command, its output and its exit status where that is not 0. The first argument is the status wanted.
run() {
  local want=$1; shift
  printf '\n%s$ %s%s\n' "$bold" "$(shown "$@")" "$plain"
  local start; start=$(now)
  "$@"; local got=$?
  timed "$(shown "$@")" "$start"
  [ "$want" = "$got" ] || fail "'$*' ended with status $got, not $want"
  [ "$got" = 0 ] || printf '(exit status %d)\n' "$got"
}
address() { kubectl get pods -n tenant-a -l kubevirt.io=virt-launcher --field-selector=status.phase=Running \
  -o jsonpath='{range .items[*]}{.metadata.annotations.kubevirt\.io/domain} {.status.podIP}{"\n"}{end}' | awk -v vm="$1" '$1 == vm { print $2 }'; }
keeps() { local got; got=$(address "$1"); [ "$got" = "$2" ] || fail "$1 should have $2 and has ${got:-nothing}"; printf '%s has %s, as reserved\n' "$1" "$got"; }

say "Three machines, with whatever addresses the network gives them"
kubectl create namespace tenant-a >/dev/null || fail "no namespace"
run 0 kubectl apply -f test/demo/vms.yaml
for vm in db-1 web mail; do kubectl wait -n tenant-a vm/$vm --for=condition=Ready --timeout=60s >/dev/null || fail "$vm does not start"; done
run 0 kubectl get vmi -n tenant-a

say "A pool, and an address for each machine"
run 0 kubectl vmip pool add lab --cidr 10.16.100.0/24 --range 10.16.100.10-10.16.100.200 --gateway 10.16.100.1
run 0 kubectl vmip reserve db-1 -n tenant-a --pool lab --ip 10.16.100.20
run 0 kubectl vmip reserve web mail -n tenant-a --pool lab
run 0 kubectl vmip list -n tenant-a
reserved() { kubectl vmip list "$1" -n tenant-a -o jsonpath='{.items[0].address}'; }
web=$(reserved web) mail=$(reserved mail)
[ -n "$web" ] && [ -n "$mail" ] && [ "$web" != "$mail" ] || fail "web has '$web' and mail '$mail' reserved"

say "The machines take their addresses at the next start: restart, and verify"
run 0 kubectl vmip restart --pending -n tenant-a --yes --max-parallel 3
run 0 kubectl vmip list -n tenant-a
keeps db-1 10.16.100.20; keeps web "$web"; keeps mail "$mail"

say "Restart again, and migrate live: the address stays"
run 0 kubectl vmip restart db-1 -n tenant-a --yes
keeps db-1 10.16.100.20
run 0 kubectl vmip migrate db-1 -n tenant-a --yes
keeps db-1 10.16.100.20
run 0 kubectl vmip list -n tenant-a -o wide
run 0 kubectl vmip audit -A

say "A fault: somebody takes the annotation off web's template, as a re-applied manifest does"
run 0 kubectl patch vm web -n tenant-a --type=json -p '[{"op":"remove","path":"/spec/template/metadata/annotations/ovn.kubernetes.io~1ip_address"}]'
run 1 kubectl vmip audit -A -o wide
say "The same command repairs it"
run 0 kubectl vmip reserve web -n tenant-a
run 0 kubectl vmip audit -A
keeps db-1 10.16.100.20; keeps web "$web"; keeps mail "$mail"

say "Every address was kept. How long it took:"
printf '%s\n' "${times[@]}"
